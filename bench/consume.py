"""Consuming: a shared subscription and ranges into Arrow beside redis-py's XREADGROUP and XACK."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import redis

from bench.frame import Frame, Table, clear, rates, seconds_of
from bench.messages import PAYLOAD_BYTES, PIPELINE, SPACE, STREAMS, Messages, stream_of
from bench.publish import publish
from streamlease.agent.client import connect
from streamlease.protocol.ids import StreamId
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.log.segments import read_range
from streamlease.streams.redis.connection import connect_blocking, run_blocking

BASE = "redis-py XREADGROUP + XACK"


def xreadgroup(client: redis.Redis, count: int) -> None:
    """Plain redis-py: 1,000 entries a call, each acknowledged."""
    names = [stream_of(number) for number in range(STREAMS)]
    for name in names:
        client.xgroup_create(name, "g", "0", mkstream=True)
    left = count
    while left:
        for name, entries in client.xreadgroup("g", "c", dict.fromkeys(names, ">"), count=PIPELINE):
            client.xack(name, "g", *[id for id, _ in entries])
            left -= len(entries)


async def subscription(url: str, count: int, group: str = "bench") -> None:
    """A shared subscription, from finding its leader on; each batch committed."""
    left = count
    async with (
        connect(url) as client,
        client.subscribe(f"$shared/{group}/{SPACE}/#", start="earliest", max_batch=10_000) as batches,
    ):
        async for batch in batches:
            left -= batch.to_arrow().num_rows
            await batch.commit()
            if not left:
                return


def ranges(url: str, count: int) -> None:
    """Ranges into Arrow, as a Spark task reads them."""
    redis = connect_blocking(url)
    streams = [StreamId(SPACE, 0, shard) for shard in range(STREAMS)]
    rows = sum(
        batch.num_rows
        for stream, end in run_blocking(AsyncLog(redis).next_offsets(streams)).items()
        for batch in read_range(redis, stream, 0, end)
    )
    if rows != count:
        raise SystemExit(f"read {rows} of {count} messages")


def measure(frame: Frame) -> Iterator[Table]:
    """Messages per second of each way; all read what was just published."""
    data, count = Messages.make(frame.messages), frame.messages
    with frame.server() as url, redis.Redis.from_url(url) as plain:

        def fill() -> None:
            clear(url)
            data.xadd_pipelined(plain)
            publish(url, data)

        seconds = frame.side_by_side(
            {
                BASE: lambda: seconds_of(lambda: xreadgroup(plain, count)),
                "Streamlease subscription + commit": lambda: seconds_of(
                    lambda: asyncio.run(subscription(url, count))
                ),
                "Streamlease ranges into Arrow": lambda: seconds_of(lambda: ranges(url, count)),
            },
            fill,
        )
    title = f"Consuming {count:,} messages of {PAYLOAD_BYTES} bytes, median of {frame.runs}"
    yield rates(title, seconds, count, BASE)
