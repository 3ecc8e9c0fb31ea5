"""Where a reader of whole epochs begins: always at a boundary of each space, never inside one.

Where the streams end is kept for the newest boundary only. A boundary says how many messages it moved, so the
ends at an older one are found by going back from the newest, and that costs by how far back it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from streamlease.protocol.epochs.antichains import maximal
from streamlease.protocol.epochs.order import Epoch, bottom
from streamlease.protocol.errors import EpochsTruncated, HistoryTruncated
from streamlease.protocol.ids import StreamId
from streamlease.streams.epochs import keys
from streamlease.streams.epochs.core.boundaries import Boundary
from streamlease.streams.epochs.core.late import Stood
from streamlease.streams.epochs.core.whole import begins
from streamlease.streams.epochs.stored import Joined, parse_bounds, read_joined
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.log.state import LogState, no_stream
from streamlease.streams.redis.connection import AsyncRedis, Redis, ask
from streamlease.streams.spaces.spaces import Space

BACK_PAGE = 100
"""Boundaries that one reply has on the way back."""

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


class Way:
    """A place among the boundaries of a space, from the newest one backwards."""

    def __init__(self, redis: Redis, space: Space, joined: Joined) -> None:
        self._redis = redis
        self._space = space
        self._page: dict[int, Boundary] = {}
        self.number = self.newest = joined.boundary
        self.known = {*space.streams()}
        """Its streams; of those of dropped generations only boundaries speak."""
        self.ends = dict.fromkeys(space.streams(), 0) | joined.ends

    async def bound(self, number: int) -> Boundary | None:
        """The boundary of that number, this one or the one before; None if it is gone."""
        if number not in self._page:
            command = ("XREVRANGE", keys.bounds(self._space.name), f"{number}-0", "-", "COUNT", BACK_PAGE)
            (reply,) = await ask(self._redis, [command])
            here = {self.number: self._page[self.number]} if self.number in self._page else {}
            self._page = here | {one.number: one for one in parse_bounds(reply)}
        return self._page.get(number)

    async def earlier(self, states: Mapping[StreamId, LogState]) -> str | HistoryTruncated | None:
        """Go back by one boundary; or why that is not possible.

        Args:
            states: of all streams: what retention has left.
        """
        here = await self.bound(self.number)
        if here is None or (self.number > 1 and await self.bound(self.number - 1) is None):
            return f"boundary {self.number - 1} of space {self._space.name} is not there any more"
        for stream, begin in begins(here).items():
            state = states.get(stream)
            if state is None and stream not in self.known:
                return f"the generation of stream {stream} is not there any more"
            if state is None:
                raise no_stream(stream)
            if begin < min(state.floor, here.ends[stream]):
                return HistoryTruncated(str(stream), begin, state.floor)
        self.ends |= begins(here)
        self.number -= 1
        return None

    async def before(self) -> bool:
        """Go back by one boundary, whatever retention removed; False: this one is not there any more."""
        here = await self.bound(self.number)
        if here is None:
            return False
        self.ends |= begins(here)
        self.number -= 1
        return True

    async def began(self, epochs: int) -> Began:
        """This place."""
        if self.number == 0:
            return Began(0, None, self.ends, Stood((bottom(epochs),), ()), self.newest)
        here = await self.bound(self.number)
        if here is None:
            raise EpochsTruncated(
                f"boundary {self.number} of space {self._space.name} is not there any more: "
                f"retention removed it, or Redis lost it; try again"
            )
        return Began(self.number, here, self.ends, Stood(here.lower, here.upper), self.newest)


async def begin_newest(redis: AsyncRedis, space: Space) -> Began:
    """At the newest boundary; `stood.upper` has the epochs that are staged, too.

    Raises:
        EpochsTruncated: it is not there.
        Unsupported, StoreUnavailable, StoreRefused.
    """
    began = await Way(redis, space, await read_joined(redis, space.name)).began(space.epochs)
    upper = maximal([*began.stood.upper, *await staged_epochs(redis, space.streams())])
    return began._replace(stood=began.stood._replace(upper=upper))


async def begin_earliest(redis: AsyncRedis, space: Space) -> Began:
    """At the oldest boundary behind which everything is still there.

    Raises:
        As `begin_newest`; UnknownSpace: a stream is not there.
    """
    back = Way(redis, space, await read_joined(redis, space.name))
    states = await _states(redis, space)
    while back.number and await back.earlier(states) is None:
        pass
    return await back.began(space.epochs)


async def begin_at(redis: AsyncRedis, space: Space, wanted: Mapping[StreamId, int]) -> Began:
    """At the newest boundary behind which everything is from the offsets `wanted` on, or more.

    Raises:
        As `begin_earliest`.
        HistoryTruncated: retention removed messages from behind it.
    """
    back = Way(redis, space, await read_joined(redis, space.name))
    states = await _states(redis, space)
    while any(back.ends.get(stream, 0) > offset for stream, offset in wanted.items()):
        why = await back.earlier(states)
        if isinstance(why, HistoryTruncated):
            raise why
        if why is not None:
            raise EpochsTruncated(f"{why}, and what was asked for begins before it: read from the earliest")
    return await back.began(space.epochs)


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
    back = Way(redis, space, await read_joined(redis, space.name))
    while back.number and any(back.ends.get(stream, 0) > offset for stream, offset in reached.items()):
        if not await back.before():
            break
    return Before(back.number, await back.bound(back.number) if back.number else None, back.ends)


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


async def _states(redis: AsyncRedis, space: Space) -> dict[StreamId, LogState]:
    found: dict[StreamId, LogState] = {}
    streams = space.streams()
    for at in range(0, len(streams), STREAMS_AT_ONCE):
        found |= await AsyncLog(redis).states(streams[at : at + STREAMS_AT_ONCE])
    return found
