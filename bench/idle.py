"""Idle: what groups at rest cost Redis and their processes, beside consumers of plain redis-py.

Each group has a space of its own, one consumer and a leader, all with default settings. Nothing is published.
The leaders live beside the consumers in one process, or on one ``streamlease serve``, or on three that share
them, while a few processes share the consumers. Commands are those that Redis has run, the ones inside of
scripts included.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psutil
import redis
import redis.asyncio

import streamlease
from bench.commands import Counter
from bench.frame import Frame, Table
from bench.leaders import hosts_of, spawn
from streamlease.streams.log.keys import SPACE_DEFINITIONS

GROUPS = (1, 10, 100)
MANY = (300, 1000)
"""So many groups in one process, also until all streams are held."""

SPACES = (1, 10_000)
"""So many spaces, of which a process uses one."""

EPOCHS = (1, 500)
"""So many spaces with epochs, of which one host is the keeper."""

STREAMS = 4
"""Of each group's space."""

PROCESSES = 4
"""So many share the consumers if the leaders are on a host."""

SETTLE_SECONDS = 10.0
REST_SECONDS = 30.0
BLOCK_MS = 2000
"""How long a plain consumer's read waits."""

READY = b"all streams are held\n"
LAYOUTS = {
    "one process": 0,
    f"one host, {PROCESSES} processes": 1,
    f"three hosts, {PROCESSES} processes": 3,
    "redis-py": 0,
}
"""With how many leader hosts."""


def measure(frame: Frame) -> Iterator[Table]:
    """How the cost grows with the groups, and which commands it is; then many groups, and many keepers."""
    table = Table(
        "Groups at rest",
        ("", "groups", "commands/s", "processor time of one core: all processes", "of Redis"),
    )
    by_command: dict[str, dict[str, float]] = {}
    for layout in LAYOUTS:
        for groups in GROUPS:
            with frame.server() as url:
                rates, own, server = asyncio.run(_at_rest(url, layout, groups))
            table.rows.append(
                (layout, str(groups), f"{sum(rates.values()):,.1f}", f"{own:.1%}", f"{server:.1%}")
            )
            by_command[layout] = rates
    yield table
    most = Table(f"Commands a second of {GROUPS[-1]} groups at rest", ("", *LAYOUTS))
    names = {name for rates in by_command.values() for name in rates}
    for name in sorted(names, key=lambda name: -max(rates.get(name, 0) for rates in by_command.values())):
        most.rows.append((name, *(f"{by_command[layout].get(name, 0):.1f}" for layout in LAYOUTS)))
    yield most
    yield _many(frame)
    yield _spaces(frame)
    yield _keepers(frame)


def _many(frame: Frame) -> Table:
    table = Table(
        "Many groups with a space each, in one process",
        ("groups", "s until all streams are held", "commands/s", "processor time of one core"),
    )
    for groups in MANY:
        with frame.server() as url:
            began = time.monotonic()
            with _consumers(url, "embedded", [range(groups)]) as pids:
                held = time.monotonic() - began
                rates, own, _ = asyncio.run(_costs(url, pids))
        table.rows.append((str(groups), f"{held:.1f}", f"{sum(rates.values()):,.0f}", f"{own:.1%}"))
    return table


def _spaces(frame: Frame) -> Table:
    table = Table(
        "A process that uses one of many spaces, and leads its group",
        ("spaces", "create one, ms", "from subscribing to the first batch, ms", "at rest, of one core"),
    )
    for spaces in SPACES:
        with frame.server() as url:
            created, first, spent = asyncio.run(_used(url, spaces))
        table.rows.append((f"{spaces:,}", f"{created * 1e3:.1f}", f"{first * 1e3:.1f}", f"{spent:.1%}"))
    return table


async def _used(url: str, spaces: int) -> tuple[float, float, float]:
    """Seconds until a space is created, and until a second group has its first batch; the share of a core."""
    async with streamlease.connect(url) as client:
        await client.create_space("s0", ["s/0/#"], streams=1)
        definition = await client.redis.hget(SPACE_DEFINITIONS, "s0")
        texts = {}
        for number in range(spaces):
            text = definition.replace(b"s/0/", b"s/%d/" % number)
            texts[f"s{number}"] = text.replace(b"s0", b"s%d" % number)
        await client.redis.hset(SPACE_DEFINITIONS, mapping=texts)
        await client.create_space("first", ["first/#"], streams=STREAMS)
        began = time.monotonic()
        await client.create_space("used", ["used/#"], streams=STREAMS)
        created = time.monotonic() - began
        async with client.publisher() as publisher:
            await publisher.send("used/a", b"x")
        for group in ("warm", "measured"):
            began = time.monotonic()
            async with client.subscribe(f"$shared/{group}/used/#", start="earliest") as reader:
                await anext(reader)
                first = time.monotonic() - began
                await asyncio.sleep(SETTLE_SECONDS / 2)
                own = time.process_time()
                await asyncio.sleep(REST_SECONDS / 2)
                own = time.process_time() - own
        return created, first, own / (REST_SECONDS / 2)


