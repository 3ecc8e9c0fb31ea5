"""What the workers of a query have written, read as far as it is kept, and followed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Literal, NamedTuple

from streamlease.queries.core.record import QueryStage
from streamlease.queries.keys import log as log_key
from streamlease.queries.store import read
from streamlease.streams.redis.connection import AsyncRedis, ask

PAGE = 500
BLOCK_MS = 1000


class LogPiece(NamedTuple):
    """Some output of a worker."""

    worker: int
    stream: Literal["out", "err"]
    """``out`` or ``err``."""
    offset: int
    """Bytes of output of this worker before it."""
    text: bytes


async def log_pieces(redis: AsyncRedis, query: str, *, follow: bool) -> AsyncIterator[LogPiece]:
    """What is kept of the output, worker by worker; with `follow`, then what comes, until the query has
    ended.

    Raises:
        UnknownQuery.
        StoreUnavailable, StoreRefused, Indefinite.
    """
    record = (await read(redis, query)).record
    last = {log_key(query, number): b"0-0" for number in range(record.size)}
    workers = {log_key(query, number): number for number in range(record.size)}
    while True:
        ended = record.state is QueryStage.ENDED  # whoever wrote that had written the log before
        found = False
        for key, worker in workers.items():
            while entries := await _page(redis, key, last[key]):
                found = True
                for id, fields in entries:
                    last[key] = id
                    yield _piece(worker, fields)
        if ended or not follow:
            return
        if not found:
            await ask(redis, [("XREAD", "COUNT", 1, "BLOCK", BLOCK_MS, "STREAMS", *last, *last.values())])
        record = (await read(redis, query)).record


async def _page(redis: AsyncRedis, key: str, last: bytes) -> list[tuple[bytes, list[bytes]]]:
    entries: list[tuple[bytes, list[bytes]]]
    (entries,) = await ask(redis, [("XRANGE", key, b"(" + last, "+", "COUNT", PAGE)])
    return entries


def _piece(worker: int, fields: list[bytes]) -> LogPiece:
    named = dict(zip(fields[::2], fields[1::2], strict=False))
    offset = named.get(b"o", b"0")
    stream: Literal["out", "err"] = "err" if named.get(b"s") == b"err" else "out"
    return LogPiece(worker, stream, int(offset) if offset.isdigit() else 0, named.get(b"t", b""))
