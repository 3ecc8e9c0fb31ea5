"""The journal in Redis: what was committed is recovered, once, whatever happened to the answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from streamlease.leader import journal as journal_module
from streamlease.leader.core.parts.mirror import MirrorChange
from streamlease.leader.core.state.group_state import GroupState
from streamlease.leader.core.state.records import (
    Committed,
    CutOpened,
    HandedOver,
    Leased,
    Record,
    StreamsAdded,
    TermStarted,
    encode_records,
)
from streamlease.leader.journal import Commit, Journal, Recovery, TailLost, recover
from streamlease.protocol.cuts import Ranges
from streamlease.protocol.errors import Fenced, NotDurable, StreamleaseError
from streamlease.registry import keys, leadership
from streamlease.registry.leadership import Candidacy, LeadershipConfig
from streamlease.streams.redis.connection import AsyncRedis, Command, ask, connect
from streamlease.streams.redis.durability import FSYNC
from tests.conftest import MakeServer
from tests.leader.mirrored import Held, change

GROUP, S0 = "g/a", "s.0.0"


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[AsyncRedis]:
    client = connect(redis_url)
    yield client
    await client.aclose()


async def lead(redis: AsyncRedis, host: str = "h") -> int:
    candidacy = Candidacy(GROUP, host, "box", LeadershipConfig())
    candidacy.observe(await leadership.read(redis, GROUP), 0)
    term = await candidacy.attempt(redis)
    assert term is not None
    return term


async def opened(redis: AsyncRedis) -> Journal:
    recovery = await recover(redis, GROUP)
    return Journal(redis, GROUP, "h", await lead(redis), recovery.last_id)


async def commit(journal: Journal, *records: Record) -> Commit:
    numbered = journal.next_commit(records)
    await journal.write(numbered)
    return numbered


def lease(lease_epoch: int) -> Leased:
    return Leased(stream=S0, lease_epoch=lease_epoch, name=f"n{lease_epoch}", session=f"s{lease_epoch}")


ADDED = StreamsAdded(starts={S0: 0})


def state_of(*records: Record) -> GroupState:
    state = GroupState()
    for record in records:
        state.apply(record)
    return state


async def test_a_group_without_journal_begins_empty(redis: AsyncRedis) -> None:
    assert await recover(redis, GROUP) == Recovery(GroupState(), b"0-0")
    assert await ask(redis, [("DBSIZE",)]) == [0]


async def test_what_was_committed_is_recovered(redis: AsyncRedis) -> None:
    journal = await opened(redis)
    await commit(journal, TermStarted(term=1, host="h"), ADDED)
    await commit(journal, Committed(offsets={S0: 7}))
    recovery = await recover(redis, GROUP)
    assert recovery.state == state_of(TermStarted(term=1, host="h"), ADDED, Committed(offsets={S0: 7}))
    assert recovery.last_id == journal.last_id
    assert journal.since_snapshot == 2


async def test_a_commit_is_one_entry_and_wholly_there_or_not_at_all(redis: AsyncRedis) -> None:
    journal = await opened(redis)
    await commit(journal, ADDED, *(Committed(offsets={S0: n}) for n in range(50)))
    assert await ask(redis, [("XLEN", keys.journal(GROUP))]) == [1]


async def test_more_than_a_page_is_recovered(redis: AsyncRedis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "PAGE", 3)
    journal = await opened(redis)
    await commit(journal, ADDED)
    for n in range(1, 12):
        await commit(journal, Committed(offsets={S0: n}))
    assert (await recover(redis, GROUP)).state.streams[S0].committed == 11


async def test_a_snapshot_by_another_leader_amid_the_recovery_is_read_instead(
    redis: AsyncRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "ENTRIES_KEPT", 1)
    journal = await opened(redis)
    await commit(journal, ADDED)
    await commit(journal, Committed(offsets={S0: 7}))
    real = journal_module._recovered
    states = [state_of(ADDED, Committed(offsets={S0: 7})).snapshot()]

    async def slow(*given: object) -> Recovery:
        if states:
            await journal.snapshot(states.pop())  # and drops the entry that names the stream
        return await real(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(journal_module, "_recovered", slow)
    assert (await recover(redis, GROUP)).state.streams[S0].committed == 7


def counted(state: GroupState) -> tuple[int, int]:
    """What would tell that a record was applied twice: the number of moves, and the present lease epoch."""
    return state.moves, state.streams[S0].lease_epoch


async def test_a_commit_repeated_after_a_lost_answer_is_read_once(redis: AsyncRedis) -> None:
    journal = await opened(redis)
    await commit(journal, ADDED, lease(1))
    numbered = await commit(journal, lease(2))
    await journal.write(numbered)
    await commit(journal, lease(3))
    assert await ask(redis, [("XLEN", keys.journal(GROUP))]) == [4]
    assert counted((await recover(redis, GROUP)).state) == (2, 3)


async def test_a_copy_that_arrives_after_later_commits_is_not_read(redis: AsyncRedis) -> None:
    journal = await opened(redis)
    await commit(journal, ADDED, lease(1))
    numbered = await commit(journal, lease(2))
    await commit(journal, lease(3))
    await journal.write(numbered)
    assert counted((await recover(redis, GROUP)).state) == (2, 3)


async def test_a_copy_that_arrives_after_a_snapshot_is_not_read(redis: AsyncRedis) -> None:
    """Else a former lease epoch would come back, to be issued a second time (invariant 2)."""
    journal = await opened(redis)
    await commit(journal, ADDED, lease(1))
    numbered = await commit(journal, lease(2))
    await commit(journal, lease(3))
    await journal.snapshot((await recover(redis, GROUP)).state.snapshot())
    await journal.write(numbered)
    assert counted((await recover(redis, GROUP)).state) == (2, 3)
    await commit(journal, lease(4))
    assert counted((await recover(redis, GROUP)).state) == (3, 4)


async def test_the_next_term_s_commits_follow_those_of_the_one_before(redis: AsyncRedis) -> None:
    for n in range(1, 4):
        journal = await opened(redis)
        await commit(journal, ADDED, lease(n))
        await leadership.resign(redis, GROUP, "h", n)
    assert counted((await recover(redis, GROUP)).state) == (2, 3)


async def test_a_snapshot_and_the_rest_give_the_state(redis: AsyncRedis) -> None:
    journal = await opened(redis)
    await commit(journal, ADDED, lease(1))
    await journal.snapshot((await recover(redis, GROUP)).state.snapshot())
    assert journal.since_snapshot == 0
    await commit(journal, lease(2), Committed(offsets={S0: 5}))
    recovery = await recover(redis, GROUP)
    assert counted(recovery.state) == (1, 2)
    assert recovery.state == state_of(ADDED, lease(1), lease(2), Committed(offsets={S0: 5}))
    assert recovery.last_id == journal.last_id


async def test_a_snapshot_of_a_former_term_of_the_same_host_is_refused(redis: AsyncRedis) -> None:
    """Also where it was stopped before it wrote, and leads again since."""
    journal = await opened(redis)
    await commit(journal, ADDED)
    await leadership.resign(redis, GROUP, "h", 1)
    assert await lead(redis) == 2
    with pytest.raises(Fenced):
        await journal.snapshot(state_of(ADDED).snapshot())
    with pytest.raises(Fenced):
        await commit(journal, lease(1))
    assert await ask(redis, [("EXISTS", keys.snapshot(GROUP)), ("XLEN", keys.journal(GROUP))]) == [0, 1]


async def test_a_snapshot_alone_is_enough(redis: AsyncRedis) -> None:
    journal = await opened(redis)
    await commit(journal, ADDED, lease(1))
    await journal.snapshot((await recover(redis, GROUP)).state.snapshot())
    await ask(redis, [("DEL", keys.journal(GROUP))])
    recovery = await recover(redis, GROUP)
    assert counted(recovery.state) == (0, 1)
    assert recovery.last_id == journal.last_id


async def test_trimming_keeps_the_newest_entries_and_everything_after_the_snapshot(
    redis: AsyncRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "ENTRIES_KEPT", 5)
    journal = await opened(redis)
    await commit(journal, ADDED)
    for n in range(1, 20):
        await commit(journal, Committed(offsets={S0: n}))
    await journal.snapshot((await recover(redis, GROUP)).state.snapshot())
    assert await ask(redis, [("XLEN", keys.journal(GROUP))]) == [5]
    for n in range(20, 30):
        await commit(journal, Committed(offsets={S0: n}))
    assert await ask(redis, [("XLEN", keys.journal(GROUP))]) == [15]
    assert (await recover(redis, GROUP)).state.streams[S0].committed == 29


async def test_the_newest_commit_stays_where_the_journal_ends_however_large_it_is(
    redis: AsyncRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trimmed away, every later commit of the term looked like one behind a lost tail.

    The simulation does not see it: its commits are far too small to be trimmed by bytes.
    """
    monkeypatch.setattr(journal_module, "BYTES_KEPT", 10)
    journal = await opened(redis)
    await commit(journal, ADDED)
    await journal.snapshot(state_of(ADDED).snapshot())
    assert await ask(redis, [("XLEN", keys.journal(GROUP))]) == [1]
    await commit(journal, Committed(offsets={S0: 3}))
    assert (await recover(redis, GROUP)).state.streams[S0].committed == 3


