"""Reading the messages of one epoch from where they stand in the streams."""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections.abc import Sequence

import pyarrow as pa

from streamlease.protocol.epochs.order import Epoch
from streamlease.protocol.errors import StoreRefused, StoreUnavailable, StreamleaseError
from streamlease.protocol.seldom import Seldom
from streamlease.streams.entries.schemas import Schema
from streamlease.streams.epochs.boundary_reading import EpochsLost
from streamlease.streams.epochs.core.whole import Stretch
from streamlease.streams.epochs.reading_ahead import BoundariesAhead, Check
from streamlease.streams.log.many import READ_BYTES, RETRY_SECONDS, read_all
from streamlease.streams.log.ranges import RangeReader
from streamlease.streams.log.state import MissingOffsets
from streamlease.streams.redis.connection import AsyncRedis

AT_ONCE = 64
"""So many streams are read at once."""

_logger = logging.getLogger(__name__)


class StretchReader:
    """Reads all messages of some stretches, which are of one epoch.

    Args:
        schema: the typed columns wanted, in spaces with a schema.
        ahead: what was read already.
        check: awaited behind each exchange: whether those stretches are still what was wanted.
    """

    def __init__(
        self,
        redis: AsyncRedis,
        epoch: Epoch,
        wanted: Sequence[Stretch],
        schema: Schema | None,
        ahead: BoundariesAhead | None = None,
        *,
        check: Check,
    ) -> None:
        self.epoch = epoch
        self._redis = redis
        self._seldom = Seldom(_logger)
        self._wanted = wanted
        self._schema = schema
        self._at = [one.first for one in wanted]
        self._to = [one.to for one in wanted]
        """Up to where it is read now: a hole ends what is read, and what is before it is read by itself."""
        self._found: list[list[pa.RecordBatch]] = [[] for _ in wanted]
        self._ahead = ahead
        self._check = check

    async def read(self) -> list[pa.RecordBatch]:
        """The messages, stretch by stretch. While Redis does not answer it tries again.

        Raises:
            MissingOffsets: Redis lost some of them. Called again, it goes on behind them.
            HistoryTruncated: retention was faster.
            EpochsLost: other messages stand there, or may: what says where they stand is lost.
            SchemaMismatch: an entry is damaged, or a space has not the columns wanted.
        """
        ahead, self._ahead = self._ahead, None
        for place, one in enumerate(self._wanted if ahead is not None else ()):
            known = ahead.take(one) if ahead is not None else None
            if known is not None:
                self._take(place, known)
        while left := [place for place, one in enumerate(self._wanted) if self._at[place] < one.to]:
            now = left[:AT_ONCE]
            readers = [
                RangeReader(
                    self._wanted[place].stream,
                    self._at[place],
                    self._to[place],
                    max_bytes=READ_BYTES // len(now),
                    whole=True,
                    schema=self._schema,
                )
                for place in now
            ]
            try:
                outcomes = await read_all(self._redis, readers)
                await self._check()
            except (StoreUnavailable, StoreRefused) as error:
                outcomes = [error] * len(now)
            again = False
            for place, outcome in zip(now, outcomes, strict=True):
                if isinstance(outcome, StoreUnavailable | StoreRefused):
                    self._seldom.warning("reading %s: %s", self._wanted[place].stream, outcome)
                    again = True
                elif isinstance(outcome, MissingOffsets):
                    self._meet(place, outcome)
                elif isinstance(outcome, StreamleaseError):
                    raise outcome
                else:
                    self._take(place, outcome)
            if again:
                await asyncio.sleep(RETRY_SECONDS)
        return [batch for found in self._found for batch in found]

    def _meet(self, place: int, hole: MissingOffsets) -> None:
        """Tell a hole where it begins; until there, what is before it is read first."""
        begin = hole.asked if isinstance(hole.asked, int) else self._at[place]
        if begin > self._at[place]:
            self._to[place] = begin
            return
        self._at[place] = max(self._at[place], min(hole.oldest, self._wanted[place].to))
        raise hole

    def _take(self, place: int, batches: Sequence[pa.RecordBatch]) -> None:
        for batch in batches:
            if not _is_of(batch, self.epoch):
                one = self._wanted[place]
                raise EpochsLost(
                    f"stream {one.stream} has other messages at offsets {one.first} to {one.to - 1} than "
                    f"those of epoch {list(self.epoch)}: Redis lost what a boundary says, as in a failover; "
                    f"begin again at the latest"
                )
            self._at[place] += batch.num_rows
            self._found[place].append(batch)
        if self._at[place] == self._to[place]:
            self._to[place] = self._wanted[place].to


def _is_of(batch: pa.RecordBatch, epoch: Epoch) -> bool:
    column = batch.column("epoch")
    if column.null_count:
        return False
    numbers = array("q", epoch) * batch.num_rows
    expected = pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(numbers)], 0)
    return bool(column.flatten().equals(expected))
