"""Wide subscriptions: the same messages over 16 and over 10,000 streams, consumed by one consumer.

The leader is in the consumer's process, and the time begins with `connect`: finding the leader, being granted
all streams, and the commit of every batch are in it. A batch is of one stream, so with 10,000 streams there
are as many batches and commits at least: each of them is awaited, or they are gathered (``commit_soon``) and
flushed at the end. Every turn has a group of its own. A turn that does not count comes first, over the fewest
streams: it has the imports.

Beside that stands what the same streams cost without a group, at least: to ask for what each has and get the
answers, many in a write; the same and to make messages of them; and so many questions, each of which awaits
its answer, as awaited commits do. What is left is leases, batches, commits and their bookkeeping.

A plain subscription reads them, too, and then hears of single messages.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

from bench.frame import Frame, Table, percentile
from bench.messages import PAYLOAD_BYTES
from streamlease.agent.client import connect
from streamlease.agent.fetching import MOST_STREAMS
from streamlease.protocol.errors import StreamleaseError
from streamlease.protocol.ids import StreamId
from streamlease.streams.entries.message_rows import ALL_COLUMNS
from streamlease.streams.log.keys import stream_meta
from streamlease.streams.log.many import read_each
from streamlease.streams.log.ranges import MOST_FIRST_COUNT, RangeReader
from streamlease.streams.redis.connection import AsyncRedis, exchange
from streamlease.streams.redis.connection import connect as connect_redis
from streamlease.streams.redis.lines.direct_line import open_direct_line
from streamlease.streams.redis.wire import AsyncServer

SIZES = (16, 10_000)
MOST_IN_SPACE = 2500
"""Streams of one space."""

SINGLE = 200
"""Messages that are sent one by one."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What one consumer took, in seconds; until its first batch, and to the end."""

    first: float
    seconds: float
    processor: float
    batches: int


