"""The durable log: topic spaces, their streams, and how they are written and read.

From the bottom up: ``redis`` (exchanges with a server or a cluster, and Lua scripts), ``entries`` (how
messages are stored in an entry, and schemas), ``log`` (append, read, and learn what is new), ``spaces``
(definitions, generations, retention), ``publish`` (batching, retries, exactly-once staging) and ``imports``
(other sources).

Nothing here knows groups or leaders.
"""
