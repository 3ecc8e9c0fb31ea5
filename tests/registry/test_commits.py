"""Commits by those who have the streams: fenced, gathered with the leader's writes, never taken back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping

import pytest

from streamlease.leader.core.parts.mirror import MirrorChange
from streamlease.leader.journal import Journal
from streamlease.protocol.errors import NotDurable, StoreRefused, StreamleaseError
from streamlease.registry import commits, keys, leadership
from streamlease.registry.commits import MOST, GroupCommits, StreamCommit, committed
from streamlease.registry.leadership import Candidacy, LeadershipConfig
from streamlease.streams.redis.connection import AsyncRedis, ask, connect
from streamlease.streams.redis.durability import Durability
from streamlease.streams.redis.lines.direct_lines import DirectLines
from streamlease.streams.tasks import Supervisor
from tests.agent.helpers import until
from tests.conftest import MakeServer
from tests.leader.mirrored import Held, change, free, leased

GROUP = "g/a"
S0, S1 = "s.0.0", "s.0.1"
FSYNC = Durability.parse("fsync")


async def journal_of(redis: AsyncRedis, *durability: Durability) -> Journal:
    await ask(redis, [("SET", keys.definition(GROUP), "{}")])
    candidacy = Candidacy(GROUP, "h", "box", LeadershipConfig())
    candidacy.observe(await leadership.read(redis, GROUP), 0)
    term = await candidacy.attempt(redis)
    assert term is not None
    return Journal(redis, GROUP, "h", term, b"0-0", durability)


async def write(journal: Journal, streams: Mapping[str, Held]) -> dict[str, int]:
    return await journal.write(journal.next_commit([], change(streams)))


async def so_far(redis: AsyncRedis) -> dict[str, int]:
    return await committed(redis, GROUP, [S0, S1])


async def test_the_owner_commits_and_nobody_else_does(redis: AsyncRedis) -> None:
    commits = GroupCommits(redis, GROUP)
    assert await commits.write([StreamCommit(S0, 1, 5)]) == [False], "there is no lease"
    assert await so_far(redis) == {}
    await write(await journal_of(redis), {S0: leased(3, 7), S1: leased(0, 2)})
    said = [StreamCommit(S0, 7, 5), StreamCommit(S1, 1, 9), StreamCommit("s.0.9", 1, 9)]
    assert await commits.write(said) == [True, False, False]
    assert await so_far(redis) == {S0: 5, S1: 0}
    assert await commits.write([StreamCommit(S0, 70, 9), StreamCommit(S0, 0, 9)]) == [False, False]


async def test_a_lease_that_is_over_commits_nothing(redis: AsyncRedis) -> None:
    commits, journal = GroupCommits(redis, GROUP), await journal_of(redis)
    await write(journal, {S0: leased(0, 1)})
    await write(journal, {S0: free(0, 1)})
    assert await commits.write([StreamCommit(S0, 1, 5)]) == [False]
    await journal.write(journal.next_commit([], MirrorChange(gone=(S0,))))
    assert await commits.write([StreamCommit(S0, 1, 5)]) == [False]
    assert await so_far(redis) == {}


async def test_a_late_commit_takes_nothing_back(redis: AsyncRedis) -> None:
    commits = GroupCommits(redis, GROUP)
    await write(await journal_of(redis), {S0: leased(0, 1)})
    assert await commits.write([StreamCommit(S0, 1, 8)]) == [True]
    assert await commits.write([StreamCommit(S0, 1, 5)]) == [True]
    assert await so_far(redis) == {S0: 8}


async def test_a_leader_that_knows_less_takes_nothing_back_and_is_told_when_it_asks(
    redis: AsyncRedis,
) -> None:
    commits, journal = GroupCommits(redis, GROUP), await journal_of(redis)
    await write(journal, {S0: leased(0, 1), S1: leased(0, 1)})
    await commits.write([StreamCommit(S0, 1, 8), StreamCommit(S1, 1, 2)])
    assert await write(journal, {S0: free(3, 1)}) == {}, "it did not ask"
    assert await so_far(redis) == {S0: 8, S1: 2}
    next = journal.next_commit([], change({S0: leased(3, 2), S1: leased(2, 2)}))
    before = journal.last_id
    assert await journal.write(next) == {S0: 8}
    journal.last_id = before
    assert await journal.write(next) == {S0: 8}, "also when its answer was lost"
    assert await commits.write([StreamCommit(S0, 1, 9), StreamCommit(S0, 2, 9)]) == [False, True]


async def test_only_a_reset_takes_progress_back(redis: AsyncRedis) -> None:
    commits, journal = GroupCommits(redis, GROUP), await journal_of(redis)
    await write(journal, {S0: leased(0, 1)})
    await commits.write([StreamCommit(S0, 1, 8)])
    await write(journal, {S0: free(2, 2, reset_by=2)})
    assert await so_far(redis) == {S0: 2}
    assert await commits.write([StreamCommit(S0, 1, 9)]) == [False]
    await write(journal, {S0: leased(2, 3, reset_by=2)})
    await commits.write([StreamCommit(S0, 3, 6)])
    assert await write(journal, {S0: leased(2, 4, reset_by=2)}) == {S0: 6}, "the reset is done once"


async def test_what_is_damaged_beside_the_journal_is_written_anew(redis: AsyncRedis) -> None:
    journal = await journal_of(redis)
    await ask(redis, [("HSET", keys.progress(GROUP), S0, "?"), ("HSET", keys.leases(GROUP), S0, "?/x")])
    assert await so_far(redis) == {}
    assert await GroupCommits(redis, GROUP).write([StreamCommit(S0, 1, 5)]) == [False]
    assert await write(journal, {S0: leased(4, 1)}) == {}
    assert await so_far(redis) == {S0: 4}
    await ask(redis, [("HSET", keys.progress(GROUP), S0, "?")])
    assert await GroupCommits(redis, GROUP).write([StreamCommit(S0, 1, 5)]) == [True]
    assert await so_far(redis) == {S0: 5}


async def test_many_streams_are_committed_in_one_call(redis: AsyncRedis) -> None:
    names = [f"s.0.{number}" for number in range(MOST)]
    await write(await journal_of(redis), dict.fromkeys(names, leased(0, 1)))
    said = [StreamCommit(name, 1 + number % 2, 5) for number, name in enumerate(names)]
    assert await GroupCommits(redis, GROUP).write(said) == [True, False] * (MOST // 2)
    assert await committed(redis, GROUP, names) == {
        name: 0 if number % 2 else 5 for number, name in enumerate(names)
    }


async def test_a_key_of_another_type_is_refused_by_its_name(redis: AsyncRedis) -> None:
    await ask(redis, [("SET", keys.leases(GROUP), "x")])
    with pytest.raises(StoreRefused, match="WRONGTYPE"):
        await GroupCommits(redis, GROUP).write([StreamCommit(S0, 1, 5)])


async def test_a_commit_is_as_durable_as_the_leader_says(make_redis_server: MakeServer) -> None:
    for kind in ("embedded", "redis7"):
        server = make_redis_server(kind, persistent=True)
        client = connect(server.url)
        await write(await journal_of(client, FSYNC), {S0: leased(0, 1)})
        commits = GroupCommits(client, GROUP)
        assert await commits.write([StreamCommit(S0, 1, 1)]) == [True]
        with server.client() as admin:
            admin.config_set("appendonly", "no")
            with pytest.raises(NotDurable, match="streams of g/a are committed, but not durably"):
                await commits.write([StreamCommit(S0, 1, 2)])
            with pytest.raises(NotDurable):
                await GroupCommits(client, GROUP).write([StreamCommit(S0, 1, 2)])
            admin.config_set("appendonly", "yes")
            while admin.info("persistence")["aof_rewrite_in_progress"]:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        assert await commits.write([StreamCommit(S0, 1, 2)]) == [True]
        await client.aclose()


class OnLines:
    """Commits on a line, which is open once something was committed."""

    def __init__(self, redis: AsyncRedis) -> None:
        self.defects: list[StreamleaseError] = []
        self.tasks = Supervisor("lines", lambda _, error: self.defects.append(error))
        self.lines = DirectLines(redis, self.tasks, 5.0)
        self.commits = GroupCommits(redis, GROUP, self.lines)

    async def opened(self) -> None:
        await until(lambda: self.lines.to(keys.leases(GROUP)) is not None)

    async def close(self) -> None:
        await self.tasks.close()
        await self.lines.close()
        assert self.defects == []


@pytest.fixture
async def on_lines(redis: AsyncRedis) -> AsyncIterator[OnLines]:
    rig = OnLines(redis)
    yield rig
    await rig.close()


async def test_commits_go_on_a_line(
    redis: AsyncRedis, on_lines: OnLines, monkeypatch: pytest.MonkeyPatch
) -> None:
    await write(await journal_of(redis), {S0: leased(0, 1)})
    assert await on_lines.commits.write([StreamCommit(S0, 1, 1)]) == [True]
    await on_lines.opened()
    monkeypatch.setattr(commits, "run_durably", None)
    assert await on_lines.commits.write([StreamCommit(S0, 1, 2)]) == [True]
    assert await on_lines.commits.write([StreamCommit(S0, 2, 3)]) == [False]
    assert await so_far(redis) == {S0: 2}


async def test_a_commit_that_a_line_does_not_answer_is_written_otherwise(
    redis: AsyncRedis, on_lines: OnLines
) -> None:
    await write(await journal_of(redis), {S0: leased(0, 1)})
    await on_lines.commits.write([StreamCommit(S0, 1, 1)])
    await on_lines.opened()
    await ask(redis, [("SCRIPT", "FLUSH")])
    assert await on_lines.commits.write([StreamCommit(S0, 1, 2)]) == [True], "the script is loaded again"
    assert await so_far(redis) == {S0: 2}
    await on_lines.opened()  # again: an error ends a line


async def test_a_line_learns_that_commits_must_be_more_durable(
    make_redis_server: MakeServer,
) -> None:
    client = connect(make_redis_server("embedded", persistent=True).url)
    rig = OnLines(client)
    journal = await journal_of(client)
    await write(journal, {S0: leased(0, 1)})
    await rig.commits.write([StreamCommit(S0, 1, 1)])
    await rig.opened()
    journal.durability = (FSYNC,)
    await write(journal, {S0: leased(0, 1)})
    before = await waits(client)
    assert await rig.commits.write([StreamCommit(S0, 1, 2)]) == [True]
    assert await rig.commits.write([StreamCommit(S0, 1, 3)]) == [True]
    assert await waits(client) == before + 2
    await rig.close()
    await client.aclose()


async def waits(redis: AsyncRedis) -> int:
    """How often the server was asked whether writes are on the disk."""
    (stats,) = await ask(redis, [("INFO", "commandstats")])
    lines = [line for line in stats.decode().splitlines() if line.startswith("cmdstat_waitaof:")]
    return int(lines[0].partition("calls=")[2].partition(",")[0]) if lines else 0