async def test_an_entry_of_the_second_before_is_read_after_a_snapshot_of_now(redis: AsyncRedis) -> None:
    """Recovery goes by the order of the journal, never by a clock."""
    journal = await opened(redis)
    await commit(journal, ADDED, HandedOver(stream=S0, milliseconds=5, clean=True))
    await journal.snapshot((await recover(redis, GROUP)).state.snapshot())
    await commit(journal, HandedOver(stream=S0, milliseconds=9, clean=True))
    assert (await recover(redis, GROUP)).state.longest_hand_over_ms == 9


@pytest.mark.parametrize(
    "fields",
    [
        ("t", "1", "n", "1", "r", "nonsense"),
        ("t", "1", "n", "1", "r", '[{"type":"nonsense"}]'),
        ("t", "1", "n", "1"),
        ("t", "x", "n", "1", "r", "[]"),
        (
            "t",
            "1",
            "n",
            "1",
            "r",
            '[{"type":"leased","stream":"x","lease_epoch":1,"name":"n","session":"s"}]',
        ),
        ("t", "1", "n", "1", "r", "[" * 100_000),
    ],
    ids=["no JSON", "unknown record", "no records", "no number", "unknown stream", "nested deeply"],
)
async def test_a_damaged_entry_is_one_clear_error(redis: AsyncRedis, fields: tuple[str, ...]) -> None:
    await ask(redis, [("XADD", keys.journal(GROUP), "5-1", *fields)])
    with pytest.raises(StreamleaseError, match="entry 5-1 of the journal of group g/a is damaged") as caught:
        await recover(redis, GROUP)
    assert len(str(caught.value).splitlines()) == 1
    assert f"restore key {keys.journal(GROUP)} from a backup" in str(caught.value)


