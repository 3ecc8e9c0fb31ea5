"""Readers that were left are forgotten; those that are open end with their client."""

from __future__ import annotations

import asyncio
import gc
import re
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from streamlease import blocking
from streamlease.agent.client import Client, connect
from streamlease.agent.membership.agent import Agent
from streamlease.protocol.errors import InvalidInput, InvalidOption, StreamleaseError
from tests.agent.helpers import SECONDS, until

Opened = AbstractAsyncContextManager[AsyncIterator[Any]]

READERS: dict[str, Callable[[Client, int], Opened]] = {
    "group": lambda client, number: client.subscribe(f"$shared/g{number}/a/#"),
    "group of epochs": lambda client, number: client.subscribe(f"$shared/g{number}/e/#", epochs="atomic"),
    "listen": lambda client, _: client.listen("a/#"),
    "atomic": lambda client, _: client.listen("e/#", epochs="atomic"),
    "eager": lambda client, _: client.listen("e/#", epochs="eager"),
    "collection": lambda client, _: client.collection("c/#"),
    "catalog": lambda client, _: client.catalog("spaces"),
}


async def spaces(client: Client) -> None:
    await client.create_space("a", ["a/#"])
    await client.create_space("e", ["e/#"], epochs=1)
    await client.create_space("c", ["c/#"], collection=True)


@pytest.mark.parametrize("kind", READERS)
async def test_readers_that_were_left_are_forgotten(client: Client, kind: str) -> None:
    """A program that lives for months makes and leaves many, such as a gateway for its members."""
    await spaces(client)
    left: list[weakref.ref[Any]] = []
    for number in range(5):
        async with READERS[kind](client, number) as reader:
            left.append(weakref.ref(reader))
        del reader

    def alive() -> int:
        gc.collect()
        return sum(one() is not None for one in left)

    await until(lambda: alive() == 0)  # what they began ends
    assert len(left) == 5
    assert alive() == 0


@pytest.mark.parametrize("kind", READERS)
async def test_who_waits_when_the_client_is_closed_waits_no_more(redis_url: str, kind: str) -> None:
    client = await connect(redis_url).__aenter__()
    await spaces(client)
    opened = READERS[kind](client, 0)
    reader = await opened.__aenter__()
    got: list[Any] = []

    async def read() -> None:
        got.extend([one async for one in reader])

    reading = asyncio.create_task(read())
    for _ in range(5):
        await asyncio.sleep(0)  # it waits now
    await client.close()
    async with asyncio.timeout(SECONDS):
        await asyncio.wait([reading])
        if kind.startswith("group"):
            assert reading.exception() is None, "it was left in good order"
        else:
            assert isinstance(reading.exception(), InvalidOption)
            with pytest.raises(StopAsyncIteration if kind != "catalog" else InvalidOption):
                await anext(reader)
        await opened.__aexit__(None, None, None)