def _keepers(frame: Frame) -> Table:
    table = Table(
        "Spaces with epochs to which nobody publishes, and one host",
        ("spaces", "commands/s", "processor time of one core: host", "of Redis"),
    )
    for spaces in EPOCHS:
        with frame.server() as url:
            rates, own, server = asyncio.run(_kept(url, spaces))
        table.rows.append((str(spaces), f"{sum(rates.values()):,.0f}", f"{own:.1%}", f"{server:.1%}"))
    return table


async def _kept(url: str, spaces: int) -> tuple[dict[str, float], float, float]:
    async with streamlease.connect(url, embedded=False) as client:
        for number in range(spaces):
            await client.create_space(f"idle{number}", [f"idle/{number}/#"], streams=STREAMS, epochs=1)
    async with hosts_of(url, 1) as hosts:
        return await _costs(url, [host.pid for host, _ in hosts])


async def _at_rest(url: str, layout: str, groups: int) -> tuple[dict[str, float], float, float]:
    """Commands a second by name, and the share of a core that the processes and Redis take."""
    async with contextlib.AsyncExitStack() as stack:
        pids = []
        if LAYOUTS[layout]:
            hosts = await stack.enter_async_context(hosts_of(url, LAYOUTS[layout]))
            pids += [host.pid for host, _ in hosts]
            kind, shares = "hosts", min(PROCESSES, groups)
        else:
            kind, shares = ("redis-py" if layout == "redis-py" else "embedded"), 1
        numbers = [range(share, groups, shares) for share in range(shares)]
        pids += stack.enter_context(await asyncio.to_thread(_consumers, url, kind, numbers))
        return await _costs(url, pids)


async def _costs(url: str, pids: Sequence[int]) -> tuple[dict[str, float], float, float]:
    """As `_at_rest`, of these processes, once they have come to rest."""
    counter = Counter(url)
    with redis.Redis.from_url(url) as client:
        server = psutil.Process(client.info("server")["process_id"])
    processes = [psutil.Process(pid) for pid in pids]
    await asyncio.sleep(SETTLE_SECONDS)
    counter.since()
    before, began = [sum(one.cpu_times()[:2]) for one in (*processes, server)], time.monotonic()
    await asyncio.sleep(REST_SECONDS)
    calls, seconds = counter.since(), time.monotonic() - began
    spent = [
        sum(one.cpu_times()[:2]) - first for one, first in zip((*processes, server), before, strict=True)
    ]
    rates = {name.removeprefix("cmdstat_"): count / seconds for name, count in calls.items() if count}
    return rates, sum(spent[:-1]) / seconds, spent[-1] / seconds


def _consumers(url: str, kind: str, numbers: Sequence[range]) -> contextlib.AbstractContextManager[list[int]]:
    """Processes whose consumers hold all streams of the groups with these numbers."""
    made = [
        spawn([sys.executable, "-m", "bench.idle", url, kind, *map(str, (one.start, one.stop, one.step))])
        for one in numbers
    ]
    for process in made:
        assert process.stdout is not None
        if process.stdout.readline() != READY:
            raise RuntimeError(f"consumers ended with {process.wait()}")
    return _ended_afterwards(made)


@contextmanager
def _ended_afterwards(made: Sequence[subprocess.Popen[bytes]]) -> Iterator[list[int]]:
    try:
        yield [process.pid for process in made]
    finally:
        for process in made:
            process.kill()
            process.communicate()


async def _consume(url: str, numbers: range, *, embedded: bool) -> None:
    """Hold the streams of groups, until killed."""
    async with contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(streamlease.connect(url, embedded=embedded))
        readers = []
        for number in numbers:
            await client.create_space(f"idle{number}", [f"idle/{number}/#"], streams=STREAMS)
            reader = await stack.enter_async_context(client.subscribe(f"$shared/g{number}/idle/{number}/#"))
            stack.callback(asyncio.create_task(anext(reader)).cancel)
            readers.append(reader)
        while any(len(reader.streams) < STREAMS for reader in readers):  # noqa: ASYNC110 - no event says so
            await asyncio.sleep(0.01)
        await _ready()


async def _consume_plainly(url: str, numbers: range) -> None:
    """The same with consumer groups of Redis, one stream each."""
    client = redis.asyncio.Redis.from_url(url, max_connections=2 * len(numbers))

    async def consume(number: int) -> None:
        while True:
            await client.xreadgroup("g", "c", {f"bench:{number}": ">"}, block=BLOCK_MS)

    for number in numbers:
        await client.xgroup_create(f"bench:{number}", "g", mkstream=True)
    await asyncio.gather(_ready(), *map(consume, numbers))


async def _ready() -> None:
    sys.stdout.buffer.write(READY)
    sys.stdout.buffer.flush()
    await asyncio.Event().wait()


def _main(url: str, kind: str, *place: str) -> None:
    numbers = range(*map(int, place))
    if kind == "redis-py":
        asyncio.run(_consume_plainly(url, numbers))
    else:
        asyncio.run(_consume(url, numbers, embedded=kind == "embedded"))


if __name__ == "__main__":
    _main(*sys.argv[1:])
