"""Reading changes of streams, as tables: all from where each was read, up to a point."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

import pyarrow as pa

from streamlease.protocol.errors import StoreRefused, StoreUnavailable, StreamleaseError
from streamlease.protocol.ids import StreamId
from streamlease.protocol.seldom import Seldom
from streamlease.streams.entries.message_rows import filter_batch
from streamlease.streams.entries.schemas import Schema
from streamlease.streams.log.many import READ_BYTES, RETRY_SECONDS, Outcome, read_all
from streamlease.streams.log.ranges import RangeReader
from streamlease.streams.log.state import MissingOffsets
from streamlease.streams.redis.connection import AsyncRedis

AT_ONCE = 64
"""So many streams are read at once."""

COLUMNS = frozenset({"key", "payload", "diff", "offset"})

_logger = logging.getLogger(__name__)


class Read(NamedTuple):
    """What one stream brought next."""

    stream: StreamId
    end: int
    """Offset behind it."""
    table: pa.Table
    offsets: pa.Array
    """That of each row; what the filter does not match is not there."""


class ChangeReader:
    """Reads the changes of streams from `positions` on, which it moves.

    Args:
        filter: of topics; None: all.
        schemas: by space: the typed columns of its items; None in one of plain payloads.
    """

    def __init__(
        self,
        redis: AsyncRedis,
        filter: str | None,
        schemas: Mapping[str, Schema | None],
        positions: dict[StreamId, int],
    ) -> None:
        self.positions = positions
        self._redis = redis
        self._seldom = Seldom(_logger)
        self._filter = filter
        self._schemas = schemas

    async def upto(
        self, ends: Mapping[StreamId, int], check: Callable[[], Awaitable[None]] | None = None
    ) -> AsyncGenerator[Read | MissingOffsets]:
        """All changes up to `ends`, the earlier generations first.

        While Redis does not answer it tries again. What Redis lost is told in its place; the rest follows.

        Args:
            check: awaited behind each exchange, before anything of it is handed on.

        Raises:
            Whatever `check` does, unless Redis does not answer it.
            HistoryTruncated: retention was faster.
            UnknownSpace: a stream is not there any more.
            SchemaMismatch: an entry is damaged, or a space has not the columns wanted.
        """
        behind = sorted(stream for stream, end in ends.items() if self.positions.get(stream, 0) < end)
        for _, several in groupby(behind, lambda stream: (stream.space, stream.generation)):
            waiting = [*several]
            upto = {stream: ends[stream] for stream in waiting}
            while waiting:
                now = waiting[:AT_ONCE]
                again = False
                outcomes = await self._read(now, upto)
                if check is not None:
                    try:
                        await check()
                    except (StoreUnavailable, StoreRefused) as error:
                        outcomes = [error] * len(now)
                for stream, outcome in zip(now, outcomes, strict=True):
                    if isinstance(outcome, StoreUnavailable | StoreRefused):
                        self._seldom.warning("reading %s: %s", stream, outcome, extra={"stream": str(stream)})
                        again = True
                    elif isinstance(outcome, MissingOffsets):
                        hole = outcome.asked
                        if isinstance(hole, int) and hole > self.positions.get(stream, 0):
                            upto[stream] = hole  # what stands before the hole comes first
                        else:
                            self.positions[stream] = min(outcome.oldest, ends[stream])
                            upto[stream] = ends[stream]
                            yield outcome
                    elif isinstance(outcome, StreamleaseError):
                        raise outcome
                    else:
                        for batch in outcome:
                            end = self.positions.get(stream, 0) + batch.num_rows
                            matched = batch if self._filter is None else filter_batch(batch, self._filter)
                            table = table_of(matched, self._schemas.get(stream.space))
                            self.positions[stream] = end
                            if end == upto[stream]:
                                upto[stream] = ends[stream]
                            yield Read(stream, end, table, matched.column("offset"))
                if again:
                    await asyncio.sleep(RETRY_SECONDS)
                waiting = [stream for stream in waiting if self.positions.get(stream, 0) < ends[stream]]

    async def _read(self, now: Sequence[StreamId], upto: Mapping[StreamId, int]) -> list[Outcome]:
        readers = [
            RangeReader(
                stream,
                self.positions.get(stream, 0),
                upto[stream],
                max_bytes=READ_BYTES // len(now),
                whole=True,
                schema=self._schemas.get(stream.space),
                columns=COLUMNS,
            )
            for stream in now
        ]
        try:
            return await read_all(self._redis, readers)
        except (StoreUnavailable, StoreRefused) as error:
            return [error] * len(now)


def table_of(batch: pa.RecordBatch, schema: Schema | None) -> pa.Table:
    """Changes that were read with `COLUMNS`, as ``core.tables`` has them."""
    contents = ["payload"] if schema is None else [column.name for column in schema.columns]
    arrays = [batch.column("topic").cast(pa.string()), batch.column("key")]
    arrays += [batch.column(name) for name in contents]
    return pa.Table.from_arrays([*arrays, batch.column("diff")], names=["topic", "key", *contents, "diff"])


def no_items(schema: Schema | None) -> pa.Table:
    """A table without rows, of items with the columns of `schema`; None: of payloads."""
    contents = [pa.field("payload", pa.binary())] if schema is None else [*schema.arrow]
    fields = [pa.field("topic", pa.string()), pa.field("key", pa.binary()), *contents]
    return pa.schema([*fields, pa.field("diff", pa.int64())]).empty_table()