@pytest.mark.parametrize("state", ["nonsense", "[]", '{"term": "x"}', '{"unknown": 1}', "[" * 100_000])
async def test_a_damaged_snapshot_is_one_clear_error(redis: AsyncRedis, state: str) -> None:
    await ask(redis, [("HSET", keys.snapshot(GROUP), "id", "5-1", "state", state)])
    with pytest.raises(StreamleaseError, match="the snapshot of group g/a is damaged") as caught:
        await recover(redis, GROUP)
    assert len(str(caught.value).splitlines()) == 1
    assert f"restore key {keys.snapshot(GROUP)} from a backup" in str(caught.value)


# -- a failover of Redis that lost the newest entries --------------------------------------------------------


async def test_a_lost_tail_is_noticed_and_healed(redis: AsyncRedis) -> None:
    """The leader knows all that it wrote, so nothing that it confirmed is lost with the entries."""
    journal = await opened(redis)
    await commit(journal, ADDED, lease(1))
    kept = journal.last_id
    await commit(journal, lease(2))
    await commit(journal, Committed(offsets={S0: 7}))
    known = (await recover(redis, GROUP)).state
    lost = journal.last_id
    entries = await ask(redis, [("XRANGE", keys.journal(GROUP), b"(" + kept, "+")])
    await ask(redis, [("XDEL", keys.journal(GROUP), *(id for id, _ in entries[0]))])
    assert counted((await recover(redis, GROUP)).state) == (0, 1)

    numbered = journal.next_commit([Committed(offsets={S0: 9})])
    known.apply(Committed(offsets={S0: 9}))
    with pytest.raises(TailLost, match=f"ends with entry {kept.decode()}, but h wrote up to {lost.decode()}"):
        await journal.write(numbered)
    with pytest.raises(TailLost):
        await journal.snapshot(known.snapshot())
    await journal.heal(known.snapshot())
    assert (await recover(redis, GROUP)).state == known
    await commit(journal, Committed(offsets={S0: 11}))
    assert (await recover(redis, GROUP)).state.streams[S0].committed == 11
    assert counted((await recover(redis, GROUP)).state) == (1, 2)


