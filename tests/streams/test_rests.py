"""A publisher rests behind a round, but not from what somebody waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from streamlease.protocol.offsets import parse_entry_id
from streamlease.streams.log.keys import stream_log
from streamlease.streams.publish.publisher import Publisher
from streamlease.streams.publish.sending import ready_lanes
from streamlease.streams.redis.connection import AsyncRedis
from streamlease.streams.spaces.spaces import SpaceStore
from tests.streams.helpers import until


@pytest.fixture(autouse=True)
def long_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rest is longer than any test."""
    monkeypatch.setattr(ready_lanes, "REST_SECONDS", 3600.0)
    monkeypatch.setattr(ready_lanes, "LONGEST_REST", 3600.0)


async def resting(publisher: Publisher, topic: str = "s/a") -> None:
    """Have a round, and leave something that nobody waits for to what comes behind it."""
    await publisher.submit(topic, b"0")
    await publisher.flush()
    await publisher.submit(topic, b"1")
    await until(lambda: publisher._ready._resting)


async def awaited(publisher: Publisher) -> None:
    receipt = await publisher.submit("s/a", b"2")
    await receipt


async def told(publisher: Publisher) -> None:
    done = asyncio.Event()
    receipt = await publisher.submit("s/a", b"2")
    receipt.add_done_callback(lambda _: done.set())
    await done.wait()


async def sent(publisher: Publisher) -> None:
    await publisher.send("s/a", b"2")


async def sent_together(publisher: Publisher) -> None:
    await publisher.send_many("s/a", [b"2", b"3"])


async def flushed(publisher: Publisher) -> None:
    await publisher.submit("s/a", b"2")
    await publisher.flush()


async def closed(publisher: Publisher) -> None:
    await publisher.submit("s/a", b"2")
    await publisher.close()


async def is_full(publisher: Publisher) -> None:
    """More than a part takes."""
    for number in range(2, 11):
        receipt = await publisher.submit("s/a", b"%d" % number)
    await until(lambda: publisher.buffered_bytes < 9 * 128)
    await receipt


@pytest.mark.parametrize("how", [awaited, told, sent, sent_together, flushed, closed, is_full])
async def test_who_waits_ends_the_rest(
    redis: AsyncRedis, how: Callable[[Publisher], Awaitable[None]]
) -> None:
    (stream,) = (await SpaceStore(redis).create("s", ["s/#"], streams=1)).streams()
    async with asyncio.timeout(30), Publisher(redis, max_batch_messages=8) as publisher:
        await resting(publisher)
        await how(publisher)
        assert publisher.buffered_bytes == 0
    entries = [parse_entry_id(id) for id, _ in await redis.xrange(stream_log(stream))]
    assert entries[1].start == 1
    assert len(entries[1]) > 1, "what came during the rest has gathered"


async def test_one_stream_that_is_awaited_takes_the_others_along(redis: AsyncRedis) -> None:
    space = await SpaceStore(redis).create("s", ["s/#"], streams=2)
    one, other = (
        next(f"s/{n}" for n in range(99) if space.stream_for(f"s/{n}") == s) for s in space.streams()
    )
    async with asyncio.timeout(30), Publisher(redis) as publisher:
        await resting(publisher, one)
        await publisher.send(other, b"2")
        await until(lambda: publisher.buffered_bytes == 0)


async def test_a_rest_ends(redis: AsyncRedis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ready_lanes, "LONGEST_REST", 0.05)
    await SpaceStore(redis).create("s", ["s/#"], streams=1)
    async with asyncio.timeout(30), Publisher(redis) as publisher:
        await publisher.submit("s/a", b"0")
        await publisher.flush()
        await publisher.submit("s/a", b"1")
        await until(lambda: publisher.buffered_bytes == 0)
