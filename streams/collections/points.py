"""Points: where the streams of a space end, at one moment or at one boundary of its epochs.

Changes up to a point are a multiset that was there: without epochs each stream up to some message of it, with
epochs all streams at the newest boundary, so that an epoch is in it whole or not at all.
"""

from __future__ import annotations

from typing import NamedTuple

from streamlease.protocol.epochs.order import Epoch, bottom
from streamlease.protocol.ids import StreamId
from streamlease.streams.epochs import keys
from streamlease.streams.epochs.stored import parse_bounds, read_joined
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.redis.connection import AsyncRedis, ask
from streamlease.streams.spaces.spaces import Space

AT_ONCE = 250
"""Streams that one exchange asks about."""


class Point(NamedTuple):
    """A point in all streams of a space."""

    ends: dict[StreamId, int]
    boundary: int = 0
    """The number of the boundary, in a space with epochs."""


async def newest_point(redis: AsyncRedis, space: Space) -> Point:
    """The newest point of `space`.

    Raises:
        StoreUnavailable, StoreRefused.
    """
    streams = space.streams()
    if space.epochs:
        joined = await read_joined(redis, space.name)
        return Point(dict.fromkeys(streams, 0) | joined.ends, joined.boundary)
    ends: dict[StreamId, int] = {}
    # The newest generation first: then all that came before a message that is seen is seen too.
    newest_first = sorted(streams, reverse=True)
    for at in range(0, len(streams), AT_ONCE):
        states = await AsyncLog(redis).states(newest_first[at : at + AT_ONCE])
        ends |= {stream: state.next for stream, state in states.items()}
    return Point(ends)


async def frontier_at(redis: AsyncRedis, space: Space, boundary: int) -> tuple[Epoch, ...]:
    """The lower frontier at a boundary of a space with epochs.

    Raises:
        StoreUnavailable, StoreRefused.
    """
    if not boundary:
        return (bottom(space.epochs),)
    (reply,) = await ask(redis, [("XRANGE", keys.bounds(space.name), f"{boundary}-0", f"{boundary}-0")])
    found = parse_bounds(reply)
    return found[0].lower if found else (bottom(space.epochs),)
