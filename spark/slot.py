"""One slot of continuous mode, inside a Spark task: borrow, call the function, commit, until told to stop."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from multiprocessing.connection import Client as call
from multiprocessing.connection import Connection
from typing import Any

import pyarrow as pa

from streamlease.agent.client import Client
from streamlease.agent.subscription import Batch, SharedReader
from streamlease.protocol import log_lines as logs
from streamlease.protocol.errors import StreamleaseError
from streamlease.protocol.topics import SharedSubscription
from streamlease.registry.starts import Start
from streamlease.spark.committing import Commits
from streamlease.spark.working import FunctionThread
from streamlease.streams.tasks import Supervisor

log = logging.getLogger(__name__)

REPORT_SECONDS = 0.5
MOST_OPEN_BATCHES = 64
"""So many full batches may be done and not committed before the next one is taken."""


@dataclass(frozen=True, slots=True)
class Slot:
    """What a slot borrows; travels to the task."""

    url: str
    subscription: str
    name: str
    start: Start
    max_batch: int
    session_timeout: float
    embedded_leader: bool


@dataclass(frozen=True, slots=True)
class SlotProgress:
    """What a task tells its driver."""

    messages: int = 0
    """Committed since the task began."""
    batches: int = 0
    streams: int = 0
    """Held now."""

    @classmethod
    def parse(cls, text: bytes) -> SlotProgress:
        """Read what a task has sent."""
        return cls(**json.loads(text))


def host(
    slot: Slot,
    number: int,
    function: Callable[[pa.RecordBatch], object],
    address: tuple[str, int],
    secret: bytes,
) -> None:
    """Be slot `number` until the driver at `address` says stop, or is gone.

    Raises:
        Exception: what the function raised; the batch is not committed.
        Fenced: another query of the same name took over.
    """
    with call(address, authkey=secret) as line:
        line.send_bytes(b"%d" % number)
        asyncio.run(_Host(slot, number, function, line).run())


class _Host:
    def __init__(
        self, slot: Slot, number: int, function: Callable[[pa.RecordBatch], object], line: Connection
    ) -> None:
        self._slot = slot
        self._name = f"{slot.name}-{number}"
        self._function = function
        self._line = line
        self._stopping = False
        self._idle = False
        """Whether it waits for the next batch, and nothing is at hand."""
        self._task: asyncio.Task[Any] | None = None
        self._thread: FunctionThread | None = None
        self._commits: Commits | None = None
        self._error: StreamleaseError | None = None

    async def run(self) -> None:
        slot = self._slot
        logs.begin(group=SharedSubscription.parse(slot.subscription).id, borrower=self._name)
        self._task = asyncio.current_task()
        loop = asyncio.get_running_loop()
        loop.add_reader(self._line.fileno(), self._stop)
        try:
            async with (
                Client(slot.url, embedded=slot.embedded_leader) as client,
                client.subscribe(
                    slot.subscription,
                    start=slot.start,
                    name=self._name,
                    max_batch=slot.max_batch,
                    session_timeout=slot.session_timeout,
                ) as batches,
            ):
                self._thread = FunctionThread(self._function)
                self._commits = Commits(MOST_OPEN_BATCHES * slot.max_batch)
                tasks = Supervisor(self._name, lambda _, error: self._failed(error))
                tasks.start("reporting", self._report(lambda: len(batches.streams)), endless=True)
                try:
                    await self._work(batches)
                finally:
                    self._thread.close()
                    await self._commits.finish()
                    await tasks.close()
                    self._tell(0)
            if self._error is not None:
                raise self._error
        finally:
            loop.remove_reader(self._line.fileno())

    def _failed(self, error: StreamleaseError) -> None:
        """The driver would hear nothing more of the slot: it ends."""
        self._error = error
        self._stop()

    def _stop(self) -> None:
        """The driver says stop, or is gone."""
        if self._stopping:
            return
        self._stopping = True
        asyncio.get_running_loop().remove_reader(self._line.fileno())
        with suppress(EOFError, OSError):  # the driver is gone
            if self._line.poll():
                self._line.recv_bytes()  # closed with something unread, the line would lose the last report
        if self._thread is not None:
            self._thread.halt()
        if self._idle and self._task is not None:
            self._task.cancel()

    async def _work(self, batches: SharedReader) -> None:
        assert self._thread is not None
        assert self._commits is not None
        group: list[Batch] = []
        while not self._stopping:
            await self._commits.room()
            if not group:
                group = await self._next(batches)
            part = group[: self._thread.batches]
            outcome = await self._thread.call([batch.to_arrow() for batch in part])
            for batch in part[: outcome.done]:
                self._commits.done(batch)
            if outcome.error is not None:
                raise outcome.error
            del group[: outcome.done]

    async def _next(self, batches: SharedReader) -> list[Batch]:
        """Some batches, as soon as there is one; none if the slot is to stop."""
        assert self._thread is not None
        group = batches.at_once(self._thread.batches)
        if group or self._stopping:
            return group
        self._idle = True
        try:
            group = [await anext(batches)]
        except asyncio.CancelledError:
            if not self._stopping or self._task is None or self._task.uncancel():
                raise
            return []
        finally:
            self._idle = False
        return group + batches.at_once(self._thread.batches - 1)

    async def _report(self, held: Callable[[], int]) -> None:
        while True:
            self._tell(held())
            await asyncio.sleep(REPORT_SECONDS)

    def _tell(self, held: int) -> None:
        assert self._commits is not None
        with suppress(OSError):  # the driver is gone: the line is readable, and the slot stops
            progress = SlotProgress(self._commits.messages, self._commits.batches, held)
            self._line.send_bytes(json.dumps(asdict(progress)).encode())
