"""How changes of the catalog are written down, and what a listing has, by the scripts themselves."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from streamlease.streams.catalog.keys import CATALOG, MADE, OWNED, PROCESSES, REFUSED, TOKENS, WRITTEN, rows
from streamlease.streams.redis.connection import AsyncRedis, connect
from streamlease.streams.redis.scripts import load_script

ROWS, ALIVE = "{c}rows", "{c}alive"


@pytest.fixture
async def redis(real_redis_url: str) -> AsyncIterator[AsyncRedis]:
    client = connect(real_redis_url)
    yield client
    await client.aclose()


async def change(redis: AsyncRedis, *changes: str) -> None:
    """By a process, whose script includes `tell`: collection, key, row, and so on."""
    keys = [PROCESSES, OWNED, CATALOG.changes, *map(rows, MADE), TOKENS, REFUSED, WRITTEN]
    args = ["p", 60_000, CATALOG.told, " ".join(MADE), "m" if await redis.exists(WRITTEN) else "", "", "", ""]
    assert await load_script("streamlease.catalog", "process").run(redis, keys, [*args, "m", *changes]) == 1


async def numbers(redis: AsyncRedis) -> list[int]:
    return [int(fields[b"i"]) for _, fields in await redis.xrange(CATALOG.changes)]


async def test_changes_are_numbered_whatever_stands_there(redis: AsyncRedis) -> None:
    await change(redis, "services", "a", "1", "services", "b", "1")
    await change(redis, "services", "a", "1", "services", "b", "2")
    assert await numbers(redis) == [1, 2, 3], "what is as it was is no change"
    await redis.xadd(CATALOG.changes, {"x": "i", "i": "41"})
    await change(redis, "services", "a", "3")
    assert (await numbers(redis))[-1] == 42
    await redis.xadd(CATALOG.changes, {"i": "damaged"})
    await change(redis, "services", "a", "4")
    assert [fields[b"i"] for _, fields in await redis.xrange(CATALOG.changes)][-1] == b"1"
    await redis.xadd(CATALOG.changes, {"of": "a stranger"})
    await change(redis, "services", "a", "5")
    assert [fields.get(b"i") for _, fields in await redis.xrange(CATALOG.changes)][-1] == b"1"


async def test_each_collection_is_published_once_for_all_that_an_act_changes(redis: AsyncRedis) -> None:
    async with redis.pubsub() as listening:
        await listening.subscribe(CATALOG.told)
        await listening.get_message(timeout=20)
        await change(redis, "services", "a", "1", "borrowers", "a", "1", "services", "b", "1")
        await change(redis, "services", "a", "2")
        await redis.publish(CATALOG.told, "the end")
        heard: list[bytes] = []
        while (pushed := await listening.get_message(timeout=20)) is not None and pushed[
            "data"
        ] != b"the end":
            heard.append(pushed["data"])
        assert heard == [b"services", b"borrowers", b"services"]


async def listed(redis: AsyncRedis, *owners: str, limit: int = 0) -> list[Any]:
    keys = [ROWS, CATALOG.changes, *owners]
    newest, found, over = await load_script("streamlease.streams.catalog", "rows").run(redis, keys, [limit])
    return [newest, dict(zip(found[::2], found[1::2], strict=True)), sorted(over)]


async def test_a_listing_has_the_rows_and_the_newest_change(redis: AsyncRedis) -> None:
    assert await listed(redis) == [b"0-0", {}, []]
    await redis.hset(ROWS, mapping={"a": "1", "b": "2"})
    for id in ("5-1", "5-2"):
        await redis.xadd(CATALOG.changes, {"i": "1"}, id)
    assert await listed(redis) == [b"5-2", {b"a": b"1", b"b": b"2"}, []]


@pytest.mark.parametrize("limit", [0, 10_000])
async def test_a_listing_tells_whose_rows_count_no_more(redis: AsyncRedis, limit: int) -> None:
    """By leases, or by when somebody was seen, and then also from before the clock went back."""
    seconds, _ = await redis.time()
    now = seconds * 1000
    times = {
        "long ago": 1,
        "over": now - limit - 5000,
        "lives": now - limit + 5000,
        "ahead": now + limit + 5000,
    }
    await redis.zadd(ALIVE, times)
    assert (await listed(redis, ALIVE, limit=limit))[2] == sorted(
        [b"long ago", b"over", *([b"ahead"] if limit else [])]
    )
