"""What drops and copies staged messages, in each state in which these may be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from streamlease.streams.epochs import keys
from streamlease.streams.log.keys import stream_staged
from streamlease.streams.redis.connection import Argument, AsyncRedis
from streamlease.streams.redis.scripts import load_script
from tests.epochs.staging import STREAMS, stage, staged_fields

STREAM = STREAMS[0]
META, STAGED_META, PUBLISHERS, LOG, EPOCHS = keys.stage_keys(STREAM)
TASKS = [stream_staged(STREAM, token) for token in ("one", "two")]
FENCED = b"9007199254740991"


@pytest.fixture
def redis_url(real_redis_url: str) -> str:
    return real_redis_url


async def run(redis: AsyncRedis, name: str, wanted: Sequence[str], *args: Argument) -> Any:
    return await load_script("streamlease.streams.epochs", name).run(redis, wanted, args)


async def payloads(redis: AsyncRedis) -> list[bytes]:
    return [fields[b"p"] for _, fields in await redis.xrange(LOG)]


# ---------------------------------------------------------------- what is dropped


async def drop(redis: AsyncRedis, budget: int, *whose: str, fence: int = -1) -> list[tuple[int, bool]]:
    """Drop until nothing is left to look at: how many entries went with each call, and whether more came."""
    calls: list[tuple[int, bool]] = []
    after: Argument = "-"
    while not calls or calls[-1][1]:
        said, entries, after = await run(
            redis, "drop", [PUBLISHERS, LOG, EPOCHS], "a", fence, after, budget, *whose
        )
        assert said == b"dropped"
        calls.append((entries, after != b""))
    return calls


async def filled(redis: AsyncRedis) -> None:
    for epoch, texts, name in (
        (1, ["a1", "a2"], "a"),
        (1, ["b1"], "b"),
        (2, ["a3"], "a"),
        (1, ["a4"], "a"),
        (2, ["b2"], "b"),
    ):
        await stage(redis, 0, (epoch,), texts, name)


@pytest.mark.parametrize("budget", [1, 2, 3, 6, 7])
async def test_what_was_not_given_up_goes_whatever_one_call_looks_at(redis: AsyncRedis, budget: int) -> None:
    await filled(redis)
    calls = await drop(redis, budget, "1 a 1", "7 a 1")
    assert sum(entries for entries, _ in calls) == 3
    assert await payloads(redis) == [b"b1", b"a3", b"b2"]
    assert await staged_fields(redis, 0) == {b"1 b 1": 1, b"2 a 1": 1, b"2 b 1": 1}
    assert await drop(redis, budget, "1 a 1") == [(0, False)], "again"
    assert sum(entries for entries, _ in await drop(redis, budget, "2 a 1", "1 b 1")) == 2
    assert await payloads(redis) == [b"b2"]


async def test_what_was_counted_and_is_not_there_is_forgotten(redis: AsyncRedis) -> None:
    await filled(redis)
    await redis.hincrby(EPOCHS, "1 a 1", 5)
    assert await drop(redis, 100, "1 a 1") == [(3, False)]
    assert b"1 a 1" not in await staged_fields(redis, 0)


async def test_entries_of_several_messages_count_as_many(redis: AsyncRedis) -> None:
    await redis.xadd(LOG, {"p": "many", "x": "1", "w": "a 1"}, id="2-3")
    await redis.xadd(LOG, {"p": "one", "x": "1", "w": "a 1"}, id="3-1")
    await redis.xadd(LOG, {"p": "nobody's"}, id="4-1")
    await redis.hset(EPOCHS, "1 a 1", 4)
    assert await drop(redis, 1, "1 a 1") == [(1, True), (1, True), (0, False)]
    assert (await payloads(redis), await staged_fields(redis, 0)) == ([b"nobody's"], {})


@pytest.mark.parametrize(("before", "fence"), [(None, 3), (2, 3), (3, 3), (4, 3), (2, -1), (None, -1)])
async def test_only_later_incarnations_go_on(redis: AsyncRedis, before: int | None, fence: int) -> None:
    if before is not None:
        await redis.hset(PUBLISHERS, "a", f"{before} 7 0 1 5")
    assert await drop(redis, 5, fence=fence) == [(0, False)]
    record = await redis.hget(PUBLISHERS, "a")
    if fence > (-1 if before is None else before):
        seconds, _ = await redis.time()
        incarnation, sequence, first, count, at = record.split()
        assert (incarnation, sequence, first, count) == (b"%d" % fence, FENCED, b"0", b"0")
        assert abs(int(at) - seconds * 1_000_000) <= 2_000_000
    else:
        assert record == (None if before is None else b"%d 7 0 1 5" % before)


# ---------------------------------------------------------------- what a sink's tasks wrote


async def copy(
    redis: AsyncRedis,
    sequence: int = 0,
    incarnation: int = 1,
    named: Sequence[tuple[int, int]] = ((2, 5), (1, 1)),
) -> Any:
    about = ("sink", incarnation, sequence, keys.staged_news(STREAM), "4", "sink 1")
    numbers = (number for one in named for number in one)
    return await run(redis, "stage_batch", [*keys.stage_keys(STREAM), *TASKS], *about, *numbers)


async def written(redis: AsyncRedis, state: str = "epochs") -> None:
    """Two tasks have written three entries, of two, three and one messages."""
    await redis.flushall()
    await redis.hset(META, mapping={"next": 0, "state": state})
    await redis.xadd(TASKS[0], {"p": "one"}, id="1-2")
    await redis.xadd(TASKS[0], {"p": "two"}, id="2-3")
    await redis.xadd(TASKS[1], {"p": "three"}, id="1-1")


async def staged(redis: AsyncRedis) -> tuple[Any, ...]:
    """All that is written but times."""
    record = await redis.hget(PUBLISHERS, "sink")
    entries = [(id, fields[b"p"], fields[b"x"], fields[b"w"]) for id, fields in await redis.xrange(LOG)]
    return None if record is None else record.split()[:4], entries, await staged_fields(redis, 0)


ALL = [
    (b"1-2", b"one", b"4", b"sink 1"),
    (b"4-3", b"two", b"4", b"sink 1"),
    (b"5-1", b"three", b"4", b"sink 1"),
]


async def test_what_tasks_wrote_is_staged_once(redis: AsyncRedis) -> None:
    await written(redis)
    said, first, at, count = await copy(redis)
    assert (said, first, count) == (b"appended", 0, 6)
    once = ([b"1", b"0", b"0", b"6"], ALL, {b"4 sink 1": 6})
    assert await staged(redis) == once
    assert await copy(redis) == [b"duplicate", 0, at]
    assert await copy(redis, named=((2, 5), (1, 2))) == [b"mismatch", 6]
    assert await copy(redis, 2) == [b"gap", 0]
    assert await copy(redis, incarnation=0) == [b"fenced", 1]
    assert await copy(redis, 1, incarnation=2) == [b"gap", -1]
    assert await staged(redis) == once
    assert await redis.hmget(STAGED_META, "next", "state") == [b"6", b"open"]
    assert (await copy(redis, 1))[:2] == [b"appended", 6]
    assert await copy(redis) == [b"old", 1]
    assert (await copy(redis, incarnation=2))[:2] == [b"appended", 12]
    assert (await staged(redis))[0] == [b"2", b"0", b"12", b"6"]


@pytest.mark.parametrize(
    ("named", "said"),
    [
        (((2, 5), (2, 2)), [b"missing", 2, 1]),
        (((1, 2), (1, 1)), [b"missing", 1, 2]),
        (((2, 6), (1, 1)), [b"missing", 1, 2]),
    ],
)
async def test_keys_that_lack_something_are_not_staged(
    redis: AsyncRedis, named: Sequence[tuple[int, int]], said: list[Any]
) -> None:
    await written(redis)
    assert await copy(redis, named=named) == said
    assert await staged(redis) == (None, [], {})
    await redis.xdel(TASKS[0], "1-2")
    assert await copy(redis) == [b"missing", 1, 0], "the first of a key is gone"
    assert await staged(redis) == (None, [], {})


async def test_what_cannot_be_staged_is_refused_whole(redis: AsyncRedis) -> None:
    for state in ("sealed", "pending"):
        await written(redis, state)
        await redis.delete(*TASKS)
        assert await copy(redis) == [state.encode()], "whatever the keys have"
        assert await staged(redis) == (None, [], {})
    await written(redis)
    await redis.hset(META, "schema", "f1")
    assert await copy(redis) == [b"schema", b"f1"]
    assert await staged(redis) == (None, [], {})
    await written(redis)
    await redis.xadd(LOG, {"p": "x", "x": "y", "w": "z"}, id="3-1")
    assert await copy(redis) == [b"foreign", b"3-1"]
    assert (await staged(redis))[0] is None
    await written(redis)
    await redis.delete(META)
    assert await copy(redis) == [b"unknown"]
    assert await redis.exists(STAGED_META, PUBLISHERS, LOG, EPOCHS) == 0


async def test_each_entry_must_have_the_schema(redis: AsyncRedis) -> None:
    await written(redis)
    await redis.hset(META, "schema", "f1")
    await redis.delete(*TASKS)
    await redis.xadd(TASKS[0], {"s": "f1", "p": "one"}, id="1-2")
    await redis.xadd(TASKS[0], {"s": "f1", "p": "two"}, id="2-3")
    await redis.xadd(TASKS[1], {"s": "f2", "p": "three"}, id="1-1")
    assert await copy(redis) == [b"schema", b"f1"]
    assert await staged(redis) == (None, [], {})
    await redis.delete(TASKS[1])
    await redis.xadd(TASKS[1], {"s": "f1", "p": "three"}, id="1-1")
    assert (await copy(redis))[0] == b"appended"
