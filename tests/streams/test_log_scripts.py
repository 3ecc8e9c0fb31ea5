"""What the scripts of a log do in each state of a stream: all states, all that is wanted of them."""

from __future__ import annotations

from typing import Any

import pytest

from streamlease.protocol.errors import StoreRefused
from streamlease.protocol.ids import StreamId
from streamlease.streams.log.keys import (
    staged_part,
    stream_log,
    stream_meta,
    stream_news,
    stream_publishers,
)
from streamlease.streams.redis.connection import Argument, AsyncRedis, ask
from streamlease.streams.redis.scripts import load_script

STREAM = StreamId("space", 0, 0)
META, LOG, NEWS = stream_meta(STREAM), stream_log(STREAM), stream_news(STREAM)
STAGED, PUBLISHERS = staged_part(STREAM, "epochs"), stream_publishers(STREAM)
STATES = ("open", "epochs", "pending", "sealed")
DAY = 86_400_000_000


async def run(redis: AsyncRedis, name: str, keys: list[str], *args: Argument) -> Any:
    return await load_script("streamlease.streams.log", name).run(redis, keys, args)


async def append(redis: AsyncRedis, sequence: int, known: int = 0, count: int = 1, gaps: str = "0") -> Any:
    args = ("me", 1, sequence, count, gaps, NEWS, known, "p", b"payload")
    return await run(redis, "append", [META, PUBLISHERS, LOG], *args)


async def in_state(redis: AsyncRedis, state: str | None) -> None:
    await redis.flushall()
    if state is not None:
        fields = {"next": 3, "state": state, "floor": 0, "last_append": 0, "bytes": 7}
        await redis.hset(META, mapping=fields)


async def state_of(redis: AsyncRedis) -> str | None:
    (state,) = await ask(redis, [("HGET", META, "state")])
    return None if state is None else state.decode()


OPENED: dict[str, dict[str | None, str | None]] = {
    "open": {None: "open", "pending": "open"},
    "epochs": {None: "epochs", "pending": "epochs", "open": "epochs"},
    "pending": {None: "pending"},
    "begin": {None: None, "pending": "open"},
    "begin_epochs": {None: None, "pending": "epochs"},
}
"""What is wanted -> the state before -> the state after; of what stands here not, it is the same."""


@pytest.mark.parametrize("wanted", OPENED)
async def test_a_stream_lives_forwards(redis: AsyncRedis, wanted: str) -> None:
    for before in (None, *STATES):
        await in_state(redis, before)
        reply = await run(redis, "open", [META], wanted)
        after = OPENED[wanted].get(before, before)
        assert await state_of(redis) == after, before
        changed = [b"unknown"] if after is None else [b"opened"]
        assert reply == ([b"exists", 3, (before or "").encode()] if after == before and before else changed)
    with pytest.raises(StoreRefused, match="wanted state must be"):
        await run(redis, "open", [META], "shut")


async def test_each_state_says_why_it_takes_nothing(redis: AsyncRedis) -> None:
    for state in STATES:
        await in_state(redis, state)
        reply = await append(redis, 0)
        assert reply[0] == (b"appended" if state == "open" else state.encode())
        assert await redis.xlen(LOG) == (state == "open")
    await in_state(redis, None)
    assert await append(redis, 0) == [b"unknown"]


@pytest.mark.parametrize("staged", [True, False])
async def test_a_stream_ends_once_and_says_so_unless_messages_wait_for_it(
    redis: AsyncRedis, staged: bool
) -> None:
    async with redis.pubsub() as listening:
        await listening.subscribe(NEWS)
        assert (await listening.get_message(timeout=20) or {})["type"] == "subscribe"
        for before in (None, *STATES):
            await in_state(redis, before)
            if staged:
                await redis.hset(STAGED, "0 me 1", 1)
            reply = await run(redis, "seal", [META, STAGED], NEWS)
            stays = staged and before not in (None, "sealed")
            if before is None or stays:
                assert (reply, await state_of(redis)) == ([b"staged" if stays else b"unknown"], before)
                continue
            assert (reply, await state_of(redis)) == ([b"sealed", 3], "sealed")
            if before != "sealed":
                pushed = await listening.get_message(timeout=20)
                assert pushed is not None and pushed["data"] == b"3"
        await redis.publish(NEWS, "the last")
        pushed = await listening.get_message(timeout=20)
        assert pushed is not None and pushed["data"] == b"the last"


async def test_what_was_read_is_not_given_out_again_where_more_may_come(redis: AsyncRedis) -> None:
    async with redis.pubsub() as listening:
        await listening.subscribe(NEWS)
        await listening.get_message(timeout=20)
        for state in (None, *STATES):
            for upto in (2, 3, 4):
                await in_state(redis, state)
                reply = await run(redis, "raise", [META], upto, NEWS)
                raised = upto > 3 and state in ("open", "epochs")
                assert reply == ([b"unknown"] if state is None else [b"raised" if raised else b"fine", 3])
                assert await redis.hget(META, "next") == (
                    None if state is None else b"%d" % (upto if raised else 3)
                )
                if raised:
                    pushed = await listening.get_message(timeout=20)
                    assert pushed is not None and pushed["data"] == b"4"