async def fill(url: str, streams: int, count: int) -> None:
    """Make spaces with so many streams, and publish `count` messages, each to a topic of its own."""
    spaces = -(-streams // MOST_IN_SPACE)
    async with connect(url, embedded=False) as client, client.publisher() as publisher:
        for space in range(spaces):
            await client.create_space(
                f"wide-{streams}-{space}", [f"wide/{streams}/{space}/#"], streams=streams // spaces
            )
        for number in range(count):
            await publisher.submit(f"wide/{streams}/{number % spaces}/{number}", b"x" * PAYLOAD_BYTES)


async def consume(url: str, streams: int, count: int, run: str, *, gathered: bool = False) -> Turn:
    """All messages of so many streams; each batch committed, and waited for at once or at the end."""
    left, batches, first = count, 0, 0.0
    began, processor = time.perf_counter(), time.process_time()
    subscription = f"$shared/run-{run}/wide/{streams}/#"
    async with connect(url) as client, client.subscribe(subscription, start="earliest") as reader:
        async for batch in reader:
            first = first or time.perf_counter() - began
            batches += 1
            left -= sum(1 for message in batch.messages if message.payload is not None)
            if gathered:
                batch.commit_soon()
            else:
                await batch.commit()
            if not left:
                break
        await reader.flush()
        return Turn(first, time.perf_counter() - began, time.process_time() - processor, batches)


async def asked(client: AsyncRedis, readers: Sequence[RangeReader]) -> None:
    """Ask for all that the streams have; the answers are thrown away."""
    for first in range(0, len(readers), MOST_STREAMS):
        some = readers[first : first + MOST_STREAMS]
        await exchange(client, [command for reader in some for command in reader.commands])


async def read(client: AsyncRedis, readers: Sequence[RangeReader]) -> None:
    """Read all that the streams have, as a consumer does, and look at each message."""
    for first in range(0, len(readers), MOST_STREAMS):
        async for some in read_each(client, readers[first : first + MOST_STREAMS], few=True):
            for _, found in some:
                assert not isinstance(found, StreamleaseError)
                assert all(message.payload is not None for rows in found for message in rows.messages)


async def questions(client: AsyncRedis, readers: Sequence[RangeReader]) -> None:
    """A small question for each stream, the next one when the one before is answered."""
    assert isinstance(client, AsyncServer)
    line = await open_direct_line(client, 10.0)
    for reader in readers:
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        line.ask(("HGET", stream_meta(reader.stream), "next"), lambda _, one=answered: one.set_result(None))
        await answered
    await line.close()


LAYERS = {"asked and answered": asked, "and made messages of": read, "questions, each awaited": questions}


async def layer(url: str, streams: int, name: str) -> tuple[float, float]:
    """Seconds, and those of the processor, of one of the layers below a group."""
    spaces = -(-streams // MOST_IN_SPACE)
    each = [
        StreamId(f"wide-{streams}-{space}", 0, shard)
        for space in range(spaces)
        for shard in range(streams // spaces)
    ]
    client = connect_redis(url)
    try:
        readers = [RangeReader(stream, 0, columns=ALL_COLUMNS, count=MOST_FIRST_COUNT) for stream in each]
        began, processor = time.perf_counter(), time.process_time()
        await LAYERS[name](client, readers)
        return time.perf_counter() - began, time.process_time() - processor
    finally:
        await client.aclose()


class Heard(NamedTuple):
    """A plain subscription, in seconds: until it has all that is there, and then each single message."""

    whole: float
    each: Sequence[float]


async def listen(url: str, streams: int, count: int) -> Heard:
    """All messages of so many streams without a group, and then some one by one, until they are here."""
    spaces = -(-streams // MOST_IN_SPACE)
    topics = [f"wide/{streams}/{number % spaces}/{number}" for number in range(SINGLE)]
    left, each = count, list[float]()
    began = time.perf_counter()
    async with (
        connect(url, embedded=False) as client,
        client.publisher() as publisher,
        client.listen(f"wide/{streams}/#", start="earliest") as batches,
    ):
        while left > 0:
            left -= len((await anext(batches)).messages)
        whole = time.perf_counter() - began
        for topic in topics:
            sent = time.perf_counter()
            await publisher.send(topic, b"x" * PAYLOAD_BYTES)
            await anext(batches)
            each.append(time.perf_counter() - sent)
    return Heard(whole, each)


def _without_group(heard: dict[int, list[Heard]]) -> Table:
    table = Table(
        "A plain subscription to them, medians",
        ("streams", "all after s", "a message p50 ms", "p99 ms"),
    )
    for size, turns in heard.items():
        figures = (
            statistics.median(turn.whole for turn in turns),
            *(statistics.median(percentile(turn.each, share) for turn in turns) * 1000 for share in (50, 99)),
        )
        table.rows.append((f"{size:,}", *(f"{figure:.2f}" for figure in figures)))
    return table


def measure(frame: Frame) -> Iterator[Table]:
    """Seconds of each number of streams and way to commit, and their ratio to the first of them."""
    turns: dict[tuple[bool, int], list[Turn]] = {way: [] for way in product((False, True), SIZES)}
    with frame.server() as url:
        for size in SIZES:
            asyncio.run(fill(url, size, frame.messages))
        asyncio.run(consume(url, SIZES[0], frame.messages, "warm"))
        for run in range(frame.runs):
            for (gathered, size), each in turns.items():
                group = f"{run}-{gathered}"
                each.append(asyncio.run(consume(url, size, frame.messages, group, gathered=gathered)))
        layers = {
            name: [asyncio.run(layer(url, SIZES[-1], name)) for _ in range(frame.runs)] for name in LAYERS
        }
        heard: dict[int, list[Heard]] = {size: [] for size in SIZES}
        for run, size in product(range(frame.runs), SIZES):
            heard[size].append(asyncio.run(listen(url, size, frame.messages + run * SINGLE)))
    table = Table(
        f"Consuming {frame.messages:,} messages of {PAYLOAD_BYTES} bytes, medians of {frame.runs}",
        (
            "streams",
            "commits",
            "batches",
            "first after s",
            "all after s",
            "ratio",
            "processor s",
            "ratio of processor",
        ),
    )
    base = turns[False, SIZES[0]]
    for (gathered, size), each in turns.items():
        seconds, processor = (
            statistics.median(getattr(turn, what) for turn in each) for what in ("seconds", "processor")
        )
        table.rows.append(
            (
                f"{size:,}",
                "gathered" if gathered else "awaited",
                f"{statistics.median(turn.batches for turn in each):,.0f}",
                f"{statistics.median(turn.first for turn in each):.2f}",
                f"{seconds:.2f}",
                f"{seconds / statistics.median(turn.seconds for turn in base):.1f}",
                f"{processor:.2f}",
                f"{processor / statistics.median(turn.processor for turn in base):.1f}",
            )
        )
    yield table
    below = Table(
        f"The same {SIZES[-1]:,} streams without a group, medians of {frame.runs}",
        ("what", "s", "processor s", "processor us per stream"),
    )
    for name, times in layers.items():
        seconds, processor = (statistics.median(each) for each in zip(*times, strict=True))
        below.rows.append((name, f"{seconds:.2f}", f"{processor:.2f}", f"{1e6 * processor / SIZES[-1]:.0f}"))
    yield below
    yield _without_group(heard)
