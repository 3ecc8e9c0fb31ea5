"""Retention by leader hosts: who may do it, what groups hold back, and what lets go."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import pytest

from streamlease.agent.client import Client, connect
from streamlease.hosts.host import HostConfig, LeaderHost
from streamlease.hosts.trimming import CLAIM, Retainer, expiry_of, overdue, passed_over
from streamlease.leader import journal
from streamlease.protocol.errors import HistoryTruncated, InvalidOption, StoreRefused, StreamleaseError
from streamlease.protocol.ids import StreamId
from streamlease.protocol.topics import SharedSubscription
from streamlease.registry import group_needs, keys, leadership
from streamlease.registry.group_needs import GroupProgress, Holds
from streamlease.streams.log.keys import stream_meta
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.spaces.altering import Generations
from streamlease.streams.spaces.retention import Retention, kept
from streamlease.streams.spaces.spaces import Generation, Space, SpaceStore
from tests.conftest import MakeServer

SUB = "$shared/g/a/#"
SHARED = SharedSubscription.parse(SUB)
STREAM = StreamId("s", 0, 0)
FEW = Retention(messages=2)
WEEK = 7 * 86_400_000


@dataclass
class Clock:
    now: int = 0

    def __call__(self) -> int:
        return self.now


@dataclass
class Rig:
    client: Client
    clock: Clock = field(default_factory=Clock)

    def retainer(self, host: str = "h1") -> Retainer:
        return Retainer(self.client.redis, host, self.clock)

    async def free(self) -> None:
        """Take the claim from whoever has it: the client's embedded host does retention as well."""
        await self.client.redis.hset(keys.leader(CLAIM), "host", "")

    async def space(self, retention: Retention = FEW, messages: int = 10) -> None:
        await self.client.create_space("s", ["a/#"], retention=retention)
        await self.publish(messages)

    async def publish(self, messages: int) -> None:
        async with self.client.publisher() as publisher:
            for number in range(messages):
                await publisher.send("a/b", b"%d" % number)  # awaited: an entry each

    async def floor(self) -> int:
        return (await kept(self.client.redis, [STREAM]))[STREAM].state.floor

    async def held_by(self) -> str | None:
        return (await kept(self.client.redis, [STREAM]))[STREAM].held_by

    async def consume(self, count: int) -> list[int]:
        """Take and commit messages of the group; their offsets. Nobody has the claim afterwards."""
        got: list[int] = []
        async with asyncio.timeout(30), self.client.subscribe(SUB, start="earliest", max_batch=1) as reader:
            async for batch in reader:
                got += [message.offset for message in batch.messages]
                await batch.commit()
                if len(got) >= count:
                    break
        await self.free()
        return got

    async def leave(self) -> None:
        """End the process of the consumer, and with it the leader that it embeds."""
        await self.client.close()
        self.client = connect(self.client.url)

    async def age(self, milliseconds: int) -> None:
        """Let the group have been idle for so long: no clock is turned, its last sign of life is."""
        progress = keys.progress(SHARED.id)
        active = int(await self.client.redis.hget(progress, "@active") or 0)
        await self.client.redis.hset(progress, "@active", active - milliseconds)
        await self.client.redis.hset(keys.leader(SHARED.id), "renewed_at", 0)


@pytest.fixture
async def rig(real_redis_url: str) -> AsyncIterator[Rig]:
    async with connect(real_redis_url) as client:
        rig = Rig(client)
        yield rig
        await rig.client.close()


async def test_without_groups_what_is_surplus_goes(rig: Rig) -> None:
    await rig.space()
    done = await rig.retainer().round()
    assert (done.claimed, [one.floor for one in done.trimmed]) == (True, [8])
    assert await rig.floor() == 8
    assert (await rig.retainer().round()).claimed is False, "the first one holds the claim"


async def test_without_retention_nobody_claims_anything(rig: Rig) -> None:
    await rig.space(Retention())
    assert (await rig.retainer().round()).claimed is False
    assert await rig.client.redis.exists(keys.leader(CLAIM)) == 0


async def test_a_group_that_is_behind_holds_data(rig: Rig) -> None:
    await rig.space()
    assert await rig.consume(4) == [0, 1, 2, 3]
    retainer = rig.retainer()
    done = await retainer.round()
    assert (await rig.floor(), await rig.held_by(), done.passed) == (4, SUB, [])
    assert await rig.consume(3) == [4, 5, 6]
    await retainer.round()
    assert await rig.floor() == 7
    assert await rig.consume(3) == [7, 8, 9]
    await retainer.round()
    assert (await rig.floor(), await rig.held_by()) == (8, None)


