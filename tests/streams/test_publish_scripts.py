"""What decides and appends a sink's batch, and what answers once, in each state; all of it or nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from streamlease.protocol.errors import StoreRefused
from streamlease.protocol.ids import StreamId
from streamlease.streams.log.keys import (
    sink_state,
    stream_log,
    stream_meta,
    stream_news,
    stream_publishers,
    stream_staged,
)
from streamlease.streams.redis.connection import Argument, AsyncRedis, connect
from streamlease.streams.redis.scripts import load_script

STREAM = StreamId("space", 0, 0)
META, PUBLISHERS, LOG = stream_meta(STREAM), stream_publishers(STREAM), stream_log(STREAM)
TASKS = [stream_staged(STREAM, token) for token in ("one", "two", "three")]
NAMED = ((2, 5), (1, 1), (1, 2))
RECORD = "record"


@pytest.fixture
async def redis(real_redis_url: str) -> AsyncIterator[AsyncRedis]:
    client = connect(real_redis_url)
    yield client
    await client.aclose()


# ---------------------------------------------------------------- a sink's batch


async def written(redis: AsyncRedis, **meta: Any) -> None:
    """Three tasks have written: the first part is of two of them, the second of the last."""
    await redis.flushall()
    await redis.hset(META, mapping={"next": 0, "state": "open", "last_append": 0, "bytes": 0} | meta)
    await redis.xadd(TASKS[0], {"p": "one"}, id="1-2")
    await redis.xadd(TASKS[0], {"p": "two"}, id="2-3")
    await redis.xadd(TASKS[1], {"p": "three"}, id="1-1")
    await redis.xadd(TASKS[2], {"p": "four"}, id="1-2")


async def append(
    redis: AsyncRedis,
    part: int = 0,
    *,
    batch: int = 3,
    tag: str = "t",
    named: Sequence[tuple[int, int]] = NAMED,
) -> Any:
    own, first = (2, 0) if part == 0 else (1, 2)
    keys = [META, PUBLISHERS, LOG, *TASKS[first:]]
    numbers = (number for one in named[first:] for number in one)
    about = ("sink", batch, part, stream_news(STREAM), tag, own, *numbers)
    script = load_script("streamlease.streams.publish.staged", "append_staged")
    return await script.run(redis, keys, about)


async def kept(redis: AsyncRedis) -> tuple[Any, ...]:
    """The record of the sink without the time, the log, and which tasks' keys are there."""
    record = await redis.hget(PUBLISHERS, "sink")
    entries = [(id, fields[b"p"]) for id, fields in await redis.xrange(LOG)]
    there = [await redis.exists(key) for key in TASKS]
    return None if record is None else [*record.split()[:4], *record.split()[5:]], entries, there


FIRST = [(b"1-2", b"one"), (b"4-3", b"two"), (b"5-1", b"three")]
ALL = [*FIRST, (b"7-2", b"four")]


async def test_a_batch_is_appended_part_by_part_once(redis: AsyncRedis) -> None:
    await written(redis)
    async with redis.pubsub() as listening:
        await listening.subscribe(stream_news(STREAM))
        await listening.get_message(timeout=20)
        assert await append(redis, 1) == [b"gap", -1]
        assert await append(redis) == [b"appended", 0, 6]
        pushed = await listening.get_message(timeout=20)
        assert pushed is not None and pushed["data"] == b"6"
    once = ([b"3", b"0", b"0", b"6", b"t", b"6"], FIRST, [0, 0, 1])
    assert await kept(redis) == once
    assert await append(redis) == [b"duplicate"]
    assert await append(redis, tag="u") == [b"other", 6]
    assert await append(redis, batch=2) == [b"fenced", 3]
    assert await append(redis, 2) == [b"gap", 0]
    assert await append(redis, 1, batch=4) == [b"gap", -1]
    assert await kept(redis) == once
    assert await append(redis, 1) == [b"appended", 6, 2]
    whole = ([b"3", b"1", b"6", b"2", b"t", b"8"], ALL, [0, 0, 0])
    assert await kept(redis) == whole
    assert [await append(redis, part) for part in (0, 1)] == [[b"duplicate"]] * 2
    assert await append(redis, 1, tag="u") == [b"other", 8]
    assert await kept(redis) == whole
    times = [int(fields[b"a"]) for _, fields in await redis.xrange(LOG)]
    assert times == sorted({*times}), "each entry is later than the one before"
    (at,) = (await redis.hget(PUBLISHERS, "sink")).split()[4:5]
    size = sum(
        len(name) + len(value) for _, fields in await redis.xrange(LOG) for name, value in fields.items()
    )
    assert await redis.hmget(META, "next", "last_append", "bytes") == [b"8", b"%d" % times[-1], b"%d" % size]
    assert int(at) == times[-1]


