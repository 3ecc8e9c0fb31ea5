"""How all declared groups stand, whoever leads them, or nobody: read from what stands in Redis.

Nothing here asks a leader. Who leads is the leadership record, who holds streams the leases beside the
journal, how far they are the progress there, and who consumes the borrowers that processes show in the
catalog. So a group is seen like any other when its consumers have died, and its leader has gone with them.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from streamlease.hosts.signals.ages import Ages, StreamBehind
from streamlease.protocol.errors import StreamleaseError, Unsupported
from streamlease.protocol.ids import StreamId
from streamlease.protocol.topics import SharedSubscription
from streamlease.registry import group_needs, keys, leadership
from streamlease.registry.group_needs import GroupProgress
from streamlease.registry.groups import Groups
from streamlease.streams.catalog.changes import Owners, list_rows
from streamlease.streams.catalog.keys import CATALOG, PROCESSES, rows
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.log.state import LogState
from streamlease.streams.log.times import server_time
from streamlease.streams.redis.connection import AsyncRedis, ask
from streamlease.streams.redis.damaged import readable
from streamlease.streams.spaces.matching import SpacesByFilter
from streamlease.streams.spaces.spaces import Space, SpaceStore

PAGE = 64
"""Groups that are read together: the event loop has a turn between two pages."""

AT_ONCE = 4
"""Pages that are under way at once. One after the other, a scrape is mostly waiting for Redis."""

GroupStanding = Literal["led", "paused", "no_leader", "expired", "damaged"]


@dataclass(frozen=True, slots=True)
class GroupSignals:
    """One declared group at one moment."""

    subscription: str
    state: GroupStanding
    """What counts more stands for the rest: an expired group may be paused, a paused one may be led."""
    borrowers: int
    """Borrowers of processes that live, whether a leader knows them or not."""
    streams: int | None = None
    """Streams that are not consumed to their end."""
    held: int | None = None
    """Those of them that somebody holds of a leader that lives."""
    committed: int | None = None
    """Sum of the offsets below which all is done: it rises as long as anything is consumed."""
    lag: int | None = None
    """Messages behind, over all streams; None if that of one is unknown."""
    lag_seconds: float | None = None
    """Age of the oldest message that waits; None if unknown.

    At least so much: of a message that is only in a file of the archive, the age of the newest one there; of
    a group with streams that cannot be read, that of what waits in the others."""


@dataclass(frozen=True, slots=True)
class _Read:
    """A group, and where messages wait for it, the largest lag first."""

    signals: GroupSignals
    behind: Sequence[StreamBehind] = ()


class StreamsOfGroups:
    """Which streams each group has: remembered until a space changes, for all spaces are looked through."""

    def __init__(self) -> None:
        self.ages = Ages()
        """Since when messages wait there."""
        self._spaces: Sequence[Space] = ()
        self._matching = SpacesByFilter(())
        self._found: dict[SharedSubscription, list[StreamId]] = {}

    def look(self, spaces: Sequence[Space]) -> None:
        """These are all spaces."""
        if spaces != self._spaces:
            self._spaces, self._matching = spaces, SpacesByFilter(spaces)
            self._found.clear()

    def of(self, groups: Sequence[SharedSubscription]) -> dict[SharedSubscription, list[StreamId]]:
        """The streams of each of these groups."""
        for one in groups:
            if one not in self._found:
                matched = self._matching.of(one.filter)
                self._found[one] = [stream for space in matched for stream in space.streams()]
        return {one: self._found[one] for one in groups}


async def read_signals(
    redis: AsyncRedis, groups: Groups, spaces: SpaceStore, known: StreamsOfGroups | None = None
) -> list[GroupSignals]:
    """All declared groups, in the order of their names; also those that cannot be read.

    Args:
        known: for who asks again and again.

    Raises:
        StoreUnavailable, StoreRefused, Indefinite: Redis does not answer.
        Unsupported: the spaces, or all groups alike, are damaged.
    """
    listed = await groups.list()
    streams = known if known is not None else StreamsOfGroups()
    streams.look((await spaces.recent()).listed)
    borrowers = await _borrowers(redis)
    read: dict[SharedSubscription, _Read] = {}
    damaged: dict[SharedSubscription, str] = {}

    async def work(page: Sequence[SharedSubscription]) -> None:
        good, bad = await readable(page, partial(_read_page, redis, streams, borrowers))
        read.update(good)
        damaged.update(bad)

    await _some_at_once([listed[begin : begin + PAGE] for begin in range(0, len(listed), PAGE)], work)
    found = [
        read[one] if one in read else _Read(GroupSignals(str(one), "damaged", borrowers[str(one)]))
        for one in listed
        if one in read or one in damaged
    ]
    return await _aged(redis, found, streams.ages)


async def _some_at_once(
    pages: Sequence[Sequence[SharedSubscription]],
    work: Callable[[Sequence[SharedSubscription]], Awaitable[None]],
) -> None:
    """`work` for all pages, `AT_ONCE` of them at a time. The first error is raised, and ends the others."""
    left = iter(pages)

    async def next_ones() -> None:
        for page in left:
            await work(page)

    try:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(min(AT_ONCE, len(pages))):
                tasks.create_task(next_ones())
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None


async def _borrowers(redis: AsyncRedis) -> Counter[str]:
    """How many borrowers living processes show, by subscription."""
    listed = await list_rows(redis, CATALOG, rows("borrowers"), Owners(PROCESSES))
    counted: Counter[str] = Counter()
    for row in listed.rows.values():
        try:
            counted[json.loads(row)["subscription"]] += 1
        except (ValueError, TypeError, LookupError):
            continue  # the catalog says which row is damaged
    return counted


async def _read_page(
    redis: AsyncRedis,
    known: StreamsOfGroups,
    borrowers: Counter[str],
    groups: Sequence[SharedSubscription],
) -> dict[SharedSubscription, _Read]:
    wanted = known.of(groups)
    leaders = await leadership.read_all(redis, [one.id for one in groups])
    progress = await group_needs.read(redis, wanted)
    damage = [*(one.damage for one in leaders.values()), *(one.damage for one in progress)]
    for why in filter(None, damage):
        raise Unsupported(why)
    led = {
        one.subscription
        for one in progress
        if (record := leaders[one.subscription.id]).held and not record.expired
    }
    leases = await _leases(redis, [one.subscription for one in progress if one.subscription in led])
    # After the progress: what is committed was there before.
    streams = {stream for one in progress for stream in one.needs}
    damaged: dict[StreamId, StreamleaseError] = {}
    states = await AsyncLog(redis).states(streams, damaged)
    return {
        one.subscription: _signals(
            one,
            one.subscription in led,
            borrowers[str(one.subscription)],
            leases.get(one.subscription, frozenset()),
            states,
        )
        for one in progress
    }


async def _leases(
    redis: AsyncRedis, groups: Sequence[SharedSubscription]
) -> dict[SharedSubscription, frozenset[str]]:
    """The streams of each group whose newest lease stands."""
    replies = await ask(redis, [("HGETALL", keys.leases(one.id)) for one in groups]) if groups else []
    return {
        one: frozenset(
            stream.decode("utf-8", "replace")
            for stream, lease in zip(flat[::2], flat[1::2], strict=True)
            if not stream.startswith(b"@") and not lease.partition(b"/")[0].endswith(b"-")
        )
        for one, flat in zip(groups, replies, strict=True)
    }


def _signals(
    one: GroupProgress,
    led: bool,
    borrowers: int,
    leases: frozenset[str],
    states: Mapping[StreamId, LogState],
) -> _Read:
    going, held, unknown = 0, 0, False
    behind: list[StreamBehind] = []
    for stream, need in one.needs.items():
        state = states.get(stream)
        if state is None or need > state.next:
            # After a failover that lost writes a stream may end below what was committed: nobody knows then.
            going, unknown = going + 1, True
            continue
        begin = need if stream in one.begun else max(need, state.floor)
        if begin < state.next:
            behind.append(StreamBehind(stream, begin, state.next))
        if begin < state.next or not state.sealed:
            going += 1
            held += str(stream) in leases
    if one.expired_at is not None:
        state_of: GroupStanding = "expired"
    elif one.paused_at is not None:
        state_of = "paused"
    else:
        state_of = "led" if led else "no_leader"
    signals = GroupSignals(
        str(one.subscription),
        state_of,
        borrowers,
        streams=going,
        held=held,
        committed=sum(one.needs.values()),
        lag=None if unknown else sum(one.next - one.begin for one in behind),
    )
    return _Read(signals, sorted(behind, key=lambda one: one.begin - one.next))


async def _aged(redis: AsyncRedis, found: Sequence[_Read], ages: Ages) -> list[GroupSignals]:
    """The same, with for how long messages wait."""
    since = await ages.look(redis, [one.behind for one in found])
    now = await server_time(redis)
    return [
        replace(one.signals, lag_seconds=0.0 if one.signals.lag == 0 else _seconds(at, now))
        for one, at in zip(found, since, strict=True)
    ]


def _seconds(since: int | None, now: int) -> float | None:
    return None if since is None else max(0.0, (now - since) / 1_000_000)
