"""Spark queries: the real `AsyncQuery`, called as Spark's micro-batch engine calls it.

A batch is: its end stands in the offset log, it is read, the sink takes it as one transaction under its
number, the commit log names it. A query can be killed between any two steps, and comes back from its logs.

In production `QuerySession` calls it from Spark's thread, and waits.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from streamlease.agent.membership.session import Session
from streamlease.protocol.cuts import Ranges
from streamlease.protocol.errors import Fenced, StreamleaseError
from streamlease.spark.core.checkpoint import CutOffset
from streamlease.spark.core.limits import Limits
from streamlease.spark.options import SourceOptions
from streamlease.spark.query.async_query import AsyncQuery
from streamlease.testing.memory.memory_connection import connect
from streamlease.testing.timelines.loops import Process
from tests.simulation.network import FaultyLine

if TYPE_CHECKING:
    from tests.simulation.world import World


@dataclass
class Checkpoint:
    """What outlives a query: Spark's two logs, and its sink."""

    slots: int
    offsets: list[str] = field(default_factory=list)
    """The end of each batch, as Spark writes it."""
    committed: int = 0
    """How many batches the commit log names."""
    sink: dict[int, tuple[str, Ranges]] = field(default_factory=dict)
    """By batch: who put it there, and what."""
    running: bool = False
    restored: int = 0
    """How often it was replaced by an older one."""

    def cut(self, number: int, group: str) -> CutOffset:
        """The end of a batch; the first has number 1."""
        return CutOffset.from_json(json.loads(self.offsets[number - 1]), group)

    def restore(self, world: World, batches: int) -> None:
        """A backup of some batches ago takes its place, and that of the sink: what followed never was."""
        kept = min(self.committed, len(self.offsets)) - batches
        if kept < 1:
            return
        world.sometimes["an older checkpoint is restored"] += 1
        world.kernel.note("world", "restores the checkpoint as of", self.offsets[kept - 1])
        self.restored += 1
        for number in [number for number in self.sink if number > kept]:
            world.judge.undone(*self.sink.pop(number))
        del self.offsets[kept:]
        self.committed = kept


class Stopped(StreamleaseError):
    """The query was told to stop in the middle of a batch."""


class Query:
    """One process with a Spark driver."""

    def __init__(self, world: World, process: Process, line: FaultyLine, checkpoint: Checkpoint) -> None:
        self.world = world
        self.process = process
        self.line = line
        self.checkpoint = checkpoint
        random = world.kernel.random
        self.limits = Limits(random.choice((None, None, 5)))
        self.patience = random.choice((20, 150, 600))
        self.leaving = False
        self.over = False
        given = {
            "redis": "redis://memory",
            "subscribe": world.subscription,
            "startingOffsets": "earliest",
            "slots": str(checkpoint.slots),
            "sessionTimeoutMs": str(int(world.session_timeout * 1000)),
        }
        self.real = AsyncQuery(
            SourceOptions.parse(given),
            connect=lambda: connect(world.server, line, embedded=world.embedded),
            token=world.kernel.token,
        )
        checkpoint.running = True
        process.ends.append(self._gone)
        process.start(self._run())

    @property
    def session(self) -> Session | None:
        """Its session, once it has begun."""
        borrowing = self.real.loop.borrowing
        return borrowing.session if borrowing is not None else None

    def _gone(self) -> None:
        self.over = True
        self.checkpoint.running = False

    def leave(self) -> None:
        """Stop: between two batches, or in the middle of one."""
        self.leaving = True

    # ------------------------------------------------------------ what Spark does

    async def _run(self) -> None:
        checkpoint, sometimes = self.checkpoint, self.world.sometimes
        try:
            if checkpoint.committed < len(checkpoint.offsets):
                sometimes["a query runs its last batch again"] += 1
                await self._batch()
            await self._go_on()
        except StreamleaseError as error:
            self.world.kernel.note(self.process.name, "query fails:", type(error).__name__)
            sometimes[f"a query ends with {type(error).__name__}"] += 1
            if isinstance(error, Fenced):
                self.process.ends.remove(self._gone)  # nobody starts it again
                self.over = True
        await self.real.stop()
        self.world.end(self.process)

    async def _go_on(self) -> None:
        checkpoint, group = self.checkpoint, self.world.group
        while not self.leaving:
            number = len(checkpoint.offsets)
            start = checkpoint.cut(number, group) if number else self.real.initial()
            end = await self.real.next_cut(start, self.limits)
            if end == start:
                await asyncio.sleep(0.03)
                continue
            await self._pass_time()
            checkpoint.offsets.append(json.dumps(end.to_json()))
            await self._pass_time()
            await self._batch()

    async def _batch(self) -> None:
        """Read the newest batch of the offset log, and put it into the sink."""
        checkpoint, judge = self.checkpoint, self.world.judge
        number = len(checkpoint.offsets)
        cut = checkpoint.cut(number, self.world.group)
        ranges = await self.real.ranges_of(cut)
        judge.cut_read(f"{cut.session}/{checkpoint.restored}", cut, ranges)
        await self._pass_time()
        if number not in checkpoint.sink:
            checkpoint.sink[number] = cut.session, ranges
            for part in ranges:
                judge.delivered(cut.session, part.stream, part.lease_epoch, part.start, part.end, whole=True)
        await self._pass_time()
        checkpoint.committed = number
        await self._pass_time()

    async def _pass_time(self) -> None:
        world, random = self.world, self.world.kernel.random
        await asyncio.sleep(random.randint(1, 20 if world.healing else self.patience) / 1000)
        if world.kernel.chance(world.faults.crash_before * 3):
            world.sometimes["a query is killed between two steps of a batch"] += 1
            world.crash(self.process)
            await asyncio.sleep(1)
        if self.leaving and random.random() < 0.4:
            raise Stopped
