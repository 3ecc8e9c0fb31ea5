"""What a test can do to the in-memory server: restarts, failovers that lose writes, lines that break."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from redis.exceptions import NoScriptError

from streamlease.protocol.errors import Indefinite, StoreUnavailable
from streamlease.protocol.ids import StreamId
from streamlease.streams.log.keys import stream_log
from streamlease.streams.redis.connection import exchange
from streamlease.testing.memory.memory_connection import connect, connect_redis
from streamlease.testing.memory.memory_server import MemoryServer
from streamlease.testing.memory.sockets import Line, Socket


class Clock:
    """Seconds that a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


async def test_a_client_publishes_and_consumes_as_with_redis() -> None:
    server = MemoryServer()
    async with connect(server) as client:
        await client.create_space("s", ["a/#"], streams=3)
        async with client.publisher() as publisher:
            for number in range(20):
                await publisher.submit(f"a/{number}", b"%d" % number)
        found = []
        async with client.subscribe("$shared/g/a/#", start="earliest") as batches:
            async for batch in batches:
                found += [int(message.payload) for message in batch.messages]
                await batch.commit()
                if len(found) == 20:
                    break
    assert sorted(found) == list(range(20))
    async with connect(server) as again:
        assert sum((await again.next_offsets((await again.spaces.get("s")).streams())).values()) == 20


async def test_topics_are_listed_and_a_deleted_space_leaves_nothing() -> None:
    async with connect(MemoryServer()) as client:
        await client.create_space("s", ["a/#"], streams=2)
        async with client.publisher() as publisher:
            await publisher.send("a/x", b"1")
        async with client.catalog("topics") as topics, asyncio.timeout(20):
            while not topics.items:
                await anext(topics)
            assert [getattr(item, "topic", "") for item in topics.items] == ["a/x"]
            assert await client.redis.exists(stream_log(StreamId("s", 0, 0)), stream_log(StreamId("s", 0, 1)))
            await client.spaces.delete("s")
            assert (await anext(topics)).diff == -1
        left = [key.decode() async for key in client.redis.scan_iter()]
        assert [key for key in left if "{s." in key] == []


async def test_what_expires_goes_by_the_servers_own_clock() -> None:
    clock = Clock()
    server = MemoryServer(clock)
    client = connect_redis(server)
    await exchange(client, [("SET", "k", "v", "PX", 5000)])
    clock.now += 4.9
    assert await exchange(client, [("GET", "k"), ("PTTL", "k")]) == [b"v", 100]
    server.ahead = 100
    assert await exchange(client, [("GET", "k"), ("PTTL", "k")]) == [None, -2]


async def test_a_failover_loses_the_newest_writes_but_none_that_a_wait_confirmed() -> None:
    clock = Clock()
    server = MemoryServer(clock, replicated=True)
    client = connect_redis(server)
    (digest,) = await exchange(
        client, [("SCRIPT", "LOAD", "return redis.call('XADD', KEYS[1], '*', 'f', 'v')")]
    )
    await exchange(client, [("EVALSHA", digest, 1, "s"), ("SET", "a", "1")])
    clock.now += 1
    assert await exchange(client, [("SET", "b", "1"), ("WAIT", 1, 100)]) == [b"OK", 1]
    clock.now += 1
    await exchange(client, [("SET", "a", "2"), ("XADD", "s", "*", "f", "v"), ("SADD", "gone", "x")])
    before, (entries,) = server.lineage, await exchange(client, [("XRANGE", "s", "-", "+")])
    assert server.fail_over(lost_ms=2500) == 3
    assert server.lineage != before == server.former_lineage
    left = await exchange(client, [("GET", "a"), ("GET", "b"), ("XRANGE", "s", "-", "+"), ("EXISTS", "gone")])
    assert left == [b"1", b"1", entries[:1], 0]
    assert server.fail_over(lost_ms=0) == 0
    assert await exchange(client, [("GET", "a"), ("GET", "b")]) == [b"1", b"1"]


async def test_a_long_log_of_writes_is_joined_and_loses_nothing_by_it() -> None:
    clock = Clock()
    server = MemoryServer(clock, replicated=True)
    client = connect_redis(server)
    for _ in range(120):
        clock.now += 1
        await exchange(client, [("INCR", "n")] * 100)
    assert server.fail_over(lost_ms=0) == 0
    assert await exchange(client, [("GET", "n")]) == [b"12000"]


class Broken(Line):
    """What a test wants to go wrong with the next exchange."""

    trouble = ""

    def connecting(self) -> float:
        if self.trouble == "no connection":
            raise ConnectionRefusedError("nobody listens")
        return 0.0

    def sending(self, socket: Socket, commands: list[list[bytes]]) -> None:
        if self.trouble == "nothing arrives":
            socket.lose()
            return
        super().sending(socket, commands)

    def replying(self, socket: Socket, reply: Any) -> None:
        if self.trouble == "no answer":
            socket.lose()
            return
        super().replying(socket, reply)


async def test_each_failure_of_a_line_means_what_it_means_with_redis() -> None:
    line = Broken()
    client = connect_redis(MemoryServer(), line)
    line.trouble = "no connection"
    with pytest.raises(StoreUnavailable, match="nobody listens"):
        await exchange(client, [("INCR", "n")])
    line.trouble = "nothing arrives"
    with pytest.raises(Indefinite):
        await exchange(client, [("INCR", "n")])
    line.trouble = "no answer"
    with pytest.raises(Indefinite):
        await exchange(client, [("INCR", "n")])
    line.trouble = ""
    assert await exchange(client, [("GET", "n")]) == [b"1"]


@pytest.mark.slow
async def test_a_restart_forgets_scripts_and_ends_what_waits() -> None:
    server = MemoryServer()
    client = connect_redis(server)
    (digest,) = await exchange(client, [("SCRIPT", "LOAD", "return 1")])
    reading = asyncio.create_task(exchange(client, [("XREAD", "BLOCK", 0, "STREAMS", "s", "$")]))
    await exchange(client, [("PING",)])
    server.restart()
    with pytest.raises(Indefinite):
        await reading
    (reply,) = await exchange(client, [("EVALSHA", digest, 0)])
    assert isinstance(reply, NoScriptError)
