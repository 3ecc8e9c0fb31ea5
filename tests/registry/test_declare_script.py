"""What the script that declares a group does in each state, and that it writes all of it or nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from streamlease.protocol.errors import StoreRefused
from streamlease.registry.keys import GROUPS_NEWS
from streamlease.streams.redis.connection import AsyncRedis, connect
from streamlease.streams.redis.scripts import load_script

DEFINITION, PROGRESS, ARRIVALS, LEADER, GROUPS = "{g}def", "{g}progress", "{g}arrivals", "{g}leader", "{g}ids"
SUB = "$shared/g/a/#"


@pytest.fixture
async def redis(real_redis_url: str) -> AsyncIterator[AsyncRedis]:
    client = connect(real_redis_url)
    yield client
    await client.aclose()


async def declare(redis: AsyncRedis, read: str, holds: str, least: int = 0, *, listed: bool = True) -> int:
    keys = [DEFINITION, PROGRESS, ARRIVALS, LEADER, *([GROUPS] if listed else [])]
    args = [read, holds, least, SUB]
    said: int = await load_script("streamlease.registry", "declare").run(redis, keys, args)
    return said


async def kept(redis: AsyncRedis) -> dict[str, Any]:
    """All that it writes; of the progress the two numbers."""
    return {
        "definition": await redis.get(DEFINITION),
        "arrivals": await redis.get(ARRIVALS),
        "leader": await redis.hgetall(LEADER),
        "listed": await redis.smembers(GROUPS),
        "progress": await redis.hgetall(PROGRESS),
    }


async def test_a_group_is_declared(redis: AsyncRedis) -> None:
    async with redis.pubsub() as listening:
        await listening.subscribe(GROUPS_NEWS)
        await listening.get_message(timeout=20)
        assert await declare(redis, "", "{}", 7) == 1
        pushed = await listening.get_message(timeout=20)
        assert pushed is not None and pushed["data"] == SUB.encode()
        found = await kept(redis)
        seconds, micros = await redis.time()
        progress = found.pop("progress")
        assert abs(int(progress.pop(b"@active")) - seconds * 1000) <= 2000
        assert abs(int(progress.pop(b"@joined")) - seconds * 1_000_000 - micros) <= 2_000_000
        assert progress == {}
        lineage = (await redis.info("replication"))["master_replid"].encode()
        assert found == {
            "definition": b"{}",
            "arrivals": b"7",
            "leader": {b"declared": lineage},
            "listed": {SUB.encode()},
        }
        # Whoever comes next changes nothing of that, and nobody hears of it.
        await redis.hset(LEADER, "declared", "before")
        await redis.srem(GROUPS, SUB)
        assert await declare(redis, "{}", "other", 6) == 1
        after = await kept(redis)
        assert after.pop("progress").keys() == {b"@active", b"@joined"}
        assert after == found | {"leader": {b"declared": b"before"}}, "it is listed again"
        await redis.publish(GROUPS_NEWS, "the end")
        pushed = await listening.get_message(timeout=20)
        assert pushed is not None and pushed["data"] == b"the end"


@pytest.mark.parametrize(("least", "arrivals"), [(0, b"5"), (5, b"5"), (6, b"6")])
async def test_arrivals_do_not_go_back(redis: AsyncRedis, least: int, arrivals: bytes) -> None:
    await redis.set(ARRIVALS, 5)
    assert await declare(redis, "", "{}", least) == 1
    assert await redis.get(ARRIVALS) == arrivals


async def test_who_joins_has_a_higher_number_whatever_the_clock_says(redis: AsyncRedis) -> None:
    future = 2**51
    await redis.hset(PROGRESS, mapping={"@joined": future, "s.0.0": 3})
    assert await declare(redis, "", "{}") == 1
    assert await redis.hget(PROGRESS, "@joined") == b"%d" % (future + 1)
    await redis.hset(PROGRESS, "@joined", "damaged")
    assert await declare(redis, "{}", "{}") == 1
    found = await redis.hgetall(PROGRESS)
    assert 10**15 < int(found[b"@joined"]) < future and found[b"s.0.0"] == b"3"


@pytest.mark.parametrize(("there", "read"), [(None, "{}"), ("{}", ""), ("{}", "{ }")])
async def test_what_was_read_must_hold(redis: AsyncRedis, there: str | None, read: str) -> None:
    if there is not None:
        await redis.set(DEFINITION, there)
    before = await kept(redis)
    assert await declare(redis, read, "new", 9) == 0
    assert await kept(redis) == before


async def test_what_is_no_record_of_a_leader_is_noticed_before_anything_is_written(redis: AsyncRedis) -> None:
    await redis.set(LEADER, "a stranger's")
    with pytest.raises(StoreRefused, match="another type"):
        await declare(redis, "", "{}", 9)
    assert await redis.keys() == [LEADER.encode()]
    await redis.set(DEFINITION, "{}")
    assert await declare(redis, "{}", "{}") == 1, "who joins has no need of it"


async def test_in_a_cluster_the_set_of_groups_lies_elsewhere(redis: AsyncRedis) -> None:
    assert await declare(redis, "", "{}", listed=False) == 1
    found = await kept(redis)
    assert (found["definition"], found["listed"]) == (b"{}", set())