@pytest.mark.parametrize(
    ("named", "said"),
    [
        (((3, 5), (1, 1), (1, 2)), [b"missing", 1, 2]),
        (((2, 6), (1, 1), (1, 2)), [b"missing", 1, 2]),
        (((2, 5), (1, 2), (1, 2)), [b"missing", 2, 1]),
        (((2, 5), (1, 1), (2, 2)), [b"missing", 3, 1]),
    ],
)
async def test_the_first_part_waits_for_the_keys_of_all(
    redis: AsyncRedis, named: Sequence[tuple[int, int]], said: list[Any]
) -> None:
    await written(redis)
    assert await append(redis, named=named) == said
    assert await kept(redis) == (None, [], [1, 1, 1])
    await redis.xdel(TASKS[0], "1-2")
    await redis.xadd(TASKS[0], {"p": "another"}, id="3-2")
    assert await append(redis) == [b"missing", 1, 0], "of as many entries the first is another"
    assert await kept(redis) == (None, [], [1, 1, 1])


@pytest.mark.parametrize(
    ("meta", "said"),
    [
        ({"state": "sealed"}, [b"sealed"]),
        ({"state": "pending"}, [b"pending"]),
        ({"schema": "f1"}, [b"schema", b"f1"]),
    ],
)
async def test_what_a_stream_does_not_take_stays_with_its_tasks(
    redis: AsyncRedis, meta: dict[str, str], said: list[bytes]
) -> None:
    await written(redis, **meta)
    assert await append(redis) == said
    assert await kept(redis) == (None, [], [1, 1, 1])
    await redis.xadd(LOG, {"p": "x"}, id="3-1")
    assert await append(redis) == said
    await redis.hset(META, "state", "open")
    await redis.hdel(META, "schema")
    assert await append(redis) == [b"foreign", b"3-1"]
    await redis.delete(META)
    assert await append(redis) == [b"unknown"]
    assert await kept(redis) == (None, [(b"3-1", b"x")], [1, 1, 1])


async def test_each_entry_must_have_the_schema(redis: AsyncRedis) -> None:
    await written(redis, schema="f1")
    for place, (key, schema) in enumerate(zip(TASKS, ("f1", "f2", "f1"), strict=True)):
        await redis.delete(key)
        await redis.xadd(key, {"s": schema, "p": str(place)}, id="1-1")
    named = ((1, 1),) * 3
    assert await append(redis, named=named) == [b"schema", b"f1"]
    assert (await kept(redis))[:2] == (None, [])
    await redis.delete(TASKS[1])
    await redis.xadd(TASKS[1], {"s": "f1", "p": "1"}, id="1-1")
    assert await append(redis, named=named) == [b"appended", 0, 2]