async def test_a_group_that_never_began_holds_everything_from_its_start(rig: Rig) -> None:
    await rig.space()
    await rig.client.groups.declare(SharedSubscription("later", "a/b"), "latest")
    retainer = rig.retainer()
    await rig.publish(5)
    await retainer.round()
    assert await rig.floor() == 10
    await rig.client.groups.declare(SharedSubscription("all", "+/b", "$queue"), "earliest")
    await rig.publish(5)
    await retainer.round()
    assert (await rig.floor(), await rig.held_by()) == (10, "$queue/all/+/b")


async def test_a_group_of_other_topics_holds_nothing(rig: Rig) -> None:
    await rig.client.create_space("other", ["o/#"])
    await rig.client.groups.declare(SharedSubscription("o", "o/#"), "earliest")
    await rig.space()
    await rig.retainer().round()
    assert await rig.floor() == 8


@pytest.mark.slow
async def test_force_passes_a_group_and_the_group_learns_it(rig: Rig) -> None:
    await rig.space()
    assert await rig.consume(2) == [0, 1]
    await rig.client.spaces.change(
        "s", lambda space: space.model_copy(update={"retention": Retention(messages=2, force=True)})
    )
    done = await rig.retainer().round()
    assert (await rig.floor(), done.passed) == (8, [SHARED])
    async with asyncio.timeout(30):
        while True:  # a leader that has not looked yet grants the old place, and the reader says so
            try:
                assert await rig.consume(2) == [8, 9]
                break
            except HistoryTruncated as error:
                assert (error.asked, error.oldest) == (2, 8)
    state = (await journal.recover(rig.client.redis, SHARED.id)).state
    assert state.streams[str(STREAM)].truncated == 6
    assert (await rig.retainer("h2").round()).passed == []


async def test_an_idle_group_lets_go_and_says_so(rig: Rig) -> None:
    await rig.space()
    assert await rig.consume(3) == [0, 1, 2]
    await rig.leave()
    retainer = rig.retainer()
    await rig.age(WEEK - 60_000)
    assert (await retainer.round()).expired == []
    assert await rig.floor() == 3
    await rig.age(120_000)
    done = await retainer.round()
    assert (done.expired, await rig.floor(), await rig.held_by()) == ([SHARED], 8, None)
    assert (await retainer.round()).expired == []
    state = (await journal.recover(rig.client.redis, SHARED.id)).state
    assert state.expired_at is not None
    assert not (await leadership.read(rig.client.redis, SHARED.id)).held

    assert await rig.consume(2) == [8, 9]
    state = (await journal.recover(rig.client.redis, SHARED.id)).state
    assert (state.expired_at, state.streams[str(STREAM)].truncated) == (None, 5)
    await rig.publish(5)
    await rig.retainer().round()
    assert (await rig.floor(), await rig.held_by()) == (10, SUB), "it holds data again"


async def test_a_group_that_let_go_still_commits_as_durably_as_its_spaces_say(
    make_redis_server: MakeServer,
) -> None:
    rig = Rig(connect(make_redis_server(persistent=True).url))
    await rig.client.create_space("s", ["a/#"], retention=FEW, durability="fsync")
    await rig.publish(10)
    assert await rig.consume(3) == [0, 1, 2]
    await rig.leave()
    await rig.age(2 * WEEK)
    assert (await rig.retainer().round()).expired == [SHARED]
    assert await rig.client.redis.hget(keys.leases(SHARED.id), "@durable") == b"fsync"
    await rig.client.close()


async def test_a_group_may_have_its_own_expiry(rig: Rig) -> None:
    await rig.space()
    await rig.client.groups.declare(SHARED, "earliest", expiry_ms=0)
    await rig.age(52 * WEEK)
    retainer = rig.retainer()
    assert (await retainer.round()).expired == []
    await rig.client.groups.forget(SHARED)
    await rig.client.groups.declare(SHARED, "earliest", expiry_ms=60_000)
    await rig.age(61_000)
    assert (await retainer.round()).expired == [SHARED]


async def test_a_group_with_a_live_leader_never_expires(rig: Rig) -> None:
    await rig.space()
    async with rig.client.subscribe(SUB, start="earliest") as reader:
        async with asyncio.timeout(20):
            await anext(reader)
        await rig.free()
        await rig.client.redis.hset(keys.progress(SHARED.id), "@active", 1)
        assert (await rig.retainer().round()).expired == []
        assert await rig.floor() == 0


