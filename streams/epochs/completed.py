"""Where an epoch stands in the streams of its space: for who reads a part of the history by epochs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from streamlease.protocol.epochs.antichains import Antichain, is_open
from streamlease.protocol.epochs.order import Epoch
from streamlease.protocol.errors import EpochsTruncated, StoreRefused
from streamlease.protocol.ids import StreamId
from streamlease.streams.entries.epoch_fields import epoch_text
from streamlease.streams.epochs.beginning import Places
from streamlease.streams.epochs.core.whole import stretches
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
    places = await Places.read(redis, space)
    return _of_known(places, places.ends), await places.lower(places.newest)


async def completed(redis: Redis, space: Space, epoch: Epoch) -> Completed | None:
    """Where an epoch stands; None: it is not completed yet.

    Raises:
        EpochsTruncated: it was completed at a boundary that is forgotten.
        Unsupported, StoreUnavailable, StoreRefused.
    """
    places = await Places.read(redis, space)
    if is_open(await places.lower(places.newest), epoch):
        return None
    low, high = places.first, places.newest
    if not is_open(await places.lower(low), epoch):
        raise EpochsTruncated(
            f"epoch {epoch_text(epoch)} of space {space.name} was completed at boundary {low} or before, and "
            f"boundaries before that are not there any more: retention removed them"
        )
    while high - low > 1:
        middle = (low + high) // 2
        if is_open(await places.lower(middle), epoch):
            low = middle
        else:
            high = middle
    ends = await places.ends_at(high)
    here = await places.bound(high)
    if here is None:
        raise StoreRefused(f"boundary {high} of space {space.name} is not there any more: try again")
    placed = [*stretches(here)]
    begin = {stretch.stream: stretch.first for _, stretch in reversed(placed)}
    before, behind = ends | begin, ends | begin
    for part, stretch in placed:
        if part.epoch < epoch:
            before[part.stream] = stretch.to
        if part.epoch <= epoch:
            behind[part.stream] = stretch.to
    return Completed(*(_of_known(places, one) for one in (before, behind, ends)))


def _of_known(places: Places, ends: Mapping[StreamId, int]) -> dict[StreamId, int]:
    """Without the streams of generations that were dropped."""
    return {stream: end for stream, end in ends.items() if stream in places.known}
