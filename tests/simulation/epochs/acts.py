"""What happens to a world of epochs until it heals, as the seed draws it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from streamlease.admin.epochs.epochs_cli import give_up
from streamlease.protocol.errors import InvalidInput, SpaceConflict
from streamlease.streams.epochs.stored import read_writers
from streamlease.streams.redis.connection import ask
from streamlease.streams.spaces.retention import Retention
from streamlease.testing.memory.memory_connection import connect
from tests.simulation.epochs.actors import SPACE, UNANSWERED, AnySender, Changer, KeeperHost, Sender
from tests.simulation.epochs.readers import AnyReader, CollectionReader, EagerReader, Reader

if TYPE_CHECKING:
    from tests.simulation.epochs.world import EpochWorld

TIMEOUT_SECONDS = 5.0
MOST_READERS = 4
MOST_GENERATIONS = 3


def drawn(world: EpochWorld) -> dict[str, float]:
    """Which faults this seed has, and how strong."""
    draw = world.random

    def maybe(weight: float, chance: float = 0.5) -> float:
        return weight * draw.choice((0.3, 1, 3)) if draw.random() < chance else 0.0

    for name, strength in (
        ("refused", 0.1), ("broken", 0.05), ("unanswered", 0.05), ("unheard", 1.0), ("overdue", 0.03),
        ("crash_before", 0.02), ("crash_after", 0.02),
    ):  # fmt: skip
        if draw.random() < 0.4:
            setattr(world.faults, name, draw.random() * strength)
    if draw.random() < 0.3:
        world.faults.slow = draw.choice((30, 200))
    return {
        "publish": 3.0, "read": 1.5, "leave": maybe(1.0), "crash": maybe(1.0), "pause": maybe(1.0),
        "cut_off": maybe(0.5), "keeper": maybe(0.7), "twin": maybe(0.4), "restart": maybe(0.3),
        "fail_over": draw.choice((1.0, 3.0)) if world.seed % 3 == 0 else 0.0, "alter": maybe(0.4),
    }  # fmt: skip


class Acts:
    """One method for each thing that can happen."""

    def __init__(self, world: EpochWorld) -> None:
        self.world = world
        self.random = world.random
        self.sometimes = world.sometimes
        self.admin = world.timeline.process("admin")
        self._client: Any = None

    def one(self, weights: dict[str, float]) -> None:
        """One of them."""
        name = self.random.choices([*weights], [*weights.values()])[0]
        getattr(self, f"do_{name}")()

    async def begin(self) -> None:
        """Make the space."""
        world = self.world
        self._client = client = connect(world.server, embedded=False)
        await client.create_space(
            SPACE,
            ["s/#"],
            streams=world.streams,
            shard_by=self.random.choice(("topic", "key")) if world.collection else "topic",
            retention=Retention(messages=5) if world.forgets else None,
            durability=world.durability,
            collection=world.collection,
            epochs=world.dimensions,
            epochs_timeout=TIMEOUT_SECONDS if world.dimensions else None,
            epochs_on_loss="wait" if world.waits else None,
        )
        await self._confirm()

    async def _confirm(self) -> None:
        """No failover loses what was made."""
        await ask(self._client.redis, [("WAIT", 1, 100)])

    # ------------------------------------------------------------ publishers

    def _here(self) -> list[AnySender]:
        return [one for one in self.world.senders if one.process.alive]

    def _sender(self, name: str) -> None:
        kind = Sender if self.world.dimensions else Changer
        self.world.senders.append(kind(self.world, name))

    def do_publish(self) -> None:
        """A name that nobody has gets a process, perhaps again."""
        taken = {one.publisher for one in self._here()}
        free = [name for name in self.world.names if name not in taken]
        if free:
            self._sender(self.random.choice(free))

    def do_twin(self) -> None:
        """A second process takes a name."""
        if here := self._here():
            self.sometimes["two processes under one name"] += 1
            self._sender(self.random.choice(here).publisher)

    def do_leave(self) -> None:
        """A publisher ends well."""
        if here := self._here():
            self.random.choice(here).leaving = True

    def do_abort(self) -> None:
        """An operator gives somebody up, who may be well."""
        if self.world.dimensions:
            self.admin.start(self._abort(self.random.choice(self.world.names)))

    async def _abort(self, name: str) -> None:
        try:
            await give_up(self._client, SPACE, name)
        except InvalidInput:
            return  # it is not there
        except UNANSWERED:
            self.sometimes["an operator's abort has no answer"] += 1
        else:
            self.sometimes["an operator gives a publisher up"] += 1
            self.world.kernel.note("operator", "gives up", name)

    def abort_whoever_is_lost(self) -> None:
        """The operator looks again and again, and gives up whoever is silent and has no process."""
        self.admin.start(self._abort_the_lost())

    async def _abort_the_lost(self) -> None:
        while True:
            try:
                writers = await read_writers(self._client.redis, SPACE)
            except UNANSWERED:
                writers = {}
            living = {one.publisher for one in self._here()}
            for name in [one for one, writer in writers.items() if writer.is_here]:
                if name in self.world.names and name not in living:
                    self.sometimes["somebody who is lost waits for an operator"] += 1
                    await self._abort(name)
            await asyncio.sleep(1.0)

    # ------------------------------------------------------------ readers

    def do_read(self) -> None:
        """One more reader, or one in the place of another, or where one was."""
        readers = self.world.readers
        if len(readers) < MOST_READERS:
            readers.append(self._reader(None))
            return
        place = self.random.randrange(len(readers))
        former = readers[place]
        self.world.crash(former.process)
        readers[place] = self._reader(former)

    def _reader(self, former: AnyReader | None) -> AnyReader:
        world = self.world
        if isinstance(former, Reader) and self.random.random() < 0.5:
            self.sometimes["a reader is followed at its positions"] += 1
            return Reader(world, former)
        if isinstance(former, Reader) and self.random.random() < 0.3:
            self.sometimes["an eager reader begins at positions"] += 1
            return EagerReader(world, former)
        if isinstance(former, CollectionReader) and self.random.random() < 0.5:
            self.sometimes["a collection is followed at its positions"] += 1
            return CollectionReader(world, former)
        return self.random.choice(world.kinds)(world)

    def one_of_each(self) -> None:
        """Somebody reads in each way."""
        self.world.readers += [kind(self.world) for kind in self.world.kinds]

    # ------------------------------------------------------------ processes

    def do_crash(self) -> None:
        """A publisher or a host is killed."""
        if here := [one for one in self.world.actors if not isinstance(one, AnyReader)]:
            self.world.crash(self.random.choice(here).process)

    def do_keeper(self) -> None:
        """One more host."""
        if len([one for one in self.world.keepers if one.process.alive]) < 3:
            self.world.keepers.append(KeeperHost(self.world))

    def do_pause(self) -> None:
        """A process is stopped for a while."""
        if here := self.world.actors:
            seconds = self.random.choice((0.3, 3.0, 8.0))
            one = self.random.choice(here)
            self.world.kernel.note(one.name, "is stopped for", seconds)
            self.sometimes["a pause"] += 1
            one.process.pause(seconds)

    def do_cut_off(self) -> None:
        """A process cannot reach the store for a while."""
        if here := self.world.actors:
            one, seconds = self.random.choice(here), self.random.choice((0.3, 3.0, 8.0))
            self.world.kernel.note(one.name, "is cut off for", seconds)
            one.line.cut_off(seconds)

    # ------------------------------------------------------------ the store

    def do_restart(self) -> None:
        """The server ends and comes back, with all its data."""
        self.world.kernel.note("store", "is restarted")
        self.sometimes["a restart of the store"] += 1
        self.world.server.restart()
        self.world.be_down(self.random.choice((0.1, 2.0)))

    def do_fail_over(self) -> None:
        """Another server takes over, and knows less."""
        world = self.world
        lost_ms = self.random.choice((0, 50, 400, 2000, 4000))
        border = world.timeline.now - lost_ms / 1000
        lost = world.server.fail_over(lost_ms)
        world.be_down(self.random.choice((0.05, 1.5)))
        self.sometimes["a failover"] += 1
        world.kernel.note("store", "fails over and loses", lost, "changes of", lost_ms, "ms")
        if lost:
            self.sometimes["a failover that loses writes"] += 1
            world.truth.failed_over(border)
            for reader in world.readers:
                reader.lost()

    def do_alter(self) -> None:
        """A collection without epochs gets another generation."""
        world = self.world
        if not world.dimensions and world.generations < MOST_GENERATIONS and not world.down:
            world.generations += 1
            size = self.random.randint(1, 4)
            self.sometimes["a generation follows another"] += 1
            world.kernel.note("store", "a generation of", size, "streams follows")
            self.admin.start(self._alter(size))

    async def _alter(self, size: int) -> None:
        try:
            await self._client.spaces.generations.alter(SPACE, streams=size)
            await self._confirm()
        except (*UNANSWERED, SpaceConflict):
            self.sometimes["an alteration has no answer"] += 1
