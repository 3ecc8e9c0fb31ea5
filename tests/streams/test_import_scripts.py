"""What the scripts of imports do in each state: sources that begin again, and entries that are refused."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from streamlease.streams.redis.connection import Argument, AsyncRedis, connect
from streamlease.streams.redis.scripts import load_script

SOURCE, INBOX, REFUSED = "sl:source", "{s}inbox", "{s}refused"
FAR = 2**47
"""Milliseconds since 1970 that are far in the future."""


@pytest.fixture
async def redis(real_redis_url: str) -> AsyncIterator[AsyncRedis]:
    client = connect(real_redis_url)
    yield client
    await client.aclose()


async def run(redis: AsyncRedis, name: str, keys: list[str], *args: Argument) -> Any:
    return await load_script("streamlease.streams.imports", name).run(redis, keys, args)


# ---------------------------------------------------------------- a source with an end


async def begin(redis: AsyncRedis, identity: str, **born: int) -> list[bytes]:
    found: list[bytes] = await run(redis, "source", [SOURCE], identity, json.dumps(born))
    return found


async def test_a_source_is_what_it_was_as_soon_as_something_of_it_was_published(redis: AsyncRedis) -> None:
    assert await begin(redis, "one", s=1) == [b"one", b"", b""]
    assert await begin(redis, "two", s=2) == [b"two", b"", b""], "nothing was published yet"
    await redis.hset(SOURCE, mapping={"begun": 1, "done": "7 0"})
    assert await begin(redis, "three", s=2) == [b"two", b"7 0", b""]
    await redis.hset(SOURCE, "complete", 1)
    assert await begin(redis, "three", s=2, t=9) == [b"two", b"7 0", b"1"], "a new space is no matter"
    assert await redis.hgetall(SOURCE) == {
        b"identity": b"two",
        b"born": b'{"s": 2}',
        b"begun": b"1",
        b"done": b"7 0",
        b"complete": b"1",
    }


@pytest.mark.parametrize("now", [{"s": 3, "t": 1}, {"t": 1}], ids=["made anew", "gone"])
async def test_a_source_begins_again_if_one_of_its_spaces_was_made_anew(
    redis: AsyncRedis, now: dict[str, int]
) -> None:
    await begin(redis, "one", s=2, t=1)
    await redis.hset(SOURCE, mapping={"begun": 1, "done": "7 0", "complete": 1, "more": "x"})
    assert await begin(redis, "two", **now) == [b"one", b"", b""]
    found = await redis.hgetall(SOURCE)
    assert json.loads(found.pop(b"born")) == now
    assert found == {b"identity": b"one", b"begun": b"1", b"more": b"x"}


# ---------------------------------------------------------------- a source without one


async def test_incarnations_of_a_source_rise(redis: AsyncRedis) -> None:
    first, *noted = await run(redis, "source_begin", [SOURCE], 0)
    seconds, _ = await redis.time()
    assert abs(int(first) - seconds * 1000) <= 2000 and noted == []
    await redis.hset(SOURCE, "line", "a")
    second, *noted = await run(redis, "source_begin", [SOURCE], 0)
    assert int(second) > int(first)
    assert noted == [b"incarnation", first, b"line", b"a"]
    (third, *_) = await run(redis, "source_begin", [SOURCE], FAR)
    assert int(third) == FAR
    (fourth, *_) = await run(redis, "source_begin", [SOURCE], 0)
    assert int(fourth) == FAR + 1
    assert await redis.hget(SOURCE, "incarnation") == fourth


# ---------------------------------------------------------------- entries that are no messages


async def inbox(redis: AsyncRedis) -> list[bytes]:
    return [id for id, _ in await redis.xrange(INBOX)]


async def refuse(redis: AsyncRedis, id: str, highest: str = "") -> list[bytes]:
    words = (id, 100, highest, "it is none", "f", "v", "g", "w")
    found: list[bytes] = await run(redis, "refuse", [INBOX, REFUSED], *words)
    return found


async def test_a_refused_entry_is_kept_with_the_reason(redis: AsyncRedis) -> None:
    await redis.xadd(INBOX, {"f": "v"}, "5-1")
    await redis.xadd(INBOX, {"f": "v"}, "5-2")
    assert await refuse(redis, "5-1") == [b"refused"]
    assert await inbox(redis) == [b"5-2"]
    ((_, fields),) = await redis.xrange(REFUSED)
    assert fields == {b"refused-because": b"it is none", b"refused-id": b"5-1", b"f": b"v", b"g": b"w"}
    for gone in ("5-1", "4-0", "9-9"):
        assert await refuse(redis, gone) == [b"gone"]
    assert (await inbox(redis), await redis.xlen(REFUSED)) == ([b"5-2"], 1)


async def last_id(redis: AsyncRedis) -> str:
    found: Any = await redis.xinfo_stream(INBOX)
    return str(found["last-generated-id"].decode())


async def test_ids_go_on_where_messages_can_have_them_once_the_inbox_is_empty(redis: AsyncRedis) -> None:
    """Redis gives higher ids only, and one that is too high would be the last one that could be a message."""
    high = f"{FAR}-0"
    await redis.xadd(INBOX, {"f": "v"}, high)
    await redis.xadd(INBOX, {"f": "v"}, f"{FAR}-1")
    assert await refuse(redis, high, "7-3") == [b"refused"]
    assert await last_id(redis) == f"{FAR}-1", "it is not empty"
    assert await refuse(redis, f"{FAR}-1", "7-3") == [b"refused"]
    seconds, _ = await redis.time()
    ms, _, number = (await last_id(redis)).partition("-")
    assert abs(int(ms) - seconds * 1000) <= 2000 and number == "0", "by the time of day"
    assert await inbox(redis) == []


async def test_ids_go_on_behind_what_was_moved(redis: AsyncRedis) -> None:
    await redis.xadd(INBOX, {"f": "v"}, f"{2 * FAR}-0")
    assert await refuse(redis, f"{2 * FAR}-0", f"{FAR}-3") == [b"refused"]
    assert await last_id(redis) == f"{FAR}-3"
    await redis.xadd(INBOX, {"f": "v"}, f"{FAR}-4")
    assert await refuse(redis, f"{FAR}-4") == [b"refused"]
    assert await last_id(redis) == f"{FAR}-4", "an id that can be a position stays"
