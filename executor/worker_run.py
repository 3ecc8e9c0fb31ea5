"""One worker of a query on this executor: its files, its process with a guard beside it, its log, its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple

from streamlease.executor.run_folders import make, remove
from streamlease.executor.strange_ports import StrangePorts
from streamlease.executor.worker_log import WorkerLog
from streamlease.protocol.errors import QueryRefused
from streamlease.queries.core.signed_orders import JobFile, printable
from streamlease.queries.fetched_files import fetch
from streamlease.queries.files import download
from streamlease.streams.redis.connection import AsyncRedis
from streamlease.streams.tasks import Supervisor

log = logging.getLogger(__name__)

LOG_SECONDS = 5.0
"""How long the end of a worker waits for its log to be written."""

PIPE_SECONDS = 2.0


class WorkerSpec(NamedTuple):
    """What is to be run."""

    query: str
    worker: int
    port: int | None
    program: JobFile
    files: tuple[JobFile, ...]
    arguments: tuple[str, ...]
    environment: dict[str, str]
    leased: bool
    """Another executor runs it when the lease of this one is over."""
    grace: float
    who: str
    """Who submitted it."""


class End(NamedTuple):
    """How a worker ended."""

    exit: int | None
    why: str = ""
    """Where the program did not end by itself."""
    lapsed: bool = False


class WorkerRun:
    """A worker from its order to its end."""

    def __init__(
        self, redis: AsyncRedis, spec: WorkerSpec, folder: Path, tasks: Supervisor, ports: StrangePorts
    ) -> None:
        self.spec = spec
        self._ports = ports
        self.pid: int | None = None
        self._redis = redis
        self._folder = folder
        self._tasks = tasks
        self._guard: asyncio.subprocess.Process | None = None
        self._ending: float | None = None
        """It is to end, and is killed after so many seconds."""
        self._lease_until: float | None = None

    async def run(self, started: Callable[[int], Awaitable[None]]) -> End:
        """Run it to its end; `started` is told its process."""
        try:
            lock = await asyncio.to_thread(make, self._folder)
        except OSError as error:
            return self._never(error)
        try:
            try:
                await self._prepare()
            except QueryRefused as error:
                log.error(
                    "worker %d of query %s is not started: %s; %s submitted it",
                    self.spec.worker,
                    self.spec.query,
                    error,
                    printable(self.spec.who),
                )
                return self._never(error)
            except OSError as error:
                return self._never(error)
            if self._ending is not None:
                return End(None)
            return await self._run(started, lock)
        finally:
            await asyncio.to_thread(remove, self._folder, lock)

    def _never(self, error: Exception) -> End:
        return End(None, f"worker {self.spec.worker} cannot be started: {' '.join(str(error).split())}")

    def renew(self, until: float) -> None:
        """The executor has its lease until then, by the clock of guards."""
        self._lease_until = until
        if self.spec.leased:
            self._say(f"lease {until:.3f}")

    def end(self, grace: float | None = None) -> None:
        """Have it end."""
        grace = self.spec.grace if grace is None else grace
        if self._ending is None or grace < self._ending:
            self._ending = grace
            self._say(f"end {grace:.3f}")

    def _say(self, line: str) -> None:
        if self._guard is not None and self._guard.stdin is not None:
            with contextlib.suppress(OSError, RuntimeError):
                self._guard.stdin.write(line.encode() + b"\n")

    async def _prepare(self) -> None:
        spec = self.spec
        if spec.port is not None:
            self._ports.check(spec.port)
        for file in (spec.program, *spec.files):
            target = self._folder / file.name
            if file.uri:
                await asyncio.to_thread(fetch, file, target)
            else:
                content = await download(self._redis, file)
                await asyncio.to_thread(target.write_bytes, content)

    async def _run(self, started: Callable[[int], Awaitable[None]], lock: int) -> End:
        spec = self.spec
        hears, tells = os.pipe()
        written = WorkerLog(self._redis, spec.query, spec.worker)
        try:
            guard = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "streamlease.executor.guard", str(tells), str(lock),
                sys.executable, str(self._folder / spec.program.name), *spec.arguments,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
                pass_fds=(tells, lock), cwd=self._folder, env=spec.environment, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            os.close(hears)
            return End(None, f"worker {spec.worker} cannot be started: {error}")
        finally:
            os.close(tells)
        self._guard = guard
        assert guard.stdout is not None and guard.stderr is not None
        writing = self._tasks.start("log", written.run(), endless=True)
        reading = [
            self._tasks.start("output", written.read(guard.stdout, "out")),
            self._tasks.start("errors", written.read(guard.stderr, "err")),
        ]
        try:
            if spec.leased and self._lease_until is not None:
                self._say(f"lease {self._lease_until:.3f}")
            if self._ending is not None:
                self._say(f"end {self._ending:.3f}")
            end = await self._follow(hears, started)
            await guard.wait()
            await asyncio.wait(reading, timeout=PIPE_SECONDS)
            await written.close(LOG_SECONDS)
            return end
        finally:
            for task in (writing, *reading):
                task.cancel()
            if guard.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    guard.kill()

    async def _follow(self, hears: int, started: Callable[[int], Awaitable[None]]) -> End:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(hears, "rb", 0)
        )
        telling: asyncio.Task[None] | None = None
        try:
            while line := await reader.readline():
                word, _, number = line.decode().strip().partition(" ")
                if word == "pid":
                    self.pid = int(number)
                    telling = self._tasks.start("started", _awaited(started(self.pid)))
                elif word == "exit":
                    return End(int(number))
                elif word == "lapsed":
                    return End(
                        int(number), "its executor was cut off from Redis for longer than its lease", True
                    )
            return End(None, f"the guard of worker {self.spec.worker} died")
        finally:
            transport.close()
            if telling is not None:
                await asyncio.wait([telling], timeout=LOG_SECONDS)


async def _awaited(work: Awaitable[None]) -> None:
    await work
