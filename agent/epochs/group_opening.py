"""A group that reads whole epochs: where it begins, and what makes its consumers read so.

It begins at one boundary of each space. Where that is stands in its declaration, with what is left out: so
every consumer leaves out the same, whenever it comes.
"""

from __future__ import annotations

from collections.abc import Mapping

from streamlease.agent.dividing import ConsumerSide
from streamlease.agent.epochs.boundary_following import BoundaryFollowing
from streamlease.agent.epochs.epoch_parts import EpochParts
from streamlease.agent.epochs.group_reader import EpochGroupReader
from streamlease.agent.epochs.opening import open_epochs
from streamlease.agent.subscription import SharedReader
from streamlease.protocol.errors import UnknownGroup
from streamlease.protocol.group_options import GroupOptions
from streamlease.protocol.topics import SharedSubscription
from streamlease.registry.groups import Declaration, Groups
from streamlease.registry.starts import EpochsBegun, SpaceBegun, Start, check_start
from streamlease.streams.redis.connection import AsyncRedis
from streamlease.streams.spaces.spaces import Space, SpaceStore


async def declare_epochs(
    groups: Groups,
    redis: AsyncRedis,
    shared: SharedSubscription,
    start: Start,
    *,
    expiry_ms: int | None = None,
    options: GroupOptions | None = None,
    arrival: int = 0,
) -> Declaration:
    """Declare a group that reads whole epochs, if nobody has declared it; the declaration that holds.

    Args:
        start: see ``client.listen``: it begins at the last boundary before.
        expiry_ms, options, arrival: as of `Groups.declare`.

    Raises:
        InvalidOption: not all spaces of the filter have epochs, of equally many dimensions.
        HistoryTruncated, EpochsTruncated: retention removed what was to come first.
        GroupConflict: the consumers of the group read each stream as it is.
        And as `Groups.declare`.
    """
    check_start(start)
    opened = await open_epochs(redis, SpaceStore(redis), shared.filter, start)
    begun = EpochsBegun(
        late=start == "latest",
        spaces={
            name: SpaceBegun(lower=one.stood.lower, upper=one.stood.upper)
            for name, one in opened.began.items()
        },
    )
    declared = await groups.declare(
        shared,
        start,
        expiry_ms=expiry_ms,
        positions={str(stream): end for one in opened.began.values() for stream, end in one.ends.items()},
        options=options,
        epochs=begun,
        arrival=arrival,
    )
    declared.check_epochs(whole=True)
    return declared


async def join_epochs(
    groups: Groups,
    redis: AsyncRedis,
    shared: SharedSubscription,
    start: Start,
    *,
    options: GroupOptions | None = None,
    arrival: int = 0,
) -> Declaration:
    """What a subscriber does: as `Groups.join`, for a group that reads whole epochs.

    Raises:
        As `declare_epochs` and `Groups.join`.
    """
    try:
        await groups.get(shared)
    except UnknownGroup:
        if shared.kind == "$shared":
            return await declare_epochs(groups, redis, shared, start, options=options, arrival=arrival)
    declared = await groups.join(shared, start, options=options, arrival=arrival)
    declared.check_epochs(whole=True)
    return declared


class GroupEpochs:
    """What makes a consumer read whole epochs.

    Args:
        spaces: those of the filter.
        begun: where the group begins.
    """

    def __init__(self, redis: AsyncRedis, spaces: list[Space], filter: str, begun: EpochsBegun) -> None:
        self._spaces = [space for space in spaces if space.name in begun.spaces]
        self._redis = redis
        self._filter = filter
        self._begun = begun

    def divide(self, reader: ConsumerSide) -> EpochParts:
        """How the streams of `reader` are divided."""
        self._following = BoundaryFollowing(self._redis, self._spaces, reader.tasks)
        dimensions: Mapping[str, int] = {space.name: space.epochs for space in self._spaces}
        self._parts = EpochParts(
            reader,
            dimensions,
            self._filter,
            self._begun.leaves_out,
            self._following.find,
            lambda space: self._following.stands(space, self._parts),
        )
        return self._parts

    def start(self, reader: SharedReader) -> EpochGroupReader:
        """Begin to follow the boundaries; the reader as the program sees it."""
        self._following.start(self._parts)
        return EpochGroupReader(reader, self._parts)
