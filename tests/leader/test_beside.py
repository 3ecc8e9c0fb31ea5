"""What a new term finds beside its journal is not written again, whoever committed meanwhile."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

import pytest

from streamlease.leader import beside
from streamlease.leader.beside import lacking
from streamlease.leader.journal import Journal, TailLost
from streamlease.registry import keys, leadership
from streamlease.registry.commits import GroupCommits, StreamCommit, committed
from streamlease.registry.leadership import Candidacy, LeadershipConfig
from streamlease.streams.redis.connection import AsyncRedis, ask, connect
from tests.leader.mirrored import Held, change, free, held, leased

GROUP = "g/a"
S0, S1, S2 = "s.0.0", "s.0.1", "s.0.2"


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[AsyncRedis]:
    client = connect(redis_url)
    yield client
    await client.aclose()


async def journal_of(redis: AsyncRedis) -> Journal:
    await ask(redis, [("SET", keys.definition(GROUP), "{}")])
    candidacy = Candidacy(GROUP, "h", "box", LeadershipConfig())
    candidacy.observe(await leadership.read(redis, GROUP), 0)
    term = await candidacy.attempt(redis)
    assert term is not None
    return Journal(redis, GROUP, "h", term, b"0-0")


async def begun(redis: AsyncRedis, streams: Mapping[str, Held]) -> Journal:
    """A journal beside which these streams stand."""
    journal = await journal_of(redis)
    await journal.write(journal.next_commit([], change(streams)))
    return journal


async def left(redis: AsyncRedis, journal: Journal, streams: Mapping[str, Held]) -> dict[str, Held]:
    """What of these is still to be written."""
    return held((await lacking(redis, GROUP, journal.last_id, change(streams, whole=True)))[0])


async def write(journal: Journal, streams: Mapping[str, Held]) -> dict[str, int]:
    return await journal.write(journal.next_commit([], change(streams, whole=True)))


async def so_far(redis: AsyncRedis) -> dict[str, int]:
    return await committed(redis, GROUP, [S0, S1, S2])


async def leases(redis: AsyncRedis) -> list[bytes | None]:
    return list((await ask(redis, [("HMGET", keys.leases(GROUP), S0, S1, S2)]))[0])


def asked(committed: int, lease: str) -> Held:
    return Held(committed, lease)


async def test_what_stands_there_is_not_sent(redis: AsyncRedis) -> None:
    journal = await begun(redis, {S0: leased(3, 7), S1: free(4, 2), S2: free(5, 6, reset_by=6)})
    whole = {S0: asked(3, "7"), S1: asked(4, "2-"), S2: asked(5, "6-/6")}
    assert await left(redis, journal, whole) == {}
    assert await write(journal, whole) == {}
    assert await so_far(redis) == {S0: 3, S1: 4, S2: 5}
    assert await leases(redis) == [b"7", b"2-", b"6-/6"]


async def test_at_first_all_is_sent(redis: AsyncRedis) -> None:
    journal = await journal_of(redis)
    whole = {S0: asked(3, "7"), S1: asked(4, "2-")}
    assert await left(redis, journal, whole) == whole
    assert await write(journal, whole) == {}
    assert await so_far(redis) == {S0: 3, S1: 4}
    assert await leases(redis) == [b"7", b"2-", None]


async def test_what_was_committed_meanwhile_is_told_and_not_taken_back(redis: AsyncRedis) -> None:
    journal = await begun(redis, {S0: leased(3, 7), S1: leased(4, 2), S2: leased(5, 1)})
    commits = [StreamCommit(S0, 7, 30), StreamCommit(S1, 2, 40), StreamCommit(S2, 1, 50)]
    assert await GroupCommits(redis, GROUP).write(commits) == [True] * 3
    whole = {S0: asked(3, "7"), S1: asked(4, "2-"), S2: asked(6, "9-/9")}
    assert await left(redis, journal, whole) == {S1: asked(4, "2-"), S2: asked(6, "9-/9")}
    before = journal.last_id
    commit = journal.next_commit([], change(whole, whole=True))
    assert await journal.write(commit) == {S0: 30, S1: 40}, "S2 was reset since"
    journal.last_id = before
    assert await journal.write(commit) == {S0: 30, S1: 40}, "also when its answer was lost"
    assert await so_far(redis) == {S0: 30, S1: 40, S2: 6}
    assert await leases(redis) == [b"7", b"2-", b"9-/9"]


async def test_what_is_missing_behind_or_damaged_is_sent(redis: AsyncRedis) -> None:
    journal = await begun(redis, {S0: leased(3, 7), S1: leased(4, 2), S2: leased(5, 1)})
    await ask(redis, [("HSET", keys.progress(GROUP), S0, "?"), ("HDEL", keys.progress(GROUP), S1)])
    whole = {S0: asked(3, "7"), S1: asked(4, "2"), S2: asked(9, "1")}
    assert await left(redis, journal, whole) == whole
    await write(journal, whole)
    assert await so_far(redis) == {S0: 3, S1: 4, S2: 9}


async def test_where_the_journal_ends_elsewhere_nothing_there_counts(redis: AsyncRedis) -> None:
    """Whoever answers may be another server than the one that takes the write."""
    journal = await begun(redis, {S0: leased(3, 7)})
    whole = {S0: asked(3, "7")}
    assert await left(redis, journal, whole) == {}
    journal.last_id = b"5-0"
    assert await left(redis, journal, whole) == whole
    with pytest.raises(TailLost):
        await write(journal, whole)


async def test_a_group_without_streams_asks_for_nothing(redis: AsyncRedis) -> None:
    journal = await journal_of(redis)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(beside, "ask", None)
        assert await write(journal, {}) == {}


async def test_many_streams_are_asked_for_in_several_commands(
    redis: AsyncRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"s.0.{number}" for number in range(10)]
    journal = await begun(redis, dict.fromkeys(names, leased(3, 7)))
    monkeypatch.setattr(beside, "MOST", 4)
    whole = dict.fromkeys(names, asked(3, "7")) | {names[9]: asked(3, "8"), names[4]: asked(5, "7")}
    assert await left(redis, journal, whole) == {names[4]: asked(5, "7"), names[9]: asked(3, "8")}
