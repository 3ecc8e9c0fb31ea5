"""Whole epochs: at each boundary the epochs that complete there, one after the other, and then the frontier.

Only one epoch is in memory at a time, however much a boundary has; and of those that are small, some.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from functools import partial

from streamlease.agent.epochs.epoch_items import EpochBatch, EpochItem, Frontier
from streamlease.agent.epochs.opening import Opened
from streamlease.protocol.epochs.order import Epoch
from streamlease.protocol.ids import StreamId
from streamlease.streams.entries.message_rows import filter_batch
from streamlease.streams.entries.schemas import Schema
from streamlease.streams.epochs.boundary_reading import FollowedSpace
from streamlease.streams.epochs.core.boundaries import Boundary
from streamlease.streams.epochs.core.whole import Stretch, WholeEpochs
from streamlease.streams.epochs.news import EpochNews
from streamlease.streams.epochs.reading_ahead import BoundariesAhead
from streamlease.streams.epochs.stretch_reading import StretchReader
from streamlease.streams.log.state import MissingOffsets
from streamlease.streams.redis.connection import AsyncRedis, ask

Told = EpochItem | MissingOffsets
"""An item, or a loss: it is raised, and what follows it comes all the same."""


class AtomicReader:
    """Reads whole epochs of the spaces that were opened.

    Args:
        follow: go on for ever; else end at the boundaries that were the newest ones.
    """

    def __init__(
        self, redis: AsyncRedis, opened: Opened, filter: str, schema: Schema | None, *, follow: bool
    ) -> None:
        self._redis = redis
        self._filter = filter
        self._schema = schema
        self._merged = opened.merged
        ends = {stream: end for one in opened.began.values() for stream, end in one.ends.items()}
        self._whole = WholeEpochs(opened.merged, ends)
        self._spaces = [
            FollowedSpace(name, one, None if follow else one.newest) for name, one in opened.began.items()
        ]
        self.steps = 0
        """Goes up with each boundary."""
        self._ahead = BoundariesAhead(redis, schema)
        self._read: dict[str, deque[Boundary]] = {name: deque() for name in opened.began}

    @property
    def positions(self) -> Mapping[StreamId, int]:
        """Where each stream ends at the newest boundary of which everything was handed out."""
        return self._whole.positions

    @property
    def at_end(self) -> bool:
        """Whether nothing more is wanted: no space goes on that holds the merged frontier back."""
        return all(one.at_end and not self._read[one.space] for one in self._holding())

    async def open(self) -> None:
        """Nothing is to be seen first."""

    def watch(self, news: EpochNews, changed: asyncio.Event) -> None:
        """Have `changed` set when there may be something."""
        for space in self._spaces:
            news.watch(space.space, changed)

    async def turn(self) -> AsyncGenerator[Told]:
        """What the next boundary of each space brings; nothing if there is none yet.

        Raises:
            EpochsLost, EpochsTruncated, HistoryTruncated, SchemaMismatch, Unsupported.
            StoreUnavailable, StoreRefused: try again.
        """
        for space in self._holding():
            waiting = self._read[space.space]
            if not waiting and not space.at_end:
                waiting += space.taken(await ask(self._redis, space.commands()))
            if waiting:
                if not self._ahead.has_begun(waiting[0]):
                    await self._ahead.fill(waiting, partial(space.check_current, self._redis))
                self.steps += 1
                async for told in self._boundary(space, waiting.popleft()):
                    yield told

    def _holding(self) -> list[FollowedSpace]:
        """What lies behind the others' frontier waits in Redis, not here."""
        return [one for one in self._spaces if self._merged.is_held_by(one.space)]

    async def _boundary(self, space: FollowedSpace, bound: Boundary) -> AsyncGenerator[Told]:
        for loss in space.losses(bound):
            yield loss
        due, net = self._whole.boundary(space.space, bound)
        for epoch in due:
            async for told in self._epoch(epoch, self._whole.wanted(epoch)):
                yield told
        if net:
            yield Frontier(self._merged.lower, net)

    async def _epoch(self, epoch: Epoch, wanted: list[Stretch]) -> AsyncGenerator[Told]:
        names = {one.stream.space for one in wanted}
        spaces = [one for one in self._spaces if one.space in names]

        async def check() -> None:
            for space in spaces:
                await space.check_current(self._redis)

        reader = StretchReader(self._redis, epoch, wanted, self._schema, self._ahead, check=check)
        while True:
            try:
                found = await reader.read()
                break
            except MissingOffsets as loss:
                yield loss
        matched = [one for batch in found if (one := filter_batch(batch, self._filter)).num_rows]
        self._whole.taken(epoch)
        if matched:
            yield EpochBatch(epoch, matched)
