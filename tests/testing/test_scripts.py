"""The scripts of leadership and journal do the same in memory as in Redis: the same random calls to both.

They are the same files; but another Lua runs them, on other commands. The rig stands on that.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from itertools import chain
from typing import Any

import pytest

from streamlease.protocol.ids import LEAST_LEAP
from streamlease.registry import keys, leadership
from streamlease.registry.leadership import NOBODY, LeaderRecord
from streamlease.streams.redis.connection import AsyncRedis, ask, connect
from streamlease.streams.redis.scripts import load_script
from streamlease.testing.memory.memory_connection import connect_redis
from streamlease.testing.memory.memory_server import MemoryServer
from tests.servers import ALL_KINDS, ServerPool

SEQUENCES = 12
CALLS = 60
TTL = 3_600_000
KEPT = 20
HOSTS = ("h1", "h2", "h3")
ELSEWHERE = "0" * 40
"""The replication id of another server."""


@pytest.fixture(params=ALL_KINDS, ids=str)
async def redis(request: pytest.FixtureRequest, redis_servers: ServerPool) -> AsyncIterator[AsyncRedis]:
    server = redis_servers.get(request.param)
    server.flush()
    client = connect(server.url)
    yield client
    await client.aclose()


class Side:
    """One of the two servers, and one group there."""

    def __init__(self, redis: AsyncRedis, group: str, lineage: str) -> None:
        self.redis = redis
        self.group = group
        self.lineage = lineage
        """Of the server; empty if it does not tell."""
        self.ids: list[bytes] = [b"0-0"]
        """Of the entries of the journal, in the order in which they came."""
        self.watched: LeaderRecord = NOBODY

    async def script(self, package: str, name: str, parts: str, *args: Any) -> Any:
        """Run a script of the product; ids of entries are shown by number, lineages not at all."""
        known = {
            "leader": keys.leader, "journal": keys.journal, "snapshot": keys.snapshot,
            "progress": keys.progress, "pulses": keys.pulses, "leases": keys.leases,
        }  # fmt: skip
        names = [known[part](self.group) for part in parts.split()]
        reply = await load_script(f"streamlease.{package}", name).run(self.redis, names, list(args))
        return [self._shown(part) for part in reply] if isinstance(reply, list) else reply

    def _shown(self, part: Any) -> Any:
        if isinstance(part, bytes) and b"-" in part:
            if part not in self.ids:
                self.ids.append(part)
            return ("entry", self.ids.index(part))
        return "lineage" if isinstance(part, bytes) and len(part) in (0, 40) else part

    async def kept(self) -> Any:
        """All that stands there, but for times."""
        fields, entries, snapshot, progress, pulses, leases = await ask(
            self.redis,
            [
                ("HMGET", keys.leader(self.group), "term", "host", "mailbox", "ttl", "pulse"),
                ("XRANGE", keys.journal(self.group), "-", "+"),
                ("HMGET", keys.snapshot(self.group), "id", "t", "n", "state"),
                ("HGETALL", keys.progress(self.group)),
                ("HKEYS", keys.pulses(self.group)),
                ("HGETALL", keys.leases(self.group)),
            ],
        )
        journal = [(self._shown(id), value) for id, value in entries]
        told = {
            name: value
            for name, value in zip(progress[::2], progress[1::2], strict=True)
            if name != b"@active"  # when
        }
        shown = [self._shown(part) if part else part for part in snapshot]
        granted = dict(zip(leases[::2], leases[1::2], strict=True))
        return fields, journal, shown, told, sorted(pulses), granted


class Both:
    """The same calls to the in-memory server and to Redis."""

    def __init__(self, seed: int, memory: Side, real: Side) -> None:
        self.random = random.Random(seed)
        self.sides = (memory, real)
        self.tells = bool(real.lineage)
        self.record = NOBODY
        self.done: list[str] = []

    async def run(self) -> None:
        for side in self.sides:
            await ask(side.redis, [("SET", keys.definition(side.group), "{}")])
        calls = (
            "watch",
            "claim",
            "take_over",
            "renew",
            "pulse",
            "resign",
            "witness",
            "age",
            "append",
            "append",
            "commit",
            "commit",
            "snap",
        )
        for _ in range(CALLS):
            name = self.random.choice(calls)
            state = self.random.getstate()
            replies = []
            for side in self.sides:
                self.random.setstate(state)
                replies.append(await getattr(self, f"do_{name}")(side))
            self.done.append(f"{name}: {replies[0]}")
            assert replies[0] == replies[1], "\n".join(self.done)
            kept = [await side.kept() for side in self.sides]
            assert kept[0] == kept[1], "\n".join(self.done)
            self.record = await leadership.read(self.sides[0].redis, self.sides[0].group)

    def host_and_term(self) -> tuple[str, int]:
        """Mostly of the leader."""
        if self.random.random() < 0.7:
            return self.record.host or "h1", self.record.term
        return self.random.choice(HOSTS), max(0, self.record.term + self.random.randint(-1, 1))

    def lineage(self, side: Side) -> str:
        """The one that the caller believes in."""
        return ELSEWHERE if self.tells and self.random.random() < 0.2 else side.lineage

    def floor_and_leap(self) -> tuple[int, int]:
        floor = self.random.choice((0, 0, self.record.term, self.record.term + 3))
        # A server that does not tell of its lineage cannot know when to leap.
        return floor, LEAST_LEAP + self.random.randrange(2**35) if self.tells else 1

    def after(self, side: Side) -> bytes:
        """Where the caller believes that the journal ends: mostly where it does."""
        return side.ids[-1] if self.random.random() < 0.8 else self.random.choice(side.ids)

    async def do_watch(self, side: Side) -> Any:
        side.watched = await leadership.read(side.redis, side.group)
        return side.watched.term, side.watched.host

    async def do_claim(self, side: Side) -> Any:
        host, (floor, leap) = self.random.choice(HOSTS), self.floor_and_leap()
        return await side.script("registry", "claim", "leader", host, host, TTL, floor, leap)

    async def do_take_over(self, side: Side) -> Any:
        if not side.watched.held:
            return await self.do_claim(side)  # as `Candidacy.attempt` does
        host, (floor, leap), watched = self.random.choice(HOSTS), self.floor_and_leap(), side.watched
        return await side.script(
            "registry", "take_over", "leader",
            host, host, TTL, floor, watched.term, watched.written_at, leap,
        )  # fmt: skip

    async def do_renew(self, side: Side) -> Any:
        (host, term), lineage = self.host_and_term(), self.lineage(side)
        reply = await side.script(
            "registry", "renew", "leader", host, term, lineage, self.random.choice(("", "7"))
        )
        return reply[:1] if reply[0] == 1 else reply

    async def do_pulse(self, side: Side) -> Any:
        """A host is forgotten at once, after a while, or never."""
        host, limit = self.random.choice(HOSTS), self.random.choice(("", 0, 3_600_000))
        former, _, lineage = await side.script("registry", "pulse", "pulses", host, limit)
        return former != "lineage", lineage

    async def do_resign(self, side: Side) -> Any:
        return await side.script("registry", "resign", "leader", *self.host_and_term())

    async def do_witness(self, side: Side) -> Any:
        term = max(0, self.record.term + self.random.choice((-1, 0, 0, 2)))
        return await leadership.witness(side.redis, side.group, term)

    async def do_age(self, side: Side) -> Any:
        """The leader has not renewed for long."""
        if self.record.held:
            await ask(side.redis, [("HSET", keys.leader(side.group), "renewed_at", 1)])

    async def do_append(self, side: Side) -> Any:
        (host, term), lineage = self.host_and_term(), self.lineage(side)
        number, payload = self.random.randint(1, 3), self.random.choice((b"[]", b'[{"a":1}]'))
        return await side.script(
            "leader", "journal_append", "leader journal progress leases",
            host, term, number, payload, self.after(side), lineage, self.random.choice(("", "fsync")),
            1, "s.0.1", 1, "s.0.0", number,
            self.random.randrange(3), *self.stream("s.0.2"), *self.stream("s.0.3"),
        )  # fmt: skip

    def stream(self, name: str) -> tuple[str | int, ...]:
        """What a leader says of a stream; not always the truth."""
        lease_epoch, over = self.random.randint(1, 3), self.random.choice(("", "", "-"))
        reset = self.random.choice(("", "", "/2"))
        return name, self.random.randint(0, 20), f"{lease_epoch}{over}{reset}"

    async def do_commit(self, side: Side) -> Any:
        """By those who have the streams, or have had them."""
        said = ((name, self.random.randint(1, 3), self.random.randint(0, 20)) for name in ("s.0.2", "s.0.3"))
        return await side.script("registry", "commit", "leases progress", *chain.from_iterable(said))

    async def do_snap(self, side: Side) -> Any:
        (host, term), after, mark = self.host_and_term(), self.after(side), self.random.random() < 0.3
        return await side.script(
            "leader", "journal_snapshot", "leader journal snapshot",
            host, term, after, b"{}", KEPT, 7, int(mark),
        )  # fmt: skip


async def lineage_of(redis: AsyncRedis) -> str:
    """What a leader is told when it begins."""
    first = leadership.Candidacy("probe/a", "h", "h", leadership.LeadershipConfig())
    assert await first.attempt(redis) == 1
    return first.lineage


@pytest.mark.timeout(120)
@pytest.mark.slow
async def test_the_scripts_of_leadership_and_journal_do_the_same_in_memory(redis: AsyncRedis) -> None:
    memory: AsyncRedis = connect_redis(MemoryServer())
    lineages = [await lineage_of(one) for one in (memory, redis)]
    seen: set[str] = set()
    for seed in range(SEQUENCES):
        both = Both(seed, Side(memory, f"g{seed}/a", lineages[0]), Side(redis, f"g{seed}/a", lineages[1]))
        await both.run()
        seen.update(line.partition(",")[0] for line in both.done)
    assert {"claim: [1", "claim: [0", "take_over: [1", "take_over: [0", "append: [1", "append: [2"} <= seen
    assert {"append: [3", "renew: [2"} & seen if lineages[1] else "append: [3" not in seen
    await memory.aclose()
