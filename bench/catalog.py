"""The catalog: a listing of 10,000 items, 1,000 changes a second to 100 followers, followers at rest.

Calls of services and submits of queries have benches of their own: `services` and `queries`.

The followers of changes are 25 in each of four processes, and 100 in one; a change is seen when its follower
hands it out.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator

import psutil

from bench.counting import Counter
from bench.frame import Frame, Table, percentile
from streamlease.agent.client import Client, connect
from streamlease.catalog.items import ServiceItem
from streamlease.catalog.own_rows import OwnRows
from streamlease.streams.redis.connection import ask

ITEMS = 10_000
FOLLOWERS = ((4, 25), (1, 100))
"""In how many processes, and how many in each."""
A_SECOND, SECONDS = 1000, 5.0
REST_SECONDS = 5.0
"""More than it takes until everything is looked at without a push."""


def measure(frame: Frame) -> Iterator[Table]:
    """A table of figures."""
    table = Table(f"Catalog, median of {frame.runs} runs", ("", "measured"))
    with frame.server() as url:
        table.rows.extend(asyncio.run(_all(url, frame.runs)))
    table.rows.append(("calls of services; submits of queries", "python -m bench services queries"))
    yield table


async def _all(url: str, runs: int) -> list[tuple[str, str]]:
    async with connect(url) as client:
        listed = await _listing(client, runs)
        leases = await _leases(client, runs)
        told = [row for one in FOLLOWERS for row in await _changes(client, url, *one)]
        rest = await _at_rest(client, url)
    return [
        (f"listing of {ITEMS:,} items of processes", listed),
        (f"listing of {ITEMS:,} leases", leases),
        *told,
        *rest,
    ]


async def _listing(client: Client, runs: int) -> str:
    own = OwnRows(client.redis)
    for number in range(ITEMS):
        own.put("services", str(number), {"service": f"s{number}", "server": "x"})
    await own.settled()
    taken = await _timed(client, "services", runs)
    await own.close()
    return taken


async def _leases(client: Client, runs: int) -> str:
    for number in range(4):
        await client.create_space(f"wide{number}", [f"wide/{number}/#"], streams=ITEMS // 4)
    async with client.subscribe("$shared/g/wide/#", start="earliest"), client.catalog("leases") as leases:
        while len(leases.items) < ITEMS:
            await anext(leases)
        return await _timed(client, "leases", runs)


async def _timed(client: Client, collection: str, runs: int) -> str:
    taken, computed = [], []
    for _ in range(runs):
        began, before = time.perf_counter(), time.process_time()
        async with client.catalog(collection) as found:
            taken.append(1000 * (time.perf_counter() - began))
            computed.append(1000 * (time.process_time() - before))
        assert len(found.items) == ITEMS
    return f"{percentile(taken, 50):.0f} ms, {percentile(computed, 50):.0f} of processor"


async def _changes(client: Client, url: str, processes: int, followers: int) -> list[tuple[str, str]]:
    own = OwnRows(client.redis)
    others = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "bench.catalog", url, str(followers)), stdout=asyncio.subprocess.PIPE
        )
        for _ in range(processes)
    ]
    redis = await _redis_process(client)
    for one in others:
        assert one.stdout is not None
        await one.stdout.readline()
    before, began = _computed(redis), time.monotonic()
    for number in range(int(A_SECOND * SECONDS)):
        await asyncio.sleep(max(0.0, began + number / A_SECOND - time.monotonic()))
        own.put("services", str(number % 100), {"service": "bench", "server": repr(time.time())})
    own.put("services", "end", {"service": "end", "server": "0"})
    await own.settled()
    seen: list[float] = []
    computed = 0.0
    for one in others:
        out, _ = await one.communicate()
        its, *of_it = map(float, out.split())
        computed += its
        seen += of_it
    used = 100 * (_computed(redis) - before) / (time.monotonic() - began)
    await own.close()
    return [
        (
            f"{A_SECOND:,} changes a second to {processes} times {followers} followers: p50, p99 until seen",
            f"{percentile(seen, 50):.0f}, {percentile(seen, 99):.0f} ms",
        ),
        ("the same, changes seen by each", f"{len(seen) / processes / followers:,.0f}"),
        ("the same, processor of all followers", f"{computed:.1f} s in {SECONDS:.0f} s"),
        ("the same, processor of Redis", f"{used:.0f} %"),
    ]


async def _at_rest(client: Client, url: str) -> list[tuple[str, str]]:
    """Commands a second at Redis, of a group with one consumer at rest."""
    await client.create_space("calm", ["calm/#"])
    rows, counter = [], Counter(url)
    async with client.subscribe("$shared/g/calm/#"):
        for count in (0, 10):
            async with connect(url) as looker:
                followed = [looker.catalog(name) for name in ("leaders", "leases") for _ in range(count)]
                for one in followed:
                    await one.__aenter__()
                tasks = [asyncio.create_task(_swallow(one)) for one in followed]
                await asyncio.sleep(REST_SECONDS)
                counter.since()
                await asyncio.sleep(REST_SECONDS)
                made = sum(counter.since().values())
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                for one in followed:
                    await one.__aexit__(None, None, None)
            name = f"commands a second at rest, {2 * count} followers of leaders and leases"
            rows.append((name, f"{made / REST_SECONDS:.1f}"))
    counter.close()
    return rows


async def _swallow(catalog: object) -> None:
    async for _ in catalog:  # type: ignore[attr-defined]
        pass


async def _redis_process(client: Client) -> psutil.Process:
    (info,) = await ask(client.redis, [("INFO", "server")])
    facts = dict(line.split(":", 1) for line in info.decode().splitlines() if ":" in line)
    return psutil.Process(int(facts["process_id"]))


def _computed(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


async def _follow(url: str, followers: int) -> None:
    """Print the seconds of processor time, and after how many ms each of some followers saw each change."""
    seen: list[float] = []

    async def follow(client: Client) -> None:
        async with client.catalog("services") as services:
            ready.release()
            async for change in services:
                item, diff = change.item, change.diff
                assert isinstance(item, ServiceItem)
                if item.service == "end":
                    return
                if diff > 0:
                    seen.append(1000 * (time.time() - float(item.server)))

    ready = asyncio.Semaphore(0)
    async with connect(url) as client, asyncio.TaskGroup() as tasks:
        for _ in range(followers):
            tasks.create_task(follow(client))
        for _ in range(followers):
            await ready.acquire()
        sys.stdout.write("follows\n")
        sys.stdout.flush()
        began = time.process_time()
    computed = time.process_time() - began
    sys.stdout.write(f"{computed} ")
    sys.stdout.write(" ".join(f"{one:.1f}" for one in seen))


if __name__ == "__main__":
    asyncio.run(_follow(sys.argv[1], int(sys.argv[2])))
