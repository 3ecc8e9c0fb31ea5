"""Epochs: publishing and reading whole epochs beside doing so without; how soon, and what a frontier costs.

The leader host, which keeps the spaces, is a process of its own. Publishing is timed until the last epoch is
recorded as completed, so moving what was staged is in it; reading until the last message is there.
"""

from __future__ import annotations

import asyncio
import math
import statistics
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import redis

from bench.frame import Frame, Table, percentile
from bench.leaders import hosts_of
from bench.messages import PAYLOAD_BYTES
from streamlease.agent.client import Client, connect
from streamlease.agent.epochs.epoch_items import EpochBatch, Frontier
from streamlease.protocol.ids import StreamId
from streamlease.streams.epochs.core.fold import Fold
from streamlease.streams.epochs.core.lines import AdvanceLine, EnterLine
from streamlease.streams.epochs.stored import read_newest

WITHOUT, WITH = "bench", "bench-epochs"
STREAMS = 16
EPOCH_MESSAGES = 10_000
PACE = 100
"""Epochs a second of the steady rate."""
PACED_EPOCHS = 1000
PACED_MESSAGES = 32
PUBLISHERS = 1000
WIDE_STREAMS = 4096
TOUCHED = 10
WIDE_EPOCHS = 100
TOPICS = 256
"""Enough for each stream to have some."""


