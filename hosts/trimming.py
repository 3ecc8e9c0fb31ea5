"""Retention: every few seconds, one of the leader hosts trims the streams of all spaces.

::

    claim --> finish half-done changes, drop spent generations (forgetting.py)
          --> ends of the streams --> what the groups need --> let go of groups idle for too long --> trim

The term of the claim (`hosts/claim.py`) goes with every trim, and a stream refuses a lower term than it has
seen, so a host that lost the claim without knowing it trims nothing. Ends are read before groups
(`registry/group_needs.py` says why). What a host decides in a round is used in that round only.

A group that was idle for longer than its expiry stops holding data: the host takes the group's leadership,
writes `Expired` into its journal, and in the same act beside it, and resigns. So it never does this
to a group that somebody leads. A consumer that comes back finds its streams at the floor; its leader records
`Returned` and `Truncated`. Where retention passed a group that is not expired, because it was forced or the
group came back at that moment, the group's leader is told to look at the floors: what groups need is read
once more after the trim, for one that is expired then looks at the floors when it comes back.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from streamlease.hosts.claim import Claim
from streamlease.hosts.forgetting import Forgetter, Spent, unfinished
from streamlease.leader.core.parts.mirror import MirrorChange
from streamlease.leader.core.state.group_state import EXPIRED
from streamlease.leader.core.state.records import Expired
from streamlease.leader.journal import Journal, TailLost, recover
from streamlease.protocol.errors import InvalidOption, StreamleaseError, UnknownGroup, UnknownSpace
from streamlease.protocol.ids import StreamId
from streamlease.protocol.topics import SharedSubscription
from streamlease.registry import group_needs, keys, leadership
from streamlease.registry.group_needs import GroupProgress, Holds, needs
from streamlease.registry.groups import Groups
from streamlease.registry.leadership import Candidacy, LeadershipConfig
from streamlease.streams.collections.snapshots import StoredSnapshot, look_at_snapshots
from streamlease.streams.redis.connection import AsyncRedis
from streamlease.streams.spaces.matching import SpacesByFilter
from streamlease.streams.spaces.retention import (
    NOTHING_NEWER,
    Newer,
    Retention,
    Trim,
    TrimFenced,
    Trimmed,
    kept,
    newer_than,
    standing_behind,
    trim_many,
)
from streamlease.streams.spaces.spaces import Space, SpaceStore

log = logging.getLogger(__name__)

CLAIM = keys.RETENTION
"""The name under which the claim stands."""

INTERVAL_SECONDS = 10.0
PAGE = 64
"""Streams that are trimmed in one write."""


@dataclass(slots=True)
class Round:
    """What one round came to."""

    claimed: bool = False
    trimmed: list[Trimmed] = field(default_factory=list)
    expired: list[SharedSubscription] = field(default_factory=list)
    dropped: list[Spent] = field(default_factory=list)
    passed: list[SharedSubscription] = field(default_factory=list)
    """Groups that have not consumed what is gone now."""


def expiry_of(group: GroupProgress, spaces: Iterable[Space]) -> int:
    """After how many idle milliseconds the group holds nothing; 0: never.

    Its own setting counts, else the longest of its spaces' (`spaces` may have others).
    """
    if group.expiry_ms is not None:
        return group.expiry_ms
    settings = [s.retention.group_expiry_ms for s in spaces if s.intersects(group.subscription.filter)]
    return 0 if 0 in settings else max(settings, default=0)


def overdue(holds: Holds, spaces: Sequence[Space]) -> list[GroupProgress]:
    """Groups that hold data, though they were idle for longer than their expiry. Pure."""
    matching = SpacesByFilter(spaces)
    return [
        group
        for group in holds.groups
        if group.expired_at is None
        and holds.behind(group)
        and 0 < expiry_of(group, matching.of(group.subscription.filter)) < group.idle_ms
    ]


def passed_over(floors: dict[StreamId, int], groups: Iterable[GroupProgress]) -> list[SharedSubscription]:
    """Groups, other than expired ones, that need something below a floor. Pure."""
    return [
        group.subscription
        for group in groups
        if group.expired_at is None
        and any(need < floors.get(stream, 0) for stream, need in group.needs.items())
    ]


def _is_limited(space: Space) -> bool:
    """Whether anything ever leaves its memory."""
    archive = space.archive
    return space.retention.limited or (
        archive is not None and not (archive.keep_ms is None and archive.keep_bytes is None)
    )


def in_memory(space: Space, sizes: Sequence[int], newer: Sequence[Newer]) -> list[Retention | None]:
    """What of a space with an archive each stream keeps in memory, given what they have there. Pure.

    Args:
        newer: what the streams that follow each of them have there; its bytes count here, its messages where
            the stream is trimmed.

    The bytes are those of the whole space: a stream keeps the share of them that it has now. What retention
    removes from the archive does not stay in memory.
    """
    archive, retention = space.archive, space.retention
    if archive is None or not _is_limited(space):
        return [None] * len(sizes)
    ages = [age for age in (archive.keep_ms, retention.age_ms) if age is not None]
    whole = sum(sizes)
    found: list[Retention | None] = []
    for size, behind in zip(sizes, newer, strict=True):
        most = [] if retention.bytes is None else [max(1, retention.bytes - behind.bytes)]
        if archive.keep_bytes is not None and whole > archive.keep_bytes:
            most.append(max(1, size * archive.keep_bytes // whole))
        limits = min(ages, default=None), min(most, default=None), retention.messages
        found.append(None if limits == (None, None, None) else Retention(*limits))
    return found


class Retainer:
    """Retention of one leader host.

    Args:
        interval: seconds from one round to the next.
        clock: this process' own clock in milliseconds.

    Raises:
        InvalidOption: the interval is not positive.
    """

    def __init__(
        self, redis: AsyncRedis, host: str, clock: Callable[[], int], *, interval: float = INTERVAL_SECONDS
    ) -> None:
        if not 0 < interval <= 86_400:
            raise InvalidOption(f"retention interval is {interval} s: it must be above 0 and at most 86400")
        self._redis = redis
        self._host = host
        self._clock = clock
        self._spaces = SpaceStore(redis)
        self._groups = Groups(redis)
        self._forgetter = Forgetter(redis, self._spaces, self._groups)
        self._claim = Claim(redis, CLAIM, host, clock, interval)
        self._expiring: dict[str, Candidacy] = {}

    async def round(self) -> Round:
        """Do what is due now, if this host has the claim or can get it.

        Raises:
            StoreUnavailable, StoreRefused, Indefinite: try again.
        """
        done = Round()
        due = [s for s in (await self._spaces.look()).listed if _is_limited(s) or unfinished(s)]
        if not due or not await self._claim.get():
            return done
        done.claimed = True
        done.dropped = await self._forgetter.round(filter(unfinished, due))
        listed = (await self._spaces.look()).listed
        await self._trim_archived([space for space in listed if space.archive is not None], done)
        spaces = [space for space in listed if space.retention.limited]
        if not spaces:
            return done
        holds = await self._look(spaces)
        late = overdue(holds, [space for space in spaces if not space.retention.force])
        for group in late:
            id = group.subscription.id
            try:
                if await self._expire(group):
                    done.expired.append(group.subscription)
            except StreamleaseError as error:
                # It goes on holding what it holds; the others do not wait for it.
                log.warning("group '%s' cannot let go: %s", group.subscription, error, extra={"group": id})
        self._expiring = {g.subscription.id: c for g in late if (c := self._expiring.get(g.subscription.id))}
        if done.expired:
            holds = await self._look(spaces)
        floors = await self._trim([space for space in spaces if space.archive is None], holds, done)
        groups = holds.groups
        if any(group.expired_at is not None for group in groups):
            # One that came back meanwhile may have looked at the floors before they were raised.
            groups = await needs(self._redis, self._groups, spaces)
        done.passed = passed_over(floors, groups)
        await group_needs.tell_passed(self._redis, [group.id for group in done.passed])
        return done

    async def close(self) -> None:
        """Let another host have the claim at once.

        Raises:
            StoreUnavailable, StoreRefused, Indefinite: it expires by itself.
        """
        await self._claim.give_up()

    # ------------------------------------------------------------ groups

    async def _look(self, spaces: Sequence[Space]) -> Holds:
        streams = [stream for space in spaces for stream in space.streams()]
        # A damaged stream has no end here, and keeps what it holds.
        ends = {stream: one.state.next for stream, one in (await kept(self._redis, streams)).items()}
        return Holds(ends, await needs(self._redis, self._groups, spaces))

    async def _expire(self, group: GroupProgress) -> bool:
        """Let a group go, under its leadership; False if somebody leads it, or has just come back."""
        id = group.subscription.id
        fresh = Candidacy(id, self._host, self._host, LeadershipConfig(), declared=True)
        candidacy = self._expiring.setdefault(id, fresh)
        if not candidacy.observe(await leadership.read(self._redis, id), self._clock()):
            return False
        term = None
        with contextlib.suppress(UnknownGroup):  # deleted in this moment
            term = await candidacy.attempt(self._redis)
        if term is None:
            return False
        try:
            # Holding the record is itself a sign of life, so look at what was there before.
            (again,) = await group_needs.read(self._redis, {group.subscription: []}) or [group]
            if again.last_commit_at > group.active_at or again.expired_at is not None:
                return False
            recovery = await recover(self._redis, id)
            durability = await self._groups.durability(group.subscription)
            journal = Journal(self._redis, id, self._host, term, recovery.last_id, durability)
            record = Expired(at=again.read_at, idle_ms=group.idle_ms, host=self._host)
            expired = MirrorChange(fields={EXPIRED: again.read_at})
            try:
                await journal.write(journal.next_commit([record], expired))
            except TailLost as error:
                log.warning("group '%s': its journal is healed: %s", group.subscription, error)
                await journal.heal(recovery.state.snapshot())
                await journal.write(journal.next_commit([record], expired))
            log.warning(
                "group '%s' was idle for %d s and holds no messages any more", group.subscription,
                group.idle_ms // 1000, extra={"group": id, "term": term},
            )  # fmt: skip
            return True
        finally:
            await leadership.resign(self._redis, id, self._host, term)

    # ------------------------------------------------------------ trimming

    async def _trim(self, spaces: Sequence[Space], holds: Holds, done: Round) -> dict[StreamId, int]:
        """Trim all streams of `spaces`; their floors."""
        newer = await self._newer(spaces)
        of_collections = [stream for space in spaces if space.collection for stream in space.streams()]
        snapshots, damaged = await look_at_snapshots(self._redis, of_collections)
        snapshots |= dict.fromkeys(damaged, StoredSnapshot())  # behind which nothing is; their maker tells
        trims = [
            self._trim_of(space, stream, holds, newer.get(stream, NOTHING_NEWER), snapshots.get(stream))
            for space in spaces
            for stream in space.streams()
            if stream in holds.ends
        ]
        return await self._trim_all(trims, done)

    async def _trim_archived(self, spaces: Sequence[Space], done: Round) -> None:
        """Let go out of the memory what is in the archives, and is older or more than is to be kept there.

        What a group has not consumed yet it reads from the files, so no group holds anything here.
        """
        held = await kept(self._redis, [stream for space in spaces for stream in space.streams()])
        trims: list[Trim] = []
        for space in spaces:
            streams = [stream for stream in space.streams() if stream in held]
            own = {s: Newer(held[s].state.next, held[s].state.bytes) for s in streams}
            newer = standing_behind(space.predecessors(), own)
            sizes = [held[stream].state.bytes for stream in streams]
            behind = [newer.get(stream, NOTHING_NEWER) for stream in streams]
            for stream, keep, one in zip(streams, in_memory(space, sizes, behind), behind, strict=True):
                if keep is not None:
                    term, counted = self._claim.term or 0, Newer(one.messages)
                    trims.append(Trim(stream, keep, None, "the archive", term, counted, archived=True))
        await self._trim_all(trims, done)

    async def _trim_all(self, trims: list[Trim], done: Round) -> dict[StreamId, int]:
        """The floors of what was trimmed."""
        floors: dict[StreamId, int] = {}
        while trims and self._claim.sure:
            page, trims = trims[:PAGE], trims[PAGE:]
            for trim, outcome in zip(page, await trim_many(self._redis, page), strict=True):
                if isinstance(outcome, Trimmed):
                    floors[outcome.stream] = outcome.floor
                    if outcome.entries:
                        done.trimmed.append(outcome)
                    if outcome.more:
                        trims.append(trim)
                elif isinstance(outcome, TrimFenced):
                    # A higher term than this claim's: claim anew, above it.
                    log.warning("retention: %s", outcome)
                    await self._claim.give_up(below=outcome.term)
                    return floors
                elif not isinstance(outcome, UnknownSpace):  # deleted meanwhile
                    log.warning(
                        "retention of %s: %s", trim.stream, outcome, extra={"stream": str(trim.stream)}
                    )
        return floors

    async def _newer(self, spaces: Sequence[Space]) -> dict[StreamId, Newer]:
        """What stands behind the sealed streams of former generations."""
        orders = [space.predecessors() for space in spaces if len(space.generations) > 1]
        held = await kept(self._redis, [stream for order in orders for stream in order])
        return {stream: newer for order in orders for stream, newer in newer_than(order, held).items()}

    def _trim_of(
        self, space: Space, stream: StreamId, holds: Holds, newer: Newer, snapshot: StoredSnapshot | None
    ) -> Trim:
        term = self._claim.term or 0
        if snapshot is not None:
            # What is behind the snapshot is nowhere else, so not even force removes it.
            hold = None if space.retention.force else holds.of(stream)
            if hold is None or snapshot.upto < hold.limit:
                return Trim(stream, space.retention, snapshot.upto, "the next snapshot", term, newer)
        if space.retention.force:
            return Trim(stream, space.retention, None, term=term, newer=newer)
        hold = holds.of(stream)
        return Trim(stream, space.retention, hold.limit, hold.holder, term, newer)
