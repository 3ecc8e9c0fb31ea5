"""Who lives in a world of epochs: keepers, publishers, readers. The real shells, each in its own process."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from streamlease.agent.epochs.epoch_items import EpochBatch, Frontier, Snapshot
from streamlease.hosts.keepers import Keepers
from streamlease.protocol.epochs.antichains import Antichain, is_open, minimal
from streamlease.protocol.epochs.order import Epoch
from streamlease.protocol.errors import (
    Fenced,
    Indefinite,
    NotDurable,
    StoreRefused,
    StoreUnavailable,
)
from streamlease.streams import clock
from streamlease.streams.epochs.epoch_publisher import EpochPublisher
from streamlease.testing.loops import Process
from streamlease.testing.memory_connection import connect, connect_redis
from tests.simulation.epochs.truth import Chain, Sent
from tests.simulation.network import FaultyLine

if TYPE_CHECKING:
    from tests.simulation.epochs.world import EpochWorld

UNANSWERED = (StoreUnavailable, StoreRefused, Indefinite, NotDurable)
SPACE = "s"
FAR = 10**6
TOPICS = [f"s/{number}" for number in range(8)]


class Actor:
    """One process, and its line."""

    kind = ""

    def __init__(self, world: EpochWorld) -> None:
        self.world = world
        self.process: Process
        self.line: FaultyLine
        self.process, self.line = world.process(self.kind)
        self.process.start(self.run())

    async def run(self) -> None:
        """What it does."""
        raise NotImplementedError

    @property
    def name(self) -> str:
        """That of its process."""
        return self.process.name


class KeeperHost(Actor):
    """A host that keeps the space if it has the claim."""

    kind = "keeper"

    async def run(self) -> None:
        keepers = Keepers(connect_redis(self.world.server, self.line), self.name, clock.milliseconds)
        while True:
            try:
                await keepers.round()
            except UNANSWERED:
                self.world.sometimes["a round of claims has no answer"] += 1
            await asyncio.sleep(1.0)


class Sender(Actor):
    """Publishes under a name: sends at epochs that it holds, and gives them up."""

    kind = "sender"

    def __init__(self, world: EpochWorld, publisher: str) -> None:
        self.publisher = publisher
        self.leaving = False
        self.over = False
        self._sent: list[Sent] = []
        random = world.random
        self._pace = random.choice((20, 100, 400))
        self._stride = random.choice((1, 1, 3))
        super().__init__(world)
        self.process.ends.append(self._gone)

    def _gone(self) -> None:
        self.over = True

    async def run(self) -> None:
        world = self.world
        client = connect(world.server, self.line, embedded=False)
        while True:
            open_one = client.epoch_publisher(
                SPACE, self.publisher, delivery_timeout=world.random.choice((2.0, 8.0))
            )
            try:
                publisher = await open_one.__aenter__()
                break
            except UNANSWERED:
                await asyncio.sleep(0.3)
            except Fenced:
                world.sometimes["a publisher is fenced as it enters"] += 1
                self.end()
                return
        if publisher.frontier != [(0,) * world.dimensions]:
            world.sometimes["a publisher comes later, or comes back"] += 1
        try:
            while not self.leaving:
                await self._one(publisher)
            await self._leave(publisher)
        except Fenced:
            world.sometimes["a publisher is fenced"] += 1
        self.end()

    def end(self) -> None:
        """The process ends by itself."""
        if not self.world.over:
            self.process.kill()

    async def _one(self, publisher: EpochPublisher) -> None:
        random = self.world.random
        if random.random() < 0.7:
            await self._send(publisher)
        if random.random() < 0.5:
            await self._advance(publisher)
        await asyncio.sleep(random.randint(1, self._pace) / 1000)

    async def _send(self, publisher: EpochPublisher) -> None:
        world, random = self.world, self.world.random
        element = random.choice(publisher.frontier)
        for _ in range(random.randint(1, 2)):
            epoch = tuple(part + random.randint(0, self._stride) for part in element)
            sent = [
                world.truth.send(f"{self.name} {world.number()} at {epoch}", epoch)
                for _ in range(random.randint(1, 5))
            ]
            self._sent += sent
            outcomes = await asyncio.gather(
                *(publisher.send(random.choice(TOPICS), one.text.encode(), epoch=epoch) for one in sent),
                return_exceptions=True,
            )
            for one, outcome in zip(sent, outcomes, strict=True):
                if isinstance(outcome, Fenced):
                    raise outcome
                if isinstance(outcome, UNANSWERED):
                    world.sometimes["a message has no answer"] += 1
                elif isinstance(outcome, BaseException):
                    raise outcome
                else:
                    one.acknowledged = True

    async def _advance(self, publisher: EpochPublisher) -> None:
        world = self.world
        to = self._next(publisher.frontier)
        given = world.truth.gives_up(self._sent, to)
        for _ in range(3):
            try:
                await publisher.advance(to)
            except Fenced:
                raise
            except UNANSWERED:
                world.sometimes["an advance fails"] += 1
                continue  # the first error of a message, or no answer
            world.truth.given_up(given)
            self._sent = [one for one in self._sent if is_open(to, one.epoch)]
            return

    def _next(self, frontier: list[Epoch]) -> Antichain:
        """A frontier at or above this one."""
        random = self.world.random
        found = []
        for element in frontier:
            place = random.randrange(len(element))
            found.append(
                tuple(part + (random.randint(0, 2) if at == place else 0) for at, part in enumerate(element))
            )
            if len(element) > 1 and random.random() < 0.3:
                other = random.randrange(len(element))
                found.append(tuple(part + (1 if at == other else 0) for at, part in enumerate(element)))
        return minimal(found)

    async def _leave(self, publisher: EpochPublisher) -> None:
        given = self.world.truth.gives_up(self._sent, ())
        try:
            await publisher.close()
        except UNANSWERED:
            self.world.sometimes["a leaving fails"] += 1  # it is over all the same; the time-out decides
            return
        self.world.sometimes["a publisher leaves"] += 1
        self.world.truth.given_up(given)


class Closer(Actor):
    """Comes last, and gives up all that others left open."""

    kind = "closer"
    done = False

    async def run(self) -> None:
        client = connect(self.world.server, self.line, embedded=False)
        async with client.epoch_publisher(SPACE, "closer") as publisher:
            await publisher.advance([(FAR,) * self.world.dimensions])
        self.done = True


class Reader(Actor):
    """Reads whole epochs, on its own or where another one was."""

    kind = "reader"

    def __init__(self, world: EpochWorld, chain: Chain | None = None) -> None:
        self.goes_on = chain is not None
        self.chain = chain or Chain("")
        self.begin = self.chain.back() if chain is not None else {}
        super().__init__(world)
        self.chain.name = self.name

    async def run(self) -> None:
        world = self.world
        client = connect(world.server, self.line, embedded=False)
        start = self.begin or "earliest"
        while True:
            subscription = client.listen("s/#", start=start, epochs="atomic")
            try:
                async with subscription as items:
                    self.chain.keep(items.positions)
                    async for item in items:
                        self._take(item)
                        self.chain.keep(items.positions)
            except UNANSWERED:
                world.sometimes["a reader begins anew"] += 1
                start = self.chain.back() or "earliest"
                await asyncio.sleep(0.3)

    def _take(self, item: object) -> None:
        truth = self.world.truth
        match item:
            case Snapshot(lower=lower):
                truth.frontier(self.chain, lower)
            case Frontier(lower=lower):
                truth.frontier(self.chain, lower)
            case EpochBatch(epoch=epoch):
                texts = sorted(message.payload.decode() for message in item.messages)
                truth.epoch(self.chain, epoch, texts)
            case _:
                raise AssertionError(f"a reader is handed out {item!r}")
