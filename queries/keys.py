"""The names of all keys of executors and queries.

::

    sl:{catalog}:executors:alive   zset    LIFE -> until when its lease is (ms of the Redis clock)
    sl:{catalog}:rows:executors    hash    LIFE/NAME -> JSON (`streams/catalog/keys.py`)
    sl:{catalog}:rows:queries      hash    queries/QUERY -> JSON, what the catalog says
    sl:{catalog}:queries:live      hash    QUERY -> "REVISION RECORD", of queries that have not ended
    sl:{catalog}:queries:ended     hash    the same of those that have, and :order, zset: when (ms)
    sl:{catalog}:queries:placed    string  how often workers were placed: placements take turns by it
    sl:{catalog}:queries:permits   hash    QUERY -> "SIGNATURE TEXT": until when it may be placed
    sl:{catalog}:queries:told      channel something is published there when a query changes
    sl:{f:SHA256}:chunks           hash    a file of a job: NUMBER -> bytes; lasts for a day, or while it is
    run sl:{q:QUERY}:log:WORKER        stream  o offset in bytes of its output, s out or err, t bytes

beside those of `streams/catalog/keys.py`, and, of RQ:
``rq:queue:streamlease-executor-NAME``, and ``rq:job:streamlease-spawn-*``.
"""

from __future__ import annotations

from streamlease.streams.catalog.keys import CATALOG, OWNED, PROCESSES, REFUSED, TOKENS, rows

ALIVE = "sl:{catalog}:executors:alive"
LIVE = "sl:{catalog}:queries:live"
ENDED = "sl:{catalog}:queries:ended"
ENDED_ORDER = "sl:{catalog}:queries:ended:order"
PLACED = "sl:{catalog}:queries:placed"
PERMITS = "sl:{catalog}:queries:permits"
TOLD = "sl:{catalog}:queries:told"
EXECUTOR_KEYS = [ALIVE, rows("executors"), CATALOG.changes, PROCESSES, OWNED, LIVE, PLACED]
CHANGE_KEYS = [
    LIVE, ENDED, ENDED_ORDER, rows("queries"), CATALOG.changes, TOKENS, PERMITS, PLACED, ALIVE, REFUSED,
]  # fmt: skip


__all__ = [
    "ALIVE", "CHANGE_KEYS", "ENDED", "ENDED_ORDER", "EXECUTOR_KEYS", "LIVE", "PERMITS", "PLACED", "REFUSED",
    "TOLD", "file_chunks", "log",
]  # fmt: skip


def file_chunks(sha256: str) -> str:
    """Key of a file of jobs."""
    return f"sl:{{f:{sha256}}}:chunks"


def log(query: str, worker: int) -> str:
    """Key of what a worker has written to its standard output and error."""
    return f"sl:{{q:{query}}}:log:{worker}"