async def test_a_close_that_is_cancelled_closes_the_connections(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await connect(redis_url).__aenter__()
    await client.agent()
    begun, closed = asyncio.Event(), asyncio.Event()
    close_agent, close_redis = Agent.close, client.redis.aclose

    async def slow(self: Agent) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await close_agent(self)

    async def seen() -> None:
        await close_redis()
        closed.set()

    monkeypatch.setattr(Agent, "close", slow)
    monkeypatch.setattr(client.redis, "aclose", seen)
    closing = asyncio.create_task(client.close())
    async with asyncio.timeout(SECONDS):
        await begun.wait()
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
    assert closed.is_set()


AFTERWARDS: dict[str, Callable[[Client], object]] = {
    "create": lambda client: client.create_space("t", ["t/#"]),
    "alter": lambda client: client.alter_space("s", streams=2),
    "seal": lambda client: client.seal_space("s"),
    "offsets": lambda client: client.next_offsets(["s.0.0"]),
    "publisher": lambda client: client.publisher(),
    "epochs": lambda client: client.epoch_publisher("s", "p"),
    "enter": lambda client: client.__aenter__(),
    "subscribe": lambda client: client.subscribe("$shared/g/#").__aenter__(),
    "act": lambda client: client.act("$shared/g/#", "pause"),
}


@pytest.mark.parametrize("call", AFTERWARDS)
async def test_a_client_that_is_closed_stays_closed(client: Client, call: str) -> None:
    """It connected once more, and nobody closed that."""
    await client.create_space("s", ["a/#"])
    await client.groups.declare("$shared/g/#")
    await client.close()
    with pytest.raises(InvalidOption, match=r"^the client is closed: connect again$"):
        made = AFTERWARDS[call](client)
        assert isinstance(made, Awaitable)
        await made
    pool: Any = client.redis.connection_pool
    assert [one for one in pool._available_connections if one.is_connected] == []


async def test_a_subscription_that_is_not_entered_says_what_to_write(client: Client) -> None:
    anything: Any = client.subscribe("$shared/g/#")
    with pytest.raises(InvalidOption, match=r"write 'async with client\.subscribe"):
        async for _ in anything:
            pass


async def test_what_was_submitted_is_sent_before_its_client_is_closed(client: Client) -> None:
    """With its program's loop, a publisher that nobody closed ended, and with it what it had not sent."""
    await client.create_space("s", ["a/#"], streams=1)
    async with connect(client.url) as other:
        publisher, rested = other.publisher(), other.publisher(linger_ms=5000)
        for number in range(1000):
            await publisher.submit("a/b", str(number))
        await rested.submit("a/b", "last")
    assert await client.next_offsets(["s.0.0"]) == {("s", 0, 0): 1001}
    with pytest.raises(InvalidInput, match="the publisher is closed"):
        await publisher.send("a/b", b"x")
    await publisher.close()  # which it is


def test_what_was_submitted_is_sent_before_its_blocking_client_is_closed(real_redis_url: str) -> None:
    with blocking.connect(real_redis_url) as client:
        client.create_space("s", ["a/#"], streams=1)
        publisher = client.publisher()
        publisher.send("a/b", b"x")
        for number in range(1000):
            publisher.submit("a/b", str(number))
    with blocking.connect(real_redis_url) as client:
        assert client.next_offsets(["s.0.0"]) == {("s", 0, 0): 1001}


async def test_what_a_client_could_not_send_is_told_where_it_is_closed(client: Client) -> None:
    """And the rest of it is closed none the less."""
    await client.create_space("s", ["a/#"], streams=1)
    first, second = client.publisher(), client.publisher()
    await first.submit("a/b", b"x")
    await first.flush()
    await client.spaces.delete("s")
    await first.submit("a/b", b"y")
    await second.close()
    with pytest.raises(StreamleaseError, match=r"deleted|no space"):
        await client.close()
    pool: Any = client.redis.connection_pool
    assert [one for one in pool._available_connections if one.is_connected] == []


async def test_what_a_client_could_not_send_does_not_hide_why_it_was_left(client: Client) -> None:
    await client.create_space("s", ["a/#"], streams=1)
    with pytest.raises(ValueError, match="mine") as told:
        async with connect(client.url) as other:
            publisher = other.publisher()
            await publisher.send("a/b", b"x")
            await client.spaces.delete("s")
            await publisher.submit("a/b", b"y")
            raise ValueError("mine")
    (note,) = told.value.__notes__
    assert re.match(r"at the end of the block, too: .*(deleted|no space)", note)


async def forget_space(url: str) -> None:
    async with connect(url) as client:
        await client.spaces.delete("s")


def test_what_a_blocking_client_could_not_send_does_not_hide_why_it_was_left(real_redis_url: str) -> None:
    with pytest.raises(ValueError, match="mine") as told, blocking.connect(real_redis_url) as client:
        client.create_space("s", ["a/#"], streams=1)
        publisher = client.publisher()
        publisher.send("a/b", b"x")
        asyncio.run(forget_space(real_redis_url))
        publisher.submit("a/b", b"y")
        raise ValueError("mine")
    (note,) = told.value.__notes__
    assert re.match(r"at the end of the block, too: .*(deleted|no space)", note)


async def test_publishers_that_were_dropped_are_not_kept(client: Client) -> None:
    await client.create_space("s", ["a/#"], streams=1)
    await client.create_space("e", ["e/#"], streams=1, epochs=1)
    for number in range(20):
        async with client.publisher() as publisher:
            await publisher.send("a/b", b"x")
        async with client.epoch_publisher("e", "p") as of_epochs:
            await of_epochs.send("e/b", b"x", epoch=number)
    del publisher, of_epochs
    for _ in range(5):
        await asyncio.sleep(0)
        gc.collect()
    assert client._own.ends_of_publishers == []
