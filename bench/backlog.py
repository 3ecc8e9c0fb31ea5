"""A backlog of messages that were sent one by one, as it is, and when its small entries are merged."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable, Iterator
from itertools import count as counted
from pathlib import Path
from tempfile import TemporaryDirectory

import redis

from bench.consume import ranges, subscription
from bench.frame import Frame, Table, clear
from bench.messages import PAYLOAD_BYTES, SPACE, STREAMS, Messages
from bench.sparks import once, processor_time, session
from streamlease.agent.client import connect
from streamlease.protocol.ids import StreamId
from streamlease.streams.entries.entries import Row, encode_message
from streamlease.streams.log.compacting import Compacted, compact
from streamlease.streams.log.log import Append, AsyncLog
from streamlease.streams.redis.connection import connect as connect_redis

EVER = 2**60


async def send_one_by_one(url: str, data: Messages) -> None:
    """An entry for each message, as awaited sends write them, many appends in a write."""
    async with connect(url) as client:
        space = await client.create_space(SPACE, [f"{SPACE}/#"], streams=STREAMS)
        log, sequences = AsyncLog(client.redis), dict.fromkeys(space.streams(), 0)
        waiting: dict[StreamId, Append] = {}
        for topic, key, payload in zip(data.topics, data.keys, data.payloads, strict=True):
            stream = space.stream_for(topic)
            if stream in waiting:
                await log.append_many([*waiting.values()])
                waiting.clear()
            entry = encode_message(Row(topic, payload, key))
            waiting[stream] = Append(stream, "~bench", 1, sequences[stream], entry)
            sequences[stream] += 1
        await log.append_many([*waiting.values()])


async def merge_all(url: str, space: str = SPACE) -> None:
    """All that there is to merge in a space."""
    client = connect_redis(url)
    for shard in range(STREAMS):
        while isinstance(await compact(client, StreamId(space, 0, shard), EVER), Compacted):
            pass
    await client.aclose()


def measure(frame: Frame) -> Iterator[Table]:
    """Messages per second and processor time of a reader, and the memory of the server."""
    data, count = Messages.make(frame.messages), frame.messages
    table = Table(
        f"A backlog of {count:,} messages of {PAYLOAD_BYTES} bytes, sent one by one; best of {frame.runs}",
        ("", "messages/s", "processor us per message", "server MB"),
    )
    with frame.server() as url, redis.Redis.from_url(url) as plain:
        clear(url)
        asyncio.run(send_one_by_one(url, data))

        def run(name: str, work: Callable[[], object]) -> None:
            figures = []
            for _ in range(frame.runs):
                wall, processor = time.perf_counter(), time.process_time()
                work()
                figures.append((time.process_time() - processor, time.perf_counter() - wall))
            processor, wall = min(figures)
            memory = sum(plain.memory_usage(key) or 0 for key in plain.scan_iter("sl:{bench.*"))
            row = (name, f"{count / wall:,.0f}", f"{processor * 1e6 / count:.2f}", f"{memory / 1e6:.1f}")
            table.rows.append(row)

        groups = counted()

        def consume() -> None:
            asyncio.run(subscription(url, count, f"g{next(groups)}"))

        run("subscription, as they were sent", consume)
        run("ranges into Arrow, as they were sent", lambda: ranges(url, count))
        began = time.process_time()
        asyncio.run(merge_all(url))
        merging = time.process_time() - began
        run("subscription, merged", consume)
        run("ranges into Arrow, merged", lambda: ranges(url, count))
        table.rows.append(("merging them, once", "", f"{merging * 1e6 / count:.2f}", ""))
    yield table
    yield in_spark(frame, data)


def in_spark(frame: Frame, data: Messages) -> Table:
    """The same by one task of a streaming query, from a warm Java, into the sink that drops all."""
    count = len(data)
    table = Table(
        f"The same in Spark, one task, three columns; medians of {frame.runs}",
        ("", "messages/s", "addBatch ms", "processor us per message in the task's worker"),
    )
    with frame.server() as url, session(1) as spark, TemporaryDirectory() as folder:
        asyncio.run(send_one_by_one(url, data))
        numbers = counted()

        def run(name: str) -> None:
            figures = []
            for _ in range(frame.runs + 1):
                number, processor = next(numbers), processor_time()
                options = {"redis": url, "subscribe": f"$shared/s{number}/{SPACE}/#", "slots": "1"}
                options |= {"startingOffsets": "earliest", "columns": "payload,offset,timestamp"}
                rows, seconds = once(spark, "streamlease", options, Path(folder) / str(number))
                if rows != count:
                    raise SystemExit(f"{name}: {rows} of {count} rows")
                figures.append((seconds, processor_time() - processor))
            wall, processor = (statistics.median(each) for each in zip(*figures[1:], strict=True))
            row = (name, f"{count / wall:,.0f}", f"{wall * 1000:,.0f}", f"{processor * 1e6 / count:.2f}")
            table.rows.append(row)

        run("as they were sent")
        asyncio.run(merge_all(url))
        run("merged")
    return table
