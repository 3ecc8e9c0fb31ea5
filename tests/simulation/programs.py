"""Programs that consume: what users write, on the real client."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from streamlease.agent.batch import Batch
from streamlease.agent.membership.session import Session
from streamlease.agent.subscription import SharedReader
from streamlease.protocol.errors import Fenced, Indefinite, StoreUnavailable
from streamlease.testing.memory.memory_connection import connect
from streamlease.testing.timelines.loops import Process
from tests.simulation import poison
from tests.simulation.network import FaultyLine

if TYPE_CHECKING:
    from tests.simulation.queries import Query
    from tests.simulation.world import World

UNANSWERED = (StoreUnavailable, Indefinite)


class Program:
    """Takes batches, works, commits; perhaps late, perhaps several at once."""

    def __init__(self, world: World, process: Process, line: FaultyLine, name: str | None) -> None:
        self.world = world
        self.process = process
        self.line = line
        self.name = name
        random = world.kernel.random
        self.max_batch = random.choice((1, 5, 30))
        self.patience = random.choice((20, 150, 600))
        self.lazy = random.random() < 0.3
        self.gathers = world.kernel.seed % 6 == 5
        """Whether it commits in the background, and flushes now and then."""
        self._entered: dict[str, int] = {}
        """What it has entered since it flushed last: stream -> end."""
        self._left = asyncio.Event()
        self.over = False
        self.reader: SharedReader | None = None
        self._late: list[asyncio.Task[None]] = []
        process.ends.append(self._gone)
        process.start(self._run())

    @property
    def session(self) -> Session | None:
        """Its session, once it has begun."""
        return self.reader._settling.session if self.reader is not None else None

    def _gone(self) -> None:
        self.over = True

    @property
    def leaving(self) -> bool:
        """Whether it is about to stop."""
        return self._left.is_set()

    def leave(self) -> None:
        """Stop after the present batch, in good order."""
        self._left.set()

    async def _run(self) -> None:
        world = self.world
        client = connect(world.server, self.line, embedded=world.embedded)
        subscription = client.subscribe(
            world.subscription,
            start="earliest",
            name=self.name,
            max_batch=self.max_batch,
            session_timeout=world.session_timeout,
        )
        while not self.leaving:
            try:
                self.reader = await subscription.__aenter__()
                break
            except UNANSWERED:
                await asyncio.sleep(0.3)
        if self.reader is not None:
            try:
                await self._consume(self.reader)
            except Fenced:
                world.sometimes["a consumer is replaced by its namesake"] += 1
            await self._leave(self.reader)
        try:
            await client.close()
        except UNANSWERED:
            world.sometimes["a client closes without an answer"] += 1
        world.end(self.process)

    async def _consume(self, reader: SharedReader) -> None:
        world, random = self.world, self.world.kernel.random
        while (batch := await self._next(reader)) is not None:
            stream, held, turn = str(batch.stream), batch.held, batch.held.turn
            session = self.session
            assert session is not None
            world.judge.delivered(session.config.session, stream, held.lease_epoch, batch.start, batch.end)
            await asyncio.sleep(random.randint(1, 20 if world.healing else self.patience) / 1000)
            if turn != held.turn or held.failing is not None:
                continue  # its messages come again
            bad = world.poison.first(batch)
            if bad is not None:
                self._fail(batch, bad)
                continue
            committing = asyncio.create_task(self._commit(batch))
            if self.lazy and random.random() < 0.6 and len(self._late) < 5:
                self._late = [*(task for task in self._late if not task.done()), committing]
            else:
                await committing

    async def _next(self, reader: SharedReader) -> Batch | None:
        """The next batch; None if it is to leave before there is one."""
        taking, leaving = asyncio.create_task(_take(reader)), asyncio.create_task(self._left.wait())
        try:
            await asyncio.wait([taking, leaving], return_when=asyncio.FIRST_COMPLETED)
            return taking.result() if taking.done() and not self.leaving else None
        finally:
            taking.cancel()
            leaving.cancel()

    async def _commit(self, batch: Batch) -> None:
        done = {str(batch.stream): batch.end}
        try:
            if self.gathers:
                batch.commit_soon()
                self._entered |= done
                if batch.end % 3:
                    return
                done, self._entered = self._entered, {}
                assert self.reader is not None
                await self.reader.flush()
                self.world.sometimes["what was gathered is flushed"] += 1
            else:
                await batch.commit()
        except Fenced:
            self.world.sometimes["a commit is refused: the stream was taken away"] += 1
        except Indefinite:
            self.world.sometimes["a commit is not confirmed in time"] += 1
        else:
            for stream, end in done.items():
                self.world.judge.acknowledged(stream, end)

    def _fail(self, batch: Batch, offset: int) -> None:
        """Give up at a message. What came behind it counts for nothing."""
        if batch.held.failing is not None:
            return
        self.world.sometimes["a program fails at a message"] += 1
        session = self.session
        assert session is not None
        poison.void(self.world.judge, session.config.session, str(batch.stream), offset)

        async def wait() -> None:
            try:
                said: str = await batch.fail(offset, "poison")
            except Fenced:
                said = "the stream was taken away"
            except Indefinite:
                said = "not in time"
            self.world.sometimes[f"a failure is answered: {said}"] += 1

        self._late = [*(task for task in self._late if not task.done()), asyncio.create_task(wait())]

    async def _leave(self, reader: SharedReader) -> None:
        if self._late and reader._settling.error is None:
            await asyncio.wait(self._late, timeout=30)
        for task in self._late:
            task.cancel()
        for stream, held in reader.book.streams.items():
            if held.delivered > held.acknowledged:
                self.world.sometimes["a consumer leaves without an answer to its commit"] += 1
                self.world.judge.broken.setdefault(stream, set()).add(held.lease_epoch)
        try:
            await reader.close()
        except (Fenced, Indefinite):
            self.world.sometimes["a consumer leaves with something that is not confirmed"] += 1


def names_of(consumer: Program | Query) -> tuple[str, ...]:
    """The borrowers of a consumer that consumes."""
    session = consumer.session
    return session.config.names if session is not None and not session.over and not consumer.over else ()


async def _take(reader: SharedReader) -> Batch:
    return await anext(reader)
