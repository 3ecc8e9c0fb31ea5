"""Start: from `subscribe` to the first message, and a consumer that is killed together with its leader.

Every consumer leads by itself, as where no leader host runs; all settings are the default. "Fresh" is the
first subscription of a process that has done nothing else, of which the call of `subscribe` is told apart: it
imports what consumers need. "Warm" are the later ones of the same client, each of a new group. A killed
consumer is taken over when everything that was published is committed.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import streamlease
from bench.frame import Frame, Table
from streamlease.protocol.topics import SharedSubscription
from streamlease.registry.commits import committed

STREAMS = 16
WARM = 10
FILTER = "bench/#"
TAKEN_OVER = "$shared/killed/bench/#"
SESSION_TIMEOUTS = (10.0, 6.0)
READY = b"holds streams\n"
LIVED = 5.0
"""Seconds for which a consumer lives before it is killed."""
PATIENCE = 60.0


def measure(frame: Frame) -> Iterator[Table]:
    """Starts in `runs` fresh processes, then one take-over for each session timeout."""
    with frame.server() as url:
        asyncio.run(_publish(url, frame.messages))
        yield _starts([_started(url, run) for run in range(frame.runs)])
    table = Table("A consumer is killed with its leader", ("session timeout s", "all consumed again after s"))
    for timeout in SESSION_TIMEOUTS:
        with frame.server() as url:
            table.rows.append((f"{timeout:g}", f"{asyncio.run(_taken_over(url, timeout)):.1f}"))
    yield table


async def _publish(url: str, messages: int) -> None:
    async with streamlease.connect(url) as client:
        await client.create_space("bench", [FILTER], streams=STREAMS)
        async with client.publisher() as publisher:
            for number in range(messages):
                await publisher.submit(f"bench/{number % (8 * STREAMS)}", os.urandom(100))


# ---------------------------------------------------------------- starts


def _started(url: str, run: int) -> dict[str, list[float]]:
    """What a fresh process says of its starts, in seconds."""
    words = [sys.executable, "-m", "bench.start", "start", url, str(run)]
    began = time.time()
    said = subprocess.run(words, check=True, stdout=subprocess.PIPE, timeout=PATIENCE).stdout
    found: dict[str, list[float]] = json.loads(said)
    found["process"] = [found.pop("first_at")[0] - began]
    return found


def _starts(runs: list[dict[str, list[float]]]) -> Table:
    table = Table(
        f"The first batch after ms, {STREAMS} streams, {len(runs)} processes with {WARM} warm starts each",
        ("", "median", "longest", "processor, median"),
    )
    for name, wall, processor in (
        ("fresh: from the start of the process", "process", None),
        ("fresh: imports, in the call of `subscribe`", "imports", "imports processor"),
        ("fresh: from there", "fresh", "fresh processor"),
        ("warm: from `subscribe`", "warm", "warm processor"),
    ):
        took = [seconds for run in runs for seconds in run[wall]]
        used = [seconds for run in runs for seconds in run[processor]] if processor else []
        table.rows.append(
            (
                name,
                f"{statistics.median(took) * 1000:.0f}",
                f"{max(took) * 1000:.0f}",
                f"{statistics.median(used) * 1000:.0f}" if used else "",
            )
        )
    return table


async def _start(url: str, run: str) -> None:
    """In the fresh process."""
    took: list[float] = []
    used: list[float] = []
    called: list[float] = []
    called_used: list[float] = []
    first_at = 0.0
    async with streamlease.connect(url) as client:
        for number in range(1 + WARM):
            began, processor = time.perf_counter(), time.process_time()
            group = f"$shared/start-{run}-{number}/{FILTER}"
            subscription = client.subscribe(group, start="earliest")
            called.append(time.perf_counter() - began)
            called_used.append(time.process_time() - processor)
            async with subscription as batches:
                await anext(batches)
                took.append(time.perf_counter() - began)
                used.append(time.process_time() - processor)
                first_at = first_at or time.time()
    found = {
        "first_at": [first_at],
        "imports": called[:1],
        "imports processor": called_used[:1],
        "fresh": [took[0] - called[0]],
        "fresh processor": [used[0] - called_used[0]],
        "warm": took[1:],
        "warm processor": used[1:],
    }
    sys.stdout.write(json.dumps(found))


# ---------------------------------------------------------------- the take-over


async def _taken_over(url: str, silence: float) -> float:
    """Seconds from the end of the consumer that leads until the other one has committed everything."""
    await _publish(url, 8 * STREAMS)
    async with streamlease.connect(url, embedded=False) as client:
        with _consumer(url, silence) as leads, _consumer(url, silence):
            await _until_committed(client)
            await asyncio.sleep(LIVED)
            leads.kill()
            killed = time.monotonic()
            await _publish(url, 8 * STREAMS)
            await _until_committed(client)
            return time.monotonic() - killed


async def _until_committed(client: streamlease.Client) -> None:
    """Everything that was published is committed, so that it comes to nobody again."""
    shared = SharedSubscription.parse(TAKEN_OVER)
    ends = await client.next_offsets(await client.groups.streams(shared))
    wanted = {str(stream): end for stream, end in ends.items()}
    async with asyncio.timeout(PATIENCE):
        while True:
            if await committed(client.redis, shared.id, [*wanted]) == wanted:
                return
            await asyncio.sleep(0.02)


@contextmanager
def _consumer(url: str, silence: float) -> Iterator[subprocess.Popen[bytes]]:
    """A process that consumes until it is killed; it holds streams when this begins."""
    words = [sys.executable, "-m", "bench.start", "consume", url, str(silence)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        if process.stdout.readline() != READY:
            raise RuntimeError(f"a consumer ended with {process.wait()}")
        yield process
    finally:
        process.kill()
        process.communicate()


async def _consume(url: str, silence: str) -> None:
    """In the process of a consumer."""
    async with (
        streamlease.connect(url) as client,
        client.subscribe(TAKEN_OVER, start="earliest", session_timeout=float(silence)) as batches,
    ):
        reading = asyncio.ensure_future(anext(batches))
        while not batches.streams:  # noqa: ASYNC110 - nothing tells of a grant
            await asyncio.sleep(0.01)
        sys.stdout.buffer.write(READY)
        sys.stdout.buffer.flush()
        while True:
            await (await reading).commit()
            reading = asyncio.ensure_future(anext(batches))


if __name__ == "__main__":
    asyncio.run({"start": _start, "consume": _consume}[sys.argv[1]](*sys.argv[2:]))
