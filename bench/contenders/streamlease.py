"""Streamlease as the README uses it: default settings, the leader in the consumer's process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from bench.contenders.workload import STREAMS, age_of, payloads, ticks
from streamlease.agent.blocking import connect as connect_blocking
from streamlease.agent.client import connect

SPACE = "peers"
TOPICS = [f"{SPACE}/{number}" for number in range(8 * STREAMS)]
EVERYTHING = f"$shared/peers/{SPACE}/#"


async def prepare(url: str) -> None:
    """Make the space."""
    async with connect(url, embedded=False) as client:
        await client.create_space(SPACE, [f"{SPACE}/#"], streams=STREAMS)


class Messages:
    """Consumes message by message."""

    async def publish(self, url: str, count: int) -> None:
        """One `submit` per message; the publisher's end waits for all confirmations."""
        async with connect(url) as client, client.publisher() as publisher:
            for number, payload in enumerate(payloads(count)):
                await publisher.submit(TOPICS[number % len(TOPICS)], payload)

    async def consume(self, url: str, count: int, begun: Callable[[int], None]) -> None:
        """The README's loop."""
        left = count
        async with connect(url) as client, client.subscribe(EVERYTHING, start="earliest") as batches:
            async for batch in batches:
                seen = sum(1 for message in batch.messages if message.payload is not None)
                await batch.commit()
                if left == count:
                    begun(seen)
                left -= seen
                if not left:
                    return

    async def send(self, url: str, count: int) -> list[float]:
        """`send` of the asynchronous client."""
        seconds = []
        async with connect(url) as client, client.publisher() as publisher:
            for number, payload in enumerate(payloads(count)):
                began = time.perf_counter()
                await publisher.send(TOPICS[number % len(TOPICS)], payload)
                seconds.append(time.perf_counter() - began)
        return seconds

    async def publish_paced(self, url: str, rate: int, seconds: float) -> None:
        """`submit`, a message at a time."""
        number = 0
        async with connect(url) as client, client.publisher() as publisher:
            async for due in ticks(rate, seconds):
                for payload in due:
                    await publisher.submit(TOPICS[number % len(TOPICS)], payload)
                    number += 1

    async def consume_paced(self, url: str, count: int, ready: Callable[[], None]) -> list[int]:
        """The README's loop, when it holds all streams."""
        ages: list[int] = []
        async with connect(url) as client, client.subscribe(EVERYTHING, start="earliest") as batches:
            reading = asyncio.ensure_future(anext(batches))
            while len(batches.streams) < STREAMS:  # noqa: ASYNC110 - nothing tells of a grant
                await asyncio.sleep(0.01)
            ready()
            batch = await reading
            while True:
                ages += [age_of(message.payload) for message in batch.messages]
                await batch.commit()
                if len(ages) >= count:
                    return ages
                batch = await anext(batches)


class Arrow(Messages):
    """Consumes record batches."""

    async def consume(self, url: str, count: int, begun: Callable[[int], None]) -> None:
        """The same loop, with `to_arrow`."""
        left = count
        async with connect(url) as client, client.subscribe(EVERYTHING, start="earliest") as batches:
            async for batch in batches:
                seen = batch.to_arrow().num_rows
                await batch.commit()
                if left == count:
                    begun(seen)
                left -= seen
                if not left:
                    return


class Blocking:
    """The blocking client's `send`."""

    def send(self, url: str, count: int) -> list[float]:
        """One after the other."""
        seconds = []
        with connect_blocking(url) as client, client.publisher() as publisher:
            for number, payload in enumerate(payloads(count)):
                began = time.perf_counter()
                publisher.send(TOPICS[number % len(TOPICS)], payload)
                seconds.append(time.perf_counter() - began)
        return seconds


messages, arrow, blocking = Messages(), Arrow(), Blocking()
