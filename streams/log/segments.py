"""The history of a stream over several sources, read as one.

A *segment* is what one source holds of a stream: its offsets from some first one on, without a hole. The
newest segment is the memory of Redis. An older one reaches further back and may overlap it::

    older     |-------------------|
    memory                |-----------------|
              ^           ^                 ^
              exists      in memory         next

* Each offset is read from the newest segment that has it.
* A segment tells where it begins by ``HistoryTruncated``; what is below is read from the next older one. The
  error of the oldest segment is the reader's: its ``oldest`` is the lowest offset that exists.
* A segment that is trimmed while it is read has the same answer, so the reader goes on in the older one.
* A hole (``MissingOffsets``) ends the reading. No other segment is asked: what Redis has lost is told.

Rows come in the order of their offsets, each once. What lies below the memory is in the files of the space's
archive (``archived``), if it has one.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing
from typing import Protocol

import pyarrow as pa

from streamlease.protocol.errors import HistoryTruncated
from streamlease.protocol.ids import StreamId
from streamlease.streams.entries.columnar import ENOUGH_BYTES, ENOUGH_ROWS
from streamlease.streams.entries.schemas import Schema
from streamlease.streams.log.archived import ArchiveSegment
from streamlease.streams.log.joining import gather
from streamlease.streams.log.ranges import RangeReader
from streamlease.streams.log.state import MissingOffsets, Wanted
from streamlease.streams.redis.connection import BlockingRedis, PendingAnswer

Batches = Generator[pa.RecordBatch, None, None]


class Segment(Protocol):
    """What one source holds of streams."""

    def read(self, wanted: Wanted, /) -> Batches:
        """The messages that are wanted, the same rows each time, in batches of at most 65,536 rows and
        32 MiB, but for a row that is larger.

        Raises:
            HistoryTruncated: the segment begins behind the next offset, at `oldest`, which may lie behind
                ``wanted.end``. What was handed out before stands.
            MissingOffsets: it holds offsets around the next one, but not that one.
            UnknownSpace, SchemaMismatch, StoreUnavailable, StoreRefused, Lost, ArchiveUnavailable.
        """
        ...


class RedisSegment:
    """What is in memory. Redis is asked for the next entries before the messages of the last ones are handed
    out; see ``ranges`` for the memory that this takes."""

    def __init__(self, redis: BlockingRedis) -> None:
        self._redis = redis

    def read(self, wanted: Wanted, /) -> Batches:
        """See ``Segment.read``."""
        stream, start, end, schema, columns = wanted
        reader = RangeReader(stream, start, end, whole=True, schema=schema, columns=columns)
        if reader.done:
            return
        waiting: list[pa.RecordBatch] = []
        asked: PendingAnswer | None = PendingAnswer(self._redis, reader.commands)
        try:
            while asked is not None:
                taken = reader.take(asked.replies())
                asked = None if reader.done else PendingAnswer(self._redis, reader.commands)
                for part in reader.decode_parts(taken):
                    waiting += part
                    ready, waiting = gather(
                        waiting, last=False, enough=ENOUGH_ROWS, enough_bytes=ENOUGH_BYTES
                    )
                    yield from ready
            yield from gather(waiting, last=True, enough=ENOUGH_ROWS, enough_bytes=ENOUGH_BYTES)[0]
        finally:
            if asked is not None:
                asked.drop()


class History:
    """Several segments, read as one.

    Args:
        segments: newest first, at least one.
    """

    def __init__(self, segments: Sequence[Segment]) -> None:
        self._segments = tuple(segments)

    def read(self, wanted: Wanted, /) -> Batches:
        """See ``Segment.read``: a history is a segment too."""
        position = wanted.start
        while position < wanted.end:
            end, older = wanted.end, iter(self._segments)
            segment = next(older)
            while position < end:
                try:
                    with closing(segment.read(wanted._replace(start=position, end=end))) as batches:
                        for batch in batches:
                            position += batch.num_rows
                            yield batch
                except MissingOffsets:
                    raise
                except HistoryTruncated as begins:
                    lower = next(older, None)
                    if lower is None:
                        raise
                    segment, end = lower, min(end, begins.oldest)
                else:
                    if position < end:
                        raise MissingOffsets(str(wanted.stream), position, end)


def read_range(
    redis: BlockingRedis,
    stream: StreamId,
    start: int,
    end: int,
    *,
    schema: Schema | None = None,
    columns: frozenset[str] | None = None,
    older: Sequence[Segment] = (),
) -> Batches:
    """All of ``start <= offset < end``, the same rows each time, for Spark's tasks; see ``Segment.read``.

    Args:
        schema: the typed columns wanted, in a space with a schema; None for all.
        columns: the columns of every message that are wanted; see ``decode_entries``; None for all.
        older: what holds messages that are not in memory any more, newest first; the archive of the space
            if nothing is given.

    Raises:
        Lost, ArchiveUnavailable: a file of the archive cannot be read.
        HistoryTruncated: part of the range is no longer there, or (``MissingOffsets``) not there at all.
        UnknownSpace, SchemaMismatch, StoreUnavailable, StoreRefused.
    """
    segments = RedisSegment(redis), *(older or [ArchiveSegment(redis)])
    return History(segments).read(Wanted(stream, start, end, schema, columns))
