"""Thousands of calls that are awaited at once: few connections, one look-up, and the order of the calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from streamlease.protocol.errors import (
    InvalidInput,
    MessageTooLarge,
    StoreRefused,
    StoreUnavailable,
    UnknownSpace,
)
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.publish.publisher import Publisher
from streamlease.streams.publish.turns import Turns
from streamlease.streams.redis import wire
from streamlease.streams.redis.connection import AsyncRedis, ask, connect, exchange
from streamlease.streams.spaces.spaces import SpaceStore
from tests.awake import awake
from tests.streams.helpers import offsets, until

pytestmark = pytest.mark.thorough


@pytest.fixture
async def fresh(real_redis_url: str) -> AsyncIterator[AsyncRedis]:
    """A client that has no connection yet."""
    client = connect(real_redis_url)
    yield client
    await client.aclose()


async def numbers(redis: AsyncRedis, name: str = "s") -> list[int]:
    """The payloads of a space with one stream, in their order."""
    (stream,) = (await SpaceStore(redis).get(name)).streams()
    batches: list[Any] = []
    while found := await AsyncLog(redis).read(stream, len(offsets(batches))):
        batches += found
    return [int(payload[-9:]) for batch in batches for payload in batch.column("payload").to_pylist()]


async def stat(redis: AsyncRedis, section: str, name: str) -> str:
    (text,) = await ask(redis, [("INFO", section)])
    found = dict(line.split(":", 1) for line in text.decode().splitlines() if ":" in line)
    return found.get(name, "calls=0")


@pytest.fixture
async def other(real_redis_url: str) -> AsyncIterator[AsyncRedis]:
    client = connect(real_redis_url)
    await SpaceStore(client).create("s", ["a/#"])
    yield client
    await client.aclose()


async def test_five_thousand_first_sends_are_written_in_order_over_few_connections(
    fresh: AsyncRedis, other: AsyncRedis
) -> None:
    connected = int(await stat(other, "stats", "total_connections_received"))
    looked = await stat(other, "commandstats", "cmdstat_hgetall")
    async with Publisher(fresh) as publisher:
        places = await asyncio.gather(*(publisher.send("a/x", str(number)) for number in range(5000)))
    assert [offset for _, offset in places] == [*range(5000)]
    assert await numbers(other) == [*range(5000)]
    opened = int(await stat(other, "stats", "total_connections_received")) - connected
    assert opened <= wire.AT_ONCE + 2
    calls = [
        int(text.split(",")[0].removeprefix("calls="))
        for text in (looked, await stat(other, "commandstats", "cmdstat_hgetall"))
    ]
    assert calls[1] - calls[0] <= 3


async def test_first_sends_to_many_topics_look_together(fresh: AsyncRedis, other: AsyncRedis) -> None:
    looked = 0
    spaces = SpaceStore(fresh)
    whole = spaces._table.read_all

    async def counted() -> Any:
        nonlocal looked
        looked += 1
        return await whole()

    spaces._table.read_all = counted  # type: ignore[method-assign]
    async with Publisher(fresh, spaces=spaces) as publisher:
        await asyncio.gather(*(publisher.send(f"a/{number}", b"1") for number in range(1000)))
    assert 1 <= looked <= 2


async def test_whatever_waits_at_once_takes_few_connections(fresh: AsyncRedis, other: AsyncRedis) -> None:
    connected = int(await stat(other, "stats", "total_connections_received"))
    await asyncio.gather(*(ask(fresh, [("GET", f"k{number}")]) for number in range(2000)))
    assert int(await stat(other, "stats", "total_connections_received")) - connected <= wire.AT_ONCE


@pytest.mark.parametrize("seed", range(4))
async def test_the_order_of_a_topic_holds_while_the_buffer_is_full(
    fresh: AsyncRedis, other: AsyncRedis, seed: int
) -> None:
    """Small messages must not slip past a large one that waits for room, nor past a batch of many."""
    async with Publisher(fresh, max_buffer_bytes=40_000, max_batch_messages=7 + seed) as publisher:
        calls: list[Any] = []
        for number in range(0, 1200, 4):
            size = 20_000 if number % (20 + seed) == 0 else 8
            calls.append(publisher.send("a/x", f"{number:0{size}d}"))
            calls.append(publisher.submit("a/x", b"%d" % (number + 1)))
            calls.append(publisher.send_many("a/x", [str(number + 2), str(number + 3)]))
        await asyncio.gather(*calls)
    assert await numbers(other) == [*range(1200)]


async def test_who_comes_while_others_wait_for_the_look_up_goes_behind_them(
    fresh: AsyncRedis, other: AsyncRedis
) -> None:
    spaces = SpaceStore(fresh)
    whole, go_on = spaces._table.read_all, asyncio.Event()

    async def held() -> Any:
        found = await whole()
        await go_on.wait()
        return found

    spaces._table.read_all = held  # type: ignore[method-assign]
    async with Publisher(fresh, spaces=spaces) as publisher:
        first = [asyncio.create_task(publisher.send("a/x", str(number))) for number in range(5)]
        await until(lambda: spaces._table._reading is not None)
        # These begin in the very turn of the event loop in which the look-up ends.
        asyncio.get_running_loop().call_soon(go_on.set)
        later = []
        for number in range(5, 40):
            later.append(asyncio.create_task(publisher.submit("a/x", b"%d" % number)))
            await asyncio.sleep(0)
        await asyncio.gather(*first, *later)
    assert await numbers(other) == [*range(40)]


async def test_a_call_that_is_given_up_leaves_the_others_their_turns(
    fresh: AsyncRedis, other: AsyncRedis
) -> None:
    spaces = SpaceStore(fresh)
    whole, go_on = spaces._table.read_all, asyncio.Event()

    async def held() -> Any:
        await go_on.wait()
        return await whole()

    spaces._table.read_all = held  # type: ignore[method-assign]
    async with Publisher(fresh, spaces=spaces) as publisher:
        calls = [asyncio.create_task(publisher.send("a/x", str(number))) for number in range(6)]
        await until(lambda: spaces._table._reading is not None)
        for given_up in (calls[0], calls[3]):  # the one that reads, and one that waits for it
            given_up.cancel()
        await asyncio.wait([calls[0], calls[3]])
        go_on.set()
        await asyncio.gather(*calls, return_exceptions=True)
        assert not publisher._turns.queues
    assert await numbers(other) == [1, 2, 4, 5]


async def test_a_message_that_is_refused_leaves_the_others_their_turns(
    fresh: AsyncRedis, other: AsyncRedis
) -> None:
    async with Publisher(fresh) as publisher:
        calls = [
            publisher.send("a/x", str(number), timestamp=None if number % 3 else 2**63) for number in range(9)
        ]
        found = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(one) for one in found[::3]] == [InvalidInput] * 3
        with pytest.raises(UnknownSpace):
            await publisher.send("nowhere", b"")
        with pytest.raises(MessageTooLarge):
            await publisher.send("a/x", b"x" * (16 * 2**20 + 1))
        assert not publisher._turns.queues
    assert await numbers(other) == [1, 2, 4, 5, 7, 8]


# -- look-ups that fail --------------------------------------------------------------------------------------


def failing(spaces: SpaceStore, error: Exception, times: int) -> None:
    """The next reads of the definitions fail."""
    whole = spaces._table.read_all
    left = times

    async def fails() -> Any:
        nonlocal left
        left -= 1
        if left >= 0:
            raise error
        return await whole()

    spaces._table.read_all = fails  # type: ignore[method-assign]


@pytest.mark.parametrize("error", [StoreUnavailable("away"), StoreRefused("LOADING")])
async def test_a_look_up_that_fails_is_repeated(
    fresh: AsyncRedis, other: AsyncRedis, error: Exception
) -> None:
    spaces = SpaceStore(fresh)
    failing(spaces, error, 3)
    async with Publisher(fresh, spaces=spaces) as publisher:
        await asyncio.gather(*(publisher.send("a/x", str(number)) for number in range(100)))
    assert await numbers(other) == [*range(100)]


async def test_a_look_up_is_given_up_in_time_by_all_who_wait(fresh: AsyncRedis, other: AsyncRedis) -> None:
    spaces = SpaceStore(fresh)
    failing(spaces, StoreUnavailable("away"), 10**6)
    with awake() as clock:
        async with Publisher(fresh, spaces=spaces, delivery_timeout=0.4) as publisher:
            calls = [publisher.send("a/x", b"") for _ in range(500)]
            calls += [publisher.send_many("a/x", [b""])]  # type: ignore[list-item]
            found = await asyncio.gather(*calls, return_exceptions=True)
    assert {str(one) for one in found} == {"away"}
    assert clock.seconds < 5.0


async def test_a_look_up_that_nobody_answers_ends_too(
    fresh: AsyncRedis, other: AsyncRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamlease.streams.publish.routes.LEAST_ATTEMPT", 0.1)
    spaces = SpaceStore(fresh)

    async def silent() -> Any:
        await asyncio.Event().wait()

    spaces._table.read_all = silent  # type: ignore[method-assign]
    async with Publisher(fresh, spaces=spaces, delivery_timeout=0.3) as publisher:
        found = await asyncio.gather(*(publisher.send("a/x", b"") for _ in range(50)), return_exceptions=True)
    assert {type(one) for one in found} == {StoreUnavailable}
    assert "'a/x' belongs" in str(found[0])


async def test_a_space_that_was_made_while_others_looked_is_found(
    fresh: AsyncRedis, other: AsyncRedis
) -> None:
    spaces = SpaceStore(fresh)
    whole, go_on = spaces._table.read_all, asyncio.Event()

    async def held() -> Any:
        found = await whole()
        await go_on.wait()
        return found

    spaces._table.read_all = held  # type: ignore[method-assign]
    before = asyncio.create_task(spaces.for_topic("b/x"))
    await until(lambda: spaces._table.fresh() is not None)
    spaces.forget()
    await SpaceStore(other).create("t", ["b/#"])
    after = asyncio.create_task(spaces.for_topic("b/x"))
    await asyncio.sleep(0)
    go_on.set()
    with pytest.raises(UnknownSpace):
        await before
    assert (await after).name == "t"


# -- the gate ------------------------------------------------------------------------------------------------


async def test_waiting_exchanges_take_no_room_and_give_it_back(
    fresh: AsyncRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "AT_ONCE", 1)
    reading = [
        asyncio.create_task(exchange(fresh, [("XREAD", "BLOCK", 60_000, "STREAMS", f"x{number}", "$")]))
        for number in range(3)
    ]
    assert await ask(fresh, [("SET", "k", "1")]) == [b"OK"]
    given_up = asyncio.create_task(ask(fresh, [("GET", "k")]))
    await asyncio.sleep(0)
    given_up.cancel()
    await asyncio.wait([given_up])
    assert await asyncio.gather(*(ask(fresh, [("GET", "k")]) for _ in range(20))) == [[b"1"]] * 20
    for task in reading:
        task.cancel()
    await asyncio.gather(*reading, return_exceptions=True)


async def test_an_exchange_that_finds_no_room_waits_while_others_go_through() -> None:
    gate = wire._Gate()
    hasty = connect("redis://here:6379", answer_seconds=0.05)
    patient = connect("redis://here:6379", answer_seconds=60)
    for _ in range(wire.AT_ONCE):
        await gate.enter(hasty)
    waiting = asyncio.create_task(gate.enter(hasty))
    with pytest.raises(StoreUnavailable, match="Redis at here:6379 does not answer"):
        await waiting
    waiting = asyncio.create_task(gate.enter(patient))
    await asyncio.sleep(0)
    gate.leave()
    await waiting


def test_turns_of_several_topics_never_wait_for_each_other() -> None:
    turns = Turns()
    first, second, third = turns.draw("ab"), turns.draw("ba"), turns.draw("b")
    assert [turn._behind for turn in (first, second, third)] == [0, 2, 1]
    with first:
        pass
    assert [turn._behind for turn in (second, third)] == [0, 1]
    with third:
        pass
    with second:
        pass
    assert not turns.queues
