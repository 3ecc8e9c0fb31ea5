"""Latency: single messages awaited one by one, beside redis-py's XADD."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator

import redis
import redis.asyncio

from bench.frame import Frame, Table, clear, latencies
from bench.messages import PAYLOAD_BYTES, SPACE, STREAMS, Messages, stream_of
from streamlease.agent.client import connect
from streamlease.streams.redis.connection import connect as connect_redis

BASE = "redis-py XADD (asyncio)"
MOST_MESSAGES = 2000
WARM = 20


async def timed(count: int, send: Callable[[int], Awaitable[object]]) -> list[float]:
    """Seconds of each of `count` calls; those before them, which warm up, do not count."""
    seconds = []
    for number in range(-min(WARM, count), count):
        began = time.perf_counter()
        await send(number)
        if number >= 0:
            seconds.append(time.perf_counter() - began)
    return seconds


async def xadd(url: str, data: Messages) -> list[float]:
    """Seconds of each XADD."""
    client: redis.asyncio.Redis = connect_redis(url)  # type: ignore[assignment]
    try:
        return await timed(len(data), lambda number: client.xadd(stream_of(number), data.fields(number)))
    finally:
        await client.aclose()


async def send(url: str, data: Messages, durability: str = "memory") -> list[float]:
    """Seconds of each ``send``."""
    async with connect(url) as client:
        await client.create_space(SPACE, [f"{SPACE}/#"], streams=STREAMS, durability=durability)
        async with client.publisher() as publisher:
            return await timed(
                len(data),
                lambda n: publisher.send(
                    data.topics[n], data.payloads[n], data.keys[n], timestamp=data.times[n]
                ),
            )


def measure(frame: Frame) -> Iterator[Table]:
    """Milliseconds of one message, all runs together."""
    data = Messages.make(min(MOST_MESSAGES, frame.messages))
    seconds: dict[str, list[float]] = {BASE: [], "Streamlease send": []}
    with frame.server() as url:
        for _ in range(frame.runs):
            clear(url)
            seconds[BASE] += asyncio.run(xadd(url, data))
            seconds["Streamlease send"] += asyncio.run(send(url, data))
    title = f"One awaited message of {PAYLOAD_BYTES} bytes, {len(data):,} in each of {frame.runs} runs"
    yield latencies(title, seconds, BASE)