async def test_a_leader_that_died_is_watched_before_its_group_expires(rig: Rig) -> None:
    await rig.space()
    assert await rig.consume(1) == [0]
    await rig.leave()
    await rig.age(2 * WEEK)
    dead = {"host": "dead", "mailbox": "dead", "renewed_at": 5, "ttl": 4000}
    await rig.client.redis.hset(keys.leader(SHARED.id), mapping=dead)
    retainer = rig.retainer()
    assert (await retainer.round()).expired == []
    rig.clock.now += 4000
    assert (await retainer.round()).expired == [SHARED]


async def _idle_groups(rig: Rig) -> SharedSubscription:
    """Two groups that consumed one message, and then nothing for two weeks; the other one's name."""
    other = SharedSubscription.parse("$shared/other/a/#")
    await rig.space()
    assert await rig.consume(1) == [0]
    async with asyncio.timeout(30), rig.client.subscribe(str(other), start="earliest", max_batch=1) as reader:
        async for batch in reader:
            await batch.commit()
            break
    await rig.leave()
    for group in (SHARED, other):
        await rig.client.redis.hset(keys.progress(group.id), "@active", 1)
        await rig.client.redis.hset(keys.leader(group.id), mapping={"host": "", "renewed_at": 0})
    await rig.free()
    return other


@pytest.mark.parametrize("damaged", ["entry", "snapshot", "record"])
async def test_a_damaged_group_holds_its_data_and_stops_nothing_else(rig: Rig, damaged: str) -> None:
    """It ended the round of the host, each time: nothing was trimmed any more."""
    other = await _idle_groups(rig)
    redis = rig.client.redis
    match damaged:
        case "entry":
            await redis.xadd(keys.journal(SHARED.id), {"t": "1", "n": "99", "r": "nonsense"})
        case "snapshot":
            await redis.hset(keys.snapshot(SHARED.id), mapping={"id": "1-1", "state": "nonsense"})
        case _:
            await redis.hset(keys.leader(SHARED.id), "term", "nonsense")
    await rig.client.create_space("t", ["t/#"], retention=FEW)
    async with rig.client.publisher() as publisher:
        for number in range(10):
            await publisher.send("t/b", b"%d" % number)
    retainer = rig.retainer()
    done = await retainer.round()
    assert done.expired == [other]
    assert {str(one.stream): one.floor for one in done.trimmed} == {"s.0.0": 1, "t.0.0": 8}
    assert (await retainer.round()).claimed
    assert await rig.held_by() == SUB


async def test_a_group_whose_journal_lost_its_tail_lets_go_all_the_same(rig: Rig) -> None:
    other = await _idle_groups(rig)
    redis = rig.client.redis
    recovery = await journal.recover(redis, SHARED.id)
    await redis.hset(
        keys.snapshot(SHARED.id),
        mapping={"id": recovery.last_id, "state": recovery.state.snapshot(), "t": 1, "n": recovery.number[1]},
    )
    await redis.xtrim(keys.journal(SHARED.id), maxlen=0, approximate=False)
    done = await rig.retainer().round()
    assert set(done.expired) == {SHARED, other}
    assert await rig.floor() == 8
    found = (await journal.recover(redis, SHARED.id)).state
    assert found.expired_at is not None
    assert (found.streams[str(STREAM)].committed, len(found.operated.acts)) == (1, 1)


async def test_damaged_numbers_hold_what_they_may_need(rig: Rig) -> None:
    other = await _idle_groups(rig)
    redis = rig.client.redis
    await redis.hset(keys.progress(SHARED.id), mapping={str(STREAM): "?", "@passed": "?", "@paused": "?"})
    await rig.client.create_space("t", ["t/#"], streams=2, retention=FEW)
    await redis.hset(stream_meta(StreamId("t", 0, 1)), "next", "?")
    done = await rig.retainer().round()
    assert set(done.expired) == {SHARED, other}
    assert await group_needs.passed_all(redis, [SHARED.id, other.id]) == [0, 0]
    assert await rig.floor() == 8
    with pytest.raises(StreamleaseError, match=r"stream t\.0\.1 is damaged: restore key sl:"):
        await AsyncLog(redis).next_offsets([StreamId("t", 0, 1)])


