"""Points: where the streams of a space end, at one moment or at one boundary of its epochs.

Changes up to a point are a multiset that was there: without epochs each stream up to some message of it, with
epochs all streams at the newest boundary, so that an epoch is in it whole or not at all.
"""

from __future__ import annotations

from typing import NamedTuple

from streamlease.protocol.epochs.antichains import Antichain
from streamlease.protocol.epochs.order import bottom
from streamlease.protocol.ids import StreamId
from streamlease.streams.epochs import keys
from streamlease.streams.epochs.boundary_reading import Vouched, check_there
from streamlease.streams.epochs.core.boundaries import Boundary
from streamlease.streams.epochs.stored import joined_commands, parse_bounds, parse_joined
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.redis.connection import AsyncRedis, Command, Redis, ask
from streamlease.streams.spaces.spaces import Space

AT_ONCE = 250
"""Streams that one exchange asks about."""


class Point(NamedTuple):
    """A point in all streams of a space."""

    ends: dict[StreamId, int]
    bound: Boundary | None = None
    """The boundary, in a space with epochs; None before the first one."""


async def newest_point(redis: Redis, space: Space) -> Point:
    """The newest point of `space`.

    Raises:
        StoreUnavailable, StoreRefused.
    """
    streams = space.streams()
    if space.epochs:
        return await _newest_boundary(redis, space)
    ends: dict[StreamId, int] = {}
    # The newest generation first: then all that came before a message that is seen is seen too.
    newest_first = sorted(streams, reverse=True)
    for at in range(0, len(streams), AT_ONCE):
        states = await AsyncLog(redis).states(newest_first[at : at + AT_ONCE])
        ends |= {stream: state.next for stream, state in states.items()}
    return Point(ends)


async def _newest_boundary(redis: Redis, space: Space) -> Point:
    newest: Command = ("XREVRANGE", keys.bounds(space.name), "+", "-", "COUNT", 1)
    while True:
        # The ends change only with the boundary: the same number before and behind them vouches for them.
        asked = [*joined_commands(space.name), newest, joined_commands(space.name)[0]]
        boundary, ends, bounds, again = await ask(redis, asked)
        if boundary == again:
            there = parse_joined(space.name, boundary, ends).ends
            bound = next(iter(parse_bounds(space.name, bounds)), None) if boundary else None
            return Point(dict.fromkeys(space.streams(), 0) | there, bound)


async def check_boundary(redis: AsyncRedis, space: Space, reached: Boundary) -> None:
    """Whether a boundary that was read is still there as it was; one that was forgotten passes.

    Raises:
        EpochsLost: Redis lost it, as in a failover.
        StoreUnavailable, StoreRefused.
    """
    await check_there(redis, Vouched.of(space.name, reached), "open the collection again")


def lower_at(space: Space, point: Point) -> Antichain:
    """The lower frontier at a point of a space with epochs."""
    return point.bound.lower if point.bound is not None else (bottom(space.epochs),)