def measure(frame: Frame) -> Iterator[Table]:
    """Rates with and without epochs, then single figures with their bounds."""
    epochs = max(2, frame.messages // EPOCH_MESSAGES)
    table = Table(
        f"{epochs * EPOCH_MESSAGES:,} messages of {PAYLOAD_BYTES} bytes over {STREAMS} streams, "
        f"{EPOCH_MESSAGES:,} in an epoch; medians of {frame.runs}",
        ("", "without epochs /s", "with epochs /s", "ratio", "must be"),
    )
    published: dict[str, list[float]] = {WITHOUT: [], WITH: []}
    read: dict[str, list[float]] = {WITHOUT: [], WITH: []}
    for _ in range(frame.runs):
        with frame.server() as url:
            asyncio.run(_rates(url, epochs, published, read))
    for name, seconds, bound in (("publishing", published, ">= 0.5"), ("reading", read, ">= 0.9")):
        without, with_ = (statistics.median(seconds[space]) for space in (WITHOUT, WITH))
        count = epochs * EPOCH_MESSAGES
        table.rows.append(
            (name, f"{count / without:,.0f}", f"{count / with_:,.0f}", f"{without / with_:.2f}", bound)
        )
    yield table
    table = Table("Epochs, single figures", ("", "measured", "must be"))
    for work in (_paced, _wide):
        with frame.server() as url:
            table.rows.extend(asyncio.run(work(url)))
    table.rows.extend(_merging())
    yield table


@asynccontextmanager
async def _client(url: str) -> AsyncIterator[Client]:
    async with hosts_of(url, 1), connect(url, embedded=False) as client:
        yield client


async def _rates(
    url: str, epochs: int, published: dict[str, list[float]], read: dict[str, list[float]]
) -> None:
    topics = [f"{number % TOPICS}" for number in range(EPOCH_MESSAGES)]
    noise = Random(1).randbytes(PAYLOAD_BYTES * EPOCH_MESSAGES)
    payloads = [noise[at : at + PAYLOAD_BYTES] for at in range(0, len(noise), PAYLOAD_BYTES)]
    async with _client(url) as client:
        await client.create_space(WITHOUT, [f"{WITHOUT}/#"], streams=STREAMS)
        await client.create_space(WITH, [f"{WITH}/#"], streams=STREAMS, epochs=1)
        plain, whole = ([f"{space}/{topic}" for topic in topics] for space in (WITHOUT, WITH))
        began = time.perf_counter()
        async with client.publisher() as publisher:
            for _ in range(epochs):
                await publisher.submit_many(plain, payloads)
        published[WITHOUT].append(time.perf_counter() - began)
        async with client.epoch_publisher(WITH, "bench") as publisher:
            await publisher.advance(1)
            await _recorded(client, 1)
            began = time.perf_counter()
            for epoch in range(1, epochs + 1):
                await publisher.submit_many(whole, payloads, epoch=epoch)
                await publisher.advance(epoch + 1)
            await _recorded(client, epochs + 1)
            published[WITH].append(time.perf_counter() - began)
        total = epochs * EPOCH_MESSAGES
        read[WITHOUT].append(await _read(client, f"{WITHOUT}/#", total, {}))
        read[WITH].append(await _read(client, f"{WITH}/#", total, {"epochs": "atomic"}))


async def _read(client: Client, filter: str, total: int, options: dict[str, Any]) -> float:
    """Seconds until all messages are there, as Arrow."""
    began, seen = time.perf_counter(), 0
    async with client.listen(filter, start="earliest", **options) as items:
        async for item in items:
            if not isinstance(item, Frontier):
                seen += item.to_arrow().num_rows
            if seen >= total:
                return time.perf_counter() - began
    return math.nan


async def _recorded(client: Client, epoch: int) -> None:
    """Wait until all epochs below `epoch` are recorded as completed."""
    while True:
        newest = await read_newest(client.redis, WITH)
        if newest is not None and newest.lower >= ((epoch,),):
            return
        await asyncio.sleep(0.001)


async def _paced(url: str) -> list[Sequence[str]]:
    """From the return of `advance` to the atomic reader that has the epoch, at a steady rate."""
    async with _client(url) as client:
        await client.create_space(WITH, [f"{WITH}/#"], streams=STREAMS, epochs=1)
        given: dict[int, float] = {}
        times: list[float] = []
        begun = asyncio.Event()
        topics = [f"{WITH}/{number % TOPICS}" for number in range(PACED_MESSAGES)]

        async def reading() -> None:
            async with client.listen(f"{WITH}/#", start="earliest", epochs="atomic") as items:
                async for item in items:
                    if isinstance(item, EpochBatch):
                        times.append(time.perf_counter() - given[item.epoch[0]])
                        begun.set()
                        if len(times) > PACED_EPOCHS:
                            return

        reader = asyncio.create_task(reading())
        async with client.epoch_publisher(WITH, "bench") as publisher:
            began = time.perf_counter()
            for epoch in range(PACED_EPOCHS + 1):
                await asyncio.sleep(max(0.0, began + epoch / PACE - time.perf_counter()))
                await publisher.submit_many(topics, [b"x" * PAYLOAD_BYTES] * PACED_MESSAGES, epoch=epoch)
                given[epoch] = time.perf_counter()
                await publisher.advance(epoch + 1)
                if epoch == 0:  # which waits until the new space has a keeper; it does not count
                    await begun.wait()
                    began = time.perf_counter()
            seconds = time.perf_counter() - began
            await reader
    what = (
        f"epochs of {PACED_MESSAGES} messages over {STREAMS} streams, {PACED_EPOCHS / seconds:.0f} a second"
    )
    half, most = statistics.median(times[1:]) * 1000, percentile(times[1:], 99) * 1000
    return [
        (f"{what}: from calling advance to the atomic reader, p50", f"{half:.1f} ms", ""),
        (f"{what}: p99", f"{most:.1f} ms", "< 50 ms"),
    ]


async def _wide(url: str) -> list[Sequence[str]]:
    """An epoch that touches ten of many streams, and one of ten streams that there are."""
    found = []
    for streams in (TOUCHED, WIDE_STREAMS):
        with redis.Redis.from_url(url) as plain:
            plain.flushall()
        async with _client(url) as client:
            space = await client.create_space(WITH, [f"{WITH}/#"], streams=streams, epochs=1)
            topics = _topics(space.stream_for, TOUCHED)
            async with client.epoch_publisher(WITH, "bench") as publisher:
                await publisher.advance(1)
                await _recorded(client, 1)
                times = []
                for epoch in range(1, WIDE_EPOCHS + 1):
                    began = time.perf_counter()
                    await publisher.submit_many(topics, [b"x"] * TOUCHED, epoch=epoch)
                    await publisher.advance(epoch + 1)
                    await _recorded(client, epoch + 1)
                    times.append(time.perf_counter() - began)
        found.append(statistics.median(times) * 1000)
    few, many = found
    return [
        (f"an epoch in {TOUCHED} of {TOUCHED} streams, until it is recorded", f"{few:.1f} ms", ""),
        (
            f"an epoch in {TOUCHED} of {WIDE_STREAMS:,} streams",
            f"{many:.1f} ms ({many / few:.1f})",
            "by the 10",
        ),
    ]


def _topics(stream_of: Callable[[str], StreamId], count: int) -> list[str]:
    """Topics of so many different streams."""
    found: dict[StreamId, str] = {}
    number = 0
    while len(found) < count:
        topic = f"{WITH}/{number}"
        found.setdefault(stream_of(topic), topic)
        number += 1
    return [*found.values()]


def _merging() -> list[Sequence[str]]:
    """Folding one line of one of many publishers, each of which holds an epoch of its own."""
    fold = Fold(1)
    draw = Random(1)
    held = [0] * PUBLISHERS
    for number in range(PUBLISHERS):
        fold.apply(fold.line + 1, EnterLine(f"p{number}", 1))
    times = []
    for _ in range(20_000):
        one = draw.randrange(PUBLISHERS)
        held[one] += 1 + draw.randrange(3)
        line = AdvanceLine(f"p{one}", 1, ((held[one],),))
        began = time.perf_counter()
        fold.apply(fold.line + 1, line)
        times.append(time.perf_counter() - began)
    what = f"merging the change of one of {PUBLISHERS:,} publishers"
    half, most = statistics.median(times) * 1000, percentile(times, 99) * 1000
    return [(f"{what}, median and p99", f"{half:.3f}, {most:.3f} ms", "< 1 ms")]