@pytest.mark.parametrize("key", [keys.progress, keys.definition, keys.leader])
async def test_a_key_of_another_type_holds_all_and_stops_nothing_else(
    rig: Rig, key: Callable[[str], str]
) -> None:
    other = await _idle_groups(rig)
    redis = rig.client.redis
    damaged, kind = key(SHARED.id), await redis.type(key(SHARED.id))
    await redis.delete(damaged)
    await (redis.hset(damaged, "a", "b") if kind == b"string" else redis.set(damaged, "x"))
    await rig.client.create_space("t", ["t/#"], retention=FEW)
    async with rig.client.publisher() as publisher:
        for number in range(10):
            await publisher.send("t/b", b"%d" % number)
    done = await rig.retainer().round()
    assert done.expired == [other]
    assert {str(one.stream): one.floor for one in done.trimmed}["t.0.0"] == 8
    assert await rig.floor() == (0 if key is keys.progress else 1), "what is not known to be consumed stays"
    assert (await group_needs.passed_all(redis, [SHARED.id, other.id]))[1] == 0
    before = await group_needs.passed_any(redis)
    await group_needs.tell_passed(redis, [SHARED.id, other.id])
    assert (await group_needs.passed_all(redis, [SHARED.id, other.id]))[1] == 1
    assert await group_needs.passed_any(redis) == before + 1


