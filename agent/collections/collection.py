"""A subscription to collections: what is there at one point, and then each change behind it.

::

    async with client.collection("prices/#") as prices:
        prices.items                       # {(topic, key, payload): count} at the point
        async for change in prices: ...    # topic, key, payload, diff: each change behind it, once

The point is where the streams ended when the subscription was opened; in a space with epochs the newest
boundary. What is behind it is read in rounds, each up to a newer point: with epochs, a round is whole epochs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING

from streamlease.agent.collections.gathering import Gathering
from streamlease.agent.plain.selecting import check_plain
from streamlease.agent.shielded import ShieldedItems, check_new
from streamlease.catalog.shown import Removal, Shown
from streamlease.protocol.epochs.antichains import minimal
from streamlease.protocol.epochs.order import Epoch
from streamlease.protocol.errors import (
    HistoryTruncated,
    InvalidOption,
    StoreRefused,
    StoreUnavailable,
    StreamleaseError,
    UnknownSpace,
)
from streamlease.protocol.ids import StreamId
from streamlease.protocol.seldom import Seldom
from streamlease.protocol.topics import CATALOG_TOPICS, is_of_catalog
from streamlease.registry.starts import check_start
from streamlease.streams.collections.change_reading import ChangeReader
from streamlease.streams.collections.core.multiset import Change, Item
from streamlease.streams.collections.core.tables import changes_of
from streamlease.streams.collections.points import Point, check_boundary, lower_at, newest_point
from streamlease.streams.collections.snapshots import SnapshotGone, newest_snapshots, snapshot_tables
from streamlease.streams.entries.schemas import Schema, Versions
from streamlease.streams.epochs.boundary_reading import EpochsLost, is_same
from streamlease.streams.epochs.core.boundaries import Boundary
from streamlease.streams.epochs.news import EpochNews
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.log.state import MissingOffsets, no_stream
from streamlease.streams.log.tails import Tails
from streamlease.streams.log.times import after_offset
from streamlease.streams.redis.connection import AsyncRedis
from streamlease.streams.spaces.spaces import Space, SpaceStore
from streamlease.streams.tasks import Supervisor

if TYPE_CHECKING:
    from types import TracebackType

    from streamlease.agent.membership.agent import Agent

LOOK_SECONDS = 1.0
"""How often new points, spaces and generations are looked for, whatever is pushed."""

ATTEMPTS = 5
"""So often the point is looked for anew because retention removed what lay before it, or Redis lost it."""

_Read = tuple[Change | MissingOffsets, StreamId | None, int]
"""A change, and how far its stream was handed out with it; no stream where boundaries say that."""

log = logging.getLogger(__name__)


class Collection:
    """``client.collection(...)``: an async context manager and iterator of changes.

    Args:
        agent: of the client: it sees that there is a keeper, without which no epoch completes.
        start: where to go on, as `positions` said; None: with all that is there.

    Raises:
        InvalidTopic: the filter is malformed.
        InvalidOption: it names a group, or `start` is no positions.
    """

    def __init__(
        self,
        redis: AsyncRedis,
        tails: Tails,
        spaces: SpaceStore,
        agent: Callable[[], Awaitable[Agent]],
        filter: str,
        start: Mapping[str, int] | None = None,
        shown: Shown | None = None,
    ) -> None:
        self._filter = filter = check_plain(filter)
        if is_of_catalog(filter):
            name = filter.removeprefix(CATALOG_TOPICS)
            raise InvalidOption(
                f"{ascii(filter)[:80]} is of the catalog: use client.catalog({name!a}), or 'streamlease "
                f"catalog {ascii(name)[1:-1]}'"
            )
        if start is not None and not isinstance(start, Mapping):
            raise InvalidOption(f"start is {ascii(start)[:80]}: use the positions of a collection, or None")
        if start is not None:
            check_start(start)
        self._redis = redis
        self._seldom = Seldom(log)
        self._spaces = spaces
        self._agent = agent
        self._start = start
        self._shown = shown or Shown()
        self._remove: Removal | None = None
        self._changed = asyncio.Event()
        self._tails = tails.watch(lambda stream, next: self._changed.set())
        self._tasks = Supervisor(f"collection {filter}", self._failed)
        self._found: dict[str, Space] = {}
        self._schemas: dict[str, Schema | None] = {}
        self._reader = ChangeReader(redis, filter, self._schemas, {})
        self._done: dict[StreamId, int] = {}
        """How far each stream was handed out; with epochs, at which boundary it was."""
        self._lower: dict[str, tuple[Epoch, ...]] = {}
        self._bounds: dict[str, Boundary] = {}
        """Of spaces with epochs, at which boundary that was, to see if Redis loses it."""
        self._losses: list[MissingOffsets] = []
        self._changes: ShieldedItems[_Read] | None = None
        self.items: dict[Item, int] = {}
        """How many there were of each item at the point; with a `start`, nothing."""

    async def __aenter__(self) -> Collection:
        """Read what is there.

        Raises:
            UnknownSpace: no space has topics that the filter matches.
            InvalidOption: one of them is no collection.
            HistoryTruncated: retention removed what was to come first.
            EpochsLost: Redis lost each boundary at which it began, as in a failover.
            InvalidInput: a stream never had the offset at which it is to begin.
            SchemaMismatch: an entry is damaged.
            StoreUnavailable, StoreRefused.
        """
        check_new(self._changes, "client.collection(...)")
        self._take(await self._spaces.for_filter(self._filter))
        for attempt in range(1, ATTEMPTS + 1):
            try:
                await (self._begin() if self._start is None else self._go_on(self._start))
                break
            except (HistoryTruncated, SnapshotGone, EpochsLost):
                if self._start is not None or attempt == ATTEMPTS:
                    raise
        if any(space.epochs for space in self._found.values()):
            (await self._agent()).need_keepers()
            news = EpochNews(self._redis, self._tasks)
            for space in self._found.values():
                if space.epochs:
                    news.watch(space.name, self._changed)
        self._tails.set_streams(self._done)
        self._changes = ShieldedItems(self._follow(), f"following the collection {self._filter}")
        self._remove = self._shown.subscription(self._filter)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._changes is not None:
            await self._changes.close()
        await self._tasks.close()
        self._tails.close()
        if self._remove is not None:
            self._remove()

    def __aiter__(self) -> AsyncIterator[Change]:
        return self

    async def __anext__(self) -> Change:
        """The next change.

        Raises:
            MissingOffsets: Redis lost changes that were acknowledged, perhaps some that `items` lacks. Asked
                again, it goes on with what is left; after every other error it is over.
            HistoryTruncated: retention was faster.
            EpochsLost: Redis lost boundaries that were handed out.
            SchemaMismatch: an entry is damaged.
        """
        if self._changes is None:
            raise InvalidOption("it is not open: write 'async with client.collection(...) as ...'")
        change, stream, end = await self._changes.next()
        if isinstance(change, MissingOffsets):
            raise change
        if stream is not None:
            self._done[stream] = end
        return change

    def end(self, error: StreamleaseError) -> None:
        """Go no further: who waits for a change, or else who asks next, gets `error`."""
        if self._changes is not None:
            self._changes.end(error)

    @property
    def positions(self) -> dict[str, int]:
        """How far each stream was handed out: a `start` for another subscription.

        In a space with epochs, at which boundary it was of which everything was handed out.
        """
        return {str(stream): end for stream, end in self._done.items()}

    @property
    def frontier(self) -> list[Epoch] | None:
        """The lower frontier, of what was handed out wholly; None without epochs.

        It moves over skipped epochs, too, while the next change is waited for. Begun at a `start`, it is None
        until the first boundary behind that was handed out, or nothing is behind.
        """
        if not self._lower or len({len(epoch) for lower in self._lower.values() for epoch in lower}) > 1:
            return None
        return [*minimal([epoch for lower in self._lower.values() for epoch in lower])]

    # ------------------------------------------------------------ the point

    def _take(self, spaces: list[Space]) -> None:
        for space in spaces:
            if not space.collection:
                raise InvalidOption(
                    f"the filter {ascii(self._filter)[:80]} has topics of space {space.name}, which is no "
                    f"collection: narrow the filter, or use client.listen"
                )
            # The columns of an item stay those that they were at the beginning.
            self._schemas.setdefault(space.name, space.newest_schema)
        self._found = {space.name: space for space in spaces}

    async def _begin(self) -> None:
        gathering, self._losses = Gathering(), []
        self._reader.positions.clear()
        for space in self._found.values():
            # The snapshots first: what is read later ends behind them.
            stored = await newest_snapshots(self._redis, space.streams())
            point = await newest_point(self._redis, space)
            schema, versions = self._schemas[space.name], Versions(space.schemas) if space.schemas else None
            for stream, one in stored.items():
                of_stream = (self._redis, stream, one, versions, schema, self._filter)
                async for table in snapshot_tables(*of_stream):
                    await gathering.add(space.name, table)
                self._reader.positions[stream] = one.upto
                self._losses += [MissingOffsets(str(stream), *hole) for hole in one.lost]
            async for read in self._reader.upto(point.ends):
                if isinstance(read, MissingOffsets):
                    log.warning("collection %s: %s", self._filter, read)
                    self._losses.append(read)
                else:
                    await gathering.add(space.name, read.table)
            if point.bound is not None:
                # Else others may have come meanwhile where changes up to it stood.
                await check_boundary(self._redis, space, point.bound)
            self._reached(space, point)
        self.items = await gathering.items()

    async def _go_on(self, start: Mapping[str, int]) -> None:
        for space in self._found.values():
            streams = space.streams()
            states = await AsyncLog(self._redis).states(streams)
            for stream in streams:
                if stream not in states:
                    raise no_stream(stream)
                offset = start.get(str(stream), 0)
                after_offset(stream, offset - 1, states[stream])
                states[stream].check_exists(stream, offset)
                self._reader.positions[stream] = self._done[stream] = offset

    def _reached(self, space: Space, point: Point) -> None:
        """All up to `point` was handed out."""
        self._done |= point.ends
        self._stands(space, point)

    def _stands(self, space: Space, point: Point) -> None:
        """It is at the boundary of `point`, which may be one of skipped epochs, without a change."""
        if space.epochs:
            self._lower[space.name] = lower_at(space, point)
        if point.bound is not None:
            self._bounds[space.name] = point.bound

    # ------------------------------------------------------------ behind it

    async def _follow(self) -> AsyncGenerator[Sequence[_Read]]:
        losses, self._losses = self._losses, []
        yield [(loss, None, 0) for loss in losses]
        looked = 0.0
        clock = asyncio.get_running_loop().time
        while True:
            self._changed.clear()
            if clock() - looked >= LOOK_SECONDS:
                looked = clock()
                await self._look()
            any_new = False
            for space in [*self._found.values()]:
                try:
                    point = await newest_point(self._redis, space)
                    reached = self._bounds.get(space.name)
                    if reached is not None and (point.bound is None or not is_same(point.bound, reached)):
                        await check_boundary(self._redis, space, reached)
                except (StoreUnavailable, StoreRefused) as error:
                    self._seldom.warning("reading collection %s: %s", self._filter, error)
                    continue
                if all(end <= self._done.get(stream, 0) for stream, end in point.ends.items()):
                    self._stands(space, point)
                    continue
                any_new = True
                async for some in self._round(space, point):
                    yield some
            if not any_new:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_SECONDS):
                        await self._changed.wait()

    async def _round(self, space: Space, point: Point) -> AsyncGenerator[Sequence[_Read]]:
        bound = point.bound
        # Behind each exchange: else others may have come meanwhile where changes up to it stood.
        check = None if bound is None else partial(check_boundary, self._redis, space, bound)
        async for read in self._reader.upto(point.ends, check):
            if isinstance(read, MissingOffsets):
                yield [(read, None, 0)]
                continue
            stream = None if space.epochs else read.stream
            offsets = read.offsets.to_pylist()
            ends = [offset + 1 for offset in offsets]
            yield [*zip(changes_of(read.table), repeat(stream), ends)]
            if not space.epochs:
                self._done[read.stream] = read.end
        self._reached(space, point)

    async def _look(self) -> None:
        """Take new spaces and generations; those that are gone have no more changes."""
        with contextlib.suppress(UnknownSpace, StoreUnavailable, StoreRefused):
            known = await self._spaces.recent()
            self._take(known.for_filter(self._filter))
            self._tails.set_streams(stream for one in self._found.values() for stream in one.streams())

    def _failed(self, task: str, error: StreamleaseError) -> None:
        """A defect of the push was logged; points are looked for all the same."""
