"""Publishing: Streamlease's ways beside redis-py's pipelined single XADD, over few streams and over many."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping

import redis

from bench.frame import Contender, Frame, Table, clear, rates, seconds_of
from bench.messages import MANY_SPACES, PAYLOAD_BYTES, SPACE, STREAMS, Messages
from streamlease.agent.client import connect
from streamlease.streams.publish.publisher import Publisher

BASE = "redis-py pipelined XADD"
BATCH_ROWS = 10_000

Way = Callable[[Publisher, Messages], Awaitable[None]]


async def message_by_message(publisher: Publisher, data: Messages) -> None:
    """One ``submit`` for each message."""
    for topic, key, payload, moment in zip(data.topics, data.keys, data.payloads, data.times, strict=True):
        await publisher.submit(topic, payload, key, timestamp=moment)


async def record_batches(publisher: Publisher, data: Messages) -> None:
    """Arrow record batches, made from Python lists on the way."""
    for first in range(0, len(data), BATCH_ROWS):
        await publisher.send_batch("topic", data.record_batch(first, BATCH_ROWS))


async def lists(publisher: Publisher, data: Messages) -> None:
    """Plain Python lists, 10,000 messages a call."""
    for first in range(0, len(data), BATCH_ROWS):
        part = slice(first, first + BATCH_ROWS)
        await publisher.submit_many(
            data.topics[part], data.payloads[part], keys=data.keys[part], timestamps=data.times[part]
        )


WAYS: dict[str, Way] = {
    "Streamlease messages": message_by_message,
    "Streamlease lists of messages": lists,
    "Streamlease record batches": record_batches,
}


def publish(url: str, data: Messages, way: Way = record_batches) -> float:
    """Publish all messages into new spaces; the seconds from the new publisher to its end."""

    async def run() -> float:
        async with connect(url) as client:
            if data.streams == STREAMS:
                await client.create_space(SPACE, [f"{SPACE}/#"], streams=STREAMS)
            else:
                for name in MANY_SPACES:
                    await client.create_space(name, [f"{name}/#"], streams=data.streams // len(MANY_SPACES))
            began = time.perf_counter()
            async with client.publisher() as publisher:
                await way(publisher, data)
            return time.perf_counter() - began

    return asyncio.run(run())


async def one_list(publisher: Publisher, data: Messages) -> None:
    """Plain Python lists, all messages in one call."""
    await publisher.submit_many(data.topics, data.payloads, keys=data.keys, timestamps=data.times)


def measure(frame: Frame) -> Iterator[Table]:
    """Messages per second of each way."""
    yield _table(frame, Messages.make(frame.messages), WAYS)
    many = {**WAYS, "Streamlease, one list of all": one_list}
    yield _table(frame, Messages.over_many_streams(frame.messages), many)


def _table(frame: Frame, data: Messages, ways: Mapping[str, Way]) -> Table:
    with frame.server() as url, redis.Redis.from_url(url) as plain:
        contenders: dict[str, Contender] = {BASE: lambda: seconds_of(lambda: data.xadd_pipelined(plain))}
        for name, way in ways.items():
            contenders[name] = lambda way=way: publish(url, data, way)  # type: ignore[misc]
        seconds = frame.side_by_side(contenders, lambda: clear(url))
    title = (
        f"Publishing {frame.messages:,} messages of {PAYLOAD_BYTES} bytes over {data.streams:,} streams, "
        f"median of {frame.runs}"
    )
    return rates(title, seconds, frame.messages, BASE)
