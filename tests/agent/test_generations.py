"""Subscriptions go on across generations: nothing is lost or comes twice, and each key keeps its order."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import pytest

from streamlease.agent.client import Client, connect
from streamlease.agent.subscription import SharedReader
from streamlease.protocol.errors import HistoryTruncated
from streamlease.streams import tasks
from streamlease.streams.log.log import AsyncLog
from tests.agent.helpers import SUB, until

TOPICS = 40
SIZES = (12, 5)


@dataclass
class Ledger:
    """What all consumers of a group got, in the order in which they got it."""

    got: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    generations: set[int] = field(default_factory=set)

    @property
    def count(self) -> int:
        return sum(map(len, self.got.values()))

    async def consume(self, reader: SharedReader, stop: asyncio.Event) -> None:
        async for batch in reader:
            for message in batch.messages:
                self.got[message.topic].append(int(message.payload))
            self.generations.add(batch.stream.generation)
            await batch.commit()
            if stop.is_set():
                return


async def sending(client: Client, sent: dict[str, int], stop: asyncio.Event) -> None:
    """Publish 0, 1, 2, ... to every topic."""
    async with client.publisher() as publisher:
        while not stop.is_set():
            for topic, number in sent.items():
                await publisher.submit(topic, b"%d" % number)
                sent[topic] = number + 1
            await publisher.flush()
            await asyncio.sleep(0.002)


@pytest.mark.slow
async def test_the_number_of_streams_changes_under_load(
    client: Client, second: Client, real_redis_url: str
) -> None:
    await client.create_space("a", ["a/#"], streams=8)
    ledger, sent = Ledger(), {f"a/{number}": 0 for number in range(TOPICS)}
    quiet, first_stops, stop = asyncio.Event(), asyncio.Event(), asyncio.Event()
    publisher = asyncio.create_task(sending(client, sent, quiet))

    async def restarted() -> None:
        """Consumes, is closed, and comes back as another session."""
        async with connect(real_redis_url) as third:
            for ending in (first_stops, stop):
                async with third.subscribe(SUB, start="earliest") as reader:
                    await ledger.consume(reader, ending)

    async def steady() -> None:
        async with second.subscribe(SUB, start="earliest") as reader:
            await ledger.consume(reader, stop)

    consumers = [asyncio.create_task(restarted()), asyncio.create_task(steady())]
    for size in SIZES:
        before = ledger.count
        await until(lambda before=before: ledger.count > before + 1000)  # type: ignore[misc]
        await client.spaces.generations.alter("a", streams=size)
        first_stops.set()
    last = len(SIZES)
    await until(lambda: last in ledger.generations)
    quiet.set()
    await publisher
    await until(lambda: ledger.count >= sum(sent.values()))
    assert ledger.generations == {0, 1, 2}
    assert dict(ledger.got) == {topic: list(range(count)) for topic, count in sent.items()}
    await tasks.stop(consumers)


@pytest.mark.slow
async def test_former_generations_are_finished_dropped_and_forgotten(client: Client, second: Client) -> None:
    await client.create_space("a", ["a/#"], streams=3)
    ledger, stop = Ledger(), asyncio.Event()
    async with AsyncExitStack() as stack:
        for one in (client, second):
            reader = await stack.enter_async_context(one.subscribe(SUB, start="earliest"))
            task = asyncio.create_task(ledger.consume(reader, stop))
            stack.callback(task.cancel)
        publisher = await stack.enter_async_context(client.publisher())
        for number in range(30):
            await publisher.send(f"a/{number}", b"0")
        await client.spaces.generations.alter("a", streams=2)
        for number in range(30):
            await publisher.send(f"a/{number}", b"1")
        await until(lambda: ledger.count == 60)
        await client.spaces.generations.drop("a", 0)
        for number in range(30):
            await publisher.send(f"a/{number}", b"2")
        await until(lambda: ledger.count == 90)
        assert all(got == [0, 1, 2] for got in ledger.got.values())
    assert await client.redis.keys("sl:{a.0.*") == []


async def test_a_sealed_space_is_read_to_its_end(client: Client) -> None:
    await client.create_space("a", ["a/#"], streams=2)
    ledger, stop = Ledger(), asyncio.Event()
    async with client.publisher() as publisher:
        for number in range(20):
            await publisher.submit(f"a/{number}", b"0")
    space = await client.spaces.generations.seal("a")
    async with client.subscribe(SUB, start="earliest") as reader:
        task = asyncio.create_task(ledger.consume(reader, stop))
        await until(lambda: ledger.count == 20)
        await until(lambda: not reader.streams)
        await tasks.stop([task])
    states = await AsyncLog(client.redis).states(space.streams())
    assert all(state.sealed for state in states.values())


@pytest.mark.parametrize("streams", [1, 5])
@pytest.mark.slow
async def test_plain_consumption_keeps_the_order_of_a_key_too(client: Client, streams: int) -> None:
    await client.create_space("a", ["a/#"], streams=3)
    sent = {f"a/{number}": 0 for number in range(10)}
    got: dict[str, list[int]] = defaultdict(list)

    async def publish(count: int) -> None:
        async with client.publisher() as publisher:
            for _ in range(count):
                for topic, number in sent.items():
                    await publisher.submit(topic, b"%d" % number)
                    sent[topic] = number + 1

    await publish(500)
    await client.spaces.generations.alter("a", streams=streams)
    await publish(300)
    await client.spaces.generations.alter("a", streams=4)
    await publish(100)
    async with client.listen("a/#", start="earliest") as batches, asyncio.timeout(20):
        more = True
        while sum(map(len, got.values())) < sum(sent.values()):
            for message in (await anext(batches)).messages:
                got[message.topic].append(int(message.payload))
            if more and len(got) == len(sent):
                more = False
                await client.spaces.generations.alter("a", streams=2)
                await publish(100)
        assert got == {topic: list(range(count)) for topic, count in sent.items()}
        # What is dropped after it was read does not hold up the rest.
        for number in range(3):
            await client.spaces.generations.drop("a", number)
        await publish(5)
        while sum(map(len, got.values())) < sum(sent.values()):
            for message in (await anext(batches)).messages:
                got[message.topic].append(int(message.payload))
    assert got == {topic: list(range(count)) for topic, count in sent.items()}


async def test_a_generation_that_is_dropped_unread_is_no_silent_loss(client: Client) -> None:
    await client.create_space("a", ["a/#"], streams=1)
    async with (
        client.publisher() as publisher,
        client.listen("a/#", start="earliest", max_batch=1) as batches,
    ):
        for number in range(5):
            await publisher.send("a/x", b"%d" % number)
        await anext(batches)
        await client.spaces.generations.alter("a", streams=2)
        await client.spaces.generations.drop("a", 0)
        with pytest.raises(HistoryTruncated):
            async with asyncio.timeout(20):
                while True:
                    await anext(batches)
