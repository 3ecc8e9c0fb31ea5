"""Points between where a query is and the newest one: what one micro-batch of changes may hold.

Without epochs any offsets are a point, and a limit is one of changes. With epochs only boundaries are, so a
limit is one of epochs, and a micro-batch has one boundary at least.
"""

from __future__ import annotations

from collections.abc import Mapping

from streamlease.protocol.ids import StreamId
from streamlease.spark.core.limits import shares
from streamlease.streams.epochs.beginning import begin_before
from streamlease.streams.epochs.core.boundaries import Boundary
from streamlease.streams.epochs.stored import read_bounds
from streamlease.streams.redis.connection import AsyncRedis
from streamlease.streams.spaces.spaces import Space

AT_ONCE = 100
"""Boundaries that one reply has."""

Ends = Mapping[StreamId, int]


def limited(start: Ends, newest: Ends, most: int) -> dict[StreamId, int]:
    """So many changes behind `start` at most, in proportion to what waits; those of former generations first.

    Pure.
    """
    waiting = {stream: end - start.get(stream, 0) for stream, end in newest.items()}
    behind = [stream for stream, count in waiting.items() if count > 0]
    first = min((stream.generation for stream in behind), default=0)
    mine = {str(stream): waiting[stream] for stream in behind if stream.generation == first}
    sizes = shares(mine, most)
    return {stream: start.get(stream, 0) + sizes.get(str(stream), 0) for stream in {*start, *newest}}


async def limited_by_epochs(
    redis: AsyncRedis, space: Space, start: Ends, newest: Ends, most: int
) -> tuple[dict[StreamId, int], Boundary | None]:
    """Where so many epochs behind `start` end, up to `newest`; and at which boundary, None: at `start`.

    Epochs that completed together stay together.

    Raises:
        EpochsTruncated: boundaries behind `start` are not there any more.
        StoreUnavailable, StoreRefused.
    """
    at = (await begin_before(redis, space, {stream: start.get(stream, 0) for stream in newest})).number
    ends, epochs = dict(start), 0
    last: Boundary | None = None
    while page := await read_bounds(redis, space.name, at, AT_ONCE):
        for bound in page:
            more = len({part.epoch for part in bound.moved if part.rows})
            beyond = any(end > newest.get(stream, 0) for stream, end in bound.ends.items())
            if beyond or (epochs and epochs + more > most):
                return ends, last
            epochs += more
            ends |= bound.ends
            at, last = bound.number, bound
    return ends, last
