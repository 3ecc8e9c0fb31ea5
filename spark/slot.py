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

import pyarrow as pa

from streamlease.agent.client import Client
from streamlease.agent.subscription import Batch
from streamlease.protocol import logs
from streamlease.protocol.errors import Fenced, Indefinite
from streamlease.protocol.topics import SharedSubscription
from streamlease.registry.groups import Start

log = logging.getLogger(__name__)

REPORT_SECONDS = 0.5
MOST_COMMITS = 64
"""How many commits may be on their way before the next batch is taken."""


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
        self._number = number
        self._function = function
        self._line = line
        self._stopping = asyncio.Event()
        self._commits: set[asyncio.Task[None]] = set()
        self._messages = 0
        self._batches = 0

    async def run(self) -> None:
        slot = self._slot
        logs.begin(
            group=SharedSubscription.parse(slot.subscription).id, borrower=f"{slot.name}-{self._number}"
        )
        loop = asyncio.get_running_loop()
        loop.add_reader(self._line.fileno(), self._stopping.set)
        try:
            async with (
                Client(slot.url, embedded=slot.embedded_leader) as client,
                client.subscribe(
                    slot.subscription,
                    start=slot.start,
                    name=f"{slot.name}-{self._number}",
                    max_batch=slot.max_batch,
                    session_timeout=slot.session_timeout,
                ) as batches,
            ):
                reports = asyncio.create_task(self._report(lambda: len(batches.streams)))
                stopped = asyncio.create_task(self._stopping.wait())
                try:
                    while not self._stopping.is_set():
                        following = asyncio.ensure_future(anext(batches))
                        await asyncio.wait({following, stopped}, return_when=asyncio.FIRST_COMPLETED)
                        if not following.done():
                            following.cancel()
                            with suppress(asyncio.CancelledError):
                                await following
                            break
                        await self._handle(following.result())
                finally:
                    if self._commits:
                        await asyncio.wait(self._commits)
                    for task in (reports, stopped):
                        task.cancel()
                        with suppress(asyncio.CancelledError):
                            await task
                    self._tell(0)
        finally:
            loop.remove_reader(self._line.fileno())

    async def _handle(self, batch: Batch) -> None:
        if len(batch):
            # In a thread, so that pings and revocations are answered while the function works.
            await asyncio.to_thread(self._function, batch.to_arrow())
        commit = asyncio.create_task(self._commit(batch))
        self._commits.add(commit)
        commit.add_done_callback(self._commits.discard)
        if len(self._commits) >= MOST_COMMITS:
            await asyncio.wait(self._commits, return_when=asyncio.FIRST_COMPLETED)

    async def _commit(self, batch: Batch) -> None:
        try:
            await batch.commit()
        except (Fenced, Indefinite) as error:
            log.warning(
                "offsets %d to %d of %s may come again: %s", batch.start, batch.end, batch.stream, error,
                extra={"stream": str(batch.stream)},
            )  # fmt: skip
            return
        self._messages += len(batch)
        self._batches += 1

    async def _report(self, held: Callable[[], int]) -> None:
        while True:
            self._tell(held())
            await asyncio.sleep(REPORT_SECONDS)

    def _tell(self, held: int) -> None:
        with suppress(OSError):  # the driver is gone: the line is readable, and the slot stops
            text = json.dumps(asdict(SlotProgress(self._messages, self._batches, held)))
            self._line.send_bytes(text.encode())
