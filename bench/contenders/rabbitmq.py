"""RabbitMQ streams by rstream: 16 streams, offsets stored under a name."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable
from urllib.parse import urlsplit

from rstream import (
    ConfirmationStatus,
    Consumer,
    ConsumerOffsetSpecification,
    MessageContext,
    OffsetType,
    Producer,
)

from bench.contenders.workload import BATCH, STREAMS, age_of, payloads, ticks

NAMES = [f"peers-{number}" for number in range(STREAMS)]
GROUP = "g"
COMMIT_SECONDS = 0.005
"""How long a consumer gathers before it stores offsets: the client hands on messages, not batches."""


def _address(url: str) -> dict[str, object]:
    parts = urlsplit(url)
    return {"host": parts.hostname, "port": parts.port, "username": "guest", "password": "guest"}


async def prepare(url: str) -> None:
    """Make the streams."""
    async with Producer(**_address(url)) as producer:
        for name in NAMES:
            await producer.create_stream(name)


class Confirmed:
    """Counts confirmations."""

    def __init__(self) -> None:
        self.count = 0
        self._more = asyncio.Event()

    def __call__(self, status: ConfirmationStatus) -> None:
        if not status.is_confirmed:
            raise RuntimeError(f"RabbitMQ did not confirm message {status.message_id}")
        self.count += 1
        self._more.set()

    async def wait_for(self, count: int) -> None:
        """Wait until there are so many."""
        while self.count < count:
            self._more.clear()
            await self._more.wait()


class Rabbit:
    """See the module."""

    async def publish(self, url: str, count: int) -> None:
        """`send_batch` of 1,000, all confirmed at the end."""
        data = payloads(count)
        confirmed = Confirmed()
        async with Producer(**_address(url)) as producer:
            for place, name in enumerate(NAMES):
                mine = data[place::STREAMS]
                for first in range(0, len(mine), BATCH):
                    await producer.send_batch(name, mine[first : first + BATCH], on_publish_confirm=confirmed)
            await confirmed.wait_for(count)

    async def consume(self, url: str, count: int, begun: Callable[[int], None]) -> None:
        """A callback for each message; the newest offset of each stream is stored every 5 ms, unconfirmed."""
        await self._read(url, count, lambda payload: None, begun=begun)

    async def _read(
        self,
        url: str,
        count: int,
        take: Callable[[bytes], object],
        *,
        begun: Callable[[int], None] = lambda size: None,
        ready: Callable[[], None] = lambda: None,
    ) -> None:
        seen, stored = 0, 0
        read: dict[str, int] = {}
        came = asyncio.Event()

        def got(payload: bytes, context: MessageContext) -> None:
            nonlocal seen
            take(payload)
            read[context.stream] = context.offset
            if not seen:
                begun(1)
            seen += 1
            came.set()

        consumer = Consumer(**_address(url))
        for name in NAMES:
            await consumer.subscribe(
                name,
                got,
                subscriber_name=GROUP,
                offset_specification=ConsumerOffsetSpecification(OffsetType.FIRST, None),
            )
        ready()
        while stored < count:
            await came.wait()
            came.clear()
            newest, stored = dict(read), seen
            for name, offset in newest.items():
                await consumer.store_offset(name, GROUP, offset)
            if stored < count:
                await asyncio.sleep(COMMIT_SECONDS)
        await consumer.close()

    async def send(self, url: str, count: int) -> list[float]:
        """`send_wait`."""
        seconds = []
        async with Producer(**_address(url)) as producer:
            for number, payload in enumerate(payloads(count)):
                began = time.perf_counter()
                await producer.send_wait(NAMES[number % STREAMS], payload)
                seconds.append(time.perf_counter() - began)
        return seconds

    async def publish_paced(self, url: str, rate: int, seconds: float) -> None:
        """What is due at once goes into a batch for each stream."""
        number = 0
        confirmed = Confirmed()
        async with Producer(**_address(url)) as producer:
            async for due in ticks(rate, seconds):
                of_stream = defaultdict(list)
                for payload in due:
                    of_stream[NAMES[number % STREAMS]].append(payload)
                    number += 1
                for name, some in of_stream.items():
                    await producer.send_batch(name, some, on_publish_confirm=confirmed)
            await confirmed.wait_for(number)

    async def consume_paced(self, url: str, count: int, ready: Callable[[], None]) -> list[int]:
        """As `consume`."""
        ages: list[int] = []
        await self._read(url, count, lambda payload: ages.append(age_of(payload)), ready=ready)
        return ages


streams = Rabbit()
