"""Memory: what messages take in Redis per byte of payload, single and in batches of 1,000."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import redis

from bench.frame import Frame, Table, clear
from bench.messages import PAYLOAD_BYTES, SPACE, STREAMS, Messages
from streamlease.agent.client import connect
from streamlease.streams.entries.entries import CODECS, Codec

BATCH_ROWS = 1000
MOST_MESSAGES = 100_000
MOST_SINGLE = 5000


def taken(client: redis.Redis) -> int:
    """Bytes of all keys of the benchmark, by MEMORY USAGE of every element."""
    return sum(
        int(client.memory_usage(key, samples=0) or 0)
        for pattern in ("bench:*", "sl:*")
        for key in client.scan_iter(pattern, 1000)
    )


async def _publish(url: str, data: Messages, rows: int, codec: Codec) -> None:
    async with connect(url) as client:
        await client.create_space(SPACE, [f"{SPACE}/#"], streams=STREAMS)
        async with client.publisher(compression=codec) as publisher:
            if rows == 1:
                for topic, payload, key, moment in zip(
                    data.topics, data.payloads, data.keys, data.times, strict=True
                ):
                    await publisher.send(topic, payload, key, timestamp=moment)
                return
            # One stream a call, so that each call becomes one entry of so many messages.
            for first in range(0, len(data), rows):
                part = slice(first, first + rows)
                topic = f"{SPACE}/{first // rows}"
                times = data.times[part]
                await publisher.send_many(topic, data.payloads[part], keys=data.keys[part], timestamps=times)


def measure(frame: Frame) -> Iterator[Table]:
    """Bytes in Redis per byte of payload."""
    data = Messages.make(min(MOST_MESSAGES, frame.messages))
    few = Messages.make(min(MOST_SINGLE, frame.messages))
    table = Table(
        f"Memory in Redis of messages of {PAYLOAD_BYTES} random bytes with topic, key and time",
        ("", "bytes a message", "times the payload"),
    )

    def row(name: str, messages: Messages) -> None:
        each = taken(plain) / len(messages)
        table.rows.append((name, f"{each:.1f}", f"{each / PAYLOAD_BYTES:.2f}"))

    with frame.server() as url, redis.Redis.from_url(url) as plain:
        data.xadd_pipelined(plain)
        row("redis-py XADD", data)
        clear(url)
        asyncio.run(_publish(url, few, 1, "zstd"))
        row("Streamlease single messages", few)
        for codec in CODECS:
            clear(url)
            asyncio.run(_publish(url, data, BATCH_ROWS, codec))
            row(f"Streamlease batches of {BATCH_ROWS:,}, {codec}", data)
    yield table
