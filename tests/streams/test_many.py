"""Many messages at once, receipts, and a publisher whose server stands still."""

from __future__ import annotations

import asyncio
import tracemalloc
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from streamlease.protocol.errors import Indefinite, InvalidInput, StoreUnavailable
from streamlease.streams.entries.entries import Message, Row, encode_typed_rows, to_messages
from streamlease.streams.entries.schemas import Schema
from streamlease.streams.log.keys import stream_log
from streamlease.streams.log.log import Append, AsyncLog
from streamlease.streams.publish.publisher import Publisher
from streamlease.streams.redis.connection import AsyncRedis, BlockingRedis, connect, run_blocking
from streamlease.streams.spaces.spaces import Space, SpaceStore
from tests.conftest import MakeServer
from tests.streams.helpers import until
from tests.streams.schema_change import alter_schema

OLD = {"columns": [{"name": "carrier", "type": "string", "nullable": False}]}
NEW = {"columns": [*OLD["columns"], {"name": "gate", "type": "int16"}]}


async def messages(redis: AsyncRedis, space: Space) -> list[list[Message]]:
    """All messages, by stream."""
    found = []
    for stream in space.streams():
        batches = await AsyncLog(redis).read(stream, 0, max_bytes=None)
        found.append([message for batch in batches for message in to_messages(batch)])
    return found


@pytest.mark.slow
async def test_few_messages_for_each_of_many_streams_gather_in_their_entries(redis: AsyncRedis) -> None:
    space = await SpaceStore(redis).create("s", ["s/#"], streams=150)
    topics = [f"s/{n % 400}" for n in range(2000)]
    payloads = [b"%d" % n for n in range(2000)]
    async with Publisher(redis) as publisher:
        futures = []
        for first in range(0, 2000, 500):
            part = slice(first, first + 500)
            futures += await publisher.submit_many(
                topics[part], payloads[part], keys=[None, b"k"] * 250, timestamps=[None, 7] * 250
            )
            await publisher.submit("s/0", b"between")
        await publisher.flush()
        assert publisher.buffered_bytes == 0
        places = [place for future in futures for place in future.result()]
    told = sorted((stream.shard, offset) for stream, offsets in places for offset in range(*offsets))
    found = await messages(redis, space)
    between = [
        (number, one.offset)
        for number, stream in enumerate(found)
        for one in stream
        if one.payload == b"between"
    ]
    there = [(number, one.offset) for number, stream in enumerate(found) for one in stream]
    assert sorted(told + between) == there
    assert len(between) == 4
    for stream in found:
        for topic in {one.topic for one in stream}:
            mine = [one for one in stream if one.topic == topic and one.payload != b"between"]
            numbers = [int(one.payload) for one in mine]
            assert numbers == [n for n in range(2000) if topics[n] == topic]
            assert [one.key for one in mine] == [b"k" if n % 2 else None for n in numbers]
    # Nothing was sent before the flush, so each stream has one entry.
    for one in space.streams():
        assert await redis.xlen(stream_log(one)) <= 1


async def test_lists_come_out_as_they_went_in(redis: AsyncRedis) -> None:
    space = await SpaceStore(redis).create("s", ["s/#"], streams=3)
    moment = datetime(2026, 1, 2, tzinfo=UTC)
    async with Publisher(redis) as publisher:
        places = await publisher.send_many(
            [f"s/{n % 7}" for n in range(50)],
            [b"%d" % n if n % 2 else str(n) for n in range(50)],
            keys=[None if n % 3 else "k" for n in range(50)],
            headers=[{"h": str(n)} if n % 5 == 0 else None for n in range(50)],
            timestamps=[moment if n == 7 else None for n in range(50)],
        )
        (alone,) = await publisher.send_many("s/alone", [b"x"])
        assert await publisher.send_many("s/alone", []) == []
        futures = await publisher.submit_many("s/alone", [b"y", b"z"])
    assert [one.result() for one in futures] == [[(alone[0], type(alone[1])(alone[1].end, alone[1].end + 2))]]
    assert sum(len(offsets) for _, offsets in places) == 50
    by_topic: dict[str, list[Message]] = {}
    for stream in await messages(redis, space):
        for message in stream:
            by_topic.setdefault(message.topic, []).append(message)
    assert [one.payload for one in by_topic.pop("s/alone")] == [b"x", b"y", b"z"]
    for topic, found in by_topic.items():
        numbers = [n for n in range(50) if f"s/{n % 7}" == topic]
        assert [one.payload for one in found] == [b"%d" % n for n in numbers]
        assert [one.key for one in found] == [None if n % 3 else b"k" for n in numbers]
        assert [one.headers for one in found] == [(("h", b"%d" % n),) if n % 5 == 0 else () for n in numbers]
        assert [one.timestamp == moment for one in found] == [n == 7 for n in numbers]


async def test_lists_of_typed_rows(redis: AsyncRedis) -> None:
    space = await SpaceStore(redis).create("s", ["s/#"], streams=1, schema=OLD)
    async with Publisher(redis) as publisher:
        await publisher.send_many("s/a", [{"carrier": "UA"}, {"carrier": "AA"}], keys=[b"1", None])
    ((first, second),) = await messages(redis, space)
    assert (first.values, first.key) == ({"carrier": "UA"}, b"1")
    assert (second.values, second.key) == ({"carrier": "AA"}, None)


