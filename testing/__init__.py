"""An in-memory stand-in for Redis, and event loops of virtual time: for tests of what uses Streamlease.

::

    from streamlease.testing import MemoryServer, connect

    server = MemoryServer()
    async with connect(server) as client:       # as of `streamlease.connect`: publish, subscribe, act
        await client.create_space("s", ["a/#"])

`server` keeps the data and answers the commands that Streamlease sends; the Lua scripts are the product's own
and run in a real Lua. `memory/sockets` is the way to it: a test may let it take time, lose replies, and
break. `timelines` lets any number of processes, each with an event loop of its own, run in virtual time. How
to use it: docs/testing.md. What is real here and what is not:
docs/decisions/0185-an-in-memory-server-that-ships.md.
"""

from __future__ import annotations

from streamlease.testing.memory.memory_connection import connect
from streamlease.testing.memory.memory_server import MemoryServer
from streamlease.testing.memory.sockets import Line, SlowLine
from streamlease.testing.timelines.loops import BusyLoop, Process, Timeline

__all__ = ["BusyLoop", "Line", "MemoryServer", "Process", "SlowLine", "Timeline", "connect"]
