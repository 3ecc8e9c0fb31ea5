"""Sharing out: a group of very many streams, whose consumers come, leave, and are killed.

The leader host and each consumer are processes. Beside the seconds until all streams have owners again stands
the longest that the event loop of a consumer stood still meanwhile, and the longest that the leader of a
small group on the same host took to answer.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager

from bench.frame import Frame, Table
from bench.leaders import _until, hosts_of
from bench.wide import fill
from streamlease.agent.client import Client, connect
from streamlease.agent.subscription import SharedReader
from streamlease.protocol.acts import DescribeGroup
from streamlease.protocol.topics import SharedSubscription

SIZES = (10_000, 100_000)
REST_SECONDS = 1.0
ASKED_EVERY = 0.02
LOOKED_EVERY = 0.01
SMALL = SharedSubscription.parse("$shared/small/beside/#")


class Consumer:
    """A process that consumes; what it says of itself."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.held = 0
        self.stall = 0.0
        """Longest stand-still, in seconds, since it was last set to 0."""
        self.process = process
        self._listening = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            self.held, stall = json.loads(line)
            self.stall = max(self.stall, stall)

    async def end(self, how: signal.Signals) -> None:
        """Send it a signal, and wait for its end."""
        if self.process.returncode is None:
            self.process.send_signal(how)
        await self.process.wait()
        await self._listening


@asynccontextmanager
async def consuming(url: str, streams: int, group: str) -> AsyncIterator[Consumer]:
    """One more consumer of the group."""
    words = ("-m", "bench.sharing", url, f"$shared/{group}/wide/{streams}/#")
    process = await asyncio.create_subprocess_exec(
        sys.executable, *words, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE
    )
    consumer = Consumer(process)
    try:
        yield consumer
    finally:
        await consumer.end(signal.SIGKILL)


class Neighbour:
    """Asks the leader of a small group again and again."""

    def __init__(self, client: Client) -> None:
        self.longest = 0.0
        """Seconds of the longest answer since it was last set to 0."""
        self._client = client

    async def ask(self) -> None:
        """Until it is cancelled.

        Raises:
            NotLeader, Indefinite: nobody leads the group any more, or it took 5 s.
        """
        while True:
            began = time.perf_counter()
            await self._client.command(SMALL, DescribeGroup())
            self.longest = max(self.longest, time.perf_counter() - began)
            await asyncio.sleep(ASKED_EVERY)


def _are_shared(streams: int, consumers: list[Consumer]) -> bool:
    held = [consumer.held for consumer in consumers]
    return sum(held) == streams and max(held) - min(held) <= 1


async def _measured(url: str, streams: int, table: Table) -> None:
    """All that can befall one group, one after the other."""
    group = f"sharing-{streams}"
    async with AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:
        client = await stack.enter_async_context(connect(url, embedded=False))
        await client.create_space("beside", ["beside/#"], streams=1)
        await stack.enter_async_context(hosts_of(url, 1))
        small = await stack.enter_async_context(client.subscribe(str(SMALL), start="earliest"))
        await _until(lambda: len(small.streams) == 1)
        neighbour = Neighbour(client)
        asking = tasks.create_task(neighbour.ask())
        present: list[Consumer] = []

        async def row(name: str, act: Awaitable[object]) -> None:
            neighbour.longest = 0.0
            for one in present:
                one.stall = 0.0
            began = time.perf_counter()
            await act
            await _until(lambda: _are_shared(streams, present))
            seconds = time.perf_counter() - began
            stall = max(one.stall for one in present)
            figures = (f"{seconds:.1f}", f"{stall * 1000:.0f}", f"{neighbour.longest * 1000:.0f}")
            table.rows.append((f"{streams:,}: {name}", *figures))
            await asyncio.sleep(REST_SECONDS)

        async def come() -> None:
            present.append(await stack.enter_async_context(consuming(url, streams, group)))

        async def go(how: signal.Signals) -> None:
            await present.pop(0).end(how)

        await row("one consumer comes", come())
        await row("a second one comes", come())
        await row("the first is killed", go(signal.SIGKILL))
        await row("a third one comes", come())
        await row("the second leaves", go(signal.SIGINT))
        asking.cancel()


def measure(frame: Frame) -> Iterator[Table]:
    """Each size once; `--runs` and `--messages` change nothing."""
    table = Table(
        "Until all streams have owners",
        ("streams", "s", "consumer stood still, ms", "a neighbour's leader answered, ms"),
    )
    for streams in SIZES:
        with frame.server() as url:
            asyncio.run(fill(url, streams, streams))
            asyncio.run(_measured(url, streams, table))
    yield table


# ---------------------------------------------------------------- a consumer


async def _consume(url: str, subscription: str) -> None:
    """Consume until SIGINT, and say how many streams are held and how long the loop stood still."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stop.set)
    async with (
        connect(url, embedded=False) as client,
        client.subscribe(subscription, start="earliest") as reader,
        asyncio.TaskGroup() as tasks,
    ):
        eating = tasks.create_task(_eat(reader))
        await _tell(reader, stop)
        eating.cancel()


async def _eat(reader: SharedReader) -> None:
    async for batch in reader:
        batch.commit_soon()


async def _tell(reader: SharedReader, stop: asyncio.Event) -> None:
    told, longest = -1, 0.0
    while not stop.is_set():
        before = time.perf_counter()
        await asyncio.sleep(LOOKED_EVERY)
        longest = max(longest, time.perf_counter() - before - LOOKED_EVERY)
        if len(reader.streams) != told:
            told = len(reader.streams)
            sys.stdout.write(json.dumps((told, longest)) + "\n")
            sys.stdout.flush()
            longest = 0.0


if __name__ == "__main__":
    asyncio.run(_consume(*sys.argv[1:]))
