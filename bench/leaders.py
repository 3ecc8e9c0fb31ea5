"""Leaders: planning, recovery, hand-over, take-over, and what hundreds of idle ones cost a host.

Bounds that must be reached stand beside the figures. What runs long is a process of its own: the leader hosts
are ``streamlease serve``, and the borrowers of idle groups live in another process.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from random import Random
from statistics import median

import psutil

import streamlease
from bench.frame import Frame, Table, percentile
from streamlease.agent.membership.borrower_slot import SessionConfig
from streamlease.agent.membership.session import Session
from streamlease.agent.subscription import SharedReader
from streamlease.borrower.events import (
    FailureAnswered,
    ProgressAcknowledged,
    Progressed,
    StreamGone,
    StreamGranted,
    StreamRevoking,
)
from streamlease.borrower.life import BorrowerConfig
from streamlease.leader.core.events import Recovered
from streamlease.leader.core.machine import Leader, LeaderConfig
from streamlease.leader.core.planning.planner import Plan, Situation, balanced
from streamlease.leader.core.planning.weighted import by_weight
from streamlease.leader.core.state.records import Committed, Leased, Record, StreamsAdded
from streamlease.leader.journal import Journal, recover
from streamlease.protocol.errors import StreamleaseError
from streamlease.protocol.messages import CutRead, LeaderToSession
from streamlease.protocol.topics import SharedSubscription
from streamlease.registry import hosts, keys, leadership
from streamlease.registry.leadership import Candidacy, LeadershipConfig
from streamlease.streams.redis.connection import AsyncRedis, ask, connect

COMMAND = Path(sys.executable).with_name("streamlease")
LEADERS = 500
STREAMS = 8
BORROWERS = 2
IDLE_SECONDS = 20.0
RECOVERED_STREAMS = 10_000
HAND_OVERS = 15
TAKEN_OVER = 50
READY = b"all streams are granted\n"
"""What the process with the borrowers says."""


def measure(frame: Frame) -> Iterator[Table]:
    """One table of figures and bounds."""
    table = Table("Leaders", ("", "measured", "must be"))
    for streams, borrowers, bound in ((100_000, 1000, 100), (10_000, 100, 8)):
        first, newcomer, _ = _plans(frame.runs, streams, borrowers)
        name = f"plan {streams:,} streams x {borrowers:,} borrowers"
        table.rows.append((f"{name}: all free", f"{first:.1f} ms", f"< {bound} ms"))
        table.rows.append((f"{name}: one joins", f"{newcomer:.1f} ms", f"< {bound} ms"))
        first, newcomer = _weighted_plans(frame.runs, streams, borrowers)
        table.rows.append((f"{name}, by weight: all free, median", f"{first:.1f} ms", ""))
        table.rows.append((f"{name}, by weight: one joins, median", f"{newcomer:.1f} ms", ""))
    moves = _plans(1, 10_000, 100)[2]
    table.rows.append(("moves when one of 100 joins or leaves", str(moves), f"<= {10_000 // 100 + 1}"))
    for work in (_recovery, _hand_over, _idle, _take_over):
        with frame.server() as url:
            table.rows.extend(asyncio.run(work(url)))
    yield table


# ---------------------------------------------------------------- plans


def _plans(runs: int, streams: int, borrowers: int) -> tuple[float, float, int]:
    """Milliseconds of the first plan and of one for a newcomer (best of the runs), and the most moves."""
    names = [f"b{n:04}" for n in range(borrowers)]
    free = [f"space.0.{n}" for n in range(streams)]
    best = [math.inf, math.inf]
    moves = 0
    for _ in range(runs):
        began = time.perf_counter()
        plan = balanced(dict.fromkeys(names, ()), free)
        best[0] = min(best[0], time.perf_counter() - began)
        held: dict[str, set[str]] = {name: set() for name in names}
        for stream, name in plan.grants:
            held[name].add(stream)
        began = time.perf_counter()
        joined = balanced(held | {"newcomer": set()}, ())
        best[1] = min(best[1], time.perf_counter() - began)
        moves = max(len(joined.revokes), _moves_when_one_leaves(held))
    return best[0] * 1000, best[1] * 1000, moves


def _weighted_plans(runs: int, streams: int, borrowers: int) -> tuple[float, float]:
    """Milliseconds of the first plan by weight and of one for a newcomer: medians of the runs."""
    names = [f"b{n:04}" for n in range(borrowers)]
    draw = Random(1)
    weights = {f"space.0.{n}": 1000 + int(1000 * draw.paretovariate(1.2)) for n in range(streams)}
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(runs):
        began = time.perf_counter()
        plan = by_weight(Situation(dict.fromkeys(names, ()), list(weights), weights=weights))
        times[0].append(time.perf_counter() - began)
        held: dict[str, set[str]] = {name: set() for name in names}
        for stream, name in plan.grants:
            held[name].add(stream)
        began = time.perf_counter()
        by_weight(Situation(held | {"newcomer": set()}, weights=weights))
        times[1].append(time.perf_counter() - began)
    return median(times[0]) * 1000, median(times[1]) * 1000


def _moves_when_one_leaves(held: dict[str, set[str]]) -> int:
    gone = min(held)
    plan: Plan = balanced({name: streams for name, streams in held.items() if name != gone}, held[gone])
    return len(plan.grants) + len(plan.revokes)


# ---------------------------------------------------------------- recovery


async def _recovery(url: str) -> list[tuple[str, str, str]]:
    """From a held term to the first durable record of a leader that had 10,000 streams and 1,000 commits."""
    group = "recovery/bench"
    redis = connect(url)
    try:
        names = [f"space.0.{n}" for n in range(RECOVERED_STREAMS)]
        journal = await journal_of(redis, group, 1)
        records: list[Record] = [StreamsAdded(starts=dict.fromkeys(names, 0))]
        for place, name in enumerate(names):
            records.append(Leased(stream=name, lease_epoch=1, name=f"b{place % 100}", session="s"))
        await journal.write(journal.next_commit(records))
        for number in range(1000):
            offsets = {names[(number * 10 + n) % len(names)]: number + 1 for n in range(10)}
            await journal.write(journal.next_commit([Committed(offsets=offsets)]))
        times = []
        for _ in range(3):
            began = time.perf_counter()
            recovery = await recover(redis, group)
            machine = Leader(group, "h", 1, LeaderConfig(), recovery.state)
            effects = machine.step(Recovered(), 0)
            again = Journal(redis, group, "h", 1, recovery.last_id)
            assert effects
            await again.write(again.next_commit([], machine.ledger.mirror.take(machine.durable)))
            times.append(time.perf_counter() - began)
        return [(f"recovery of {RECOVERED_STREAMS:,} streams", f"{min(times) * 1000:.0f} ms", "< 1,000 ms")]
    finally:
        await redis.aclose()


async def journal_of(redis: AsyncRedis, group: str, term: int) -> Journal:
    candidacy = Candidacy(group, "h", "h", LeadershipConfig(ttl=600_000))
    candidacy.observe(await leadership.read(redis, group), 0)
    assert await candidacy.attempt(redis) == term
    return Journal(redis, group, "h", term, b"0-0")


# ---------------------------------------------------------------- hand-over


async def _hand_over(url: str) -> list[tuple[str, str, str]]:
    """One consumer joins and leaves again and again; the leader records how long each stream took."""
    sub = "$shared/hand/bench/#"
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(_hosts(url, 1))
        client = await stack.enter_async_context(streamlease.connect(url, embedded=False))
        await client.create_space("bench", ["bench/#"], streams=STREAMS)
        first = await stack.enter_async_context(client.subscribe(sub, start="earliest"))
        await _until(lambda: len(first.streams) == STREAMS)
        for _ in range(HAND_OVERS):
            async with (
                streamlease.connect(url, embedded=False) as other,
                other.subscribe(sub) as second,
            ):
                await _until(partial(_is_shared, first, second))
            await _until(lambda: len(first.streams) == STREAMS)
        await asyncio.sleep(0.5)
        (entries,) = await ask(client.redis, [("XRANGE", keys.journal("hand/bench/#"), "-", "+")])
        times = [
            record["milliseconds"]
            for _, fields in entries
            for record in json.loads(dict(zip(fields[::2], fields[1::2], strict=True))[b"r"])
            if record.get("type") == "handed_over"
        ]
    p99 = percentile(times, 99) if times else math.nan
    return [(f"clean hand-over of a stream, p99 of {len(times)}", f"{p99:.0f} ms", "< 250 ms")]


# ---------------------------------------------------------------- idle leaders and take-over


async def _idle(url: str) -> list[tuple[str, str, str]]:
    """Memory and processor time of a host, while its borrowers do no more than ping."""
    what = f"{LEADERS} leaders, {STREAMS} streams, {BORROWERS} borrowers each"
    async with _hosts(url, 1) as (host,), borrowers(url, LEADERS):
        await asyncio.sleep(5.0)
        process = psutil.Process(host.pid)
        before, began = sum(process.cpu_times()[:2]), time.monotonic()
        await asyncio.sleep(IDLE_SECONDS)
        share = (sum(process.cpu_times()[:2]) - before) / (time.monotonic() - began)
        memory = process.memory_info().rss / 1024 / 1024
    return [
        (f"{what}: memory of the host", f"{memory:.0f} MiB", "< 300 MiB"),
        (f"{what}, idle: of one core", f"{share:.0%}", "< 25 %"),
    ]


async def _take_over(url: str) -> list[tuple[str, str, str]]:
    """From kill -9 of the host that leads all groups to the last new term."""
    ttl = LeadershipConfig().ttl
    async with _hosts(url, 1) as (first,), borrowers(url, TAKEN_OVER), _hosts(url, 1):
        await asyncio.sleep(6.0)
        groups = [_subscription(number).id for number in range(TAKEN_OVER)]
        redis = connect(url)
        try:
            before = await leadership.read_all(redis, groups)
            first.send_signal(signal.SIGKILL)
            began = time.monotonic()
            while True:
                now = await leadership.read_all(redis, groups)
                if all(now[group].term > before[group].term for group in groups):
                    break
                await asyncio.sleep(0.02)
            took = time.monotonic() - began
        finally:
            await redis.aclose()
    return [(f"take-over of {TAKEN_OVER} groups after kill -9", f"{took:.1f} s", f"< {ttl / 1000 + 1:.0f} s")]


def spawn(words: list[str], environment: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
    """A process of its own, whose standard output is read here."""
    return subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate()


@asynccontextmanager
async def _hosts(url: str, count: int) -> AsyncIterator[list[subprocess.Popen[bytes]]]:
    """Leader hosts that are registered."""
    async with hosts_of(url, count) as made:
        yield [process for process, _ in made]


@asynccontextmanager
async def hosts_of(url: str, count: int) -> AsyncIterator[list[tuple[subprocess.Popen[bytes], int]]]:
    """Leader hosts that are registered, each with the port of its probes."""
    redis = connect(url)
    environment = {**os.environ, "STREAMLEASE_REDIS_URL": url}
    ports = [_free_port() for _ in range(count)]
    made = [spawn([str(COMMAND), "serve", "--http-port", str(port)], environment) for port in ports]
    try:
        pids = {process.pid for process in made}
        while not pids <= {host.pid for host in await hosts.alive(redis)}:  # noqa: ASYNC110 - in Redis
            await asyncio.sleep(0.05)
        yield list(zip(made, ports, strict=True))
    finally:
        for process in made:
            _end(process)
        await redis.aclose()


@asynccontextmanager
async def borrowers(url: str, groups: int) -> AsyncIterator[None]:
    """A process that holds all streams of that many groups."""
    words = [sys.executable, "-m", "bench.leaders", url, str(groups)]
    process = spawn(words)
    try:
        assert process.stdout is not None
        said = await asyncio.to_thread(process.stdout.readline)
        if said != READY:
            raise RuntimeError(f"the borrowers ended with {process.wait()}")
        yield
    finally:
        _end(process)


def _is_shared(first: SharedReader, second: SharedReader) -> bool:
    return len(first.streams) == len(second.streams) == STREAMS // 2


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(120.0):
        while not condition():  # noqa: ASYNC110 - a condition of any kind
            await asyncio.sleep(0.005)


def _subscription(number: int) -> SharedSubscription:
    return SharedSubscription.parse(f"$shared/idle{number}/bench/#")


class _Holder:
    """A session's handler that consumes nothing."""

    def __init__(self) -> None:
        self.held: set[str] = set()
        self.session: Session | None = None

    def granted(self, slot: int, grant: StreamGranted) -> None:
        self.held.add(grant.stream)

    def acknowledged(self, slot: int, ack: ProgressAcknowledged) -> None:
        """There is nothing to wait for."""

    def answered(self, slot: int, answer: FailureAnswered) -> None:
        """Nothing fails."""

    def revoking(self, slot: int, revoking: StreamRevoking) -> None:
        assert self.session is not None
        self.session.slots[slot].step(Progressed(revoking.stream, revoking.lease_epoch, 0, True))

    def gone(self, slot: int, gone: StreamGone) -> None:
        self.held.discard(gone.stream)

    def received(self, message: LeaderToSession | CutRead) -> None:
        """There are no cuts."""

    def failed(self, error: StreamleaseError) -> None:
        raise error

    def ended(self) -> None:
        """Nobody waits for it."""


async def _borrow(url: str, count: int) -> None:
    """Hold two borrowers of each of `count` groups, until killed."""
    async with streamlease.connect(url, embedded=False) as client:
        await client.create_space("bench", ["bench/#"], streams=STREAMS)
        agent = await client.agent()
        holders = []
        for number in range(count):
            shared = _subscription(number)
            await client.groups.declare(shared, "earliest")
            for place in range(BORROWERS):
                holder = _Holder()
                name = f"s{number}.{place}"
                arrival = await client.groups.arrive(shared)
                config = SessionConfig(shared, name, (f"{name}/0",), arrival, BorrowerConfig())
                holder.session = Session(agent, config, holder)
                holder.session.start()
                holders.append(holder)
        await _until(lambda: all(len(holder.held) == STREAMS // BORROWERS for holder in holders))
        sys.stdout.buffer.write(READY)
        sys.stdout.buffer.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_borrow(sys.argv[1], int(sys.argv[2])))
