"""Epochs: publishing and reading whole epochs beside doing so without; how soon, and what a frontier costs.

The leader host, which keeps the spaces, is a process of its own. Both sides publish the same lists, wait
behind each until it is written or given up, and take turns: A B B A, then B A A B; what a turn needs is open
and warm. Publishing is timed until the last epoch is recorded as completed, so moving what was staged is in
it; reading until the last message is there.
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
from streamlease.streams.collections.snapshots import make_snapshot, newest_snapshots
from streamlease.streams.epochs.core.fold import Fold
from streamlease.streams.epochs.core.lines import AdvanceLine, EnterLine
from streamlease.streams.epochs.stored import read_newest

WITHOUT, WITH, ITEMS = "bench", "bench-epochs", "bench-items"
STREAMS = 16
EPOCH_MESSAGES = 10_000
PACE = 100
"""Epochs a second of the steady rate."""
PACED_EPOCHS = 1000
PACED_MESSAGES = 32
PUBLISHERS = 1000
WIDE_STREAMS = (4096, 4095, 4096)
"""Of the generations of a space: one has 4,096 at most. The newest takes the messages."""
TOUCHED = 10
WIDE_EPOCHS = 100
FULL_EPOCHS, IN_EACH = 5, 4
"""So many epochs have so many messages for each of the streams of a generation, on average."""
TOPICS = 256
"""Enough for each stream to have some."""
ITEMS_OF = 5
"""So many items has the collection for each message of a run, and twice as many changes come behind it."""
ITEM_STREAMS = 4


def measure(frame: Frame) -> Iterator[Table]:
    """Rates with and without epochs, then single figures with their bounds."""
    epochs = max(1, frame.messages // EPOCH_MESSAGES)
    table = Table(
        f"turns of {epochs * EPOCH_MESSAGES:,} messages of {PAYLOAD_BYTES} bytes over {STREAMS} streams, "
        f"{EPOCH_MESSAGES:,} in an epoch; medians of {2 * frame.runs}",
        ("", "without epochs /s", "with epochs /s", "ratio", "must be"),
    )
    published: dict[str, list[float]] = {WITHOUT: [], WITH: []}
    read: dict[str, list[float]] = {WITHOUT: [], WITH: []}
    for run in range(frame.runs):
        turns = (WITHOUT, WITH, WITH, WITHOUT) if run % 2 == 0 else (WITH, WITHOUT, WITHOUT, WITH)
        with frame.server() as url:
            asyncio.run(_rates(url, epochs, turns, published, read))
    for name, seconds, bound in (("publishing", published, ">= 0.5"), ("reading", read, ">= 0.9")):
        without, with_ = (statistics.median(seconds[space]) for space in (WITHOUT, WITH))
        count = epochs * EPOCH_MESSAGES
        table.rows.append(
            (name, f"{count / without:,.0f}", f"{count / with_:,.0f}", f"{without / with_:.2f}", bound)
        )
    yield table
    table = Table("Epochs, single figures", ("", "measured", "must be"))
    for work in (_paced, _wide, _in_all_streams):
        with frame.server() as url:
            table.rows.extend(asyncio.run(work(url)))
    table.rows.extend(_merging())
    with frame.server() as url:
        table.rows.extend(asyncio.run(_items(url, ITEMS_OF * frame.messages)))
    yield table


@asynccontextmanager
async def _client(url: str) -> AsyncIterator[Client]:
    async with hosts_of(url, 1), connect(url, embedded=False) as client:
        yield client


async def _rates(
    url: str,
    epochs: int,
    turns: Sequence[str],
    published: dict[str, list[float]],
    read: dict[str, list[float]],
) -> None:
    topics = [f"{number % TOPICS}" for number in range(EPOCH_MESSAGES)]
    noise = Random(1).randbytes(PAYLOAD_BYTES * EPOCH_MESSAGES)
    payloads = [noise[at : at + PAYLOAD_BYTES] for at in range(0, len(noise), PAYLOAD_BYTES)]
    async with _client(url) as client:
        await client.create_space(WITHOUT, [f"{WITHOUT}/#"], streams=STREAMS)
        await client.create_space(WITH, [f"{WITH}/#"], streams=STREAMS, epochs=1)
        plain, whole = ([f"{space}/{topic}" for topic in topics] for space in (WITHOUT, WITH))
        async with client.publisher() as one, client.epoch_publisher(WITH, "bench") as other:

            async def publish(space: str, first: int, count: int) -> None:
                for epoch in range(first, first + count):
                    if space == WITHOUT:
                        await one.submit_many(plain, payloads)
                        await one.flush()
                    else:
                        await other.submit_many(whole, payloads, epoch=epoch)
                        await other.advance(epoch + 1)
                if space == WITH:
                    await _recorded(client, first + count)

            for space in turns[:2]:
                await publish(space, 0, 1)
            next = dict.fromkeys(turns, 1)
            for space in turns:
                began = time.perf_counter()
                await publish(space, next[space], epochs)
                published[space].append(time.perf_counter() - began)
                next[space] += epochs
        total = next[WITH] * EPOCH_MESSAGES
        for space in turns:
            options = {"epochs": "atomic"} if space == WITH else {}
            seconds = await _read(client, f"{space}/#", total, options)
            read[space].append(seconds * epochs / next[space])


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
    """An epoch that touches ten of many streams, of one generation and of several, and of ten in all."""
    found = []
    for streams, *more in ((TOUCHED,), WIDE_STREAMS[:1], WIDE_STREAMS):
        with redis.Redis.from_url(url) as plain:
            plain.flushall()
        async with _client(url) as client:
            space = await client.create_space(WITH, [f"{WITH}/#"], streams=streams, epochs=1)
            for others in more:
                space = await client.alter_space(WITH, streams=others)
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
    few, many, most = found
    rows: list[Sequence[str]] = [
        (f"an epoch in {TOUCHED} of {TOUCHED} streams, until it is recorded", f"{few:.1f} ms", "")
    ]
    for count, half in ((WIDE_STREAMS[0], many), (sum(WIDE_STREAMS), most)):
        generations = "" if count == WIDE_STREAMS[0] else f" in {len(WIDE_STREAMS)} generations"
        what = f"an epoch in {TOUCHED} of {count:,} streams{generations}"
        rows.append((what, f"{half:.1f} ms ({half / few:.1f})", "by the 10"))
    return rows


async def _in_all_streams(url: str) -> list[Sequence[str]]:
    """Reading epochs of a few messages in each of many streams."""
    streams = WIDE_STREAMS[0]
    topics = [f"{WITH}/{number}" for number in range(IN_EACH * streams)]
    async with _client(url) as client:
        await client.create_space(WITH, [f"{WITH}/#"], streams=streams, epochs=1)
        async with client.epoch_publisher(WITH, "bench") as publisher:
            for epoch in range(FULL_EPOCHS):
                await publisher.submit_many(topics, [b"x" * PAYLOAD_BYTES] * len(topics), epoch=epoch)
                await publisher.advance(epoch + 1)
            await _recorded(client, FULL_EPOCHS)
            total = FULL_EPOCHS * len(topics)
            times = [await _read(client, f"{WITH}/#", total, {"epochs": "atomic"}) for _ in range(3)]
    what = f"reading {FULL_EPOCHS} epochs, each of {len(topics):,} messages over {streams:,} streams"
    return [(what, f"{statistics.median(times):.2f} s", "")]


async def _items(url: str, count: int) -> list[Sequence[str]]:
    """How soon a late subscriber of a collection has all: fresh snapshots, and with changes behind them."""
    named = [f"{ITEMS}/{number % TOPICS}" for number in range(EPOCH_MESSAGES)]

    async def change(client: Client, first: int, diff: int) -> None:
        keys = [f"item{number:07}" for number in range(first, min(count, first + EPOCH_MESSAGES))]
        payloads = [b"%09d" % number for number in range(first, first + len(keys))]
        async with client.publisher() as publisher:
            await publisher.submit_many(named[: len(keys)], payloads, keys=keys, diffs=[diff] * len(keys))

    async with connect(url, embedded=False) as client:
        space = await client.create_space(ITEMS, [f"{ITEMS}/#"], streams=ITEM_STREAMS, collection=True)
        for first in range(0, count, EPOCH_MESSAGES):
            await change(client, first, 1)
        for stream, end in (await client.next_offsets(space.streams())).items():
            upto = 0
            while upto < end:  # as a leader host would, which is left out so that later ones are not made
                (former,) = (await newest_snapshots(client.redis, [stream])).values()
                made = await make_snapshot(client.redis, space, stream, end, former)
                assert made is not None
                upto = made.upto
        fresh, behind = await _complete(client, count)
        for diff in (-1, 1):
            for first in range(0, count, EPOCH_MESSAGES):
                await change(client, first, diff)
        late, further = await _complete(client, count)
    what = f"a collection of {count:,} items in {ITEM_STREAMS} streams: complete for a late subscriber"
    return [
        (f"{what}, {behind:,} changes behind the snapshots", f"{fresh:.1f} s", "< 10 s"),
        (f"{what}, {further:,} changes behind the snapshots", f"{late:.1f} s", "< 10 s"),
    ]


async def _complete(client: Client, count: int) -> tuple[float, int]:
    """Seconds until all items are there, and how many changes were behind the snapshots."""
    space = await client.spaces.get(ITEMS)
    snapshots = await newest_snapshots(client.redis, space.streams())
    began = time.perf_counter()
    async with client.collection(f"{ITEMS}/#") as items:
        seconds = time.perf_counter() - began
        if len(items.items) != count:
            raise RuntimeError(f"the collection has {len(items.items):,} items of {count:,}")
    ends = await client.next_offsets(space.streams())
    return seconds, sum(end - snapshots[stream].upto for stream, end in ends.items())


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
