"""The mirror of a progress: never ahead of the journal, behind it only for an unanswered write."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from streamlease.leader.core.events import LeasesWritten, Received, Recovered, StreamsListed, Tick
from streamlease.leader.core.machine import Leader, LeaderConfig
from streamlease.leader.core.parts.mirror import MirrorChange
from streamlease.leader.core.state.group_state import GroupState
from streamlease.leader.core.state.records import (
    Committed,
    CutClosed,
    CutOpened,
    Expired,
    Returned,
    StreamsAdded,
    Truncated,
)
from streamlease.leader.journal import Journal, TailLost, recover
from streamlease.leader.stream_watch import StreamWatch
from streamlease.protocol.cuts import CutRange, Ranges
from streamlease.protocol.errors import Fenced
from streamlease.protocol.ids import StreamId
from streamlease.protocol.messages import LeaderWanted, Progress, UpdateProgress
from streamlease.protocol.topics import SharedSubscription
from streamlease.registry import group_needs, keys, leadership
from streamlease.registry.commits import GroupCommits, StreamCommit
from streamlease.registry.groups import Declaration, Groups
from streamlease.registry.leadership import Candidacy, LeadershipConfig
from streamlease.registry.stream_listing import StreamListing
from streamlease.streams.log.keys import stream_meta
from streamlease.streams.redis.connection import AsyncRedis, ask, connect
from streamlease.streams.spaces.spaces import Known, SpaceStore
from tests.leader.mirrored import change, free, held, leased

SUB = SharedSubscription("g", "a/#")
GROUP = SUB.id
S0, S1 = StreamId("a", 0, 0), StreamId("a", 0, 1)


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[AsyncRedis]:
    client = connect(redis_url)
    await SpaceStore(client).create("a", ["a/#"], streams=2)
    await Groups(client).declare(SUB, "earliest")
    yield client
    await client.aclose()


async def journal_of(redis: AsyncRedis, host: str = "h") -> Journal:
    candidacy = Candidacy(GROUP, host, "box", LeadershipConfig())
    candidacy.observe(await leadership.read(redis, GROUP), 0)
    term = await candidacy.attempt(redis)
    assert term is not None
    return Journal(redis, GROUP, host, term, b"0-0")


def at(committed: int) -> MirrorChange:
    """The first stream is so far, and leased to nobody."""
    return change({str(S0): free(committed, 0)})


def shown(machine: Leader) -> tuple[tuple[str, ...], dict[str, int], dict[str, int]]:
    """What changes beside the journal: what goes, the fields, and what is committed of streams."""
    moved = machine.ledger.mirror.take(machine.durable)
    return tuple(moved.gone), dict(moved.fields), {name: one.committed for name, one in held(moved).items()}


async def needs(redis: AsyncRedis) -> dict[StreamId, int]:
    (group,) = await group_needs.read(redis, {SUB: [S0, S1]})
    return dict(group.needs)


async def test_without_progress_a_group_needs_everything_from_its_start(redis: AsyncRedis) -> None:
    assert await needs(redis) == {S0: 0, S1: 0}
    later = SharedSubscription("later", "a/#")
    await redis.hset("sl:{a.0.1}:meta", "next", 9)
    await Groups(redis).declare(later, "latest")
    (group,) = await group_needs.read(redis, {later: [S0, S1]})
    assert dict(group.needs) == {S0: 0, S1: 9}
    assert group.idle_ms < 5000 and group.active_at > 1_700_000_000_000


async def test_commit_and_mirror_are_one_act(redis: AsyncRedis) -> None:
    journal = await journal_of(redis)
    commit = journal.next_commit([StreamsAdded(starts={str(S0): 3})], at(3))
    assert await needs(redis) == {S0: 0, S1: 0}
    await journal.write(commit)
    assert await needs(redis) == {S0: 3, S1: 0}
    assert (await recover(redis, GROUP)).state.streams[str(S0)].committed == 3


async def test_a_deposed_leader_mirrors_nothing(redis: AsyncRedis) -> None:
    old = await journal_of(redis)
    await leadership.resign(redis, GROUP, "h", 1)
    await journal_of(redis, "other")
    with pytest.raises(Fenced):
        await old.write(old.next_commit([Committed(offsets={str(S0): 5})], at(5)))
    assert await needs(redis) == {S0: 0, S1: 0}


async def test_a_late_copy_puts_nothing_back(redis: AsyncRedis) -> None:
    journal = await journal_of(redis)
    first = journal.next_commit([StreamsAdded(starts={str(S0): 1})], at(1))
    await journal.write(first)
    await journal.write(journal.next_commit([Committed(offsets={str(S0): 8})], at(8)))
    journal.last_id = b"0-0"
    with pytest.raises(TailLost):
        await journal.write(first)
    assert (await needs(redis))[S0] == 8


async def test_a_live_leader_and_every_declaration_are_signs_of_life(redis: AsyncRedis) -> None:
    async def active() -> int:
        (group,) = await group_needs.read(redis, {SUB: [S0]})
        return group.active_at

    await redis.hset(keys.progress(GROUP), "@active", 5)
    assert await active() == 5
    await Groups(redis).declare(SUB)
    assert await active() > 5
    await redis.hset(keys.progress(GROUP), "@active", 5)
    journal = await journal_of(redis)
    assert await active() > 5
    await leadership.resign(redis, GROUP, "h", 1)
    assert await active() == 5
    del journal


async def test_how_far_streams_are_is_read_after_what_was_removed_of_them(
    redis: AsyncRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else what was committed and removed in between would count as lost."""
    journal = await journal_of(redis)
    await journal.write(journal.next_commit([], change({str(S0): leased(3, 1), str(S1): leased(3, 1)})))
    await redis.hset(stream_meta(S0), mapping={"floor": 6, "next": 9})
    groups, commits = Groups(redis), GroupCommits(redis, GROUP)
    listing = groups.listing

    async def and_then_its_owner_commits(declaration: Declaration, known: Known) -> StreamListing:
        found = await listing(declaration, known)
        assert await commits.write([StreamCommit(str(S0), 1, 6), StreamCommit(str(S1), 1, 8)]) == [True, True]
        return found

    monkeypatch.setattr(groups, "listing", and_then_its_owner_commits)
    watch = StreamWatch(redis, groups, await groups.get(SUB), journal)
    found = await watch.look(await SpaceStore(redis).look(), 0)
    assert found is not None
    assert found.floors == {str(S0): 6, str(S1): 0}
    assert found.committed == {str(S0): 6}, "of what nothing was removed it is not asked"


