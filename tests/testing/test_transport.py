"""A line on the in-memory server: what a publisher sends alone, while the connection fails in every way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from streamlease.protocol.ids import StreamId
from streamlease.streams.entries.entries import to_messages
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.publish.publisher import Publisher
from streamlease.streams.redis.lines.direct_line import open_direct_line
from streamlease.streams.spaces.spaces import SpaceStore
from streamlease.testing.memory.memory_connection import connect_redis
from streamlease.testing.memory.memory_server import MemoryServer
from streamlease.testing.memory.sockets import Line, Socket
from tests.streams.helpers import has_line, until

STREAM = StreamId("s", 0, 0)


class Faulty(Line):
    """Loses the connection at the next append: before it arrives, or with its reply."""

    def __init__(self) -> None:
        self.fault = ""

    def connecting(self) -> float:
        if self.fault == "refused":
            self.fault = ""
            raise RedisConnectionError("refused")
        return 0.0

    def sending(self, socket: Socket, commands: list[list[bytes]]) -> None:
        fault = self.fault if commands[-1][0] == b"EVALSHA" else ""
        if fault == "request":
            self.fault = "refused"  # so that a new connection fails as well
            socket.lose()
            return
        socket.arrived(commands)

    def replying(self, socket: Socket, reply: Any) -> None:
        if self.fault == "reply":
            self.fault = ""
            socket.lose()
            return
        socket.returned(reply)


@pytest.mark.parametrize("fault", ["", "request", "reply"])
async def test_what_is_sent_alone_is_written_once(fault: str) -> None:
    line = Faulty()
    redis = connect_redis(MemoryServer(), line)
    await SpaceStore(redis).create("s", ["s/#"], streams=1)
    async with Publisher(redis) as publisher:
        for number in range(20):
            if number % 4 == 2:
                await until(lambda: has_line(publisher, STREAM))
                line.fault = fault
            assert await publisher.send("s/x", b"%d" % number) == (STREAM, number)
    line.fault = ""  # which nothing may have met, where the last message found an open connection
    (batches,) = [await AsyncLog(redis).read(STREAM, 0)]
    found = [message.payload for batch in batches for message in to_messages(batch)]
    assert found == [b"%d" % number for number in range(20)]
    await redis.aclose()


class Slow(Line):
    """Holds replies back."""

    def __init__(self) -> None:
        self.held: list[Callable[[], None]] | None = None

    def replying(self, socket: Socket, reply: Any) -> None:
        if self.held is None:
            socket.returned(reply)
        else:
            self.held.append(lambda: socket.returned(reply))

    def release(self) -> None:
        """Let them go."""
        held, self.held = self.held, None
        for let_go in held or ():
            let_go()


async def test_what_comes_behind_a_message_on_the_line_follows_it() -> None:
    line = Slow()
    redis = connect_redis(MemoryServer(), line)
    await SpaceStore(redis).create("s", ["s/#"], streams=1)
    async with Publisher(redis) as publisher:
        await publisher.send("s/x", b"0")
        await until(lambda: has_line(publisher, STREAM))
        line.held = []
        first = asyncio.create_task(publisher.send("s/x", b"1"))
        await until(lambda: line.held != [])
        behind = [asyncio.create_task(publisher.send("s/x", b"%d" % n)) for n in (2, 3)]
        for _ in range(20):  # turns of the loop, in which nothing may be sent
            await asyncio.sleep(0)
        sent = len(line.held)
        line.release()
        found = await asyncio.gather(first, *behind, return_exceptions=True)
    assert sent == 1
    assert found == [(STREAM, n) for n in (1, 2, 3)]
    await redis.aclose()


@pytest.mark.parametrize(
    ("command", "reply"),
    [
        (("SET", "k", "v"), b"OK"),
        (("GET", "k"), b"v"),
        (("GET", "none"), None),
        (("HMGET", "none", "a", "b"), [None, None]),
        (("EXISTS", "k"), 1),
    ],
)
async def test_replies_are_those_of_every_connection(command: tuple[str, ...], reply: object) -> None:
    redis = connect_redis(MemoryServer())
    await redis.set("k", "v")
    line = await open_direct_line(redis, 5.0)
    told: list[object] = []
    line.ask(command, told.append)
    assert not told
    await until(lambda: bool(told))
    assert told == [reply]
    assert line.is_free
    await line.close()
    await redis.aclose()


async def test_an_error_reply_ends_the_line() -> None:
    redis = connect_redis(MemoryServer())
    line = await open_direct_line(redis, 5.0)
    told: list[object] = []
    tell: Callable[[object], None] = told.append
    line.ask(("NOTHING",), tell)
    await until(lambda: bool(told))
    assert isinstance(told[0], Exception)
    assert not line.is_open
    await line.close()
    await redis.aclose()
