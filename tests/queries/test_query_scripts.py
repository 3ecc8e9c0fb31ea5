"""What the scripts of executors and of queries do in each state, and that they write all of it or nothing."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from streamlease.protocol.errors import StoreRefused
from streamlease.queries.keys import (
    ALIVE,
    CHANGE_KEYS,
    ENDED,
    ENDED_ORDER,
    EXECUTOR_KEYS,
    LIVE,
    PERMITS,
    PLACED,
    REFUSED,
    TOLD,
)
from streamlease.streams.catalog.keys import CATALOG, OWNED, PROCESSES, TOKENS, rows
from streamlease.streams.redis.connection import Argument, AsyncRedis, connect
from streamlease.streams.redis.scripts import load_script

EXECUTORS, QUERIES = rows("executors"), rows("queries")
MINUTE = 60_000
OVER = -60_000


@pytest.fixture
async def redis(real_redis_url: str) -> AsyncIterator[AsyncRedis]:
    client = connect(real_redis_url)
    yield client
    await client.aclose()


async def told(redis: AsyncRedis) -> list[tuple[bytes, ...]]:
    """The changes of the catalog: collection, key, the row before and after."""
    found = [
        tuple(fields[name] for name in (b"c", b"k", b"o", b"n"))
        for _, fields in await redis.xrange(CATALOG.changes)
    ]
    await redis.delete(CATALOG.changes)
    return found


# ---------------------------------------------------------------- executors


async def executors(redis: AsyncRedis, act: str, *args: Argument) -> list[Any]:
    """The reply without the moment, which is checked."""
    said, at, *rest = await load_script("streamlease.queries", "executors").run(
        redis, EXECUTOR_KEYS, [CATALOG.told, act, *args]
    )
    seconds, _ = await redis.time()
    assert abs(at - seconds * 1000) <= 2000
    return [said, *rest]


async def hold(
    redis: AsyncRedis, life: str, name: str = "one", row: str = "r", *, ms: int = MINUTE, begin: int = 1
) -> Any:
    return await executors(redis, "hold", life, name, ms, row, begin)


async def alive(redis: AsyncRedis) -> tuple[dict[bytes, bytes], list[bytes], list[bytes], list[bytes]]:
    """Rows, lives, processes of the catalog, and what they have made."""
    lives = await redis.zrange(ALIVE, 0, -1)
    return (
        await redis.hgetall(EXECUTORS),
        lives,
        await redis.zrange(PROCESSES, 0, -1),
        await redis.zrange(OWNED, 0, -1),
    )


def whole(*held: tuple[bytes, bytes]) -> tuple[dict[bytes, bytes], list[bytes], list[bytes], list[bytes]]:
    """`alive`, where each life has one executor of that name, whose row is ``r``."""
    lives = [life for life, _ in held]
    return (
        {life + b"/" + name: b"r" for life, name in held},
        lives,
        lives,
        [life + b"/executors/" + name for life, name in held],
    )


async def test_a_life_is_held_and_left(redis: AsyncRedis) -> None:
    assert await hold(redis, "a") == [b"held"]
    assert await alive(redis) == whole((b"a", b"one"))
    till = {await redis.zscore(key, "a") for key in (ALIVE, PROCESSES)}
    seconds, _ = await redis.time()
    assert len(till) == 1 and abs(till.pop() - seconds * 1000 - MINUTE) <= 2000
    assert await told(redis) == [(b"executors", b"a/one", b"", b"r")]
    assert await hold(redis, "a", begin=0) == [b"held"]
    assert await told(redis) == []
    assert await hold(redis, "a", row="s", begin=0) == [b"held"]
    assert await told(redis) == [(b"executors", b"a/one", b"r", b"s")]
    assert await hold(redis, "ab", "two") == [b"held"]
    assert await executors(redis, "leave", "a") == [b"left"]
    assert await alive(redis) == whole((b"ab", b"two"))
    assert await told(redis) == [(b"executors", b"ab/two", b"", b"r"), (b"executors", b"a/one", b"s", b"")]


async def test_a_life_that_is_over_is_not_renewed(redis: AsyncRedis) -> None:
    assert await hold(redis, "a", begin=0) == [b"gone"]
    assert await alive(redis) == whole()
    await hold(redis, "a", ms=OVER)
    assert await hold(redis, "a", begin=0) == [b"held"], "nobody has ended it"


async def test_a_name_is_of_one_living_executor(redis: AsyncRedis) -> None:
    await hold(redis, "a")
    assert await hold(redis, "b", row="s") == [b"taken", b"r"]
    assert await alive(redis) == whole((b"a", b"one"))
    assert await hold(redis, "a") == [b"held"], "its own"
    assert await hold(redis, "b", "two") == [b"held"]
    await redis.zadd(ALIVE, {"a": 1})
    assert await hold(redis, "c") == [b"held"], "its lease is over"
    assert await alive(redis) == whole((b"b", b"two"), (b"c", b"one"))
    await redis.zrem(ALIVE, "c")
    assert await hold(redis, "d") == [b"held"], "its life is gone"
    assert await alive(redis) == whole((b"b", b"two"), (b"d", b"one"))


async def test_only_lives_whose_leases_are_over_are_ended(redis: AsyncRedis) -> None:
    await hold(redis, "a", "one", ms=OVER)
    await hold(redis, "b", "two")
    await hold(redis, "c", "three", ms=OVER)
    await told(redis)
    assert await executors(redis, "reap", "a", "b", "nobody") == [b"reaped", b"a"]
    assert (await redis.zrange(ALIVE, 0, -1), sorted(await redis.hkeys(EXECUTORS))) == (
        [b"c", b"b"],
        [b"b/two", b"c/three"],
    )
    assert await told(redis) == [(b"executors", b"a/one", b"r", b"")]
    assert await executors(redis, "reap", "c", "b") == [b"reaped", b"c"]
    assert await alive(redis) == whole((b"b", b"two"))


async def test_all_is_seen_at_once(redis: AsyncRedis) -> None:
    assert await executors(redis, "look") == [b"seen", [], [], [], b"0"]
    await hold(redis, "a")
    await redis.hset(LIVE, "q", "1 {}")
    await redis.set(PLACED, 3)
    said, lives, held, queries, placed = await executors(redis, "look")
    assert (said, lives[0], held, queries, placed) == (b"seen", b"a", [b"a/one", b"r"], [b"q", b"1 {}"], b"3")


# ---------------------------------------------------------------- queries

Record = tuple[str, int, str, str, int, str, str, str]


def one(
    id: str = "q",
    revision: int = 0,
    *,
    record: str = "{}",
    row: str = "row",
    ended: int = 0,
    digest: str = "",
    token: str = "",
    permit: str = "",
) -> Record:
    """What is to be written of one query."""
    return id, revision, record, row, ended, digest, token, permit


async def change(
    redis: AsyncRedis, *records: Record, most: int = 100, ms: int = MINUTE, placed: str = "", lives: str = ""
) -> list[Any]:
    """The reply without the moment."""
    args: Sequence[Argument] = [
        CATALOG.told,
        most,
        ms,
        placed,
        lives,
        "me",
        TOLD,
        *(word for of in records for word in of),
    ]
    said, _, *rest = await load_script("streamlease.queries", "change").run(redis, CHANGE_KEYS, args)
    return [said, *rest]


async def kept(redis: AsyncRedis) -> dict[str, Any]:
    """All that it writes, but refusals."""
    hashes = {"live": LIVE, "ended": ENDED, "rows": QUERIES, "tokens": TOKENS, "permits": PERMITS}
    found: dict[str, Any] = {name: await redis.hgetall(key) for name, key in hashes.items()}
    return found | {"order": await redis.zrange(ENDED_ORDER, 0, -1), "placed": await redis.get(PLACED)}


NOTHING: dict[str, Any] = {
    "live": {},
    "ended": {},
    "rows": {},
    "tokens": {},
    "permits": {},
    "order": [],
    "placed": None,
}


async def test_a_query_lives_and_ends(redis: AsyncRedis) -> None:
    digest = hashlib.sha1(b"token").hexdigest()
    async with redis.pubsub() as listening:
        await listening.subscribe(TOLD)
        await listening.get_message(timeout=20)
        assert await change(redis, one(digest=digest, permit="p"), placed="0") == [b"done"]
        pushed = await listening.get_message(timeout=20)
        assert pushed is not None and pushed["data"] == b"changed"
    begun = {
        "live": {b"q": b"1 {}"},
        "ended": {},
        "rows": {b"queries/q": b"row"},
        "tokens": {b"q": digest.encode()},
        "permits": {b"q": b"p"},
        "order": [],
        "placed": b"1",
    }
    assert await kept(redis) == begun
    assert await told(redis) == [(b"queries", b"queries/q", b"", b"row")]
    assert await change(redis, one(revision=1, record="{2}", token="token")) == [b"done"]
    assert await kept(redis) == begun | {"live": {b"q": b"2 {2}"}}
    assert await told(redis) == []
    assert await change(redis, one(revision=2, record="{3}", row="end", ended=1)) == [b"done"]
    assert await kept(redis) == NOTHING | {
        "ended": {b"q": b"3 {3}"},
        "rows": {b"queries/q": b"end"},
        "order": [b"q"],
        "placed": b"1",
    }
    assert await told(redis) == [(b"queries", b"queries/q", b"row", b"end")]


async def test_a_permit_stays_for_whoever_follows(redis: AsyncRedis) -> None:
    await change(redis, one(permit="p", digest="d"))
    assert await change(redis, one(revision=1, ended=2), one("r", permit="s")) == [b"done"]
    found = await kept(redis)
    assert (found["permits"], found["tokens"], [*found["live"]]) == ({b"q": b"p", b"r": b"s"}, {}, [b"r"])


@pytest.mark.parametrize(
    ("about", "second", "said"),
    [
        ({}, one("r", 1), [b"other", b"r"]),
        ({}, one("q", 7), [b"other", b"q"]),
        ({}, one("over", 1), [b"other", b"over"]),
        ({}, one("q", 1, token="wrong"), [b"refused", b"q"]),
        ({}, one("r", 0, token="token"), [b"refused", b"r"]),
        ({"placed": "0"}, one("r"), [b"placed"]),
        ({"placed": "2"}, one("r"), [b"placed"]),
        ({"lives": "here nobody"}, one("r"), [b"gone", b"nobody"]),
        ({"lives": "here over"}, one("r"), [b"gone", b"over"]),
    ],
)
async def test_what_does_not_hold_writes_nothing(
    redis: AsyncRedis, about: dict[str, Any], second: Record, said: list[bytes]
) -> None:
    await change(redis, one(digest=hashlib.sha1(b"token").hexdigest()), one("over"), placed="0")
    await change(redis, one("over", 1, ended=1))
    await hold(redis, "here")
    await hold(redis, "over", "two", ms=OVER)
    before = await kept(redis)
    assert await change(redis, one("new", permit="p"), second, **about) == said
    assert await kept(redis) == before
    refusals = [fields for _, fields in await redis.xrange(REFUSED)]
    assert refusals == ([{b"q": said[1], b"w": b"me"}] if said[0] == b"refused" else [])
    assert await change(redis, one("new"), placed="1", lives="here") == [b"done"]
    for words in ((), ("q",), (*one(), "more")):
        with pytest.raises(StoreRefused, match="a record is eight words"):
            await load_script("streamlease.queries", "change").run(
                redis, CHANGE_KEYS, [CATALOG.told, 1, 1, "", "", "me", TOLD, *words]
            )


async def test_the_oldest_that_ended_are_forgotten(redis: AsyncRedis) -> None:
    for id in ("a", "b", "c", "d"):
        await change(redis, one(id, ended=1, permit="p"))
    await redis.zadd(ENDED_ORDER, {"a": 1000, "b": 1001, "c": 1002, "d": 1003})
    await redis.hdel(QUERIES, "queries/b")
    await told(redis)
    assert await change(redis, one("e"), ms=10**12 * 10, most=2) == [b"done"]
    found = await kept(redis)
    assert (found["order"], sorted(found["ended"]), sorted(found["permits"])) == (
        [b"c", b"d"],
        [b"c", b"d"],
        [b"c", b"d"],
    )
    assert sorted(found["rows"]) == [b"queries/c", b"queries/d", b"queries/e"]
    assert (await told(redis))[1:] == [(b"queries", b"queries/a", b"row", b"")], (
        "who has no row is not told of"
    )
    assert await change(redis, one("f", ended=1), most=9) == [b"done"]
    assert (await kept(redis))["order"] == [b"f"], "those before are too old"
