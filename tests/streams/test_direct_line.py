"""Single messages on a line: as quick as that is, nothing is lost, doubled, or out of order."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hiredis import pack_command
from prometheus_client import REGISTRY

from streamlease.protocol.errors import Indefinite, InvalidInput, InvalidTopic, StreamSealed, UnknownSpace
from streamlease.protocol.ids import StreamId
from streamlease.streams.entries.entries import Row, encode_message
from streamlease.streams.entries.message_rows import LAST_TIME
from streamlease.streams.log.log import Append, AsyncLog
from streamlease.streams.log.stencils import Stencil
from streamlease.streams.publish.buffer import ROW_BYTES
from streamlease.streams.publish.publisher import Publisher
from streamlease.streams.redis.connection import AsyncRedis, connect
from streamlease.streams.redis.lines.direct_line import open_direct_line
from streamlease.streams.redis.lines.direct_lines import DirectLines
from streamlease.streams.spaces.spaces import SpaceStore
from streamlease.streams.tasks import Supervisor
from tests.conftest import MakeServer
from tests.streams.helpers import Proxy, has_line, payloads, until

STREAM = StreamId("s", 0, 0)


@pytest.fixture
async def redis(real_redis_url: str) -> Any:
    client = connect(real_redis_url)
    await SpaceStore(client).create("s", ["s/#"], streams=1)
    yield client
    await client.aclose()


def port_of(url: str) -> int:
    return int(url.rsplit(":", 1)[1].split("/", maxsplit=1)[0])


async def warm(publisher: Publisher, payload: bytes = b"0") -> None:
    """Send a message, and wait for the line that is opened then."""
    await publisher.send("s/x", payload)
    await until(lambda: has_line(publisher, STREAM))


async def stored(redis: AsyncRedis) -> list[bytes]:
    return payloads(await AsyncLog(redis).read(STREAM, 0))


def without_pool(redis: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """From now on an exchange through the pool is noted."""
    asked: list[str] = []
    original = redis.connection_pool.get_connection

    async def noted(*about: Any, **more: Any) -> Any:
        asked.append("exchange")
        return await original(*about, **more)

    monkeypatch.setattr(redis.connection_pool, "get_connection", noted)
    return asked


@pytest.mark.parametrize("key", [None, b"", b"k\r\ney"])
@pytest.mark.parametrize("timestamp", [None, 0, -5, LAST_TIME - 1])
@pytest.mark.parametrize("payload", [b"", b"\r\n" * 600])
@pytest.mark.parametrize("where", [(1, 0, 0), (12, 345, 2**53)])
def test_a_message_alone_is_packed_as_the_client_of_redis_packs_its_append(
    key: bytes | None, timestamp: int | None, payload: bytes, where: tuple[int, int, int]
) -> None:
    incarnation, sequence, known = where
    entry = encode_message(Row("s/\u00fc", payload, key, None, timestamp))
    append = Append(STREAM, "~me", incarnation, sequence, entry, known=known)
    stencil = Stencil(STREAM, "~me", incarnation)
    packed = stencil.packed(sequence, known, "s/\u00fc", payload, key, timestamp)
    assert packed == pack_command(append.call.command)  # type: ignore[arg-type]  # of any length


async def test_messages_one_by_one_need_no_pool(redis: AsyncRedis, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Publisher(redis) as publisher:
        await warm(publisher)
        asked = without_pool(redis, monkeypatch)
        places = [await publisher.send("s/x", b"%d" % n, key=b"k", timestamp=n) for n in range(1, 50)]
        assert not asked
        assert publisher.buffered_bytes == 0
    assert places == [(STREAM, n) for n in range(1, 50)]
    assert await stored(redis) == [b"%d" % n for n in range(50)]


async def test_a_new_topic_of_a_known_space_needs_no_pool_either(
    redis: AsyncRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Publisher(redis) as publisher:
        await warm(publisher)
        asked = without_pool(redis, monkeypatch)
        places = [await publisher.send(f"s/{n}", b"%d" % n) for n in range(1, 30)]
        with pytest.raises(InvalidTopic):
            await publisher.send("s/#", b"x")
        assert not asked
        with pytest.raises(UnknownSpace):
            await publisher.send("t/x", b"x")
        assert asked
    assert places == [(STREAM, n) for n in range(1, 30)]
    with pytest.raises(InvalidInput, match="closed"):
        await publisher.send("s/30", b"x")
    assert await stored(redis) == [b"%d" % n for n in range(30)]


async def test_what_comes_while_one_is_on_the_line_follows_it(redis: AsyncRedis) -> None:
    async with Publisher(redis) as publisher:
        await warm(publisher)
        first = asyncio.create_task(publisher.send("s/x", b"1"))
        await asyncio.sleep(0)
        rest = [asyncio.create_task(publisher.send("s/x", b"%d" % n)) for n in range(2, 40)]
        await asyncio.sleep(0)
        await publisher.submit("s/x", b"40")
        await publisher.flush()
        places = await asyncio.gather(first, *rest)
    assert [offset for _, offset in places] == [*range(1, 40)]
    assert await stored(redis) == [b"%d" % n for n in range(41)]


async def test_a_lost_reply_adds_nothing_twice(real_redis_url: str, redis: AsyncRedis) -> None:
    async with Proxy(port_of(real_redis_url)) as proxy:
        client = connect(proxy.url)
        async with Publisher(client) as publisher:
            for n in range(3):
                await warm(publisher, b"%d" % (2 * n))
                proxy.lose(b"EVALSHA")
                assert await publisher.send("s/x", b"%d" % (2 * n + 1)) == (STREAM, 2 * n + 1)
                assert proxy.lost == n + 1
        await client.aclose()
    assert await stored(redis) == [b"%d" % n for n in range(6)]


async def test_a_connection_that_was_closed_meanwhile_is_made_again(redis: Any) -> None:
    async with Publisher(redis) as publisher:
        for n in range(3):
            await warm(publisher, b"%d" % (2 * n))
            await redis.client_kill_filter(_type="normal", skipme=True)
            await publisher.send("s/x", b"%d" % (2 * n + 1))
    assert await stored(redis) == [b"%d" % n for n in range(6)]


async def test_a_server_that_forgot_the_script_is_told_again(redis: Any) -> None:
    async with Publisher(redis) as publisher:
        await warm(publisher)
        await redis.script_flush()
        assert await publisher.send("s/x", b"1") == (STREAM, 1)
        await warm(publisher, b"2")
    assert await stored(redis) == [b"0", b"1", b"2"]


async def test_a_message_follows_its_space_to_a_new_generation(redis: AsyncRedis) -> None:
    async with Publisher(redis) as publisher:
        await warm(publisher)
        await SpaceStore(redis).generations.alter("s", rotate=True)
        assert await publisher.send("s/x", b"1") == (StreamId("s", 1, 0), 0)


async def test_a_sealed_stream_says_so(redis: AsyncRedis) -> None:
    async with Publisher(redis) as publisher:
        await warm(publisher)
        await AsyncLog(redis).seal(STREAM)
        with pytest.raises(StreamSealed):
            await publisher.send("s/x", b"1")


async def test_no_answer_is_indefinite_and_what_comes_late_is_fenced(make_redis_server: MakeServer) -> None:
    server = make_redis_server()
    client = connect(server.url, answer_seconds=0.2)
    await SpaceStore(client).create("s", ["s/#"], streams=1)
    async with Publisher(client, delivery_timeout=0.3) as publisher:
        await warm(publisher)
        server.pause()
        with pytest.raises(Indefinite):
            await publisher.send("s/x", b"maybe")
        server.resume()
        _, offset = await publisher.send("s/x", b"after")
    found = await stored(client)
    assert found[offset] == b"after"
    assert found in ([b"0", b"after"], [b"0", b"maybe", b"after"])
    await client.aclose()


async def test_a_publisher_that_is_left_in_a_hurry_says_what_is_open(make_redis_server: MakeServer) -> None:
    server = make_redis_server()
    client = connect(server.url)
    await SpaceStore(client).create("s", ["s/#"], streams=1)
    async with Publisher(client) as publisher:
        await warm(publisher)
        server.pause()
        sending = asyncio.create_task(publisher.send("s/x", b"1"))
        await asyncio.sleep(0)
        closing = asyncio.create_task(publisher.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(Indefinite, match="the publisher was closed"):
            await sending
        assert publisher.buffered_bytes == 0
    server.resume()
    await client.aclose()


async def test_what_is_sent_alone_is_counted(redis: AsyncRedis) -> None:
    def written() -> list[float]:
        names = ("messages_total", "bytes_total")
        found = [REGISTRY.get_sample_value(f"streamlease_published_{name}") for name in names]
        return [
            value or 0.0 for value in (*found, REGISTRY.get_sample_value("streamlease_publish_seconds_count"))
        ]

    async with Publisher(redis) as publisher:
        await warm(publisher)
        await publisher.flush()
        before = written()
        for _ in range(40):
            await publisher.send("s/x", b"1234")
        await until(lambda: written()[0] == before[0] + 40)  # by itself
        await publisher.send("s/x", b"1234")
        await publisher.flush()
        after = [now - then for now, then in zip(written(), before, strict=True)]
    assert after == [41, 41 * (ROW_BYTES + 4), 41]


async def test_a_cancelled_send_is_written_or_not_and_disturbs_nobody(redis: AsyncRedis) -> None:
    async with Publisher(redis) as publisher:
        await warm(publisher)
        task = asyncio.create_task(publisher.send("s/x", b"1"))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert await publisher.send("s/x", b"2") == (STREAM, 2)
    assert await stored(redis) == [b"0", b"1", b"2"]


async def test_leaving_while_a_message_is_on_the_line_waits_for_it(redis: AsyncRedis) -> None:
    async with Publisher(redis) as publisher:
        await warm(publisher)
        task = asyncio.create_task(publisher.send("s/x", b"1"))
        await asyncio.sleep(0)
    assert await task == (STREAM, 1)


async def test_a_line_leads_to_the_primary_that_sentinels_name(redis: Any) -> None:
    redis.connection_pool.master_address = ("old", 1)
    line = await open_direct_line(redis, 5.0)
    assert line.is_free
    redis.connection_pool.master_address = ("new", 1)
    assert not line.is_open
    await line.close()


async def test_whoever_asked_is_told_once(make_redis_server: MakeServer) -> None:
    server = make_redis_server()
    client: Any = connect(server.url)
    told: list[Any] = []
    line = await open_direct_line(client, 0.1)
    line.ask(("ECHO", b"x" * 100_000), told.append)
    assert not line.is_free
    await until(lambda: told == [b"x" * 100_000])
    assert line.is_free
    server.pause()
    line.ask(("ECHO", b"y"), told.append)
    await until(lambda: len(told) == 2)
    assert told[1] is None
    assert not line.is_open
    server.resume()
    await line.close()
    assert len(told) == 2
    await client.aclose()


async def test_the_replies_to_several_commands_come_together(redis: AsyncRedis) -> None:
    line = await open_direct_line(redis, 5)  # type: ignore[arg-type]
    values = [b"x" * size for size in (0, 7, 3_000_000, 1)]
    heard: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    line.ask_all([*(("SET", n, value) for n, value in enumerate(values)), ("GET", 2)], heard.set_result)
    assert not line.is_free
    assert await heard == [b"OK"] * 4 + [values[2]]
    again: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    line.ask(("GET", 1), again.set_result)
    assert await again == values[1]
    third: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    line.ask_all([("GET", 1), ("HGET", 1, "x"), ("GET", 0)], third.set_result)
    one, error, other = await third
    assert (one, other) == (values[1], b"")
    assert "WRONGTYPE" in str(error)
    assert not line.is_open, "some servers close a connection after an error"
    await line.close()


async def test_several_commands_of_which_not_all_are_answered_have_no_replies(real_redis_url: str) -> None:
    async with Proxy(port_of(real_redis_url)) as proxy:
        client: Any = connect(proxy.url)
        line = await open_direct_line(client, 5)
        heard: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        proxy.lose(b"second")
        line.ask_all([("SET", "first", "x"), ("SET", "second", "x")], heard.set_result)
        assert await heard is None
        assert not line.is_open
        await line.close()
        await client.aclose()


async def test_what_is_read_goes_on_a_line_as_soon_as_there_is_one(redis: AsyncRedis) -> None:
    tasks = Supervisor("a test", lambda task, error: None)
    lines = DirectLines(redis, tasks, 5)
    assert await lines.read("k", [("GET", "k")]) is None
    await until(lambda: lines.to("k") is not None)
    reads = [asyncio.ensure_future(lines.read("k", [("SET", "k", n), ("GET", "k")])) for n in range(2)]
    assert await asyncio.gather(*reads) == [[b"OK", b"0"], None], "one at a time"
    assert await lines.read("k", [("GET", "k"), ("HGET", "k", "x")]) is None, "an error is no reply"
    await until(lambda: not tasks)
    await lines.close()
