"""A failover of one shard lost what became of a stream there; the definition, elsewhere, says it was done."""

from __future__ import annotations

import asyncio

import pytest

from streamlease.protocol.errors import UnknownSpace
from streamlease.protocol.ids import StreamId
from streamlease.streams.imports.transfer import Item, Transfer
from streamlease.streams.log.keys import stream_log, stream_meta, stream_publishers
from streamlease.streams.log.log import AsyncLog, StreamPending
from streamlease.streams.publish.publisher import Publisher
from streamlease.streams.redis.connection import AsyncRedis, connect
from streamlease.streams.spaces.altering import Generations
from streamlease.streams.spaces.spaces import Space, SpaceStore
from tests.streams.delivering import rig

SECONDS = 20


@pytest.fixture
async def altered(redis: AsyncRedis) -> Space:
    """A settled space whose newest stream has lost its begin, and the former one its seal."""
    spaces = SpaceStore(redis)
    await spaces.create("t", ["t/#"])
    space = await spaces.generations.alter("t", rotate=True)
    await lose(redis, space)
    return space


async def lose(redis: AsyncRedis, space: Space) -> None:
    former, *_, newest = space.streams()
    assert space.settled
    assert former.generation < newest.generation
    await redis.hset(stream_meta(former), "state", "open")
    for stream in space.streams():
        if stream.generation == newest.generation:
            await redis.hset(stream_meta(stream), "state", "pending")


async def mended(redis: AsyncRedis, space: Space) -> bool:
    states = await AsyncLog(redis).states(space.streams())
    newest = space.newest.number
    return all(
        (state.sealed, state.pending) == (stream.generation < newest, False)
        for stream, state in states.items()
    )


async def test_a_publisher_seals_and_begins_again(redis: AsyncRedis, altered: Space) -> None:
    async with asyncio.timeout(SECONDS), Publisher(redis) as publisher:
        stream, offset = await publisher.send("t/1", "x")
    assert (stream, offset) == (altered.streams()[-1], 0)
    assert await mended(redis, altered)


async def test_a_transfer_seals_and_begins_again(redis: AsyncRedis, altered: Space) -> None:
    assert await Transfer(redis, "file", patience=SECONDS).put([Item((1, 1), "t/1", b"x")]) == 1
    assert await mended(redis, altered)


async def test_an_operator_seals_and_begins_again(redis: AsyncRedis, altered: Space) -> None:
    """The remedy that the error of such a stream names."""
    assert await SpaceStore(redis).generations.alter("t") == altered
    assert await mended(redis, altered)


async def test_a_sink_seals_and_begins_again(embedded_redis_url: str) -> None:
    async with rig(embedded_redis_url) as world, connect(embedded_redis_url) as redis:
        world.space = await world.spaces.generations.alter("t", rotate=True)
        await lose(redis, world.space)
        staged = world.stage(0, range(30), 2, "a")
        assert (await world.delivery().deliver(0, staged)).rows == 30
        assert await mended(redis, world.space)


@pytest.mark.slow
async def test_a_stream_that_stays_pending_is_tried_with_pauses_and_not_for_ever(
    redis: AsyncRedis, altered: Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    settled = 0

    async def in_vain(_: Generations, name: str, *, again: bool = False) -> Space:
        nonlocal settled
        settled += 1
        return await SpaceStore(redis).get(name)

    monkeypatch.setattr(Generations, "settle", in_vain)
    async with asyncio.timeout(SECONDS), Publisher(redis, delivery_timeout=1.0) as publisher:
        with pytest.raises(StreamPending, match="repeat 'streamlease space alter t'"):
            await publisher.send("t/1", "x")
    assert 1 < settled < 50


async def test_a_stream_that_was_lost_is_named_and_new_streams_take_its_place(redis: AsyncRedis) -> None:
    spaces = SpaceStore(redis)
    (stream,) = (await spaces.create("t", ["t/#"])).streams()
    await redis.delete(stream_meta(stream), stream_log(stream), stream_publishers(stream))
    async with asyncio.timeout(SECONDS), Publisher(redis) as publisher:
        with pytest.raises(UnknownSpace, match=f"space t has no stream {stream} any more.*alter t --rotate"):
            await publisher.send("t/1", "x")
        await spaces.generations.alter("t", rotate=True)
        assert await publisher.send("t/1", "x") == (StreamId("t", 1, 0), 0)
