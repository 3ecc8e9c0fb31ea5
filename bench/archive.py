"""Archive: how fast messages go into files, and come back over the seam; what that costs publishers.

Messages are 100 random bytes, in a local folder. Processor time is that of the process that archives, all
of its threads. Publishers publish Arrow batches, with and without an archive, while a leader host runs that
has archived before.
"""

from __future__ import annotations

import asyncio
import os
import resource
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from statistics import median

import pyarrow as pa

import streamlease
from bench.frame import Frame, Table, percentile
from bench.leaders import hosts_of
from streamlease.agent.client import Client
from streamlease.hosts.trimming import Retainer
from streamlease.streams.archive.archiver import Archiver
from streamlease.streams.archive.recording import recorded
from streamlease.streams.clock import milliseconds
from streamlease.streams.redis.connection import connect_blocking
from streamlease.streams.spaces.archive_settings import ArchiveSettings
from streamlease.streams.spaces.definitions import Space

BATCH = 10_000
BYTES = 100
STREAMS = 2
PUBLISH_SECONDS = 10.0
PUBLISHED_ROWS = 1000
"""Of a batch. Larger ones fill 3 GB, and how fast a machine hands out memory is measured."""

WARM_BATCHES = 1000
"""Published before, and archived if there is an archive: what a host imports once is no upkeep."""

KEEP_BYTES = 64 * 1024 * 1024


def measure(frame: Frame) -> Iterator[Table]:
    """Three tables."""
    rates: list[tuple[float, float]] = []
    pauses: dict[str, list[tuple[float, float, float]]] = {"in memory": [], "over the seam": []}
    for _ in range(frame.runs):
        with frame.server() as url, tempfile.TemporaryDirectory() as folder:
            found, there, back = asyncio.run(_there_and_back(url, folder, frame.messages))
            rates.append(found)
            pauses["in memory"].append(there)
            pauses["over the seam"].append(back)
    table = Table("Archiving", ("", "median", "best", "must be"))
    for place, what in enumerate(("messages/s of processor time", "messages/s")):
        each = [one[place] for one in rates]
        must = "at least 1,000,000" if place == 0 else ""
        table.rows.append((what, f"{median(each):,.0f}", f"{max(each):,.0f}", must))
    yield table
    table = Table("Listening from the earliest message", ("", "messages/s", "p99 of pauses", "longest pause"))
    for name, found in pauses.items():
        rate, high, longest = (median(one[place] for one in found) for place in range(3))
        table.rows.append((name, f"{rate:,.0f}", f"{high * 1000:.1f} ms", f"{longest * 1000:.1f} ms"))
    yield table
    table = Table(
        f"Publishing for {PUBLISH_SECONDS:.0f} s beside a leader host", ("", "messages/s", "of that without")
    )
    by_kind: dict[str, list[float]] = {"without an archive": [], "with an archive": []}
    for run in range(frame.runs):
        for name in sorted(by_kind, reverse=run % 2 == 0):
            with frame.server() as url, tempfile.TemporaryDirectory() as folder:
                rate = asyncio.run(_published(url, folder if name.startswith("with an") else None))
            by_kind[name].append(rate)
    without = median(by_kind["without an archive"])
    for name, each in by_kind.items():
        table.rows.append((name, f"{median(each):,.0f}", f"{median(each) / without:.1%}"))
    yield table


def _spent() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _batch() -> pa.RecordBatch:
    ends = pa.array(range(0, BYTES * (BATCH + 1), BYTES), pa.int32()).buffers()[1]
    data = pa.py_buffer(os.urandom(BYTES * BATCH))
    payloads = pa.Array.from_buffers(pa.binary(), BATCH, [None, ends, data])
    return pa.RecordBatch.from_arrays([payloads], names=["payload"])


async def _space(client: Client, folder: str | None) -> Space:
    archive = None if folder is None else ArchiveSettings.of(folder, keep_bytes=KEEP_BYTES)
    return await client.create_space("bench", ["bench/#"], streams=STREAMS, archive=archive)


async def _there_and_back(
    url: str, folder: str, messages: int
) -> tuple[tuple[float, float], tuple[float, float, float], tuple[float, float, float]]:
    """Messages a second into the files; and pauses of a listener before that, and after."""
    async with streamlease.connect(url) as client:
        space = await _space(client, folder)
        assert space.archive is not None
        async with client.publisher() as publisher:
            for number in range(0, messages, BATCH):
                await publisher.submit_batch(f"bench/{number % 7}", _batch())
            await publisher.flush()
        count = -(-messages // BATCH) * BATCH
        there = await _listened(client, count)
        with closing(connect_blocking(url)) as redis:
            worker = Archiver(redis, space, space.archive)
            worker.run(lambda *about: False)  # what it imports, and makes once
            spent, began = _spent(), time.perf_counter()
            done = await asyncio.to_thread(worker.run)
            rate = done.messages / (_spent() - spent), done.messages / (time.perf_counter() - began)
        assert done.messages == count
        retainer = Retainer(client.redis, "bench", milliseconds)
        await retainer.round()
        await retainer.close()
        return rate, there, await _listened(client, count)


async def _listened(client: Client, count: int) -> tuple[float, float, float]:
    """Messages a second; the 99th percentile and the longest of the pauses between two batches."""
    found, pauses = 0, []
    async with client.listen("bench/#", start="earliest", max_batch=BATCH) as heard:
        began = last = time.perf_counter()
        async for batch in heard:
            now = time.perf_counter()
            if found:
                pauses.append(now - last)
            last = now
            found += len(batch)
            if found >= count:
                break
        return count / (last - began), percentile(pauses, 99), max(pauses)


async def _archived(url: str, space: Space) -> None:
    """Wait until something of the space is in a file."""
    with closing(connect_blocking(url)) as redis:
        while not any(one.files for one in recorded(redis, space.streams()).values()):  # noqa: ASYNC110 - Redis
            await asyncio.sleep(0.1)


async def _published(url: str, folder: str | None) -> float:
    """Messages a second of one publisher that sends as fast as it can."""
    async with hosts_of(url, 1), streamlease.connect(url) as client:
        space = await _space(client, folder)
        batch, sent = _batch().slice(0, PUBLISHED_ROWS), 0
        async with client.publisher() as publisher:
            for number in range(WARM_BATCHES):
                await publisher.send_batch(f"bench/{number % 7}", batch)
            if folder is not None:
                await _archived(url, space)
            began = time.perf_counter()
            while time.perf_counter() - began < PUBLISH_SECONDS:
                await publisher.send_batch(f"bench/{sent % 7}", batch)
                sent += PUBLISHED_ROWS
            return sent / (time.perf_counter() - began)
