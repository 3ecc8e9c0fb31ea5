"""An in-memory stand-in for Redis, and event loops of virtual time: for tests of what uses Streamlease.

::

    from streamlease.testing.memory_connection import connect
    from streamlease.testing.memory_server import MemoryServer

    server = MemoryServer()
    async with connect(server) as client:       # as of `streamlease.connect`: publish, subscribe, act
        await client.create_space("s", ["a/#"])

`server` keeps the data and answers the commands that Streamlease sends; the Lua scripts are the product's own
and run in a real Lua. `sockets` is the way to it: a test may let it take time, lose replies, and break.
`loops` lets any number of processes, each with an event loop of its own, run in virtual time: the same seed
gives the same run. What is real here and what is not: docs/decisions/0185-an-in-memory-server-that-ships.md.
"""