async def test_a_group_that_is_forgotten_leaves_nothing(redis: AsyncRedis) -> None:
    await Groups(redis).forget(SUB)
    assert await group_needs.read(redis, {SUB: [S0]}) == []
    (names,) = await ask(redis, [("KEYS", "sl:{g:*")])
    assert names == []


# -- what the machine hands to the mirror


def leader(state: GroupState | None = None) -> Leader:
    return Leader(GROUP, "h", 1, LeaderConfig(), state or GroupState())


def test_the_first_commit_of_a_leader_mirrors_everything() -> None:
    state = GroupState()
    state.apply(StreamsAdded(starts={"a.0.0": 2, "a.0.1": 5}))
    machine = leader(state)
    machine.step(Recovered(), 0)
    assert shown(machine) == (("@expired", "@paused"), {}, {"a.0.0": 2, "a.0.1": 5})
    assert shown(machine) == ((), {}, {})


def test_later_commits_mirror_what_moved() -> None:
    machine = leader()
    machine.step(Recovered(), 0)
    shown(machine)
    machine.step(StreamsListed({"a.0.0": 2, "a.0.1": 0}), 0)
    assert shown(machine) == ((), {}, {"a.0.0": 2, "a.0.1": 0})
    machine.step(
        Received("m", LeaderWanted(
            group=GROUP, borrower="b", session="s", name="n", arrival=1, attempt=1, host="x",
            session_timeout_ms=10_000,
        )), 0,
    )  # fmt: skip
    machine.step(Tick(), 1000)
    moved = held(machine.ledger.mirror.take(machine.durable))
    assert moved["a.0.0"] == leased(2, 1), "it was leased"
    machine.step(LeasesWritten({"a.0.0": 4}), 1000)
    assert shown(machine) == ((), {}, {"a.0.0": 4}), "more was committed than the leader knew"
    entry = Progress(stream="a.0.0", lease_epoch=1, offset=7)
    machine.step(Received("m", UpdateProgress(group=GROUP, borrower="b", progress=(entry,))), 1000)
    assert shown(machine) == ((), {}, {"a.0.0": 7})


def test_a_closed_cut_moves_its_streams() -> None:
    state = GroupState()
    state.apply(StreamsAdded(starts={"a.0.0": 0, "a.0.1": 0}))
    part = CutRange(stream="a.0.1", lease_epoch=1, start=0, end=4)
    state.apply(CutOpened(session="s", cut=3, ranges=Ranges.of((part,))))
    assert list(state.apply(CutClosed(session="s", cut=2))) == []
    assert list(state.apply(CutClosed(session="s", cut=3))) == ["a.0.1"]


def test_what_retention_passed_is_recorded_and_counted() -> None:
    state = GroupState()
    state.apply(StreamsAdded(starts={"a.0.0": 0, "a.0.1": 10}))
    state.apply(Expired(at=5, idle_ms=9, host="h"))
    machine = leader(GroupState.restore(state.snapshot()))
    machine.step(Recovered(), 0)
    assert shown(machine) == (("@paused",), {"@expired": 5}, {"a.0.0": 0, "a.0.1": 10})
    wanted = LeaderWanted(
        group=GROUP, borrower="b", session="s", name="n", arrival=1, attempt=1, host="x",
        session_timeout_ms=10_000,
    )  # fmt: skip
    machine.step(Received("m", wanted), 0)
    assert machine.durable.expired_at is None, "a consumer came back"
    assert shown(machine) == (("@expired",), {}, {})
    machine.step(StreamsListed({"a.0.0": 6, "a.0.1": 6}, {"a.0.0": 6, "a.0.1": 6}), 0)
    streams = machine.durable.streams
    assert (streams["a.0.0"].committed, streams["a.0.0"].truncated) == (6, 6)
    assert (streams["a.0.1"].committed, streams["a.0.1"].truncated) == (10, 0)
    machine.step(StreamsListed({"a.0.0": 9, "a.0.1": 6}, {"a.0.0": 9, "a.0.1": 6}), 0)
    assert (streams["a.0.0"].committed, streams["a.0.0"].truncated) == (9, 9)
    state.apply(Returned())
    state.apply(Truncated(floors={"a.0.0": 6}))
    assert state.streams["a.0.0"].truncated == 6
