"""A space with epochs in a Redis at its `maxmemory`: all that was sent completes, or goes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from streamlease.agent.client import Client, connect
from streamlease.agent.epochs.group_reader import EpochPart
from streamlease.protocol.errors import StoreRefused
from streamlease.protocol.ids import StreamId
from streamlease.streams.epochs import keys
from streamlease.streams.epochs.stored import read_writers
from streamlease.streams.redis.connection import ask
from tests.catalog.waiting import SECONDS, eventually
from tests.epochs.playing import hand
from tests.streams.helpers import full

STREAM = StreamId("space", 0, 0)


@pytest.fixture
async def client(real_redis_url: str) -> AsyncIterator[Client]:
    async with connect(real_redis_url) as made:
        await made.create_space("space", ["space/#"], epochs=1, epochs_timeout=0.5)
        yield made


async def staged(client: Client) -> tuple[int, dict[bytes, bytes]]:
    """Entries of the staged log, and of whom they are."""
    length, fields = await ask(
        client.redis, [("XLEN", keys.staged_log(STREAM)), ("HGETALL", keys.staged_epochs(STREAM))]
    )
    return length, dict(zip(fields[::2], fields[1::2], strict=True))


async def nothing_staged(client: Client) -> bool:
    return await staged(client) == (0, {})


async def test_what_was_sent_completes_and_is_consumed_when_there_is_no_memory(client: Client) -> None:
    async with client.epoch_publisher("space", "one", delivery_timeout=5) as pub:
        await pub.send("space/a", b"x", epoch=0)
        with full(client.url):
            with pytest.raises(StoreRefused, match="out of memory"):
                async with client.epoch_publisher("space", "two", delivery_timeout=0.5):
                    """It never had a name here."""
            async with asyncio.timeout(SECONDS):
                await pub.advance([1])
                async with client.subscribe("$shared/g/space/#", start="earliest", epochs="atomic") as reader:
                    async for item in reader:
                        if isinstance(item, EpochPart):
                            assert [message.payload for message in item.messages] == [b"x"]
                            await item.commit()
                        elif item.lower == ((1,),):
                            break
            assert await nothing_staged(client)
        await pub.send("space/a", b"y", epoch=1)

    async def is_there() -> bool:
        async with client.history("space/#") as reading:
            return [one.payload async for batch in reading for one in batch.messages] == [b"x", b"y"]

    await eventually(is_there)


async def test_who_lives_is_not_lost_when_there_is_no_memory(client: Client) -> None:
    async with client.epoch_publisher("space", "one") as pub:
        with full(client.url):
            (before,) = (await read_writers(client.redis, "space")).values()

            async def shown_past_the_timeout() -> bool:
                (now,) = (await read_writers(client.redis, "space")).values()
                assert now.is_here
                return now.seen > before.seen + 2000

            await eventually(shown_past_the_timeout)
        await pub.send("space/a", b"x", epoch=0)
        await pub.advance([1])


async def test_what_a_dead_publisher_sent_is_dropped_when_there_is_no_memory(client: Client) -> None:
    """It is what fills the memory, and nobody else could free it."""
    dead = await hand(client.redis, "dead")
    await dead.send(0, "never", "completed")
    async with client.epoch_publisher("space", "alive") as alive:
        await alive.send("space/a", b"x", epoch=0)
        assert (await staged(client))[0] == 3
        with full(client.url):
            await alive.advance([1])
            await eventually(lambda: nothing_staged(client))
            writers = await read_writers(client.redis, "space")
            assert [name for name, one in writers.items() if one.is_here] == ["alive"]
        with pytest.raises(AssertionError, match="was replaced by incarnation"):
            await dead.send(0, "late")
