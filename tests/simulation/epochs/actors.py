"""Who lives in a world of epochs besides readers: hosts and publishers.

The real shells, each in its own process.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from streamlease.hosts.keepers import Keepers
from streamlease.hosts.snapshot_maker import SnapshotMaker
from streamlease.hosts.trimming import Retainer
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
from streamlease.streams.epochs.writing import LinesLost
from streamlease.testing.memory.memory_connection import connect, connect_redis
from streamlease.testing.timelines.loops import Process
from tests.simulation.epochs.truth import Sent
from tests.simulation.epochs.written import TEXT
from tests.simulation.judge import Violation
from tests.simulation.network import FaultyLine

if TYPE_CHECKING:
    from tests.simulation.epochs.world import EpochWorld

UNANSWERED = (StoreUnavailable, StoreRefused, Indefinite, NotDurable)
SPACE = "s"
FILTER = "s/#"
FAR = 10**6
TOPICS = [f"s/{number}" for number in range(8)]
KEYS = (None, b"k0", b"k1", b"k2")
PAYLOADS = (b"x", b"y")
DIFFS = (1, 1, 1, 2, -1, -3)
SNAPSHOT_SECONDS = 0.7
TRIM_SECONDS = 0.9


class Actor:
    """One process, and its line."""

    kind = ""

    def __init__(self, world: EpochWorld) -> None:
        self.world = world
        self.process: Process
        self.line: FaultyLine
        self.process, self.line = world.process(self.kind)
        self.process.start(self._live())

    async def _live(self) -> None:
        try:
            await self.run()
        except Violation:
            raise
        except Exception as error:
            raise Violation(f"{self.name} ends with {type(error).__name__}: {error}") from error

    async def run(self) -> None:
        """What it does."""
        raise NotImplementedError

    @property
    def name(self) -> str:
        """That of its process."""
        return self.process.name


class KeeperHost(Actor):
    """A host that keeps the space, makes its snapshots and trims it, as far as it has the claims."""

    kind = "keeper"

    async def run(self) -> None:
        world = self.world
        redis = connect_redis(world.server, self.line)
        if world.collection:
            maker = SnapshotMaker(redis, self.name, clock.milliseconds)
            self.process.start(self._again("a snapshot is made", maker.round, SNAPSHOT_SECONDS))
        if world.forgets:
            retainer = Retainer(redis, self.name, clock.milliseconds, interval=TRIM_SECONDS)

            async def trimmed() -> object:
                return (await retainer.round()).trimmed

            self.process.start(self._again("a stream is trimmed", trimmed, TRIM_SECONDS))
        if world.dimensions:
            await self._again("", Keepers(redis, self.name, clock.milliseconds).round, 1.0)

    async def _again(self, what: str, round: Callable[[], Awaitable[object]], seconds: float) -> None:
        """Again and again, as a leader host does it."""
        while True:
            try:
                if await round():
                    self.world.sometimes[what] += 1
            except UNANSWERED:
                self.world.sometimes["a round of a host has no answer"] += 1
            await asyncio.sleep(seconds)


class AnySender(Actor):
    """Publishes messages, each of which is known."""

    kind = "sender"

    def __init__(self, world: EpochWorld, publisher: str) -> None:
        self.publisher = publisher
        self.leaving = False
        self._pace = world.random.choice((20, 100, 400))
        super().__init__(world)

    def end(self) -> None:
        """The process ends by itself."""
        if not self.world.over:
            self.process.kill()

    async def send(self, send: Callable[..., Awaitable[object]], epoch: Epoch | None) -> list[Sent]:
        """Some messages at once, in order.

        Raises:
            Fenced: the publisher is not there any more.
        """
        world, random = self.world, self.world.random
        sent, sending = [], []
        for _ in range(random.randint(1, 5)):
            item = random.choice(TOPICS), random.choice(KEYS), random.choice(PAYLOADS)
            diff = random.choice(DIFFS) if world.collection else 1
            one = Sent(f"{self.name} {world.number()} at {epoch}", epoch, self.publisher, item, diff)
            world.truth.send(one)
            sent.append(one)
            what: dict[str, Any] = {"headers": {TEXT: one.text}, "key": item[1]}
            if epoch is not None:
                what["epoch"] = epoch[0] if len(epoch) == 1 else epoch
            if diff != 1:
                what["diff"] = diff
            sending.append(send(item[0], item[2], **what))
        for one, outcome in zip(sent, await asyncio.gather(*sending, return_exceptions=True), strict=True):
            if isinstance(outcome, UNANSWERED):
                world.sometimes["a message has no answer"] += 1
            elif isinstance(outcome, BaseException):
                raise outcome
            else:
                world.truth.acknowledged(one, world.timeline.now)
        return sent


class Changer(AnySender):
    """Publishes into a space without epochs."""

    async def run(self) -> None:
        client = connect(self.world.server, self.line, embedded=False)
        publisher = client.publisher(delivery_timeout=self.world.random.choice((2.0, 8.0)))
        while not self.leaving:
            for one in await self.send(publisher.send, None):
                one.tried = True
                one.certain = one.acknowledged and not one.at_risk
            await asyncio.sleep(self.world.random.randint(1, 2 * self._pace) / 1000)
        with contextlib.suppress(*UNANSWERED):
            await publisher.close()
        self.end()


class Sender(AnySender):
    """Publishes under a name: sends at epochs that it holds, and gives them up."""

    def __init__(self, world: EpochWorld, publisher: str) -> None:
        self._sent: list[Sent] = []
        self._given: list[Sent] = []
        """What it has given up."""
        self._stride = world.random.choice((1, 1, 3))
        super().__init__(world, publisher)

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
            except (Fenced, LinesLost):
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
        except LinesLost:
            world.sometimes["Redis lost that a publisher is there"] += 1
        self.end()

    async def _one(self, publisher: EpochPublisher) -> None:
        random = self.world.random
        if random.random() < 0.7:
            await self._send(publisher)
        if random.random() < 0.5:
            await self._advance(publisher)
        await asyncio.sleep(random.randint(1, self._pace) / 1000)

    async def _send(self, publisher: EpochPublisher) -> None:
        random = self.world.random
        element = random.choice(publisher.frontier)
        for _ in range(random.randint(1, 2)):
            epoch = tuple(part + random.randint(0, self._stride) for part in element)
            self._sent += await self.send(publisher.send, epoch)

    async def _advance(self, publisher: EpochPublisher) -> None:
        world = self.world
        to = self._next(publisher.frontier)
        given, losses = world.truth.gives_up(self._sent, to), world.truth.losses
        for _ in range(3):
            try:
                await publisher.advance(to)
            except (Fenced, LinesLost):
                raise
            except UNANSWERED:
                world.sometimes["an advance fails"] += 1
                continue  # the first error of a message, or no answer
            self._given += given
            world.truth.given_up(self._given, world.timeline.now, losses)
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
        world = self.world
        given, losses = world.truth.gives_up(self._sent, ()), world.truth.losses
        try:
            await publisher.close()
        except UNANSWERED:
            world.sometimes["a leaving fails"] += 1  # it is over all the same; the time-out decides
            return
        world.sometimes["a publisher leaves"] += 1
        world.truth.given_up([*self._given, *given], world.timeline.now, losses)


class Closer(Actor):
    """Comes last, and gives up all that others left open."""

    kind = "closer"
    done = False

    async def run(self) -> None:
        client = connect(self.world.server, self.line, embedded=False)
        async with client.epoch_publisher(SPACE, "closer") as publisher:
            await publisher.advance([(FAR,) * self.world.dimensions])
        self.done = True