async def test_a_snapshot_that_healed_a_journal_and_is_lost_in_its_turn_is_noticed(redis: AsyncRedis) -> None:
    journal = await opened(redis)
    await commit(journal, ADDED)
    kept = journal.last_id
    await commit(journal, lease(1))
    await ask(redis, [("XDEL", keys.journal(GROUP), journal.last_id)])
    with pytest.raises(TailLost):
        await commit(journal, lease(2))
    known = (await recover(redis, GROUP)).state
    known.apply(lease(1))
    known.apply(lease(2))
    await journal.heal(known.snapshot())
    assert (await recover(redis, GROUP)).state == known
    # A second failover: the store is again as it was before the snapshot.
    entries = await ask(redis, [("XRANGE", keys.journal(GROUP), b"(" + kept, "+")])
    await ask(redis, [("XDEL", keys.journal(GROUP), *(id for id, _ in entries[0]))])
    await ask(redis, [("DEL", keys.snapshot(GROUP))])
    with pytest.raises(TailLost):
        await commit(journal, lease(3))


async def test_a_journal_that_was_lost_whole_is_healed(redis: AsyncRedis) -> None:
    journal = await opened(redis)
    await commit(journal, ADDED, lease(1))
    known = (await recover(redis, GROUP)).state
    await ask(redis, [("DEL", keys.journal(GROUP))])
    with pytest.raises(TailLost):
        await commit(journal, lease(2))
    known.apply(lease(2))
    await journal.heal(known.snapshot())
    await commit(journal, lease(3))
    assert counted((await recover(redis, GROUP)).state) == (2, 3)


@pytest.mark.parametrize("lost", [False, True], ids=["longer", "shorter"])
async def test_a_journal_that_changes_while_it_is_healed_is_healed(
    redis: AsyncRedis, monkeypatch: pytest.MonkeyPatch, lost: bool
) -> None:
    """A second failover, say, between the look where it ends and the snapshot that is put there."""
    journal = await opened(redis)
    await commit(journal, ADDED, lease(1))
    known = (await recover(redis, GROUP)).state
    await ask(redis, [("XADD", keys.journal(GROUP), "*", "r", "[]", "t", "x", "n", "x")])
    with pytest.raises(TailLost):
        await commit(journal, lease(2))
    known.apply(lease(2))
    looks = 0

    async def asked(redis: AsyncRedis, commands: list[Command]) -> list[Any]:
        nonlocal looks
        replies = await ask(redis, commands)
        looks += 1
        if looks == 1 and lost:
            await ask(redis, [("XDEL", keys.journal(GROUP), replies[0][0][0])])
        elif looks == 1:
            await ask(redis, [("XADD", keys.journal(GROUP), "*", "r", "[]", "t", "y", "n", "y")])
        return replies

    with monkeypatch.context() as patched:
        patched.setattr(journal_module, "ask", asked)
        await journal.heal(known.snapshot())
    assert looks == 2
    assert (await recover(redis, GROUP)).state == known
    await commit(journal, lease(3))
    assert counted((await recover(redis, GROUP)).state) == (2, 3)