async def test_very_many_keys_are_removed(redis: AsyncRedis) -> None:
    await written(redis)
    keys = [stream_staged(STREAM, str(number)) for number in range(2001)]
    for key in keys:
        await redis.xadd(key, {"p": key}, id="1-1")
    about = ("sink", 0, 0, stream_news(STREAM), "t", len(keys), *(1, 1) * len(keys))
    script = load_script("streamlease.streams.publish.staged", "append_staged")
    assert await script.run(redis, [META, PUBLISHERS, LOG, *keys], about) == [b"appended", 0, 2001]
    assert await redis.exists(*keys) == 0


async def test_what_a_batch_consists_of_is_decided_once(redis: AsyncRedis) -> None:
    async def decide(batch: int, version: str, plan: str) -> Any:
        script = load_script("streamlease.streams.publish.staged", "decide")
        return await script.run(redis, [sink_state("sink")], [batch, version, plan])

    with pytest.raises(StoreRefused, match="no such decision to replace"):
        await decide(0, "0", "x")
    assert await decide(0, "", "a") == [b"decided", b"0", b"a"]
    assert await decide(0, "", "b") == [b"decided", b"0", b"a"], "the first one holds"
    assert await decide(0, "0", "c") == [b"decided", b"1", b"c"]
    assert await decide(0, "0", "d") == [b"decided", b"1", b"c"], "it was replaced before"
    assert await decide(0, "1", "d") == [b"decided", b"2", b"d"]
    assert await decide(2, "", "e") == [b"decided", b"0", b"e"]
    assert await decide(1, "", "f") == [b"past", 2]
    for damage in ({"version": "x"}, {"batch": "x", "version": "0"}):
        await redis.hset(sink_state("sink"), mapping=damage)
        before = await redis.hgetall(sink_state("sink"))
        assert await decide(2, "", "g") == [b"damaged"]
        assert await redis.hgetall(sink_state("sink")) == before
    await redis.hset(sink_state("sink"), mapping={"batch": 2, "version": "x"})
    assert await decide(3, "", "g") == [b"decided", b"0", b"g"], "what is over need not be read"


# ---------------------------------------------------------------- what is answered once


async def once(redis: AsyncRedis, *args: Argument) -> Any:
    return await load_script("streamlease.streams.publish", "answer_once").run(redis, [RECORD], args)


async def claim(redis: AsyncRedis, owner: str, what: str = "print", ms: int = 60_000, at: int = 7) -> Any:
    return await once(redis, "claim", owner, what, ms, 90_000, at)


async def test_one_at_a_time_does_what_a_key_names(redis: AsyncRedis) -> None:
    assert await once(redis, "settle", "a", "done", 60_000) == [b"gone"]
    assert await claim(redis, "a") == [b"mine", 0, b"7"]
    assert 60_000 < await redis.pttl(RECORD) <= 90_000
    assert await claim(redis, "a", at=8) == [b"mine", 0, b"7"], "again"
    said, ms = await claim(redis, "b")
    assert said == b"wait" and 50_000 < ms <= 60_000
    assert await claim(redis, "b", "another") == [b"other"]
    assert await once(redis, "settle", "b", "x", 60_000) == [b"gone"]
    assert await once(redis, "let_go", "b") == [b"left"]
    assert (await claim(redis, "b"))[0] == b"wait", "it is not theirs to let go"
    assert await once(redis, "let_go", "a") == [b"left"]
    assert await claim(redis, "b", at=9) == [b"mine", 1, b"7"], "somebody had begun"
    assert await once(redis, "settle", "a", "x", 60_000) == [b"gone"]
    assert await once(redis, "settle", "b", "done", 30_000) == [b"kept"]
    assert await redis.pttl(RECORD) <= 30_000
    assert await claim(redis, "c") == [b"answer", b"done"]
    assert await claim(redis, "c", "another") == [b"other"]


async def test_who_is_silent_for_too_long_is_followed(redis: AsyncRedis) -> None:
    assert await claim(redis, "a", ms=-1) == [b"mine", 0, b"7"]
    assert await claim(redis, "b", at=8) == [b"mine", 1, b"7"]
    assert (await claim(redis, "a"))[0] == b"wait"
