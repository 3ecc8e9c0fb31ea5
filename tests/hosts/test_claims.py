"""Many claims of a host are had in a few exchanges, and what is wrong with one of them is its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

import pytest

from streamlease.hosts import claim as claim_room
from streamlease.hosts.claim import PAGE, Claim, Claims
from streamlease.protocol.errors import StreamleaseError
from streamlease.registry import keys, leadership
from streamlease.streams.redis.connection import AsyncRedis, Command, ask, connect
from tests.conftest import MakeServer
from tests.topology.servers import Cluster, slot_of

MANY = 2 * PAGE + 1


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[AsyncRedis]:
    made = connect(redis_url)
    yield made
    await made.aclose()


def claims_of(redis: AsyncRedis, host: str, count: int, clock: Callable[[], int] = lambda: 0) -> list[Claim]:
    return [Claim(redis, f"!work-{number}", host, clock, 1.0) for number in range(count)]


def terms(claims: Sequence[Claim]) -> list[int]:
    return [claim.term or 0 for claim in claims]


async def test_one_host_has_all_of_them_and_another_one_those_that_it_gives_up(
    redis: AsyncRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = Claims(redis, "one", lambda: 0), Claims(redis, "two", lambda: 0)
    mine, theirs = claims_of(redis, "one", MANY), claims_of(redis, "two", MANY)
    assert await one.get(mine) == {}
    assert await two.get(theirs) == {}
    assert (terms(mine), terms(theirs)) == ([1] * MANY, [0] * MANY)
    renewed: list[int] = []
    renew_all = leadership.renew_all

    async def counted(redis: AsyncRedis, host: str, terms: Mapping[str, int]) -> object:
        renewed.append(len(terms))
        return await renew_all(redis, host, terms)

    read: list[int] = []
    ask_each = claim_room.ask_each

    async def counted_too(redis: AsyncRedis, commands: Sequence[Command]) -> object:
        read.append(len(commands) - 1)
        return await ask_each(redis, commands)

    monkeypatch.setattr(leadership, "renew_all", counted)
    monkeypatch.setattr(claim_room, "ask_each", counted_too)
    assert await one.get(mine) == {}
    assert (renewed, read) == ([PAGE, PAGE, 1], [])
    for claim in mine[:3]:
        await claim.give_up()
    assert await two.get(theirs) == {}
    assert (renewed, read) == ([PAGE, PAGE, 1], [PAGE, PAGE, 1])
    assert await one.get(mine) == {}
    assert terms(theirs) == [2, 2, 2, *[0] * (MANY - 3)]
    assert terms(mine) == [0, 0, 0, *[1] * (MANY - 3)]


async def test_what_is_wrong_with_one_hurts_no_other(real_redis_url: str) -> None:
    async with connect(real_redis_url) as redis:
        claims, other = claims_of(redis, "one", 5), claims_of(redis, "two", 5)
        many = Claims(redis, "one", lambda: 0)
        await many.get(claims)
        held, seized, whole, *_ = claims
        await ask(redis, [("DEL", keys.leader(held.name)), ("LPUSH", keys.leader(held.name), "damaged")])
        await ask(redis, [("HSET", keys.leader(seized.name), "term", 7)])
        failed = await many.get(claims)
        assert [*failed] == [held]
        assert terms(claims) == [1, 0, 1, 1, 1], "it may be held still, as nobody can have it meanwhile"
        with pytest.raises(StreamleaseError):
            await held.get()
        assert (await whole.get(), await seized.get()) == (True, False)
        assert [*await Claims(redis, "two", lambda: 0).get(other)] == [other[0]]
        assert terms(other) == [0] * 5


@pytest.mark.topology
@pytest.mark.timeout(120)
async def test_a_server_that_is_gone_keeps_the_claims_of_others(make_redis_server: MakeServer) -> None:
    cluster = Cluster(make_redis_server, "embedded")
    for node in cluster.nodes:
        Cluster.run(node, "CONFIG", "SET", "cluster-require-full-coverage", "no")
    redis = connect(cluster.url)
    now = 0
    many, other = Claims(redis, "one", lambda: now), Claims(redis, "two", lambda: now)
    mine = claims_of(redis, "one", 12, lambda: now)
    theirs = claims_of(redis, "two", 12, lambda: now)
    assert await many.get(mine) == {}
    assert await other.get(theirs) == {}
    lost = cluster.nodes[2]
    homes = {claim: cluster.owner(slot_of(keys.leader(claim.name))) for claim in (*mine, *theirs)}
    lost.kill()
    now = 1000
    for claims, wanted in ((many, mine), (other, theirs)):
        failed = await claims.get(wanted)
        assert {*failed} == {claim for claim in wanted if homes[claim] is lost}
        assert 0 < len(failed) < len(wanted)
    assert terms(mine) == [1] * 12
    now = 4500
    assert [claim.sure for claim in mine] == [homes[claim] is not lost for claim in mine]
    await asyncio.to_thread(lost.start)
    await redis.aclose()