async def test_offsets_that_redis_lost_are_left_out_of_id_record_and_answer(redis: AsyncRedis) -> None:
    await in_state(redis, "open")
    reply = await append(redis, 0, known=10, count=2)
    assert reply[:2] == [b"appended", 10]
    assert [id for id, _ in await redis.xrange(LOG)] == [b"11-2"]
    assert await redis.hget(META, "next") == b"12"
    assert (await redis.hget(PUBLISHERS, "me") or b"").split()[:4] == [b"1", b"0", b"10", b"2"]
    assert (await append(redis, 0, known=10, count=2))[:2] == [b"duplicate", 10]
    assert (await append(redis, 1, known=4))[:2] == [b"appended", 12]


async def test_the_bytes_of_a_stream_are_those_of_its_fields_and_values(redis: AsyncRedis) -> None:
    await in_state(redis, "open")
    for sequence in range(3):
        await append(redis, sequence)
    entries = await redis.xrange(LOG)
    held = sum(len(name) + len(value) for _, fields in entries for name, value in fields.items())
    assert await redis.hget(META, "bytes") == b"%d" % (7 + held)


@pytest.mark.parametrize("wrong", [{"count": 0}, {"count": -1}, {"sequence": -1}])
async def test_numbers_that_are_none_are_refused(redis: AsyncRedis, wrong: dict[str, int]) -> None:
    await in_state(redis, "open")
    with pytest.raises(StoreRefused, match="must be numbers, count at least 1"):
        await append(redis, **{"sequence": 0, "gaps": "1", **wrong})
    assert await redis.xlen(LOG) == 0


async def test_only_who_is_silent_for_a_day_and_has_no_name_is_forgotten(redis: AsyncRedis) -> None:
    """They are looked for when there are 1,024, and then at each 256th who comes."""
    await in_state(redis, "open")
    seconds, more = await redis.time()
    now = int(seconds) * 1_000_000 + int(more)
    ages = {"~now": 0, "~late": DAY - 60_000_000, "~silent": DAY + 1_000_000, "named": 9 * DAY}
    known = {name: f"1 0 0 1 {now - age}" for name, age in ages.items()}
    known |= {f"~{number}": f"1 0 0 1 {now}" for number in range(1023 - len(known))}
    await redis.hset(PUBLISHERS, mapping=known)
    assert (await append(redis, 0))[0] == b"appended"
    assert await redis.hlen(PUBLISHERS) == 1024
    args = ("other", 1, 0, 1, "0", NEWS, 0, "p", b"payload")
    await run(redis, "append", [META, PUBLISHERS, LOG], *args)
    left = {name.decode() for name in await redis.hkeys(PUBLISHERS)}
    assert left == {*known, "me", "other"} - {"~silent"}


async def test_what_is_known_of_dropped_streams_is_handed_on_once(redis: AsyncRedis) -> None:
    async def told(moment: int, ends: str, most: int = 3) -> list[bytes | None]:
        assert await run(redis, "inherit", [META], moment, ends, most) == [b"told"]
        return list(await redis.hmget(META, "trimmed_at", "ends"))

    await in_state(redis, None)
    assert await run(redis, "inherit", [META], 5, "0.0:7", 3) == [b"unknown"]
    await in_state(redis, "open")
    assert await told(0, "") == [None, None]
    assert await told(5, "0.0:7") == [b"5", b"0.0:7"]
    assert await told(4, "0.0:7 0.1:8") == [b"5", b"0.0:7 0.1:8"]
    assert await told(6, "1.0:2 1.1:3") == [b"6", b"0.1:8 1.0:2 1.1:3"]


async def test_an_append_may_demand_what_stands_of_its_publisher(redis: AsyncRedis) -> None:
    await in_state(redis, "open")
    assert await append(redis, 4, gaps="1 3") == [b"moved", b"-"]
    assert (await append(redis, 4, gaps="-"))[:2] == [b"appended", 3]
    assert await append(redis, 9, gaps="-") == [b"moved", b"1 4"]
    assert (await append(redis, 9, gaps="1 4"))[:2] == [b"appended", 4]
    assert await append(redis, 12, gaps="1 4") == [b"moved", b"1 9"]
    assert await redis.xlen(LOG) == 2


async def test_each_append_tells_where_the_stream_ends(redis: AsyncRedis) -> None:
    await in_state(redis, "open")
    async with redis.pubsub() as listening:
        await listening.subscribe(NEWS)
        await listening.get_message(timeout=20)
        for sequence, end in enumerate((5, 7)):
            await append(redis, sequence, count=2)
            pushed = await listening.get_message(timeout=20)
            assert pushed is not None and pushed["data"] == b"%d" % end
