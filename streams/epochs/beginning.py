"""Where a reader of whole epochs begins: always at a boundary of each space, never inside one.

Where all streams end is kept for the newest boundary only. A boundary says where the streams that it changed
ended before it and behind it, so an older place is searched by halves, and costs hardly more for being old.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from streamlease.protocol.epochs.antichains import Antichain, maximal
from streamlease.protocol.epochs.order import Epoch, bottom
from streamlease.protocol.errors import EpochsTruncated, HistoryTruncated, StoreRefused
from streamlease.protocol.ids import StreamId
from streamlease.streams.epochs import keys
from streamlease.streams.epochs.core.boundaries import Boundary
from streamlease.streams.epochs.core.late import Stood
from streamlease.streams.epochs.core.whole import begins
from streamlease.streams.epochs.stored import PAGE, Joined, bounds_command, parse_bounds, read_joined
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.log.state import LogState, no_stream
from streamlease.streams.redis.connection import AsyncRedis, Redis, ask
from streamlease.streams.spaces.spaces import Space

FEW = 4
"""So many boundaries are read first to see where streams end; then more at a time, up to a page."""

STREAMS_AT_ONCE = 250
"""Streams that one exchange asks about."""


class Began(NamedTuple):
    """The boundary of one space at which a reader begins: it gets what is behind it."""

    number: int
    """0: the beginning of the space."""
    bound: Boundary | None
    """Its document; None at the beginning."""
    ends: dict[StreamId, int]
    """Where each stream ends at it."""
    stood: Stood
    newest: int
    """The number of the newest boundary."""


class BoundaryPlace(NamedTuple):
    """A place among the boundaries."""

    number: int
    ends: dict[StreamId, int]
    """Where all streams end at it."""


class Places:
    """The boundaries of a space up to the newest one, any of which can be a place in it.

    Boundaries have numbers without holes, and streams only grow from one to the next, so a place is searched
    by halves. Where a stream ends at a boundary, the next one that changed it says: a few are read for that.
    A stream that none of these changed has no say at first; if the place that is found is not one for it, it
    is searched again, and read as far as that takes.
    """

    def __init__(self, redis: Redis, space: Space, joined: Joined, oldest: int | None) -> None:
        self._redis = redis
        self._space = space
        self.newest = joined.boundary
        self.oldest = oldest
        """The first boundary that is still there; None: there is none."""
        self.known = {*space.streams()}
        """Its streams; of those of dropped generations only boundaries speak."""
        self.ends = dict.fromkeys(space.streams(), 0) | joined.ends
        """Where streams end at the newest boundary."""

    @classmethod
    async def read(cls, redis: Redis, space: Space) -> Places:
        """As they are now.

        Raises:
            StoreUnavailable, StoreRefused.
        """
        joined = await read_joined(redis, space.name)
        (reply,) = await ask(redis, [bounds_command(space.name, 0, 1)])
        first = next((int(id.partition(b"-")[0]) for id, _ in reply), None)
        return cls(redis, space, joined, first)

    @property
    def first(self) -> int:
        """The oldest place: the first boundary that is there, or the beginning, if none was forgotten."""
        if self.oldest is None:
            return self.newest
        return 0 if self.oldest == 1 else self.oldest

    async def bound(self, number: int) -> Boundary | None:
        """The boundary of that number; None if it is not there."""
        id = f"{number}-0"
        (reply,) = await ask(self._redis, [("XRANGE", keys.bounds(self._space.name), id, id)])
        return next(iter(parse_bounds(self._space.name, reply)), None)

    async def lower(self, number: int) -> Antichain:
        """The lower frontier there.

        Raises:
            EpochsTruncated: the boundary is not there.
        """
        return (await self._there(number)).lower if number else (bottom(self._space.epochs),)

    async def newest_within(self, wanted: Mapping[StreamId, int], first: int) -> BoundaryPlace:
        """The newest place from `first` on at which no stream ends behind `wanted`; `first` if there is none.

        Raises:
            As `ends_at`.
        """
        place, most = BoundaryPlace(self.newest, self.ends), FEW
        while over := [stream for stream, end in wanted.items() if place.ends.get(stream, 0) > end]:
            low, high = first, place.number
            while high - low > 1:
                middle = (low + high) // 2
                there = await self._ends_near(middle, over, place.number, most)
                if most != FEW:
                    there = {stream: place.ends[stream] for stream in over} | there
                if any(end > wanted[stream] for stream, end in there.items()):
                    high = middle
                else:
                    low = middle
            if low == place.number:
                break
            place, most = BoundaryPlace(low, await self.ends_at(low)), self.newest
            if low == first:
                break
        return place

    async def oldest_with(self, least: Mapping[StreamId, int]) -> BoundaryPlace:
        """The oldest place at which no stream ends before `least`; the newest has that.

        Raises:
            As `ends_at`.
        """
        place, most = BoundaryPlace(self.first, await self.ends_at(self.first)), FEW
        while short := [stream for stream, end in least.items() if place.ends[stream] < end]:
            low, high = place.number, self.newest
            while high - low > 1:
                middle = (low + high) // 2
                there = await self._ends_near(middle, short, self.newest, most)
                if any(end < least[stream] for stream, end in there.items()):
                    low = middle
                else:
                    high = middle
            place, most = BoundaryPlace(high, await self.ends_at(high)), self.newest
        return place

    async def ends_at(self, number: int) -> dict[StreamId, int]:
        """Where all streams end at a place.

        Raises:
            StoreRefused: a keeper forgets boundaries right now; try again.
            StoreUnavailable.
        """
        if number == 0:
            return dict.fromkeys(self.ends, 0)
        return self.ends | await self._ends_near(number, self.ends, self.newest, self.newest)

    async def _ends_near(
        self, number: int, streams: Iterable[StreamId], upto: int, most: int
    ) -> dict[StreamId, int]:
        """Where streams end at a place, as far as the next `most` boundaries up to `upto` change them."""
        wanted = {str(stream).encode(): stream for stream in streams}
        found: dict[StreamId, int] = {}
        at, last, count = number, min(number + most, upto), FEW
        while wanted and at < last:
            asked = ("XRANGE", keys.bounds(self._space.name), f"{at + 1}-0", f"{last}-0", "COUNT", count)
            (reply,) = await ask(self._redis, [asked])
            if not reply or not reply[0][0].startswith(b"%d-" % (at + 1)):
                raise StoreRefused(
                    f"boundary {at + 1} of space {self._space.name} is not there any more: a keeper forgets "
                    f"old ones right now, or Redis lost it; try again"
                )
            for one in reply:
                if not any(name in one[1][1] for name in wanted):
                    continue  # which is seen faster than it is read
                for stream, begin in begins(parse_bounds(self._space.name, [one])[0]).items():
                    if wanted.pop(str(stream).encode(), None) is not None:
                        found[stream] = begin
            at, count = int(reply[-1][0].partition(b"-")[0]), min(PAGE, count * 4)
        return found

    async def began(self, number: int, ends: dict[StreamId, int]) -> Began:
        """A place.

        Raises:
            EpochsTruncated: the boundary is not there.
            Unsupported, StoreUnavailable, StoreRefused.
        """
        if number == 0:
            return Began(0, None, ends, Stood((bottom(self._space.epochs),), ()), self.newest)
        here = await self._there(number)
        return Began(number, here, ends, Stood(here.lower, here.upper), self.newest)

    async def _there(self, number: int) -> Boundary:
        here = await self.bound(number)
        if here is None:
            raise EpochsTruncated(
                f"boundary {number} of space {self._space.name} is not there any more: "
                f"retention removed it, or Redis lost it; try again"
            )
        return here


async def begin_newest(redis: AsyncRedis, space: Space) -> Began:
    """At the newest boundary; `stood.upper` has the epochs that are staged, too.

    Raises:
        EpochsTruncated: it is not there.
        Unsupported, StoreUnavailable, StoreRefused.
    """
    places = await Places.read(redis, space)
    began = await places.began(places.newest, places.ends)
    upper = maximal([*began.stood.upper, *await staged_epochs(redis, space.streams())])
    return began._replace(stood=began.stood._replace(upper=upper))


async def begin_earliest(redis: AsyncRedis, space: Space) -> Began:
    """At the oldest boundary behind which everything is still there.

    Raises:
        As `begin_newest`; UnknownSpace: a stream is not there.
    """
    places = await Places.read(redis, space)
    return await places.began(*await places.oldest_with(_left(places, await _states(redis, space))))


async def begin_at(redis: AsyncRedis, space: Space, wanted: Mapping[StreamId, int]) -> Began:
    """At the newest boundary behind which everything is from the offsets `wanted` on, or more.

    Raises:
        As `begin_earliest`.
        HistoryTruncated: retention removed messages from behind it.
    """
    places = await Places.read(redis, space)
    states = await _states(redis, space)
    number, ends = await places.newest_within(wanted, places.first)
    for stream, least in _left(places, states).items():
        if ends[stream] < least and stream in places.known:
            raise HistoryTruncated(str(stream), ends[stream], states[stream].floor)
    gone = next((one for one in ends if one not in places.known and ends[one] < places.ends[one]), None)
    if gone is not None:
        raise EpochsTruncated(
            f"the generation of stream {gone} is not there any more, and what was asked for begins in it or "
            f"before: read from the earliest"
        )
    if any(ends.get(stream, 0) > offset for stream, offset in wanted.items()):
        raise EpochsTruncated(
            f"boundary {number - 1} of space {space.name} is not there any more, and what was asked for "
            f"begins before it: read from the earliest"
        )
    return await places.began(number, ends)


class Before(NamedTuple):
    """A boundary, of which nothing is left but perhaps its number."""

    number: int
    bound: Boundary | None
    ends: dict[StreamId, int]


async def begin_before(redis: AsyncRedis, space: Space, reached: Mapping[StreamId, int]) -> Before:
    """At the newest boundary at which no stream ends behind the offset `reached`, whatever retention removed.

    If boundaries are forgotten that far back, at the one before the oldest: who has got so far is behind it.

    Raises:
        Unsupported, StoreUnavailable, StoreRefused.
    """
    places = await Places.read(redis, space)
    first = places.newest if places.oldest is None else places.oldest - 1
    number, ends = await places.newest_within(reached, first)
    return Before(number, await places.bound(number) if number else None, ends)


async def staged_epochs(redis: AsyncRedis, streams: list[StreamId]) -> set[Epoch]:
    """The epochs of which something is staged.

    Raises:
        StoreUnavailable, StoreRefused.
    """
    found: set[Epoch] = set()
    for at in range(0, len(streams), STREAMS_AT_ONCE):
        asked = [("HKEYS", keys.staged_epochs(stream)) for stream in streams[at : at + STREAMS_AT_ONCE]]
        for fields in await ask(redis, asked):
            found.update(keys.parse_staged_field(field)[0] for field in fields)
    return found


def _left(places: Places, states: Mapping[StreamId, LogState]) -> dict[StreamId, int]:
    """Where each stream must end at least at a boundary, so that all that follows it is there.

    Raises:
        UnknownSpace: a stream is not there.
    """
    found: dict[StreamId, int] = {}
    for stream, end in places.ends.items():
        if stream not in places.known:
            found[stream] = end
        elif stream in states:
            found[stream] = min(states[stream].floor, end)
        elif end:
            raise no_stream(stream)
    return found


async def _states(redis: AsyncRedis, space: Space) -> dict[StreamId, LogState]:
    found: dict[StreamId, LogState] = {}
    streams = space.streams()
    for at in range(0, len(streams), STREAMS_AT_ONCE):
        found |= await AsyncLog(redis).states(streams[at : at + STREAMS_AT_ONCE])
    return found
