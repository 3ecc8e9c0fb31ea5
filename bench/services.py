"""Services: the round trip of a call alone, calls a second with many under way, processor time per call.

A server and a caller, each a process with one client, and Redis as a third. The handler does nothing. And
what many servers cost Redis, of which only the leases are there.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import psutil
from pydantic import BaseModel

from bench.frame import Frame, Table, percentile
from streamlease.agent.client import Client, connect
from streamlease.services.handlers import ServiceTypes
from streamlease.services.keys import ALIVE
from streamlease.services.registration import ServedRow, ServiceRow, hold, look
from streamlease.streams.redis.connection import ask

SECONDS = 4.0
UNDER_WAY = (1, 16, 200, 2000)
SERVERS = (100, 1000, 3000)
LEASE_MS = 500_000


class Score(BaseModel):
    """A request."""

    x: int
    who: str = "someone"


class Scored(BaseModel):
    """An answer."""

    y: float


async def score(request: Score) -> Scored:
    """A handler that costs nothing."""
    return Scored(y=request.x / 2)


def measure(frame: Frame) -> Iterator[Table]:
    """A table of figures for each number of calls under way."""
    table = Table(
        f"Services, median of {frame.runs} runs",
        ("calls under way", "a second", "p50", "p99", "caller, µs a call", "server", "Redis"),
    )
    with frame.server() as url:
        table.rows.extend(asyncio.run(_all(url, frame.runs)))
    yield table
    many = Table(
        "Many servers of a service: what one of them costs, median, and when all are forgotten at once",
        ("servers", "a new one", "a renewal", "all forgotten"),
    )
    with frame.server() as url:
        many.rows.extend(asyncio.run(_many(url)))
    yield many


@asynccontextmanager
async def _serving(url: str) -> AsyncIterator[psutil.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.services", url, stdout=subprocess.PIPE, stdin=subprocess.PIPE
    )
    assert process.stdout is not None
    await process.stdout.readline()
    try:
        yield psutil.Process(process.pid)
    finally:
        process.terminate()
        await process.wait()


async def _all(url: str, runs: int) -> list[tuple[str, ...]]:
    rows = []
    async with connect(url) as client, _serving(url) as server:
        (info,) = await ask(client.redis, [("INFO", "server")])
        facts = dict(line.split(":", 1) for line in info.decode().splitlines() if ":" in line)
        processes = [psutil.Process(), server, psutil.Process(int(facts["process_id"]))]
        await client.call("scorer", Score(x=1), answer=Scored, wait=10)
        for lanes in UNDER_WAY:
            figures = [await _run(client, lanes, processes) for _ in range(runs)]
            middle = [percentile(list(column), 50) for column in zip(*figures, strict=True)]
            rate, p50, p99, *micro = middle
            rows.append(
                (
                    str(lanes),
                    f"{rate:,.0f}",
                    f"{p50:.2f} ms",
                    f"{p99:.2f} ms",
                    *(f"{one:.0f}" for one in micro),
                )
            )
    return rows


async def _many(url: str) -> list[tuple[str, ...]]:
    rows = []
    types = ServiceTypes.of({})
    async with connect(url) as client:
        for count in SERVERS:
            addresses = [f"server{number:05}.1" for number in range(count)]
            new, renewals = list[float](), list[float]()
            for renew, taken in ((False, new), (True, renewals)):
                for address in addresses:
                    row = ServiceRow(service="scorer", server=address, digest=types.digest)
                    began = time.perf_counter()
                    await hold(client.redis, address, LEASE_MS, [ServedRow(row, types)], renew=renew)
                    taken.append(1000 * (time.perf_counter() - began))
            await ask(client.redis, [("ZADD", ALIVE, *(word for one in addresses for word in (1, one)))])
            began = time.perf_counter()
            await look(client.redis, ["nobody"])
            forgotten = 1000 * (time.perf_counter() - began)
            times = (percentile(new, 50), percentile(renewals, 50), forgotten)
            rows.append((f"{count:,}", *(f"{one:.2f} ms" for one in times)))
    return rows


async def _run(client: Client, lanes: int, processes: list[psutil.Process]) -> list[float]:
    """Calls a second, p50 and p99 in ms, and µs of each process per call."""
    taken: list[float] = []
    ends = time.perf_counter() + SECONDS

    async def lane() -> None:
        while (began := time.perf_counter()) < ends:
            await client.call("scorer", Score(x=len(taken)), answer=Scored)
            taken.append(time.perf_counter() - began)

    before = [_computed(process) for process in processes]
    began = time.perf_counter()
    await asyncio.gather(*(lane() for _ in range(lanes)))
    seconds = time.perf_counter() - began
    micro = [
        (_computed(process) - at) * 1e6 / len(taken) for process, at in zip(processes, before, strict=True)
    ]
    return [len(taken) / seconds, 1000 * percentile(taken, 50), 1000 * percentile(taken, 99), *micro]


def _computed(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


async def _serve(url: str) -> None:
    async with connect(url) as client, client.serve("scorer", {Score: score}, limit=10_000):
        sys.stdout.write("serves\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1]))
