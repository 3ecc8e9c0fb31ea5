"""NATS JetStream by nats-py: one stream of 16 subjects, a durable pull consumer."""

from __future__ import annotations

import time
from collections.abc import Callable

import nats
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from bench.contenders.workload import BATCH, PATIENCE, STREAMS, age_of, payloads, ticks

SUBJECTS = [f"peers.{number}" for number in range(STREAMS)]


async def prepare(url: str) -> None:
    """Make the stream."""
    client = await nats.connect(url)
    await client.jetstream().add_stream(name="peers", subjects=["peers.*"])
    await client.close()


class JetStream:
    """See the module."""

    async def publish(self, url: str, count: int) -> None:
        """Published without waiting for each; all acknowledged at the end."""
        client, stream = await self._open(url)
        for number, payload in enumerate(payloads(count)):
            await stream.publish_async(SUBJECTS[number % STREAMS], payload)
        await stream.publish_async_completed()
        await client.close()

    async def _open(self, url: str) -> tuple[Client, JetStreamContext]:
        client = await nats.connect(url)
        return client, client.jetstream()

    async def _pull(self, stream: JetStreamContext) -> JetStreamContext.PullSubscription:
        config = ConsumerConfig(
            ack_policy=AckPolicy.ALL, deliver_policy=DeliverPolicy.ALL, max_ack_pending=10 * BATCH
        )
        return await stream.pull_subscribe("peers.*", durable="g", config=config)

    async def consume(self, url: str, count: int, begun: Callable[[int], None]) -> None:
        """1,000 messages a fetch, the last one acknowledged for all."""
        client, stream = await self._open(url)
        pull, left = await self._pull(stream), count
        while left:
            batch = await pull.fetch(min(BATCH, left))
            await batch[-1].ack_sync(PATIENCE)
            if left == count:
                begun(len(batch))
            left -= len(batch)
        await client.close()

    async def send(self, url: str, count: int) -> list[float]:
        """`publish`, which waits for the acknowledgement."""
        client, stream = await self._open(url)
        seconds = []
        for number, payload in enumerate(payloads(count)):
            began = time.perf_counter()
            await stream.publish(SUBJECTS[number % STREAMS], payload)
            seconds.append(time.perf_counter() - began)
        await client.close()
        return seconds

    async def publish_paced(self, url: str, rate: int, seconds: float) -> None:
        """As `publish`."""
        client, stream = await self._open(url)
        number = 0
        async for due in ticks(rate, seconds):
            for payload in due:
                await stream.publish_async(SUBJECTS[number % STREAMS], payload)
                number += 1
        await stream.publish_async_completed()
        await client.close()

    async def consume_paced(self, url: str, count: int, ready: Callable[[], None]) -> list[int]:
        """A fetch gives what is there."""
        client, stream = await self._open(url)
        pull, ages = await self._pull(stream), list[int]()
        ready()
        while len(ages) < count:
            try:
                batch = await pull.fetch(BATCH, timeout=0.02)
            except TimeoutError:
                continue
            if not batch:
                continue
            ages += [age_of(message.data) for message in batch]
            await batch[-1].ack_sync(PATIENCE)
        await client.close()
        return ages


jetstream = JetStream()
