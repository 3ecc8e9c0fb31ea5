"""An executor: it holds a name, takes signed orders, runs their workers, and sees to queries of dead
executors.

One round, at every change of a query and several times in the length of the lease::

    renew the lease -> tell the guards until when it holds -> look at all queries
        -> end those of its workers whose queries end -> see to what others have left

A lease that is over, and seen so by somebody, ends this *life* of the executor: all that runs under it is
killed, and the next life begins, under another id. What runs of a query that is to be placed anew is killed
by its guard before anybody may see the lease over, so no such query runs twice.

An executor takes others for dead only if it has reached Redis all the time: behind an outage of Redis all
leases are over, and all executors are there.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import redis as redis_py

from streamlease.executor.guard import clock
from streamlease.executor.program_environment import program_environment
from streamlease.executor.queries_of_others import KEEP_SECONDS, QueriesOfOthers
from streamlease.executor.run_folders import remove_left, run_name
from streamlease.executor.strange_ports import StrangePorts
from streamlease.executor.worker_run import End, WorkerRun, WorkerSpec
from streamlease.protocol.errors import (
    Indefinite,
    InvalidOption,
    QueryRefused,
    StoreRefused,
    StoreUnavailable,
    StreamleaseError,
    UnknownQuery,
)
from streamlease.protocol.ids import check_name, random_token
from streamlease.protocol.seldom import Seldom
from streamlease.queries import files, keys, store, submitting
from streamlease.queries.core.machine import Event, WorkerExited, WorkersLost, WorkerStarted
from streamlease.queries.core.record import QueryRecord, QueryStage
from streamlease.queries.core.signed_orders import Job, Order, check_order, said_by, token_of
from streamlease.queries.store import ExecutorRow, SeenQueries
from streamlease.registry.spawn_jobs import SpawnWorkers
from streamlease.streams.redis.connection import AsyncRedis
from streamlease.streams.redis.lines.bells import Bells
from streamlease.streams.tasks import Supervisor

log = logging.getLogger(__name__)

ROUNDS = 4
"""In the length of a lease."""

MOST_QUIET_SECONDS = 15.0
"""Between two rounds, however long the lease is: probes want a sign of life each minute."""

MARGIN = 0.15
"""The part of a lease by which guards end it sooner: to kill a program takes a moment, and clocks differ."""

GATHER_SECONDS = 0.01
RETRY_SECONDS = 0.3
_UNANSWERED = (StoreUnavailable, StoreRefused, Indefinite)


@dataclass(frozen=True, slots=True)
class ExecutorConfig:
    """Settings of an executor.

    Raises:
        InvalidInput: one is out of range.
    """

    name: str
    program_url: str
    """The Redis that programs get."""
    folder: Path
    slots: int = 4
    ports: tuple[int, int] | None = None
    labels: tuple[tuple[str, str], ...] = ()
    address: str = ""
    """Where the ports of its workers are reached; empty: the name of this machine."""
    lease: float = 15.0
    drain: float = 20.0
    passed: frozenset[str] = field(default_factory=frozenset)

    def __post_init__(self) -> None:
        check_name("an executor", self.name)
        if not 1 <= self.slots <= 1000:
            raise InvalidOption(f"--slots is {self.slots}: it must be from 1 to 1000")
        if self.ports is not None and not 1 <= self.ports[0] <= self.ports[1] <= 65535:
            first, last = self.ports
            raise InvalidOption(
                f"--ports {first}-{last}: give two ports from 1 to 65535, the lower one first"
            )
        if not 1 <= self.lease <= 3600:
            raise InvalidOption(f"--lease is {self.lease:g} s: it must be from 1 s to 1 h")


class Executor:
    """Belongs to one event loop.

    Args:
        queue: for the queues of other executors.
        failed: told if it ends by itself.
    """

    def __init__(
        self,
        redis: AsyncRedis,
        queue: redis_py.Redis,
        config: ExecutorConfig,
        key: bytes,
        failed: Callable[[], None],
    ) -> None:
        self._redis = redis
        self._seldom = Seldom(log)
        self._config = config
        self._key = key
        self.failure: StreamleaseError | None = None
        self._told_failed = failed
        self.life = random_token()
        self._runs: dict[tuple[str, int], WorkerRun] = {}
        self._running: set[asyncio.Task[None]] = set()
        self._taken: dict[str, int] = {}
        """Signatures of orders, and when their time is over: none is run twice."""
        self._tasks = Supervisor(f"executor {config.name}", self._failed)
        self._wake = asyncio.Event()
        self._strange = StrangePorts()
        self._bells = Bells("changes of queries", redis, self._tasks)
        self._others = QueriesOfOthers(redis, queue, key, config.lease)
        self._kept_at = 0.0
        self._leaving = False

    # ------------------------------------------------------------ its life

    async def start(self) -> None:
        """Take the name; waits for a former process of that name whose lease still holds.

        Raises:
            InvalidOption: a living executor has the name.
            StoreUnavailable, StoreRefused, Indefinite.
        """
        await asyncio.to_thread(remove_left, self._config.folder)
        give_up = clock() + self._config.lease * 1.5
        said = False
        while (other := await self._begin()) is not None:
            if not said:
                log.warning(
                    "executor %s waits for its name, which another one has: %s", self._config.name, other
                )
                said = True
            if clock() > give_up:
                raise InvalidOption(
                    f"there is an executor '{self._config.name}' already: "
                    f"choose another --name, or end that one"
                )
            self._touch(".alive")
            await asyncio.sleep(min(self._config.lease / 10, MOST_QUIET_SECONDS))
        self._bells.watch_channel(keys.TOLD, self._wake)
        self._tasks.start("rounds", self._rounds(), endless=True)

    async def _begin(self) -> str | None:
        """Take the name; the row of a living executor that has it."""
        sent = clock()
        word, _, row = await store.hold(self._redis, self.life, self._row, self._lease_ms, begin=True)
        if word == "taken":
            return row
        self._held(sent)
        return None

    @property
    def _lease_ms(self) -> int:
        return round(self._config.lease * 1000)

    @property
    def _row(self) -> ExecutorRow:
        one = self._config
        return ExecutorRow(
            executor=one.name,
            slots=0 if self._leaving else one.slots,
            busy=len(self._runs),
            labels=one.labels,
            ports=one.ports,
            strange=self._strange.still(),
            address=one.address or socket.gethostname(),
            process=self.life,
            host=socket.gethostname(),
            pid=os.getpid(),
        )

    def _held(self, sent: float) -> None:
        self._lease_until = sent + self._config.lease * (1 - MARGIN)
        for run in self._runs.values():
            run.renew(self._lease_until)

    async def close(self) -> None:
        """Leave: what runs here is told to end, and is lost, or placed anew elsewhere."""
        self._leaving = True
        for run in self._runs.values():
            run.end(min(run.spec.grace, self._config.drain))
        if self._running:
            await asyncio.wait(self._running, timeout=self._config.drain + 2)
        await self._tasks.close()
        try:
            async with asyncio.timeout(5):
                await store.leave(self._redis, self.life)
                seen = await store.look(self._redis)
                why = f"executor {self._config.name} left"
                for query, found in seen.queries.items():
                    if any(one.life == self.life for one in found.record.left):
                        await submitting.advance(self._redis, query, WorkersLost(self.life, why), seen.at)
        except (TimeoutError, *_UNANSWERED) as error:
            log.warning("executor %s left without a word: %s", self._config.name, error)

    def _failed(self, name: str, error: StreamleaseError) -> None:
        self.failure = self.failure or error
        self._told_failed()

    # ------------------------------------------------------------ rounds

    async def _rounds(self) -> None:
        while True:
            self._wake.clear()
            self._touch(".alive")
            try:
                await self._round()
                self._touch(".ready")
            except _UNANSWERED as error:
                self._others.begin_anew()
                self._seldom.warning("executor %s: %s", self._config.name, error)
                await asyncio.sleep(RETRY_SECONDS)
                continue
            try:
                async with asyncio.timeout(min(self._config.lease / ROUNDS, MOST_QUIET_SECONDS)):
                    await self._wake.wait()
            except TimeoutError:
                pass
            await asyncio.sleep(GATHER_SECONDS)

    def _touch(self, name: str) -> None:
        """For probes: how long ago that was, they see by the file's time."""
        with contextlib.suppress(OSError):
            (self._config.folder / name).touch()

    async def _round(self) -> None:
        sent = clock()
        word, _, _ = await store.hold(self._redis, self.life, self._row, self._lease_ms, begin=False)
        if word == "gone":
            await self._begin_anew()
            return
        if clock() - sent > self._config.lease / 2 or sent > self._lease_until:
            self._others.begin_anew()  # it stood still, or Redis did
        self._held(sent)
        seen = await store.look(self._redis)
        await self._see_to_own(seen)
        if not self._leaving and await self._others.see_to(seen, self.life):
            self._wake.set()
        if clock() - self._kept_at > KEEP_SECONDS:
            self._kept_at = clock()
            await self._keep(seen)
        await self._others.tell_refusals()

    async def _begin_anew(self) -> None:
        log.error(
            "executor %s: its life %s is over, because it was cut off for longer than its lease, or Redis "
            "lost it: %d workers are killed, and it begins anew",
            self._config.name,
            self.life,
            len(self._runs),
        )
        self.life = random_token()
        for run in self._runs.values():
            run.end(0.0)
        if self._running:
            await asyncio.wait([*self._running])
        self._others.begin_anew()
        if await self._begin() is not None:
            raise InvalidOption(f"there is another executor '{self._config.name}' now: choose another --name")
        self._wake.set()

    async def _see_to_own(self, seen: SeenQueries) -> None:
        for (query, worker), run in self._runs.items():
            found = seen.queries.get(query)
            if found is None or found.record.state is QueryStage.ENDING:
                run.end()
            elif all(one.worker != worker for one in found.record.of_life(self.life)):
                run.end()  # somebody has put the record back, or a failover has
        for query, found in seen.queries.items():
            if found.record.state is not QueryStage.ENDING:
                continue
            for one in found.record.left:
                if one.life == self.life and (query, one.worker) not in self._runs:
                    await self._tell(query, WorkerExited(one.worker, self.life, None))

    async def _keep(self, seen: SeenQueries) -> None:
        for query in {query for query, _ in self._runs}:
            found = seen.queries.get(query)
            if found is not None and found.record.restart:
                await submitting.renew_permit(self._redis, self._key, query, seen.at)
        for run in self._runs.values():
            await files.keep(self._redis, [run.spec.program, *run.spec.files])
        self._taken = {mark: until for mark, until in self._taken.items() if until > seen.at}

    async def _tell(self, query: str, event: Event) -> QueryRecord | None:
        """Step a query until it is written; nothing if this life is over meanwhile."""
        life = self.life
        while life == self.life:
            try:
                return await submitting.advance(self._redis, query, event, await store.redis_ms(self._redis))
            except _UNANSWERED as error:
                self._seldom.warning("executor %s: %s", self._config.name, error)
                await asyncio.sleep(RETRY_SECONDS)
        return None

    # ------------------------------------------------------------ orders

    def take(self, spawn: SpawnWorkers) -> None:
        """Run an order, unless it is to be refused."""
        if not self._leaving:
            self._tasks.start("order", self._take(spawn))

    async def _take(self, spawn: SpawnWorkers) -> None:
        try:
            now = await store.redis_ms(self._redis)
            order, job = check_order(self._key, spawn.order, spawn.signature, self.life, now)
            self._others.past_placing.see([order.query], now)
            if spawn.signature in self._taken:
                raise QueryRefused("the order was taken already")
            self._taken[spawn.signature] = order.until
            record = (await store.read(self._redis, order.query)).record
        except (QueryRefused, UnknownQuery) as error:
            log.error("an order is refused, nothing of it was run: %s; %s", error, said_by(spawn.order))
            return
        except _UNANSWERED as error:
            self._seldom.warning("executor %s takes no order for a moment: %s", self._config.name, error)
            return  # the query ends when its time to spawn is over
        ordered = {one.worker: one.port for one in order.workers}
        for one in (one for one in record.of_life(self.life) if one.pid is None and not one.over):
            if record.state is QueryStage.SPAWNING and one.worker in ordered:
                run = WorkerRun(
                    self._redis,
                    self._spec(order, job, one.worker, ordered[one.worker]),
                    self._folder(order, one.worker),
                    self._tasks,
                    self._strange,
                )
                run.renew(self._lease_until)
                self._runs[order.query, one.worker] = run
                task = self._tasks.start(f"worker {one.worker} of {order.query}", self._run(order.query, run))
                self._running.add(task)
                task.add_done_callback(self._running.discard)

    def _spec(self, order: Order, job: Job, worker: int, port: int | None) -> WorkerSpec:
        token = token_of(self._key, order.query)
        url, more = self._config.program_url, self._config.passed
        environment = program_environment(job, order.query, worker, token, url, more)
        return WorkerSpec(
            order.query,
            worker,
            port,
            job.program,
            job.files,
            job.arguments,
            environment,
            job.restart,
            job.grace_ms / 1000,
            job.who,
        )

    def _folder(self, order: Order, worker: int) -> Path:
        return self._config.folder / run_name(order.query, self.life, worker)

    async def _run(self, query: str, run: WorkerRun) -> None:
        worker, life = run.spec.worker, self.life

        async def started(pid: int) -> None:
            log.info("worker %d of query %s runs as process %d", worker, query, pid)
            found = await self._tell(query, WorkerStarted(worker, life, pid))
            if found is None or found.state in (QueryStage.ENDING, QueryStage.ENDED):
                run.end()

        try:
            end = await run.run(started)
        except _UNANSWERED as error:
            end = End(None, f"worker {worker} cannot be started: {error}")
        finally:
            self._runs.pop((query, worker), None)
        log.info("worker %d of query %s is over: exit %s %s", worker, query, end.exit, end.why)
        if not self._leaving:
            await self._tell(query, WorkerExited(worker, life, end.exit, end.why, end.lapsed))
        self._wake.set()
