"""Messages that Redis lost after they were delivered, and before they were committed: whoever comes goes on.

The simulation shows none of this: its topics never lose a message.
"""

from __future__ import annotations

import asyncio
import logging

import pytest
import redis

from streamlease.admin.facts.group import describe
from streamlease.agent.client import Client
from streamlease.agent.plain.plain_ways import follow_space
from streamlease.protocol.acts import parse
from streamlease.protocol.ids import StreamId
from streamlease.protocol.topics import SharedSubscription
from streamlease.streams.log.keys import stream_log, stream_meta
from streamlease.streams.log.state import MissingOffsets
from tests.agent.helpers import SECONDS, SUB, publish, take

STREAM = StreamId("s", 0, 0)
SHARED = SharedSubscription.parse(SUB)


async def next_of(client: Client) -> int:
    return int((await client.redis.hget(stream_meta(STREAM), "next")) or 0)


async def lose_tail(client: Client, floor: int) -> None:
    """What a failover to a replica does that has the messages below `floor` only."""
    for offset in range(floor, await next_of(client)):
        await client.redis.xdel(stream_log(STREAM), f"{offset}-1")
    await client.redis.hset(stream_meta(STREAM), "next", floor)


async def lose(client: Client, *offsets: int) -> None:
    assert await client.redis.xdel(stream_log(STREAM), *(f"{offset}-1" for offset in offsets)) == len(offsets)


async def publish_one_by_one(client: Client, *numbers: int) -> None:
    for number in numbers:
        await publish(client, [number], topics=1)


async def truncated(client: Client, count: int) -> None:
    async with asyncio.timeout(SECONDS):
        while (await describe(client, SHARED)).truncated != {str(STREAM): count}:  # noqa: ASYNC110 (a condition in Redis)
            await asyncio.sleep(0.02)


@pytest.mark.slow
async def test_a_newcomer_goes_on_behind_what_was_delivered_and_lost(
    client: Client, second: Client, caplog: pytest.LogCaptureFixture
) -> None:
    await client.create_space("s", ["a/#"])
    await publish_one_by_one(client, *range(6))
    async with client.subscribe(SUB, start="earliest") as living:
        batch = await anext(living)
        assert (batch.start, batch.end) == (0, 6)
        await batch.commit(2)
        await lose_tail(client, 4)
        async with asyncio.timeout(SECONDS):
            while await next_of(client) != 6:  # noqa: ASYNC110 (the living one takes these offsets out of use)
                await asyncio.sleep(0.02)
        await publish_one_by_one(second, 6, 7)
        assert await take(living, 2, commit=False) == [6, 7]
    with caplog.at_level(logging.WARNING):
        async with second.subscribe(SUB) as newcomer:
            assert await take(newcomer, 4) == [2, 3, 6, 7]
    assert sum("acknowledged messages were lost" in record.message for record in caplog.records) == 1
    await truncated(client, 2)
    # Told once, counted once.
    async with client.subscribe(SUB) as later:
        await publish_one_by_one(client, 8)
        assert await take(later, 1) == [8]
    await truncated(client, 2)


async def test_holes_are_passed_over_wherever_they_are(client: Client) -> None:
    """Right at the progress, between messages of one read, and at the end."""
    await client.create_space("s", ["a/#"])
    await publish_one_by_one(client, *range(10))
    await lose(client, 0, 1, 4, 8, 9)
    async with client.subscribe(SUB, start="earliest") as reader:
        assert await take(reader, 5) == [2, 3, 5, 6, 7]
        await truncated(client, 5)
        await publish_one_by_one(client, 10)
        assert await take(reader, 1) == [10]
    seen = await describe(client, SHARED)
    assert (seen.lag, seen.streams[0].committed) == (0, 11)


async def test_a_reset_into_a_hole_goes_on_behind_it(client: Client) -> None:
    await client.create_space("s", ["a/#"])
    await publish_one_by_one(client, *range(6))
    async with client.subscribe(SUB, start="earliest") as reader:
        assert await take(reader, 6) == [*range(6)]
    await lose(client, 2, 3)
    for offset, left in ((0, [0, 1, 4, 5]), (3, [4, 5])):
        await client.act(SHARED, parse("reset", offsets={str(STREAM): offset}), who="me")
        async with client.subscribe(SUB) as reader:
            assert await take(reader, len(left)) == left
    await truncated(client, 3)


async def test_a_hole_is_counted_before_a_message_that_fails(client: Client) -> None:
    await client.create_space("s", ["a/#"])
    await publish_one_by_one(client, *range(4))
    await lose(client, 1)
    async with client.subscribe(SUB, start="earliest") as reader:
        first = await anext(reader)
        second = await anext(reader)
        assert [first.start, second.start] == [0, 2]
        assert await second.fail(3, "no good") == "retry"
        await truncated(client, 1)


@pytest.mark.parametrize("way", ["history", "listen"])
async def test_what_stands_before_a_hole_comes_before_it_is_told(client: Client, way: str) -> None:
    await client.create_space("s", ["a/#"])
    await publish_one_by_one(client, *range(6))
    await lose(client, 2, 3)
    offsets: list[int] = []
    opening = client.history("a/#") if way == "history" else client.listen("a/#", start="earliest")
    async with opening as reading, asyncio.timeout(SECONDS):
        with pytest.raises(MissingOffsets) as told:
            async for batch in reading:
                offsets += [message.offset for message in batch.messages]
    assert (offsets, told.value.asked, told.value.oldest) == ([0, 1], 2, 4)


async def test_who_follows_a_space_learns_that_its_end_was_lost_before_anybody_had_looked(
    client: Client, real_redis_url: str
) -> None:
    await client.create_space("s", ["a/#"])
    await publish(client, range(6), topics=1)
    following = follow_space(client.redis, client.tails, client.spaces, client.agent, "s")
    async with following, asyncio.timeout(SECONDS):
        with redis.Redis.from_url(real_redis_url) as blocking:  # the event loop has no turn meanwhile
            blocking.xtrim(stream_log(STREAM), maxlen=0)
            blocking.hset(stream_meta(STREAM), "next", 4)
        with pytest.raises(MissingOffsets):
            await anext(following)
