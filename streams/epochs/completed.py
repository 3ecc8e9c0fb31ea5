"""Where an epoch stands in the streams of its space: for who reads a part of the history by epochs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from streamlease.protocol.epochs.antichains import Antichain, is_open
from streamlease.protocol.epochs.order import Epoch, bottom
from streamlease.protocol.errors import EpochsTruncated
from streamlease.protocol.ids import StreamId
from streamlease.streams.entries.epoch_fields import epoch_text
from streamlease.streams.epochs.beginning import Way
from streamlease.streams.epochs.core.whole import begins
from streamlease.streams.epochs.stored import read_joined
from streamlease.streams.redis.connection import Redis
from streamlease.streams.spaces.spaces import Space


class Completed(NamedTuple):
    """The first boundary at which an epoch is completed."""

    before: dict[StreamId, int]
    """Where messages of the epoch begin in each stream, where epochs are integers."""
    behind: dict[StreamId, int]
    """Where they end."""
    ends: dict[StreamId, int]
    """Where the streams end at that boundary, which may have completed others with it."""


async def newest_ends(redis: Redis, space: Space) -> tuple[dict[StreamId, int], Antichain]:
    """Where the streams end at the newest boundary, and the lower frontier there.

    Raises:
        EpochsTruncated: it is not there.
        Unsupported, StoreUnavailable, StoreRefused.
    """
    way = Way(redis, space, await read_joined(redis, space.name))
    return _of_known(way, way.ends), await _lower(way, space)


async def completed(redis: Redis, space: Space, epoch: Epoch) -> Completed | None:
    """Where an epoch stands; None: it is not completed yet.

    Raises:
        EpochsTruncated: it was completed at a boundary that is forgotten.
        Unsupported, StoreUnavailable, StoreRefused.
    """
    way = Way(redis, space, await read_joined(redis, space.name))
    if is_open(await _lower(way, space), epoch):
        return None
    while True:
        here, ends = await way.bound(way.number), dict(way.ends)
        known = way.number == 1 or await way.bound(way.number - 1) is not None
        if here is None or not known:
            raise EpochsTruncated(
                f"epoch {epoch_text(epoch)} of space {space.name} was completed at boundary {way.number} or "
                f"before, and boundaries before that are not there any more: retention removed them"
            )
        await way.before()
        if is_open(await _lower(way, space), epoch):
            break
    before, behind = ends | begins(here), ends | begins(here)
    for part in here.moved:
        if part.epoch < epoch:
            before[part.stream] += part.rows
        if part.epoch <= epoch:
            behind[part.stream] += part.rows
    return Completed(*(_of_known(way, one) for one in (before, behind, ends)))


def _of_known(way: Way, ends: Mapping[StreamId, int]) -> dict[StreamId, int]:
    """Without the streams of generations that were dropped."""
    return {stream: end for stream, end in ends.items() if stream in way.known}


async def _lower(way: Way, space: Space) -> Antichain:
    if way.number == 0:
        return (bottom(space.epochs),)
    here = await way.bound(way.number)
    if here is None:
        raise EpochsTruncated(f"boundary {way.number} of space {space.name} is not there any more: try again")
    return here.lower
