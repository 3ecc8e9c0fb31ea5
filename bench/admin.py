"""Operators' views: `group describe` of 10,000 streams, `group list` of 1,000 groups; what they cost hosts.

Of each command the whole time stands beside that of its work alone, without the start of the interpreter.
"""

from __future__ import annotations

import asyncio
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import streamlease
from bench.frame import Frame, Table, percentile
from bench.leaders import _Holder, _hosts, _until
from streamlease.admin.facts.group import describe
from streamlease.admin.facts.groups import summaries
from streamlease.agent.client import Client
from streamlease.agent.membership.borrower_slot import SessionConfig
from streamlease.agent.membership.session import Session
from streamlease.borrower.life import BorrowerConfig
from streamlease.leader.core.parts.mirror import MirrorChange
from streamlease.leader.core.state.records import Committed, Leased, Record, StreamsAdded
from streamlease.leader.journal import Journal
from streamlease.protocol.acts import DescribeGroup
from streamlease.protocol.topics import SharedSubscription
from streamlease.registry import leadership
from streamlease.registry.leadership import Candidacy, LeadershipConfig

COMMAND = Path(sys.executable).with_name("streamlease")
STREAMS, PER_SPACE = 10_000, 2_500
GROUPS, GROUP_STREAMS = 1_000, 8
MESSAGES = 40_000
BIG = SharedSubscription.parse("$shared/big/bench/#")
SMALL = SharedSubscription.parse("$shared/small/list/#")
ASKED = 200
"""How often the small group's leader is asked while others look at the big group."""

BOUND = "< 1 s"


def measure(frame: Frame) -> Iterator[Table]:
    """Seconds, medians of the runs."""
    table = Table("Operators' views, seconds", ("", "whole command", "processor", "its work", "must be"))
    with frame.server() as url:
        asyncio.run(_list(url, frame.runs, table))
    with frame.server() as url:
        asyncio.run(_describe(url, frame.runs, table))
    yield table
    with frame.server() as url:
        yield asyncio.run(_beside(url))


async def _list(url: str, runs: int, table: Table) -> None:
    async with streamlease.connect(url) as client:
        await client.create_space("list", ["list/#"], streams=GROUP_STREAMS)
        await _publish(client, "list")
        shared = [SharedSubscription.parse(f"$shared/g{number:04}/list/#") for number in range(GROUPS)]
        streams = [str(stream) for stream in await client.groups.streams(shared[0])]
        for number, one in enumerate(shared):
            await client.groups.declare(one, "earliest")
            await _led(client, one.id, streams, number)
        work = await _median(runs, lambda: summaries(client, shared))
    whole = _command(url, runs, "group", "list", "--json")
    table.rows.append((f"group list of {GROUPS:,} groups", *whole, f"{work:.2f}", BOUND))


async def _describe(url: str, runs: int, table: Table) -> None:
    async with streamlease.connect(url) as client:
        await _spaces(client)
        await client.groups.declare(BIG, "earliest")
        await _led(client, BIG.id, [str(s) for s in await client.groups.streams(BIG)], 0, lead=False)
        work = await _median(runs, lambda: describe(client, BIG))
        whole = await asyncio.to_thread(_command, url, runs, "group", "describe", str(BIG), "--json")
        name = f"group describe of {STREAMS:,} streams"
        table.rows.append((f"{name}, no leader", *whole, f"{work:.2f}", BOUND))
        async with _led_by_a_host(url, client):
            work = await _median(runs, lambda: describe(client, BIG))
            whole = await asyncio.to_thread(_command, url, runs, "group", "describe", str(BIG), "--json")
            table.rows.append((f"{name}, asked of its leader", *whole, f"{work:.2f}", BOUND))
            text = await asyncio.to_thread(_command, url, runs, "group", "describe", str(BIG))
            table.rows.append((f"{name}, as a table", *text, "", BOUND))


