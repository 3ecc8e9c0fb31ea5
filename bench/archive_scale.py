"""Archive at scale: more messages than Redis may hold, published, archived, and read from the first one on.

``python -m bench archive_scale --messages 100000000``: messages of 100 random bytes in one space, under a
``maxmemory`` of 1 GiB, or of a quarter of what they have, if that is less: with fewer messages it goes the
same way. While a process publishes as fast as it can, a leader host archives and trims; when it is behind,
Redis takes nothing, and the publisher is held back. Then one consumer of a group, and after it a Spark batch
on two cores, read everything. Sums by column (``bench.scale_sums``) show that each message is there once.
One run; files go where ``TMPDIR`` says, and need 110 bytes for each message. With ``--redis``, that server's
``maxmemory`` is another one meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import psutil
import redis

import streamlease
from bench.frame import Frame, Table
from bench.leaders import hosts_of
from bench.scale_sums import BYTES, COLUMNS, IN_SPARK, ROWS, Sums
from streamlease.streams.archive.checking import Verified, verify
from streamlease.streams.archive.recording import recorded
from streamlease.streams.redis.connection import connect_blocking
from streamlease.streams.spaces.archive_settings import ArchiveSettings
from streamlease.streams.spaces.definitions import Space

LIMIT = 1024**3
LEAST_LIMIT = 48 * 1024**2
KEEP = 4
"""A part of so many of what Redis may hold is kept there when it is archived."""

STREAMS = 2
LOOK_SECONDS = 0.2
ARCHIVED_SECONDS = 3600.0
"""So long the archiver may need for what is left when all is published."""


def measure(frame: Frame) -> Iterator[Table]:
    """Rates, memory, and the sums by column."""
    count = -(-frame.messages // ROWS) * ROWS
    with frame.server() as url, tempfile.TemporaryDirectory() as folder, closing(Peaks(url)) as peaks:
        run = Run(url, folder, count, peaks)
        asyncio.run(run.all())
    yield run.rates()
    yield peaks.table(run.used_peak)
    yield run.proof()


class Peaks:
    """The most memory that each process of this run has had, and its processor time, looked at again and
    again."""

    def __init__(self, url: str) -> None:
        with redis.Redis.from_url(url) as client:
            self._names = {int(client.info("server")["process_id"]): "Redis"}
        self._found: dict[str, dict[int, tuple[int, float]]] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def name(self, process: int, name: str) -> None:
        """Say what a process is."""
        self._names[process] = name

    def close(self) -> None:
        """Look no more."""
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(LOOK_SECONDS):
            known = [psutil.Process(pid) for pid in self._names if psutil.pid_exists(pid)]
            for process in {*known, *psutil.Process().children(recursive=True)}:
                self._look(process)

    def _look(self, process: psutil.Process) -> None:
        try:
            name = self._names.get(process.pid) or self._of_spark(process)
            if name:
                size, times = process.memory_info().rss, process.cpu_times()
                before = self._found.setdefault(name, {}).get(process.pid, (0, 0.0))
                spent = times.user + times.system
                self._found[name][process.pid] = max(before[0], size), spent
        except psutil.NoSuchProcess:
            return

    def _of_spark(self, process: psutil.Process) -> str:
        program = process.name()
        if "java" in program:
            return "Spark, Java"
        above = [one.name() for one in process.parents()]
        return "Spark, Python" if "python" in program and any("java" in one for one in above) else ""

    def table(self, used: int) -> Table:
        """Of each kind of process."""
        table = Table("Memory and processor", ("", "processes", "most MiB of one", "processor s"))
        for name, each in self._found.items():
            most, spent = max(one[0] for one in each.values()), sum(one[1] for one in each.values())
            table.rows.append((name, str(len(each)), f"{most / 2**20:,.0f}", f"{spent:,.1f}"))
        table.rows.append(("Redis, as it counts (used_memory_peak)", "", f"{used / 2**20:,.0f}", ""))
        return table


class Run:
    """All of it, once."""

    def __init__(self, url: str, folder: str, count: int, peaks: Peaks) -> None:
        self.url = url
        self.folder = folder
        self.count = count
        self.peaks = peaks
        self.limit = min(LIMIT, max(LEAST_LIMIT, count * BYTES // 4))
        self.seconds: dict[str, float] = {}
        self.summing: dict[str, float] = {}
        self.sums: dict[str, Mapping[str, int]] = {}
        self.refused = self.behind = self.used_peak = self.size = 0
        self.verified: Verified | None = None

    async def all(self) -> None:
        """Publish, archive, consume, read."""
        async with self._limited() as plain, streamlease.connect(self.url) as client:
            space = await client.create_space(
                "bench",
                ["bench/#"],
                streams=STREAMS,
                archive=ArchiveSettings.of(self.folder, keep_bytes=self.limit // KEEP),
            )
            async with hosts_of(self.url, 1) as ((host, _),):
                self.peaks.name(host.pid, "leader host")
                began = time.perf_counter()
                await self._process("publish")
                self.refused = sum(
                    int(one["count"])
                    for name, one in plain.info("errorstats").items()
                    if name.endswith("OOM")
                )
                with closing(connect_blocking(self.url)) as blocking:
                    ends = await self._archived(blocking, space)
                    self.seconds["publish and archive"] = time.perf_counter() - began
                    sums = Sums()
                    sums.offsets(ends)
                    self.sums["publish"] = {**self.sums["publish"], **sums.of}
                    await self._process("consume")
                    await asyncio.to_thread(self._spark)
                    began = time.perf_counter()
                    assert space.archive is not None
                    self.verified = await asyncio.to_thread(verify, blocking, space, space.archive)
                    self.seconds["verify"] = time.perf_counter() - began
            self.used_peak = int(plain.info("memory")["used_memory_peak"])
            self.size = await asyncio.to_thread(_size, self.folder)

    @asynccontextmanager
    async def _limited(self) -> AsyncIterator[redis.Redis]:
        with redis.Redis.from_url(self.url) as plain:
            before = plain.config_get("maxmemory")["maxmemory"]
            plain.config_set("maxmemory", self.limit)
            plain.config_resetstat()
            try:
                yield plain
            finally:
                plain.config_set("maxmemory", before)

    async def _process(self, what: str) -> None:
        words = [sys.executable, "-m", "bench.scale_process", what, self.url, str(self.count)]
        process = await asyncio.create_subprocess_exec(*words, stdout=subprocess.PIPE)
        self.peaks.name(process.pid, {"publish": "publisher", "consume": "consumer of the group"}[what])
        said, _ = await process.communicate()
        if process.returncode:
            raise SystemExit(f"{what} ended with {process.returncode}")
        self._told(what, json.loads(said))

    def _told(self, what: str, told: dict[str, Any]) -> None:
        self.sums[what], self.seconds[what], self.summing[what] = (
            told["sums"],
            told["seconds"],
            told["summing"],
        )

    async def _archived(self, blocking: Any, space: Space) -> dict[str, int]:
        """Wait until all is archived; where the streams end."""
        async with asyncio.timeout(ARCHIVED_SECONDS):
            while True:
                known = await asyncio.to_thread(recorded, blocking, space.streams(), with_files=False)
                left = sum(one.state.next - one.archived for one in known.values())
                self.behind = max(self.behind, left)
                if not left:
                    return {str(stream): one.state.next for stream, one in known.items()}
                await asyncio.sleep(LOOK_SECONDS)

    def _spark(self) -> None:
        from bench.sparks import session

        with session(2) as spark:
            frame = (
                spark.read.format("streamlease")
                .option("redis", self.url)
                .option("subscribe", "bench/#")
                .option("startingOffsets", "earliest")
                .option("endingOffsets", "latest")
                .load()
            )
            frame.limit(1).collect()  # Java, and the workers, are there then
            began = time.perf_counter()
            (row,) = frame.selectExpr(*IN_SPARK).collect()
            seconds = time.perf_counter() - began
        told = {name: int(value) for name, value in zip(COLUMNS, row, strict=True)}
        self._told("Spark", {"sums": told, "seconds": seconds, "summing": 0.0})

    # ------------------------------------------------------------ what is told

    def rates(self) -> Table:
        """Messages a second of each step."""
        title = f"{self.count:,} messages of {BYTES} bytes, {self.limit / 2**20:,.0f} MiB for Redis"
        table = Table(title, ("", "messages/s", "s"))
        names = {
            "publish": f"publishing (Redis refused {self.refused:,} writes: no memory)",
            "publish and archive": f"until all is archived ({self.behind:,} were left)",
            "consume": "a group from earliest, one consumer",
            "Spark": "a Spark batch on two cores, with its sums",
            "verify": "all files read again, and compared",
        }
        for key, name in names.items():
            seconds = self.seconds[key]
            table.rows.append((name, f"{self.count / seconds:,.0f}", f"{seconds:,.1f}"))
            if self.summing.get(key):
                less = seconds - self.summing[key]
                table.rows.append(("  without summing up", f"{self.count / less:,.0f}", f"{less:,.1f}"))
        assert self.verified is not None
        found = self.verified
        table.rows.append((f"files of the table, {len(found.wrong)} wrong", f"{found.files:,}", ""))
        table.rows.append(("MiB of the table", f"{found.bytes / 2**20:,.0f}", ""))
        table.rows.append(("MiB of its folder", f"{self.size / 2**20:,.0f}", ""))
        if found.wrong or found.messages != self.count:
            raise SystemExit(f"the archive has {found.messages} of {self.count} messages; {found.wrong[:3]}")
        return table

    def proof(self) -> Table:
        """The sums by column, if they are the same.

        Raises:
            SystemExit: they are not.
        """
        table = Table("Sums by column: published, consumed by the group, read by Spark", ("", "all three"))
        for name in COLUMNS:
            each = [int(self.sums[who].get(name, 0)) for who in ("publish", "consume", "Spark")]
            if len({*each}) != 1:
                raise SystemExit(f"{name}: published {each[0]}, consumed {each[1]}, read by Spark {each[2]}")
            table.rows.append((name, f"{each[0]:,}"))
        return table


def _size(folder: str) -> int:
    """Bytes of all files below it."""
    return sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
