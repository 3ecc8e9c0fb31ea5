"""Publishing: order, batches, back-pressure, retries that add nothing, and errors that are not lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from streamlease.protocol.errors import (
    Indefinite,
    InvalidInput,
    InvalidOption,
    InvalidTopic,
    MessageTooLarge,
    StoreRefused,
    StoreUnavailable,
    StreamSealed,
    UnknownSpace,
)
from streamlease.protocol.offsets import parse_entry_id
from streamlease.streams.entries import message_rows
from streamlease.streams.entries.entries import Message, to_messages
from streamlease.streams.log.keys import stream_log, stream_publishers
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.publish import lanes
from streamlease.streams.publish.publisher import Publisher
from streamlease.streams.redis.connection import AsyncRedis, connect
from streamlease.streams.spaces.spaces import Space, SpaceStore
from tests.awake import awake
from tests.conftest import MakeServer
from tests.streams.helpers import Proxy, append, let_the_loop_see_it, offsets, payloads, rows, until


async def create(redis: AsyncRedis, streams: int = 4, **options: object) -> Space:
    return await SpaceStore(redis).create("s", ["s/#"], streams=streams, **options)  # type: ignore[arg-type]


async def everything(redis: AsyncRedis, space: Space) -> dict[str, list[Message]]:
    """All messages by topic, in the order of their streams; offsets are checked on the way."""
    found: dict[str, list[Message]] = {}
    for stream in space.streams():
        batches = await AsyncLog(redis).read(stream, 0)
        seen = offsets(batches)
        assert seen == list(range(len(seen)))
        for batch in batches:
            for message in to_messages(batch):
                found.setdefault(message.topic, []).append(message)
    return found


@asynccontextmanager
async def own_server(make: MakeServer, **settings: str) -> AsyncIterator[AsyncRedis]:
    client = connect(make(settings=settings).url)
    yield client
    await client.aclose()


def port_of(url: str) -> int:
    return int(url.rsplit(":", 1)[1].split("/", maxsplit=1)[0])


async def test_a_sent_message_is_where_send_says(redis: AsyncRedis) -> None:
    space = await create(redis)
    when = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
    async with Publisher(redis) as publisher:
        for expected in range(3):
            place = await publisher.send("s/a", "text", key="k", headers={"h": "v"}, timestamp=when)
            assert place == (space.stream_for("s/a"), expected)
    first = (await everything(redis, space))["s/a"][0]
    assert (first.payload, first.key, first.headers) == (b"text", b"k", (("h", b"v"),))
    assert first.timestamp == when


async def test_many_messages_keep_their_order_and_become_few_entries(redis: AsyncRedis) -> None:
    space = await create(redis)
    topics = [f"s/{number}" for number in range(10)]
    async with Publisher(redis, max_batch_messages=200) as publisher:
        futures = [await publisher.submit(topics[n % 10], b"%d" % n) for n in range(3000)]
        await publisher.flush()
        places = [future.result() for future in futures]
        assert publisher.buffered_bytes == 0
    found = await everything(redis, space)
    for number, topic in enumerate(topics):
        assert [message.payload for message in found[topic]] == [b"%d" % n for n in range(number, 3000, 10)]
    assert len(set(places)) == 3000
    entries = 0
    for stream in space.streams():
        ids = [id for id, _ in await redis.xrange(stream_log(stream))]
        assert max(len(parse_entry_id(id)) for id in ids) <= 200
        entries += len(ids)
        assert await redis.hlen(stream_publishers(stream)) == 0
    assert entries < 60


async def test_record_batches_are_split_by_stream_in_order(redis: AsyncRedis) -> None:
    space = await create(redis)
    batch = pa.record_batch(
        {
            "where": pa.array([f"s/{n % 7}" for n in range(1000)]),
            "payload": pa.array([b"%d" % n for n in range(1000)]),
        }
    )
    async with Publisher(redis, max_batch_bytes=2000) as publisher:
        places = await publisher.send_batch("where", batch)
        places += await publisher.send_batch("s/const", batch.select(["payload"]))
        assert sum(len(range_) for _, range_ in places) == 2000
        assert await publisher.send_batch("s/const", batch.slice(0, 0).select(["payload"])) == []
    found = await everything(redis, space)
    for number in range(7):
        assert [message.payload for message in found[f"s/{number}"]] == [
            b"%d" % n for n in range(number, 1000, 7)
        ]
    assert [message.payload for message in found["s/const"]] == [b"%d" % n for n in range(1000)]


async def test_messages_of_a_space_by_key_go_with_their_key(redis: AsyncRedis) -> None:
    space = await create(redis, shard_by="key")
    keys = [b"%d" % (n % 20) if n % 5 else None for n in range(100)]
    batch = pa.record_batch({"payload": pa.array([b"%d" % n for n in range(100)]), "key": pa.array(keys)})
    async with Publisher(redis) as publisher:
        for n in range(100):
            place = await publisher.send("s/x", b"%d" % n, key=keys[n])
            assert place[0] == space.stream_for("s/x", keys[n])
        await publisher.send_batch("s/x", batch)
    assert len({space.stream_for("s/x", key) for key in keys}) > 1
    for stream in space.streams():
        for stored in await AsyncLog(redis).read(stream, 0):
            assert all(space.stream_for("s/x", message.key) == stream for message in to_messages(stored))


async def test_what_cannot_be_published_is_refused_at_once(
    redis: AsyncRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    await create(redis)
    monkeypatch.setattr(message_rows, "MAX_MESSAGE_BYTES", 100)
    batch = pa.record_batch({"payload": pa.array([b"x"])})
    async with Publisher(redis) as publisher:
        with pytest.raises(InvalidTopic):
            await publisher.send("s/#", b"x")
        with pytest.raises(UnknownSpace, match="'other'"):
            await publisher.submit("other", b"x")
        with pytest.raises(MessageTooLarge):
            await publisher.submit("s/x", b"x" * 101)
        with pytest.raises(InvalidInput, match="payload is a int"):
            await publisher.send("s/x", 5)  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="no time zone"):
            await publisher.send("s/x", b"", timestamp=datetime(2026, 1, 1))
        with pytest.raises(InvalidInput):
            await publisher.send_batch("s/x", pa.record_batch({"colour": pa.array(["red"])}))
        with pytest.raises(UnknownSpace):
            await publisher.send_batch("other", batch)
    with pytest.raises(InvalidInput, match="closed"):
        await publisher.send("s/x", b"x")
    with pytest.raises(InvalidInput, match="closed"):
        await publisher.send_batch("s/x", batch)
    await publisher.close()
    with pytest.raises(InvalidOption, match="max_buffer_bytes"):
        Publisher(redis, max_buffer_bytes=0)


async def test_a_lost_answer_adds_nothing_twice(redis_url: str) -> None:
    async with Proxy(port_of(redis_url)) as proxy:
        client = connect(proxy.url)
        space = await create(client, streams=2)
        async with Publisher(client) as publisher:
            await publisher.send("s/warm", b"")
            proxy.lose(b"EVALSHA", times=2)
            futures = [await publisher.submit(f"s/{n % 6}", b"%d" % n) for n in range(60)]
            await publisher.flush()
            batch = pa.record_batch({"payload": pa.array([b"b%d" % n for n in range(50)])})
            proxy.lose(b"EVALSHA", times=1)
            await publisher.send_batch("s/batch", batch)
        assert proxy.lost == 3
        found = await everything(client, space)
        for n, future in enumerate(futures):
            stream, offset = future.result()
            (match,) = [one for one in found[f"s/{n % 6}"] if one.offset == offset]
            assert (match.stream, match.payload) == (str(stream), b"%d" % n)
        assert sum(map(len, found.values())) == 1 + 60 + 50
        await client.aclose()


async def test_a_copy_that_comes_once_its_publisher_has_closed_adds_nothing(redis_url: str) -> None:
    """What was repeated may still be on its way; of what was not, nothing is remembered."""
    async with Proxy(port_of(redis_url)) as proxy:
        client = connect(proxy.url)
        space = await create(client)
        async with Publisher(client) as publisher:
            await publisher.send("s/other", b"")
            proxy.lose(b"EVALSHA", times=1)
            repeated, _ = await publisher.send("s/x", b"once")
            assert proxy.lost == 1
        remember = [stream for stream in space.streams() if await client.hlen(stream_publishers(stream)) > 0]
        assert remember == [repeated]
        copy = append(repeated, 0, rows(0, 1), publisher=publisher.id)
        assert (await AsyncLog(client).append(copy)).duplicate
        await client.aclose()


async def test_the_buffer_is_bounded(make_redis_server: MakeServer) -> None:
    server = make_redis_server()
    client = connect(server.url)
    space = await create(client, streams=1)
    bound = 20_000
    async with Publisher(client, max_buffer_bytes=bound) as publisher:
        await publisher.send("s/x", b"warm")
        server.pause()
        submitted = 0

        async def submit() -> None:
            nonlocal submitted
            for _ in range(200):
                await publisher.submit("s/x", b"x" * 1000)
                submitted += 1

        task = asyncio.create_task(submit())
        await until(lambda: publisher.buffered_bytes > bound - 2000)
        for _ in range(20):
            await asyncio.sleep(0)
        assert submitted < 20
        assert publisher.buffered_bytes <= bound
        server.resume()
        await task
        # One message or batch that is larger than the bound still goes through, alone.
        await publisher.send("s/x", b"y" * (bound + 1))
    assert len((await everything(client, space))["s/x"]) == 202
    await client.aclose()


async def test_many_submitters_share_the_bound(redis: AsyncRedis) -> None:
    space = await create(redis, streams=1)
    bound = 5000
    most = 0
    async with Publisher(redis, max_buffer_bytes=bound, max_batch_messages=3) as publisher:

        async def submit(name: int) -> None:
            nonlocal most
            for number in range(20):
                await publisher.submit(f"s/{name}", b"%d" % number)
                most = max(most, publisher.buffered_bytes)

        await asyncio.gather(*(submit(name) for name in range(50)))
    assert most <= bound
    found = await everything(redis, space)
    for name in range(50):
        assert [one.payload for one in found[f"s/{name}"]] == [b"%d" % number for number in range(20)]


async def test_a_defect_while_sending_is_indefinite_and_not_the_end(
    embedded_redis_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    client = connect(embedded_redis_url)
    await create(client)

    async def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    async with Publisher(client) as publisher:
        with monkeypatch.context() as broken:
            broken.setattr(AsyncLog, "append_many", fail)
            with pytest.raises(Indefinite, match="ZeroDivisionError"):
                await publisher.send("s/x", b"0")
        assert (await publisher.send("s/x", b"1"))[1] == 0
    assert "a round of appends failed" in caplog.text
    await client.aclose()


@pytest.mark.slow
async def test_an_unreachable_redis_fails_with_unavailable_and_flush_tells(
    make_redis_server: MakeServer,
) -> None:
    server = make_redis_server()
    client = connect(server.url)
    await create(client)
    publisher = Publisher(client, delivery_timeout=0.3)
    await publisher.send("s/x", b"warm")
    server.stop()
    await let_the_loop_see_it()
    with pytest.raises(StoreUnavailable):
        await publisher.send("s/x", b"1")
    await publisher.flush()  # send told it already
    await publisher.submit("s/x", b"2")
    with pytest.raises(StoreUnavailable):
        await publisher.flush()
    await publisher.flush()
    batch = pa.record_batch({"payload": pa.array([b"x"])})
    await publisher.submit_batch("s/x", batch)
    with pytest.raises(StoreUnavailable):
        await publisher.close()
    await client.aclose()


async def test_an_outage_shorter_than_the_timeout_is_bridged(make_redis_server: MakeServer) -> None:
    server = make_redis_server(persistent=True)
    client = connect(server.url)
    space = await create(client)
    async with Publisher(client) as publisher:
        await publisher.send("s/x", b"0")
        server.kill()
        futures = [await publisher.submit("s/x", b"%d" % n) for n in range(1, 50)]
        await until(lambda: not futures[0].done())
        await asyncio.to_thread(server.start)
        await publisher.flush()
    assert [one.payload for one in (await everything(client, space))["s/x"]] == [b"%d" % n for n in range(50)]
    await client.aclose()


async def test_who_cannot_find_the_space_of_topics_says_so_once(
    make_redis_server: MakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    server = make_redis_server(persistent=True)
    client = connect(server.url)
    await create(client)
    server.kill()
    async with Publisher(client) as publisher:
        sending = [asyncio.ensure_future(publisher.send(f"s/{n}", b"%d" % n)) for n in range(20)]
        await until(lambda: caplog.messages != [])
        await asyncio.to_thread(server.start)
        await asyncio.gather(*sending)
    said = [line for line in caplog.messages if line.startswith("looking for the space of topic 's/")]
    assert "does not answer" in said[0]
    reasons = [line.partition(": ")[2] for line in said]
    assert sorted(reasons) == sorted({*reasons}), "of twenty topics each reason is told once"
    await client.aclose()


async def test_no_answer_at_all_is_indefinite_and_what_comes_late_is_fenced(
    make_redis_server: MakeServer,
) -> None:
    server = make_redis_server()
    client = connect(server.url, answer_seconds=0.2)
    space = await create(client, streams=1)
    async with Publisher(client, delivery_timeout=0.3) as publisher:
        await publisher.send("s/x", b"0")
        server.pause()
        with pytest.raises(Indefinite):
            await publisher.send("s/x", b"maybe")
        server.resume()
        stream, offset = await publisher.send("s/x", b"after")
    stored = payloads(await AsyncLog(client).read(stream, 0))
    assert stored[offset] == b"after"
    assert stored.count(b"maybe") <= 1
    assert stored in ([b"0", b"after"], [b"0", b"maybe", b"after"])
    assert len(space.streams()) == 1
    await client.aclose()


async def test_out_of_memory_is_retried_and_then_refused(make_redis_server: MakeServer) -> None:
    async with own_server(make_redis_server) as client:
        space = await create(client)
        async with Publisher(client, delivery_timeout=0.3) as publisher:
            await publisher.send("s/x", b"0")
            await client.config_set("maxmemory", "1mb")
            with pytest.raises(StoreRefused, match="out of memory"):
                await publisher.send("s/x", b"1")
        async with Publisher(client) as patient:
            waiting = asyncio.create_task(patient.send("s/x", b"2"))
            await until(lambda: patient.buffered_bytes > 0)
            await client.config_set("maxmemory", "0")
            await waiting
        assert [one.payload for one in (await everything(client, space))["s/x"]] == [b"0", b"2"]


async def test_a_sealed_stream_fails_only_its_own_messages(redis: AsyncRedis) -> None:
    space = await create(redis)
    topics = {space.stream_for(f"s/{n}"): f"s/{n}" for n in range(100)}
    (sealed, first), (_, second) = list(topics.items())[:2]
    await AsyncLog(redis).seal(sealed)
    publisher = Publisher(redis)
    one = await publisher.submit(first, b"x")
    other = await publisher.submit(second, b"x")
    with pytest.raises(StreamSealed, match=str(sealed)):
        await publisher.close()
    assert isinstance(one.exception(), StreamSealed)
    assert other.result()[1] == 0


async def test_a_space_that_is_created_again_is_found_again(redis: AsyncRedis) -> None:
    await create(redis)
    async with Publisher(redis) as publisher:
        await publisher.send("s/x", b"old")
        await SpaceStore(redis).delete("s")
        with pytest.raises(UnknownSpace):
            await publisher.send("s/x", b"lost")
        space = await create(redis)
        assert await publisher.send("s/x", b"new") == (space.stream_for("s/x"), 0)


async def test_writes_that_a_failover_lost_do_not_stop_the_publisher(redis: AsyncRedis) -> None:
    space = await create(redis, streams=1)
    (stream,) = space.streams()
    async with Publisher(redis) as publisher:
        await publisher.send("s/x", b"0")
        before = await redis.hgetall(stream_publishers(stream))
        await publisher.send("s/x", b"1")
        await redis.hset(stream_publishers(stream), mapping=before)
        assert await publisher.send("s/x", b"2") == (stream, 2)


async def test_after_a_long_silence_a_lane_starts_anew(
    redis: AsyncRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = await create(redis, streams=1)
    monkeypatch.setattr(lanes, "SILENCE_SECONDS", -1.0)
    async with Publisher(redis) as publisher:
        await publisher.send("s/x", b"0")
        await redis.delete(stream_publishers(*space.streams()))
        assert (await publisher.send("s/x", b"1"))[1] == 1


async def test_a_cancelled_send_does_not_disturb_the_others(redis: AsyncRedis) -> None:
    space = await create(redis)
    async with Publisher(redis) as publisher:
        task = asyncio.create_task(publisher.send("s/x", b"0"))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await publisher.send("s/x", b"1")
    assert [one.payload for one in (await everything(redis, space))["s/x"]] in ([b"0", b"1"], [b"1"])


async def test_leaving_by_an_error_still_closes(redis: AsyncRedis) -> None:
    space = await create(redis)
    with pytest.raises(ZeroDivisionError):
        async with Publisher(redis) as publisher:
            await publisher.submit("s/x", b"0")
            raise ZeroDivisionError
    assert [one.payload for one in (await everything(redis, space))["s/x"]] == [b"0"]


# ------------------------------------------------------------------------------------------- batching


async def entries_of(redis: AsyncRedis, space: Space) -> int:
    return sum([await redis.xlen(stream_log(stream)) for stream in space.streams()])


async def test_lingering_makes_one_batch_of_what_comes_slowly(redis: AsyncRedis) -> None:
    space = await create(redis, streams=1)
    async with Publisher(redis, linger_ms=300) as publisher:
        began = asyncio.get_running_loop().time()
        futures = []
        for number in range(20):
            futures.append(await publisher.submit("s/a", b"%d" % number))
            await redis.ping()  # time goes by
        assert [place[1] for place in await asyncio.gather(*futures)] == list(range(20))
        assert asyncio.get_running_loop().time() - began >= 0.29
    assert await entries_of(redis, space) == 1


async def test_a_full_batch_a_flush_and_a_full_buffer_do_not_linger(redis: AsyncRedis) -> None:
    space = await create(redis, streams=1)
    with awake() as clock:
        async with Publisher(redis, linger_ms=10_000, max_batch_bytes=1100) as publisher:
            futures = [await publisher.submit("s/a", b"x" * 400) for _ in range(5)]
            await futures[3]  # batches of two: the first two are full
            assert not futures[4].done()
            await publisher.flush()
            assert futures[4].done()
            await publisher.send_batch("s/a", pa.record_batch({"payload": [b"x"]}))
        assert await entries_of(redis, space) == 4
        async with Publisher(redis, linger_ms=10_000, max_buffer_bytes=2000) as publisher:
            for _ in range(20):
                await publisher.submit("s/a", b"x" * 400)
    assert clock.seconds < 8


@pytest.mark.parametrize(
    "options",
    [{"linger_ms": -1}, {"linger_ms": 10_001}, {"max_batch_bytes": 0}, {"max_batch_bytes": 1 << 40}],
)
async def test_batching_that_makes_no_sense_is_refused(redis: AsyncRedis, options: dict[str, float]) -> None:
    with pytest.raises(InvalidOption, match=next(iter(options))):
        Publisher(redis, **options)  # type: ignore[arg-type]


@pytest.mark.slow
async def test_what_was_not_written_behind_lost_messages_fences_nobody(
    redis: AsyncRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = await create(redis, streams=1)
    (stream,) = space.streams()
    publisher = Publisher(redis, delivery_timeout=0.3)
    for text in (b"0", b"1", b"2"):
        await publisher.submit("s/a", text)
        await publisher.flush()
    # As after a failover: Redis has the publisher with an earlier sequence. And it stays so until the end.
    ((name, record),) = (await redis.hgetall(stream_publishers(stream))).items()
    incarnation, _, rest = record.split(b" ", 2)
    await redis.hset(stream_publishers(stream), name, b"%s 0 %s" % (incarnation, rest))
    monkeypatch.setattr(lanes.Lane, "renew", lambda lane: setattr(lane, "sequence", 7))
    await publisher.submit("s/a", b"3")
    with pytest.raises(StoreUnavailable, match="Redis lost writes"):
        await publisher.flush()
    await publisher.close()
