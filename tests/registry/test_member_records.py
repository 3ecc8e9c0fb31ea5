"""Records of members: one gateway serves each, and whoever was before it changes nothing any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from streamlease.registry import keys
from streamlease.registry.members.member_records import (
    GatewaySigns,
    HandedPlace,
    MemberGone,
    MemberRecord,
    MemberRecords,
    ServedElsewhere,
)
from streamlease.streams.redis.connection import AsyncRedis, connect
from tests.awake import within

TIMEOUT = 5000


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[AsyncRedis]:
    client = connect(redis_url)
    yield client
    await client.aclose()


@pytest.fixture
def records(redis: AsyncRedis) -> MemberRecords:
    return MemberRecords(redis, "g/a/#", "m1")


async def begun(records: MemberRecords) -> int:
    return await records.begin("gateway-1", "http://x:1", "s-1", "s-1/0", TIMEOUT, '"latest"')


async def test_a_member_is_what_was_written(records: MemberRecords) -> None:
    with pytest.raises(MemberGone):
        await records.read()
    arrival = await begun(records)
    assert await records.read() == MemberRecord(
        arrival, "gateway-1", "http://x:1", "s-1", "s-1/0", TIMEOUT, '"latest"', {}
    )


async def test_the_same_member_is_not_made_twice(records: MemberRecords) -> None:
    assert await begun(records)
    assert not await begun(records)


async def test_of_many_who_take_it_over_one_does(records: MemberRecords) -> None:
    first = await begun(records)
    known = await records.read()
    outcomes = await asyncio.gather(
        *(records.take(known, f"gateway-{n}", "") for n in range(2, 12)), return_exceptions=True
    )
    (arrival,) = [one for one in outcomes if isinstance(one, int)]
    assert arrival > first
    assert [type(one) for one in outcomes if one != arrival] == [ServedElsewhere] * 9
    assert (await records.read()).arrival == arrival


async def test_who_was_before_changes_nothing(redis: AsyncRedis, records: MemberRecords) -> None:
    former = await begun(records)
    await records.keep(former, TIMEOUT, {"s.0.0": HandedPlace(3, 17), "s.0.1": HandedPlace(4, 5)})
    await records.keep(former, TIMEOUT, {"s.0.0": HandedPlace(3, 18)}, ["s.0.1"])
    arrival = await records.take(await records.read(), "gateway-2", "http://x:2")
    with pytest.raises(ServedElsewhere):
        await records.keep(former, TIMEOUT, {"s.0.0": HandedPlace(3, 99)})
    await records.end(former)
    await records.end(former, free=True)
    found = await records.read()
    assert (found.arrival, found.gateway) == (arrival, "gateway-2")
    assert found.handed == {"s.0.0": HandedPlace(3, 18)}


async def test_it_lasts_as_long_as_it_is_kept(redis: AsyncRedis, records: MemberRecords) -> None:
    arrival = await begun(records)
    left = await redis.execute_command("PTTL", keys.group_member("g/a/#", "m1"))
    assert 0 < left <= TIMEOUT
    await records.keep(arrival, 60_000)
    left = await redis.execute_command("PTTL", keys.group_member("g/a/#", "m1"))
    assert TIMEOUT < left <= 60_000
    await records.keep(arrival, 1)
    async with within(10):
        while True:
            try:
                await records.read()
            except MemberGone:
                break
    with pytest.raises(MemberGone):
        await records.keep(arrival, TIMEOUT)


async def test_a_member_is_freed_and_ended(records: MemberRecords) -> None:
    arrival = await begun(records)
    await records.end(arrival, free=True)
    freed = await records.read()
    assert (freed.gateway, freed.address, freed.session) == ("", "", "s-1")
    await records.end(await records.take(freed, "gateway-2", ""))
    with pytest.raises(MemberGone):
        await records.read()


async def test_a_damaged_record_is_none(redis: AsyncRedis, records: MemberRecords) -> None:
    await begun(records)
    await redis.execute_command("HSET", keys.group_member("g/a/#", "m1"), "arrival", "x")
    with pytest.raises(MemberGone):
        await records.read()


async def test_signs_of_life(redis: AsyncRedis) -> None:
    signs = GatewaySigns(redis)
    assert not await signs.alive("gateway-1")
    await signs.give("gateway-1", 60_000)
    assert await signs.alive("gateway-1")
    await signs.withdraw("gateway-1")
    assert not await signs.alive("gateway-1")