async def test_the_repetition_of_the_newest_commit_adds_no_entry(redis: AsyncRedis) -> None:
    journal = await opened(redis)
    await commit(journal, ADDED)
    before = journal.last_id
    numbered = await commit(journal, lease(1))
    after, journal.last_id = journal.last_id, before
    await journal.write(numbered)
    assert journal.last_id == after
    assert await ask(redis, [("XLEN", keys.journal(GROUP))]) == [2]


async def test_a_commit_is_as_durable_as_its_group_demands(make_redis_server: MakeServer) -> None:
    for kind in ("embedded", "redis7"):
        server = make_redis_server(kind, persistent=True)
        client = connect(server.url)
        recovery = await recover(client, GROUP)
        journal = Journal(client, GROUP, "h", await lead(client), recovery.last_id, (FSYNC,))
        numbered = await commit(journal, ADDED)
        with server.client() as admin:
            admin.config_set("appendonly", "no")
        numbered = journal.next_commit([lease(1)])
        with pytest.raises(NotDurable, match="the journal of group g/a is written, but not durably"):
            await journal.write(numbered)
        with server.client() as admin:
            admin.config_set("appendonly", "yes")
            while admin.info("persistence")["aof_rewrite_in_progress"]:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        await journal.write(numbered)
        assert await ask(client, [("XLEN", keys.journal(GROUP))]) == [2]
        await client.aclose()


def cut_of(streams: int, number: int) -> CutOpened:
    names = [f"s.0.{one}" for one in range(streams)]
    ranges = Ranges(names, [1] * streams, [number] * streams, [number + 1] * streams)
    return CutOpened(session="q", cut=number, ranges=ranges)


async def test_a_journal_of_large_cuts_stays_small(
    redis: AsyncRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = len(encode_records([cut_of(100, 10)]))
    monkeypatch.setattr(journal_module, "SNAPSHOT_BYTES", 5 * size)
    monkeypatch.setattr(journal_module, "BYTES_KEPT", 3 * size)
    journal = await opened(redis)
    longest = 0
    for number in range(10, 40):
        await commit(journal, cut_of(100, number))
        if journal.wants_snapshot:
            await journal.snapshot(state_of(cut_of(100, number)).snapshot())
            assert not journal.wants_snapshot
        longest = max(longest, (await ask(redis, [("XLEN", keys.journal(GROUP))]))[0])
    assert longest == 3 + 4
    assert (await recover(redis, GROUP)).state == state_of(cut_of(100, 39))


async def test_many_streams_are_mirrored_and_forgotten_at_once(redis: AsyncRedis) -> None:
    """Lua unpacks 8,000 values at most."""
    journal = await opened(redis)
    names = [f"s.0.{one}" for one in range(9000)]
    mine = Held(committed=3, lease="7", asked=False)
    await journal.write(journal.next_commit([ADDED], change(dict.fromkeys(names, mine))))
    mirror = (await ask(redis, [("HMGET", keys.progress(GROUP), *names)]))[0]
    assert mirror == [b"3"] * 9000
    assert (await ask(redis, [("HMGET", keys.leases(GROUP), *names)]))[0] == [b"7"] * 9000
    gone = tuple(name for name in names if name != names[5])
    await journal.write(journal.next_commit([ADDED], MirrorChange(gone, fields={names[5]: 4})))
    for key, left in ((keys.progress(GROUP), b"4"), (keys.leases(GROUP), b"7")):
        mirror = (await ask(redis, [("HMGET", key, *names)]))[0]
        assert mirror == [left if name == names[5] else None for name in names]
    fields = dict.fromkeys(names, 5)
    await journal.write(journal.next_commit([ADDED], MirrorChange(fields=fields)))
    assert (await ask(redis, [("HMGET", keys.progress(GROUP), *names)]))[0] == [b"5"] * 9000
