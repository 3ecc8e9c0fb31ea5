"""The space of a query that reads whole epochs: where a new group begins in it, and the boundaries ahead."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from streamlease.agent.client import Client
from streamlease.agent.epochs.opening import check_epochs
from streamlease.protocol.epochs.order import bottom
from streamlease.protocol.errors import EpochsTruncated, HistoryTruncated, InvalidOption
from streamlease.protocol.ids import StreamId
from streamlease.spark.core import query_events as q
from streamlease.spark.core.epoch_ends import Bound, BoundsFound
from streamlease.spark.options import SourceOptions
from streamlease.streams.epochs.beginning import Before, begin_at, begin_before, begin_earliest, begin_newest
from streamlease.streams.epochs.boundary_reading import AT_ONCE, EpochsLost, FollowedSpace, Vouched
from streamlease.streams.epochs.core.boundaries import Boundary
from streamlease.streams.epochs.stored import read_joined
from streamlease.streams.redis.connection import ask
from streamlease.streams.spaces.spaces import Space

log = logging.getLogger(__name__)


async def epoch_space(client: Client, options: SourceOptions) -> Space:
    """The space whose epochs a query reads.

    Raises:
        UnknownSpace: no space has topics that the filter matches.
        InvalidOption: it has no epochs, or there are several.
        StoreUnavailable, StoreRefused.
    """
    filter = options.subscription.filter
    spaces = await client.spaces.for_filter(filter)
    check_epochs(filter, spaces)
    if len(spaces) > 1:
        raise InvalidOption(
            f"option 'epochs' is 'atomic', and the filter {filter!r} has topics of the spaces "
            f"{spaces[0].name} and {spaces[1].name}, whose epochs complete apart: narrow it to one of them"
        )
    return spaces[0]


class BoundaryFollower:
    """The boundaries of the space: where to begin, and those ahead, in order, each once."""

    def __init__(self, client: Client, space: Space) -> None:
        self._client = client
        self._space = space
        self._followed: FollowedSpace | None = None
        self._read: dict[int, Boundary] = {}
        """Those that were read, by number, from that of the newest cut on."""

    async def begin_at(self, starting: str | Mapping[str, int], *, fail_on_data_loss: bool) -> dict[str, int]:
        """Where a new group begins: the ends of the streams at the last boundary before `starting`.

        Args:
            starting: ``earliest``: the first boundary behind which everything is still there; ``latest``: the
                newest; or offsets: streams without one have no say.
            fail_on_data_loss: whether to fail where retention removed messages from behind that boundary;
                else it is the earliest then.

        Raises:
            HistoryTruncated, EpochsTruncated: see above.
            StoreUnavailable, StoreRefused.
        """
        redis, space = self._client.redis, self._space
        if starting == "earliest":
            began = await begin_earliest(redis, space)
        elif isinstance(starting, str):
            began = await begin_newest(redis, space)
        else:
            offsets = {StreamId.parse(stream): offset for stream, offset in starting.items()}
            try:
                began = await begin_at(redis, space, offsets)
            except (HistoryTruncated, EpochsTruncated) as error:
                if fail_on_data_loss:
                    raise
                log.warning("%s", error)
                began = await begin_earliest(redis, space)
        return {str(stream): end for stream, end in began.ends.items()}

    async def ends(self) -> dict[str, int]:
        """Where each stream ends at the newest boundary."""
        joined = await read_joined(self._client.redis, self._space.name)
        return {str(stream): joined.ends.get(stream, 0) for stream in self._space.streams()}

    async def found(self, what: q.EpochBounds) -> BoundsFound:
        """The next boundaries.

        Raises:
            InvalidOption: the query holds a stream of another space, which is newer than the query.
            Unsupported, StoreUnavailable, StoreRefused.
        """
        for stream in what.positions:
            if StreamId.parse(stream).space != self._space.name:
                raise InvalidOption(
                    f"stream {stream} came to the group, and the query reads the epochs of space "
                    f"{self._space.name}, which complete apart: narrow the filter, and begin a new group"
                )
        if self._followed is None or what.anew:
            return await self._begin(what.positions)
        try:
            return await self._next(self._followed)
        except (EpochsLost, EpochsTruncated) as error:
            log.warning("%s", error)
            return await self._begin(what.positions)

    async def _begin(self, positions: Mapping[str, int]) -> BoundsFound:
        reached = {StreamId.parse(stream): offset for stream, offset in positions.items()}
        before = await begin_before(self._client.redis, self._space, reached)
        self._followed = FollowedSpace(self._space.name, before)
        ends = {str(one): min(end, positions.get(str(one), end)) for one, end in before.ends.items()}
        return BoundsFound((), True, Bound(before.number, self._lower(before), ends))

    def vouched(self, number: int) -> Vouched | None:
        """What tells later whether Redis still has that boundary; None: it was not read here."""
        self._read = {other: bound for other, bound in self._read.items() if other >= number}
        bound = self._read.get(number)
        return None if bound is None else Vouched.of(self._space.name, bound)

    def _lower(self, before: Before) -> tuple[tuple[int, ...], ...] | None:
        if before.bound is not None:
            return before.bound.lower
        return None if before.number else (bottom(self._space.epochs),)

    async def _next(self, followed: FollowedSpace) -> BoundsFound:
        bounds = followed.taken(await ask(self._client.redis, followed.commands()))
        self._read |= {bound.number: bound for bound in bounds}
        for bound in bounds:
            for loss in followed.losses(bound):
                log.warning("%s", loss, extra={"stream": loss.stream})
        return BoundsFound(tuple(map(_bound, bounds)), len(bounds) >= AT_ONCE - 1)


def _bound(bound: Boundary) -> Bound:
    return Bound(
        bound.number,
        bound.lower,
        {str(stream): end for stream, end in bound.ends.items()},
        frozenset((part.epoch, str(part.stream)) for part in bound.moved if part.rows),
    )
