"""What several boundaries moved, read at once: whoever is behind reads as fast as without epochs.

An epoch has a piece of each stream, and each piece would be asked for and decoded by itself. Entries that
stand together are cheaper together, so the next boundaries are read stream by stream, and cut into epochs
afterwards. It is only a help: what is not here, for whatever reason, is read by itself, and meets its error.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

import pyarrow as pa

from streamlease.protocol.errors import StreamleaseError
from streamlease.protocol.ids import StreamId
from streamlease.streams.entries.schemas import Schema
from streamlease.streams.epochs.core.boundaries import Boundary
from streamlease.streams.epochs.core.whole import Stretch, begins
from streamlease.streams.log.many import READ_BYTES, read_all
from streamlease.streams.log.ranges import RangeReader
from streamlease.streams.redis.connection import AsyncRedis

MOST_ROWS = 65_536
"""So many messages of more than one boundary are read at once; and no more than `READ_BYTES`."""

Check = Callable[[], Awaitable[None]]
"""Raises if what was just read is not what it was read for, or if nobody can tell."""


class BoundariesAhead:
    """Messages that were read and not taken yet.

    Args:
        schema: the typed columns wanted, in spaces with a schema.
    """

    def __init__(self, redis: AsyncRedis, schema: Schema | None) -> None:
        self._redis = redis
        self._schema = schema
        self._read: dict[StreamId, tuple[int, list[pa.RecordBatch]]] = {}
        """The first offset that is there, and the messages from it on, without a hole."""

    def has_begun(self, bound: Boundary) -> bool:
        """Whether something that a boundary moved is here."""
        return any(stream in self._read for stream in bound.ends)

    async def fill(self, bounds: Iterable[Boundary], check: Check) -> None:
        """Read what the next boundaries of a space moved, if several of them are bearable together.

        Args:
            check: awaited behind that: whether they are still there.
        """
        ranges: dict[StreamId, tuple[int, int]] = {}
        rows = taken = 0
        for bound in bounds:
            rows += sum(part.rows for part in bound.moved)
            if taken and rows > MOST_ROWS:
                break
            for stream, begin in begins(bound).items():
                ranges[stream] = (ranges[stream][0] if stream in ranges else begin, bound.ends[stream])
            taken += 1
        if taken < 2 or not ranges:
            return
        share = max(1, READ_BYTES // len(ranges))
        readers = [
            RangeReader(stream, begin, end, max_bytes=share, whole=True, schema=self._schema)
            for stream, (begin, end) in ranges.items()
        ]
        try:
            outcomes = await read_all(self._redis, readers)
            await check()
        except StreamleaseError:
            return  # whoever wants it asks for it, and is told
        for (stream, (begin, _)), outcome in zip(ranges.items(), outcomes, strict=True):
            if not isinstance(outcome, StreamleaseError):
                self._read[stream] = begin, list(outcome)

    def take(self, wanted: Stretch) -> list[pa.RecordBatch] | None:
        """The messages of a stretch, if all of them are here; what lies before them is let go."""
        there = self._read.pop(wanted.stream, None)
        if there is None:
            return None
        at, batches = there
        found: list[pa.RecordBatch] = []
        while batches and at < wanted.to:
            batch = batches.pop(0)
            end = at + batch.num_rows
            if end > wanted.first:
                skip = max(0, wanted.first - at)
                found.append(batch.slice(skip, min(end, wanted.to) - at - skip))
            if end > wanted.to:
                batches.insert(0, batch.slice(wanted.to - at))
                end = wanted.to
            at = end
        if batches:
            self._read[wanted.stream] = at, batches
        return found if sum(batch.num_rows for batch in found) == wanted.to - wanted.first else None