async def test_a_space_that_cannot_be_settled_stops_no_other(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rig.space()
    await rig.client.create_space("t", ["t/#"])

    async def refused(self: SpaceStore, name: str) -> Space:
        raise StoreRefused("no")

    half_done = {"generations": (Generation(number=0, streams=1), Generation(number=1, streams=1))}
    await rig.client.spaces.change("t", lambda space: space.model_copy(update=half_done))
    monkeypatch.setattr(Generations, "settle", refused)
    assert [one.floor for one in (await rig.retainer().round()).trimmed] == [8]


async def test_two_hosts_do_not_both_trim(rig: Rig) -> None:
    await rig.space()
    one, two = rig.retainer("h1"), rig.retainer("h2")
    results = await asyncio.gather(one.round(), two.round())
    assert sorted(done.claimed for done in results) == [False, True]
    assert sum(one.messages for done in results for one in done.trimmed) == 8
    holder, other = (one, two) if results[0].claimed else (two, one)
    await rig.publish(3)
    assert (await other.round()).trimmed == []
    await holder.close()
    assert [one.floor for one in (await other.round()).trimmed] == [11]


async def test_a_host_that_lost_its_claim_trims_nothing(rig: Rig) -> None:
    await rig.space()
    old, new = rig.retainer("h1"), rig.retainer("h2")
    await old.round()
    await rig.client.redis.hset(keys.leader(CLAIM), "renewed_at", 5)
    assert (await new.round()).claimed is False, "it must watch the record for a ttl of its own clock first"
    rig.clock.now += 30_000
    assert (await new.round()).claimed
    await rig.publish(4)
    assert not old._claim.sure
    old._renewed_at = rig.clock.now
    before = await rig.client.redis.hgetall(stream_meta(STREAM))
    done = await old.round()
    assert (done.claimed, done.trimmed) == (False, [])
    assert await rig.client.redis.hgetall(stream_meta(STREAM)) == before
    assert [one.floor for one in (await new.round()).trimmed] == [12]


async def test_a_lost_claim_record_costs_one_round(rig: Rig) -> None:
    """After a failover the claim may count its terms anew; streams remember a higher one."""
    await rig.space()
    await rig.client.redis.hset(stream_meta(STREAM), "trim_term", 40)
    retainer = rig.retainer()
    assert (await retainer.round()).trimmed == []
    assert [one.floor for one in (await retainer.round()).trimmed] == [8]


async def test_a_space_deleted_in_the_middle_does_no_harm(rig: Rig) -> None:
    await rig.space()
    await rig.client.create_space("t", ["t/#"], retention=FEW)
    await rig.client.redis.delete(stream_meta(STREAM))
    done = await rig.retainer().round()
    assert (done.claimed, done.trimmed) == (True, [])


async def test_hosts_retain_by_themselves(rig: Rig) -> None:
    await rig.space()
    host = LeaderHost(rig.client.redis, HostConfig(retention_interval=0.05, registered=False))
    await host.start()
    try:
        async with asyncio.timeout(20):
            while await rig.floor() != 8:  # noqa: ASYNC110 (a condition in Redis)
                await asyncio.sleep(0.01)
    finally:
        await host.close()
    assert not (await leadership.read(rig.client.redis, CLAIM)).held


@pytest.mark.slow
async def test_floors_and_holders_survive_a_power_cut(make_redis_server: MakeServer) -> None:
    server = make_redis_server("redis7", persistent=True)
    async with connect(server.url) as client:
        rig = Rig(client)
        await rig.space()
        assert await rig.consume(3) == [0, 1, 2]
        await rig.retainer().round()
    server.restart()
    async with connect(server.url) as client:
        rig = Rig(client)
        assert (await rig.floor(), await rig.held_by()) == (3, SUB)
        rig.clock.now = 40_000
        other = rig.retainer("h2")
        await client.redis.hset(keys.leader(CLAIM), "renewed_at", 5)
        await other.round()
        rig.clock.now += 30_000
        assert (await other.round()).claimed
        assert await rig.floor() == 3
        assert await rig.consume(7) == [3, 4, 5, 6, 7, 8, 9]


def test_an_interval_must_make_sense() -> None:
    with pytest.raises(InvalidOption, match="retention interval is 0"):
        Retainer(None, "h", Clock(), interval=0)  # type: ignore[arg-type]


# -- planning, without Redis


def space(name: str = "s", topics: tuple[str, ...] = ("a/#",), **retention: int | bool) -> Space:
    return Space(
        name=name,
        topics=topics,
        generations=(Generation(number=0, streams=1),),
        retention=Retention(**retention),  # type: ignore[arg-type]
    )


def group(
    name: str, need: int, *, idle: int = 0, expired: bool = False, expiry: int | None = None
) -> GroupProgress:
    return GroupProgress(
        SharedSubscription(name, "a/#"), {STREAM: need}, 0, 1 if expired else None, expiry, idle
    )


def test_the_limit_is_the_least_need() -> None:
    holds = Holds({STREAM: 10}, [group("x", 7), group("y", 3), group("gone", 0, expired=True)])
    assert (holds.of(STREAM).limit, holds.of(STREAM).holder) == (3, "$shared/y/a/#")
    assert (Holds({STREAM: 10}).of(STREAM).limit, Holds({STREAM: 10}).of(STREAM).holder) == (10, "")
    assert Holds({STREAM: 10}, [group("done", 10)]).of(STREAM).holder == ""


@pytest.mark.parametrize("seed", range(10))
def test_the_holder_of_each_stream_is_the_first_group_that_needs_most_of_it(seed: int) -> None:
    rolls = random.Random(seed)
    streams = [StreamId("s", 0, shard) for shard in range(12)]
    groups = [
        GroupProgress(
            SharedSubscription(f"g{number}", "a/#"),
            {stream: rolls.randrange(12) for stream in rolls.sample(streams, rolls.randrange(12))},
            0,
            rolls.choice([None, None, 1]),
            None,
            0,
        )
        for number in range(20)
    ]
    holds = Holds({stream: rolls.randrange(12) for stream in streams}, groups)
    for stream in streams:
        having = [one for one in groups if one.expired_at is None and stream in one.needs]
        needing = [one for one in having if one.needs[stream] < holds.ends[stream]]
        least = min(needing, key=lambda one: one.needs[stream], default=None)
        found = holds.of(stream)
        assert found.group is least
        assert found.limit == (holds.ends[stream] if least is None else least.needs[stream])


def test_who_is_overdue() -> None:
    spaces = [space(messages=1, group_expiry_ms=100)]
    groups = [
        group("fresh", 0, idle=100),
        group("late", 0, idle=101),
        group("done", 10, idle=999),
        group("expired", 0, idle=999, expired=True),
        group("own", 0, idle=999, expiry=1000),
        group("never", 0, idle=10**12, expiry=0),
    ]
    found = overdue(Holds({STREAM: 10}, groups), spaces)
    assert [one.subscription.group for one in found] == ["late"]


def test_the_longest_expiry_of_its_spaces_counts() -> None:
    one, two = space(group_expiry_ms=5), space("t", ("a/b",), group_expiry_ms=9)
    assert expiry_of(group("g", 0), [one, two]) == 9
    assert expiry_of(group("g", 0), [one, two, space("u", ("a/c",), group_expiry_ms=0)]) == 0
    assert expiry_of(group("g", 0), [space("v", ("z",), group_expiry_ms=3)]) == 0


def test_who_was_passed() -> None:
    groups = [group("x", 7), group("y", 3), group("gone", 0, expired=True)]
    assert [one.group for one in passed_over({STREAM: 7}, groups)] == ["y"]
