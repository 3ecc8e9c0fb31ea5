"""The store of the simulation answers as the Lua scripts do: the same random commands to both."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from streamlease.protocol.ids import LEAST_LEAP
from streamlease.registry import keys, leadership
from streamlease.registry.leadership import NOBODY, LeaderRecord
from streamlease.streams.redis.connection import AsyncRedis, ask, connect
from streamlease.streams.redis.scripts import load_script
from streamlease.testing.memory_connection import connect_redis
from streamlease.testing.memory_server import MemoryServer
from tests.servers import ALL_KINDS, ServerPool
from tests.simulation.kernel import Kernel
from tests.simulation.store import ENTRIES_KEPT, Store

SEQUENCES = 12
COMMANDS = 60
TTL = 3_600_000
HOSTS = ("h1", "h2", "h3")
ELSEWHERE = "0" * 40
"""The replication id of another server."""

Id = tuple[int, int]


@pytest.fixture(params=[*ALL_KINDS, "memory"], ids=str)
async def redis(request: pytest.FixtureRequest, redis_servers: ServerPool) -> AsyncIterator[AsyncRedis]:
    if request.param == "memory":
        client: AsyncRedis = connect_redis(MemoryServer())
    else:
        server = redis_servers.get(request.param)
        server.flush()
        client = connect(server.url)
    yield client
    await client.aclose()


class Both:
    """The same group in the store of the simulation and in Redis."""

    def __init__(self, redis: AsyncRedis, seed: int, lineage: str) -> None:
        self.redis = redis
        self.random = random.Random(seed)
        self.group = f"g{seed}/a"
        self.lineage = lineage
        """Of the server; empty if it does not tell."""
        self.store = Store(Kernel(seed))
        self.ids: dict[bytes, Id] = {b"0-0": (0, 0)}
        self.watched: tuple[LeaderRecord, LeaderRecord] = (NOBODY, NOBODY)
        self.done: list[str] = []

    async def script(self, package: str, name: str, parts: list[str], *args: Any) -> Any:
        script = load_script(f"streamlease.{package}", name)
        wanted = {"leader": keys.leader, "journal": keys.journal, "snapshot": keys.snapshot}
        names = [wanted[part](self.group) if part in wanted else keys.progress(self.group) for part in parts]
        return await script.run(self.redis, names, list(args))

    def real_id(self, id: Id) -> bytes:
        return next(real for real, simulated in self.ids.items() if simulated == id)

    async def run(self) -> None:
        names = (
            "watch",
            "claim",
            "take_over",
            "renew",
            "resign",
            "witness",
            "age",
            "append",
            "append",
            "snap",
        )
        await ask(self.redis, [("SET", keys.definition(self.group), "{}")])
        for _ in range(COMMANDS):
            name = self.random.choice(names)
            simulated, real = await getattr(self, f"do_{name}")()
            self.done.append(f"{name}: {simulated} {real}")
            assert simulated == real, "\n".join(self.done)
            await self.compare()

    # ------------------------------------------------------------ commands

    def host_and_term(self) -> tuple[str, int]:
        """Mostly of the leader."""
        record = self.store.record
        if self.random.random() < 0.7:
            return record.host or "h1", record.term
        return self.random.choice(HOSTS), max(0, record.term + self.random.randint(-1, 1))

    def lineages(self) -> tuple[int, str]:
        """The one that the caller believes in, for both."""
        if self.lineage and self.random.random() < 0.2:
            return -5, ELSEWHERE
        return self.store.incarnation, self.lineage

    async def do_watch(self) -> tuple[Any, Any]:
        self.watched = self.store.record, await leadership.read(self.redis, self.group)
        return self.watched[0].term, self.watched[1].term

    async def do_claim(self) -> tuple[Any, Any]:
        host, floor, leap = self.random.choice(HOSTS), self.floor(), self.leap()
        simulated = self.store.claim(host, TTL, floor, leap)
        real = await self.script("registry", "claim", ["leader"], host, host, TTL, floor, leap)
        return (simulated[0], simulated[1]), (bool(real[0]), real[1])

    async def do_take_over(self) -> tuple[Any, Any]:
        if not self.watched[0].held:
            return await self.do_claim()  # as `Candidacy.attempt` does
        host, floor, leap = self.random.choice(HOSTS), self.floor(), self.leap()
        simulated = self.store.take_over(host, TTL, floor, self.watched[0], leap)
        watched = self.watched[1]
        real = await self.script(
            "registry", "take_over", ["leader"],
            host, host, TTL, floor, watched.term, watched.renewed_at, leap,
        )  # fmt: skip
        return (simulated[0], simulated[1]), (bool(real[0]), real[1])

    def floor(self) -> int:
        return self.random.choice((0, 0, self.store.record.term, self.store.record.term + 3))

    def leap(self) -> int:
        # A server that does not tell of its lineage cannot know when to leap.
        return LEAST_LEAP + self.random.randrange(2**35) if self.lineage else 1

    async def do_renew(self) -> tuple[Any, Any]:
        (host, term), (simulated_lineage, lineage) = self.host_and_term(), self.lineages()
        before = self.store.record
        simulated = self.store.renew(host, term, simulated_lineage)[0]
        real = (await self.script("registry", "renew", ["leader"], host, term, lineage))[0]
        if simulated == 1:
            self.store.record = replace(
                self.store.record, renewed_at=max(before.renewed_at + 1, self.store.time())
            )
        return simulated, real

    async def do_resign(self) -> tuple[Any, Any]:
        host, term = self.host_and_term()
        simulated = self.store.resign(host, term)
        return simulated, bool(await self.script("registry", "resign", ["leader"], host, term))

    async def do_witness(self) -> tuple[Any, Any]:
        term = max(0, self.store.record.term + self.random.choice((-1, 0, 0, 2)))
        return self.store.witness(term), await leadership.witness(self.redis, self.group, term)

    async def do_age(self) -> tuple[Any, Any]:
        """The leader has not renewed for long."""
        if self.store.record.held:
            self.store.record = replace(self.store.record, renewed_at=1 - TTL)
            await ask(self.redis, [("HSET", keys.leader(self.group), "renewed_at", 1)])
        return None, None

    async def do_append(self) -> tuple[Any, Any]:
        (host, term), (simulated_lineage, lineage) = self.host_and_term(), self.lineages()
        number, payload = self.random.randint(1, 3), self.random.choice((b"[]", b'[{"a":1}]'))
        after = self.after()
        simulated = self.store.journal_append(host, term, number, payload, after, simulated_lineage)
        real = await self.script(
            "leader", "journal_append", ["leader", "journal", "progress"],
            host, term, number, payload, self.real_id(after), lineage, 1, "s.0.1", "s.0.0", number,
        )  # fmt: skip
        return simulated, self.of(simulated, real)

    async def do_snap(self) -> tuple[Any, Any]:
        host, term = self.host_and_term()
        after, mark = self.after(), self.random.random() < 0.3
        simulated = self.store.journal_snapshot(host, term, after, b"{}", 7, mark)
        real = await self.script(
            "leader", "journal_snapshot", ["leader", "journal", "snapshot"],
            host, term, self.real_id(after), b"{}", ENTRIES_KEPT, 7, int(mark),
        )  # fmt: skip
        return simulated, self.of(simulated, real)

    def after(self) -> Id:
        """Where the caller believes that the journal ends: mostly where it does."""
        end = self.store.journal_end()
        return end if self.random.random() < 0.8 else self.random.choice(list(self.ids.values()))

    def of(self, simulated: tuple[int, Any], real: list[Any]) -> tuple[int, Any]:
        """The reply of a script of the journal in the words of the simulation."""
        outcome, result = real
        if outcome == 0:
            return outcome, int(result)
        if outcome == 3:
            assert result.decode() == self.lineage
            return outcome, self.store.incarnation
        if outcome == 1 and simulated[0] == 1:
            self.ids.setdefault(result, simulated[1])
        return outcome, self.ids.get(result, result)

    # ------------------------------------------------------------ all that is kept

    async def compare(self) -> None:
        fields, entries, kept = await ask(
            self.redis,
            [
                ("HMGET", keys.leader(self.group), "term", "host", "renewed_at"),
                ("XRANGE", keys.journal(self.group), "-", "+"),
                ("HMGET", keys.snapshot(self.group), "id", "t", "n"),
            ],
        )
        record = self.store.record
        assert (int(fields[0] or 0), (fields[1] or b"").decode()) == (record.term, record.host), self.done
        journal = [(self.ids[id], int(value[1]), int(value[3]), value[5]) for id, value in entries]
        assert journal == [(e.id, e.term, e.number, e.payload) for e in self.store.journal], self.done
        if self.store.kept is None:
            assert kept[0] is None
        else:
            id, _, term, number = self.store.kept
            assert (self.ids[kept[0]], int(kept[1]), int(kept[2])) == (id, term, number)


@pytest.mark.timeout(120)
async def test_the_simulated_store_answers_as_the_scripts_do(redis: AsyncRedis) -> None:
    first = leadership.Candidacy("probe/a", "h", "h", leadership.LeadershipConfig())
    assert await first.attempt(redis) == 1
    seen: set[str] = set()
    for seed in range(SEQUENCES):
        both = Both(redis, seed, first.lineage)
        await both.run()
        seen.update(line.split(" ", 1)[0] + line.split(" ", 1)[1].split(",")[0] for line in both.done)
    for act in (
        "claim:(True",
        "claim:(False",
        "take_over:(True",
        "take_over:(False",
        "append:(1",
        "append:(2",
    ):
        assert act in seen
    assert {"append:(3", "renew:2 2"} & seen if first.lineage else "append:(3" not in seen
