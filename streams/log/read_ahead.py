"""One range of a stream for a blocking program, such as a task of Spark.

Redis is asked for the next entries before the messages of the last ones are handed out, so the server works
while the program does; see ``ranges`` for the memory that this takes.
"""

from __future__ import annotations

from collections.abc import Generator

import pyarrow as pa

from streamlease.protocol.ids import StreamId
from streamlease.streams.entries.schemas import Schema
from streamlease.streams.log.ranges import ENOUGH_BYTES, ENOUGH_ROWS, RangeReader, gather
from streamlease.streams.redis.connection import BlockingRedis, PendingAnswer


def read_range(
    redis: BlockingRedis,
    stream: StreamId,
    start: int,
    end: int,
    *,
    schema: Schema | None = None,
    columns: frozenset[str] | None = None,
) -> Generator[pa.RecordBatch, None, None]:
    """All of ``start <= offset < end``, the same rows each time, in batches of at most 65,536 rows and
    32 MiB, but for a row that is larger.

    Args:
        schema: the typed columns wanted, in a space with a schema; None for all.
        columns: the columns of every message that are wanted; see ``decode_entries``; None for all.

    Raises:
        HistoryTruncated: part of the range is no longer there, or (``MissingOffsets``) not there at all.
        UnknownSpace, SchemaMismatch, StoreUnavailable, StoreRefused.
    """
    reader = RangeReader(stream, start, end, whole=True, schema=schema, columns=columns)
    if reader.done:
        return
    waiting: list[pa.RecordBatch] = []
    asked: PendingAnswer | None = PendingAnswer(redis, reader.commands)
    try:
        while asked is not None:
            taken = reader.take(asked.replies())
            asked = None if reader.done else PendingAnswer(redis, reader.commands)
            for part in reader.decode_parts(taken):
                waiting += part
                ready, waiting = gather(waiting, last=False, enough=ENOUGH_ROWS, enough_bytes=ENOUGH_BYTES)
                yield from ready
        yield from gather(waiting, last=True, enough=ENOUGH_ROWS, enough_bytes=ENOUGH_BYTES)[0]
    finally:
        if asked is not None:
            asked.drop()
