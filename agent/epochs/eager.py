"""Data as it is staged, long before its epoch completes; and what of it turns out not to count.

A turn reads the boundaries first and what is staged behind them, in this order: so an entry that is found
staged was not moved by any boundary that was told (`streams/epochs/core/early.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from functools import partial

import pyarrow as pa

from streamlease.agent.epochs.atomic import Told
from streamlease.agent.epochs.epoch_items import Aborted, EpochBatch, Frontier
from streamlease.agent.epochs.opening import Opened
from streamlease.protocol.ids import StreamId
from streamlease.streams.entries.message_rows import filter_batch
from streamlease.streams.entries.schemas import Schema
from streamlease.streams.epochs.boundary_reading import EpochsLost, FollowedSpace
from streamlease.streams.epochs.core.boundaries import Boundary
from streamlease.streams.epochs.core.early import EarlyEpochs, StagedEntry, Unseen
from streamlease.streams.epochs.keys import staged_news
from streamlease.streams.epochs.news import EpochNews
from streamlease.streams.epochs.staged_reading import AT_ONCE, StagedLogs
from streamlease.streams.epochs.stretch_reading import StretchReader
from streamlease.streams.log.state import MissingOffsets
from streamlease.streams.redis.connection import AsyncRedis, ask

LOOK_SECONDS = 1.0
"""How often all staged logs are looked at, whatever is pushed."""


class EagerReader:
    """Reads what is staged in the spaces that were opened. `open` first.

    Args:
        late: the reader begins now; else with all that is staged.
    """

    at_end = False

    def __init__(
        self, redis: AsyncRedis, opened: Opened, filter: str, schema: Schema | None, *, late: bool
    ) -> None:
        self._redis = redis
        self._filter = filter
        self._schema = schema
        self._late = late
        self._merged = opened.merged
        self._core = EarlyEpochs(opened.merged)
        self._spaces = [FollowedSpace(name, one) for name, one in opened.began.items()]
        self._by_name = {one.space: one for one in self._spaces}
        self._staged = StagedLogs(redis, self._came, schema)
        self._streams = [stream for space in opened.spaces for stream in space.streams()]
        self._due: set[StreamId] = set()
        """Streams in whose staged logs something may be new."""
        self._looked = 0.0
        self.positions = {stream: end for one in opened.began.values() for stream, end in one.ends.items()}
        """Replaced, never changed."""
        self.steps = 0
        """Goes up with whatever was read."""

    async def open(self) -> None:
        """See where the staged logs end.

        Raises:
            StoreUnavailable, StoreRefused.
        """
        await self._staged.open(self._streams, at_ends=self._late)

    def watch(self, news: EpochNews, changed: asyncio.Event) -> None:
        """Have `changed` set when there may be something."""
        for space in self._spaces:
            news.watch(space.space, changed)
        for stream in self._streams:
            news.watch_channel(staged_news(stream), _StreamBell(stream, self._due, changed))

    async def turn(self) -> AsyncGenerator[Told]:
        """What the next boundaries of each space bring, and then what is staged.

        Raises:
            EpochsLost, EpochsTruncated, HistoryTruncated, SchemaMismatch, Unsupported.
            StoreUnavailable, StoreRefused: try again.
        """
        for space in self._spaces:
            found = space.taken(await ask(self._redis, space.commands()))
            if space.has_failed_over:
                self._staged.has_failed_over(space.space)
                if self._core.has_open(space.space):
                    raise EpochsLost(
                        f"Redis failed over or was restarted: what was handed out of open epochs of space "
                        f"{space.space} may be lost, and nobody would tell; begin again"
                    )
            for bound in found:
                self.steps += 1
                async for told in self._boundary(space, bound):
                    yield told
        now = asyncio.get_running_loop().time()
        if now - self._looked >= LOOK_SECONDS:
            self._due |= await self._staged.behind()
            self._looked = now
        # Without those in which there is more: boundaries come in between.
        due = sorted(self._due)
        for begin in range(0, len(due), AT_ONCE):
            async for told in self._what_is_staged(due[begin : begin + AT_ONCE]):
                yield told

    async def _what_is_staged(self, streams: Sequence[StreamId]) -> AsyncGenerator[Told]:
        self._due.difference_update(streams)
        try:
            found, more = await self._staged.read(streams, self._by_name)
        except BaseException:
            self._due.update(streams)
            raise
        self._due |= more
        self.steps += len(more)
        for one in found:
            self.steps += 1
            batches = self._matched(one.batches)
            if batches:
                yield EpochBatch(one.epoch, batches, one.name, one.inc)

    def _came(self, entry: StagedEntry) -> bool:
        return self._core.came(entry.stream.space, entry)

    async def _boundary(self, space: FollowedSpace, bound: Boundary) -> AsyncGenerator[Told]:
        for loss in space.losses(bound):
            yield loss
        told = self._core.boundary(space.space, bound)
        for unseen in told.unseen:
            async for one in self._read(space, unseen):
                yield one
        self.positions = {**self.positions, **bound.ends}
        for gone in told.dropped:
            yield Aborted(gone.name, gone.inc, gone.frontier)
        if told.changes:
            yield Frontier(self._merged.lower, told.changes)

    async def _read(self, space: FollowedSpace, unseen: Unseen) -> AsyncGenerator[Told]:
        check = partial(space.check_current, self._redis)
        reader = StretchReader(self._redis, unseen.epoch, unseen.wanted, self._schema, check=check)
        while True:
            try:
                found = await reader.read()
                break
            except MissingOffsets as loss:
                yield loss
        batches = self._matched(found)
        if batches:
            yield EpochBatch(unseen.epoch, batches, unseen.name, unseen.inc)

    def _matched(self, batches: Iterable[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """What the filter matches, without offsets: others saw it before it had one in its stream."""
        found = [one for batch in batches if (one := filter_batch(batch, self._filter)).num_rows]
        return [_without_offsets(one) for one in found]


class _StreamBell:
    """Notes which stream has news."""

    def __init__(self, stream: StreamId, due: set[StreamId], changed: asyncio.Event) -> None:
        self._stream = stream
        self._due = due
        self._changed = changed

    def set(self) -> None:
        self._due.add(self._stream)
        self._changed.set()


def _without_offsets(batch: pa.RecordBatch) -> pa.RecordBatch:
    place = batch.schema.get_field_index("offset")
    none = pa.repeat(pa.scalar(-1, pa.int64()), batch.num_rows)
    return batch.set_column(place, batch.schema.field(place), none)