async def test_lists_that_do_not_fit_are_refused(redis: AsyncRedis) -> None:
    space = await SpaceStore(redis).create("s", ["s/#"], streams=1)
    async with Publisher(redis) as publisher:
        with pytest.raises(InvalidInput, match="there are 1 keys for 2 payloads"):
            await publisher.send_many("s/a", [b"1", b"2"], keys=[b"k"])
        with pytest.raises(InvalidInput, match="a payload is a int"):
            await publisher.send_many("s/a", [b"1", 2])  # type: ignore[list-item]
        with pytest.raises(InvalidInput, match="a key is a float"):
            await publisher.send_many("s/a", [b"1"], keys=[1.5])  # type: ignore[list-item]
        with pytest.raises(InvalidInput, match="timestamp"):
            await publisher.send_many("s/a", [b"1"], timestamps=[2**63])
    assert await messages(redis, space) == [[]]


# ------------------------------------------------------------------------------------------- receipts


async def test_a_receipt_can_be_asked_awaited_again_and_dropped(redis: AsyncRedis) -> None:
    await SpaceStore(redis).create("s", ["s/#"], streams=1)
    async with Publisher(redis) as publisher:
        await publisher.submit("s/a", b"dropped")
        receipt = await publisher.submit("s/a", b"kept")
        told: list[object] = []
        receipt.add_done_callback(told.append)
        assert not receipt.done()
        with pytest.raises(asyncio.InvalidStateError, match="await it"):
            receipt.result()
        given_up = asyncio.ensure_future(receipt)
        await asyncio.sleep(0)
        given_up.cancel()
        place = await receipt
        assert place[1] == 1
        assert await receipt == place == receipt.result()
        assert receipt.exception() is None
        await until(lambda: told == [receipt])


async def test_every_receipt_of_a_failed_part_has_its_own_error(make_redis_server: MakeServer) -> None:
    server = make_redis_server()
    client = connect(server.url)
    await SpaceStore(client).create("s", ["s/#"], streams=1)
    publisher = Publisher(client, delivery_timeout=0.3)
    await publisher.send("s/a", b"warm")
    server.stop()
    first, second = [await publisher.submit("s/a", b"%d" % n) for n in range(2)]
    for receipt in (first, second, first):
        with pytest.raises((StoreUnavailable, Indefinite)):
            await receipt
    assert first.exception() is not second.exception()
    with pytest.raises((StoreUnavailable, Indefinite)):
        await publisher.close()
    await client.aclose()


# --------------------------------------------------------------------------- a server that stands still

LIMIT = 8 * 1024 * 1024
SIZE = 2000


async def test_memory_stays_below_the_limit_while_the_server_stands_still(
    make_redis_server: MakeServer,
) -> None:
    server = make_redis_server()
    client = connect(server.url, answer_seconds=60)
    space = await SpaceStore(client).create("s", ["s/#"], streams=2)
    count = 3 * LIMIT // SIZE
    submitted = 0

    async def submit() -> None:
        nonlocal submitted
        for number in range(count):
            await publisher.submit(f"s/{number % 5}", (b"%d " % number).ljust(SIZE, b"."))
            submitted += 1

    async with Publisher(
        client, max_buffer_bytes=LIMIT, delivery_timeout=120, compression="none"
    ) as publisher:
        await publisher.send("s/0", b"warm")
        server.pause()
        tracemalloc.start()
        try:
            before, arrow = tracemalloc.get_traced_memory()[0], pa.total_allocated_bytes()
            task = asyncio.create_task(submit())
            await until(lambda: publisher.buffered_bytes > LIMIT - 10 * SIZE, 60)
            for _ in range(50):
                await asyncio.sleep(0)
            held = tracemalloc.get_traced_memory()[1] - before + pa.total_allocated_bytes() - arrow
        finally:
            tracemalloc.stop()
        assert publisher.buffered_bytes <= LIMIT
        assert held <= LIMIT
        assert submitted < count
        server.resume()
        await task
    found = [
        [int(one.payload.split()[0]) for one in stream]
        for stream in (
            [one for one in messages_ if one.payload != b"warm"]
            for messages_ in await messages(client, space)
        )
    ]
    assert sorted(number for stream in found for number in stream) == list(range(count))
    for stream in found:
        for topic in range(5):
            mine = [number for number in stream if number % 5 == topic]
            assert mine == sorted(mine)
    await client.aclose()


# -------------------------------------------------------------------------------- evolution of a schema


async def test_an_append_of_an_older_version_is_written_under_the_newest(
    redis: AsyncRedis, blocking: BlockingRedis
) -> None:
    store = SpaceStore(redis)
    space = await store.create("s", ["s/#"], streams=1, schema=OLD)
    (stream,) = space.streams()
    old = [
        encode_typed_rows(Schema.of(OLD), [Row("s/a", b"", b"k", (("h", b"v"),), 5, {"carrier": name})])
        for name in ("UA", "AA")
    ]
    await alter_schema(store, "s", NEW)
    done = run_blocking(AsyncLog(blocking).append(Append(stream, "~p", 1, 0, old[0])))
    assert (done.first, done.rows, done.duplicate) == (0, 1, False)
    assert run_blocking(AsyncLog(blocking).append(Append(stream, "~p", 1, 0, old[0]))).duplicate
    assert (await AsyncLog(redis).append(Append(stream, "~p", 1, 1, old[1]))).first == 1
    ((first, second),) = await messages(redis, space)
    assert (first.values, first.key, first.headers) == ({"carrier": "UA", "gate": None}, b"k", (("h", b"v"),))
    assert second.values == {"carrier": "AA", "gate": None}
    assert first.timestamp == datetime(1970, 1, 1, 0, 0, 0, 5, tzinfo=UTC)