async def _beside(url: str) -> Table:
    """How long a small group's leader takes to answer, while another group of its host is looked at."""
    table = Table(
        f"A leader's answer, milliseconds of {ASKED}, while the {STREAMS:,} streams beside it are looked at",
        ("", "median", "p99", "longest"),
    )
    async with streamlease.connect(url) as client, streamlease.connect(url) as other:
        await _spaces(client)
        await client.create_space("list", ["list/#"], streams=GROUP_STREAMS)
        async with _led_by_a_host(url, client), other.subscribe(str(SMALL), start="earliest") as small:
            await _until(lambda: len(small.streams) == GROUP_STREAMS)
            table.rows.append(("nobody looks", *_shown(await _asked(other))))
            for words in (("group", "describe", str(BIG)), ("group", "list")):
                with _looks(url, *words):
                    name = f"'{' '.join(words[:2])} --watch 0.1' beside it"
                    table.rows.append((name, *_shown(await _asked(other))))
    return table


@contextmanager
def _looks(url: str, *words: str) -> Iterator[None]:
    """A command that looks again and again; its output is read and thrown away."""
    environment = {**os.environ, "STREAMLEASE_REDIS_URL": url}
    command = [str(COMMAND), *words, "--json", "--watch", "0.1"]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    drain = subprocess.Popen(["cat"], stdin=process.stdout, stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        for one in (process, drain):
            one.kill()
            one.wait()


async def _asked(client: Client) -> list[float]:
    times = []
    for _ in range(ASKED):
        began = time.perf_counter()
        await client.command(SMALL, DescribeGroup())
        times.append((time.perf_counter() - began) * 1000)
        await asyncio.sleep(0.02)
    return times


def _shown(times: list[float]) -> tuple[str, str, str]:
    return f"{statistics.median(times):.1f}", f"{percentile(times, 99):.1f}", f"{max(times):.1f}"


# ---------------------------------------------------------------- what is there to look at


async def _spaces(client: Client) -> None:
    for number in range(STREAMS // PER_SPACE):
        await client.create_space(f"b{number}", [f"bench/{number}/#"], streams=PER_SPACE)
        await _publish(client, f"bench/{number}")


async def _publish(client: Client, root: str) -> None:
    async with client.publisher() as publisher:
        for number in range(MESSAGES):
            await publisher.submit(f"{root}/{number}", b"x" * 100)


async def _led(client: Client, group: str, streams: list[str], committed: int, lead: bool = True) -> None:
    """As a leader leaves it: streams, leases, some progress."""
    candidacy = Candidacy(group, "h", "h", LeadershipConfig(ttl=600_000))
    candidacy.observe(await leadership.read(client.redis, group), 0)
    term = await candidacy.attempt(client.redis)
    assert term is not None
    records: list[Record] = [StreamsAdded(starts=dict.fromkeys(streams, 0))]
    for place, name in enumerate(streams):
        records.append(Leased(stream=name, lease_epoch=1, name=f"b{place % 100}", session="s"))
    records.append(Committed(offsets=dict.fromkeys(streams, committed)))
    journal = Journal(client.redis, group, "h", term, b"0-0")
    await journal.write(journal.next_commit(records, MirrorChange(fields=dict.fromkeys(streams, committed))))
    if not lead:
        await leadership.resign(client.redis, group, "h", term)


@asynccontextmanager
async def _led_by_a_host(url: str, client: Client) -> AsyncIterator[None]:
    """A leader host leads the big group, and a session of ten borrowers holds all of its streams."""
    async with _hosts(url, 1):
        await client.groups.declare(BIG, "earliest")
        holder = _Holder()
        names = tuple(f"holder/{slot}" for slot in range(10))
        arrival = await client.groups.arrive(BIG)
        session = Session(
            await client.agent(), SessionConfig(BIG, "holder", names, arrival, BorrowerConfig()), holder
        )
        holder.session = session
        session.start()
        await _until(lambda: len(holder.held) == STREAMS)
        yield
        session.disconnect()


# ---------------------------------------------------------------- measuring


async def _median(runs: int, work: Callable[[], Awaitable[Any]]) -> float:
    times = []
    for _ in range(runs):
        began = time.perf_counter()
        await work()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def _command(url: str, runs: int, *words: str) -> tuple[str, str]:
    """Seconds from start to end, and of the processor: those do not depend on what else the machine does."""
    environment = {**os.environ, "STREAMLEASE_REDIS_URL": url}
    whole, processor = [], []
    for _ in range(runs):
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run([str(COMMAND), *words], env=environment, stdout=subprocess.DEVNULL, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        whole.append(time.perf_counter() - began)
        processor.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return f"{statistics.median(whole):.2f}", f"{statistics.median(processor):.2f}"
