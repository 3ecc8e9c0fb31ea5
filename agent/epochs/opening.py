"""Which spaces a filter means, and at which boundary of each a subscription begins.

The spaces are those that are there when the subscription is opened: one that came later would bring the
merged frontier back.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

from streamlease.agent.epochs.epoch_items import EpochItem, Frontier, Snapshot
from streamlease.protocol.epochs.antichains import changes
from streamlease.protocol.epochs.order import bottom
from streamlease.protocol.errors import InvalidOption
from streamlease.registry.starts import Start
from streamlease.streams.epochs.beginning import Began, begin_at, begin_earliest, begin_newest
from streamlease.streams.epochs.core.late import MergedSpaces
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.log.state import no_stream
from streamlease.streams.log.times import after_offset, microseconds, offsets_after
from streamlease.streams.redis.connection import AsyncRedis
from streamlease.streams.spaces.spaces import Space, SpaceStore


class Opened(NamedTuple):
    """Where a subscription begins."""

    spaces: list[Space]
    began: dict[str, Began]
    """By space."""
    merged: MergedSpaces
    first: EpochItem | None
    """What is to be told first; None at the beginning of time."""

    @property
    def dimensions(self) -> int:
        """Those of the epochs of all spaces."""
        return self.spaces[0].epochs


async def open_epochs(redis: AsyncRedis, spaces: SpaceStore, filter: str, start: Start) -> Opened:
    """Find the spaces of `filter`, and begin.

    Raises:
        UnknownSpace: no space has topics that the filter matches.
        InvalidOption: not all of them have epochs, of equally many dimensions.
        HistoryTruncated, EpochsTruncated: retention removed what was to come first.
        InvalidInput: a stream never had the offset at which it is to begin.
        StoreUnavailable, StoreRefused.
    """
    found = await spaces.for_filter(filter)
    check_epochs(filter, found)
    began = {space.name: await _begin(redis, space, start) for space in found}
    merged = MergedSpaces({name: one.stood for name, one in began.items()}, late=start == "latest")
    return Opened(found, began, merged, _first(merged, found[0].epochs, start))


def _first(merged: MergedSpaces, dimensions: int, start: Start) -> EpochItem | None:
    """What is told first. Who begins at the earliest is told where that is if retention has moved it."""
    if start != "earliest":
        return Snapshot(merged.lower, merged.upper)
    net = changes((bottom(dimensions),), merged.lower)
    return Frontier(merged.lower, net) if net else None


def check_epochs(filter: str, spaces: list[Space]) -> None:
    """Whether the epochs of `spaces` can be read together.

    Raises:
        InvalidOption: they cannot.
    """
    without = [space.name for space in spaces if not space.epochs]
    if without:
        raise InvalidOption(
            f"the filter {ascii(filter)[:80]} has topics of space {without[0]}, which has no epochs: "
            f"narrow the filter, or read the streams as they are: epochs 'off'"
        )
    first = spaces[0]
    for other in spaces:
        if other.epochs != first.epochs:
            raise InvalidOption(
                f"the filter {ascii(filter)[:80]} has topics of space {first.name} with epochs of "
                f"{first.epochs} dimensions, and of space {other.name} with {other.epochs}: narrow the filter"
            )


async def _begin(redis: AsyncRedis, space: Space, start: Start) -> Began:
    if start == "latest":
        return await begin_newest(redis, space)
    streams = space.streams()
    if isinstance(start, datetime):
        moment = microseconds(start) - 1
        return await begin_at(redis, space, await offsets_after(redis, dict.fromkeys(streams, moment)))
    if isinstance(start, Mapping):
        offsets = {stream: start[str(stream)] for stream in streams if str(stream) in start}
        states = await AsyncLog(redis).states(offsets)
        for stream, offset in offsets.items():
            if stream not in states:
                raise no_stream(stream)
            after_offset(stream, offset - 1, states[stream])
    else:
        offsets = dict.fromkeys(streams, start) if isinstance(start, int) else {}
    return await (begin_at(redis, space, offsets) if offsets else begin_earliest(redis, space))
