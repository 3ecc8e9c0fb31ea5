"""A world of epochs with a group that reads them whole: consumers come, leave, are killed, and take over.

Each consumer is a process that may lead the group, too, so a kill is often that of a leader.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from streamlease.agent import dividing, fetching
from streamlease.agent.epochs import boundary_following, epoch_parts, parts_ahead
from streamlease.agent.epochs.epoch_items import Frontier
from streamlease.agent.epochs.group_reader import EpochGroupReader, EpochPart
from streamlease.protocol.epochs.antichains import Antichain
from streamlease.protocol.epochs.order import Epoch
from streamlease.protocol.errors import Fenced
from streamlease.registry.keys import progress
from streamlease.streams.epochs import keys
from streamlease.testing.memory.memory_connection import connect
from tests.simulation.epochs.actors import SPACE, UNANSWERED, Actor
from tests.simulation.epochs.acts import Acts
from tests.simulation.epochs.group_truth import GroupTruth
from tests.simulation.epochs.world import EpochWorld
from tests.simulation.epochs.written import History
from tests.simulation.judge import Violation

GROUP = "$shared/g/s/#"


FAULTS = {"crash", "pause", "cut_off", "restart", "fail_over", "kill", "twin"}


class Consumer(Actor):
    """Takes parts, works, commits; at once, or several together."""

    kind = "consumer"
    world: GroupWorld

    def __init__(self, world: GroupWorld) -> None:
        self.leaving = False
        self._patience = world.random.choice((5, 60, 400))
        self._lazy = world.random.random() < 0.3
        self._lower: Antichain | None = None
        self.reader: EpochGroupReader | None = None
        super().__init__(world)

    async def run(self) -> None:
        world = self.world
        client = connect(world.server, self.line, embedded=True)
        while not self.leaving:
            try:
                async with client.subscribe(
                    GROUP, start="earliest", epochs="atomic", session_timeout=4.0
                ) as self.reader:
                    await self._consume(self.reader)
            except Fenced:
                world.sometimes["a consumer is fenced"] += 1
            except UNANSWERED:
                world.sometimes["a consumer begins anew"] += 1
                await asyncio.sleep(0.3)
            self._lower = None
        world.sometimes["a consumer leaves"] += 1
        try:
            await client.close()
        except UNANSWERED:
            world.sometimes["a client closes without an answer"] += 1
        if not world.over:
            self.process.kill()

    async def _consume(self, reader: EpochGroupReader) -> None:
        random = self.world.random
        waiting: list[EpochPart] = []
        while not self.leaving:
            try:
                async with asyncio.timeout(0.5):
                    item = await anext(reader)
            except TimeoutError:
                await self._commit(waiting)
                continue
            if isinstance(item, Frontier):
                self.world.group.told(self.name, reader, item.lower, self._lower)
                self._lower = item.lower
                continue
            self.world.group.part(self.name, item)
            waiting.append(item)
            await asyncio.sleep(random.randint(1, 20 if self.world.healing else self._patience) / 1000)
            if not (self._lazy and random.random() < 0.6 and len(waiting) < 5):
                await self._commit(waiting)
        if self.world.calm:
            await self._commit(waiting)

    async def _commit(self, parts: list[EpochPart]) -> None:
        done, parts[:] = [*parts], []
        for part in done:
            try:
                await part.commit()
            except Fenced as error:
                if self.world.calm:
                    raise Violation(
                        f"[5] {self.name} gave a stream back with a part at work: {error}"
                    ) from error
                self.world.sometimes["a commit is refused: the stream was taken away"] += 1
            except UNANSWERED:
                self.world.sometimes["a commit is not confirmed in time"] += 1
            else:
                self.world.group.commits(part)


class GroupActs(Acts):
    """What happens to a world with a group."""

    world: GroupWorld

    def do_join(self) -> None:
        """One more consumer."""
        if len(self.world.consuming) < 4:
            self.world.consumers.append(Consumer(self.world))

    def do_part(self) -> None:
        """A consumer leaves well."""
        if here := self.world.consuming:
            self.random.choice(here).leaving = True

    def do_kill(self) -> None:
        """A consumer is killed."""
        if here := self.world.consuming:
            self.sometimes["a consumer is killed"] += 1
            self.world.crash(self.random.choice(here).process)

    def do_fail_over(self) -> None:
        """A part of what the group did may be lost."""
        before = self.sometimes["a failover that loses writes"]
        super().do_fail_over()
        if self.sometimes["a failover that loses writes"] > before:
            self.world.group.lost()


class GroupWorld(EpochWorld):
    """A world of epochs with one group; the next seed of one hundred thousand if the seed has no epochs."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        while self.collection:
            self.timeline.end()
            super().__init__(self.seed + 100_000)
        self.group = GroupTruth(self)
        self.consumers: list[Consumer] = []
        self.acts = GroupActs(self)
        draw = self.random
        self._weights |= {
            "join": 1.5,
            "part": draw.choice((0.3, 1.0)),
            "kill": draw.choice((0.0, 0.3, 1.0)),
        }
        self.calm = seed % 5 == 0
        """Whether nothing goes wrong: consumers and publishers come and go, and that is all."""
        if self.calm:
            self.streams += 4  # so that streams are asked back wherever somebody comes
            self._weights |= {"join": 3.0, "part": 1.5}
            self.faults.stop()
            for name in self._weights.keys() & FAULTS:
                self._weights[name] = 0.0

    @property
    def actors(self) -> list[Actor]:
        """Those that live."""
        return [*super().actors, *self.consuming]

    @property
    def consuming(self) -> list[Consumer]:
        """The consumers that live."""
        return [one for one in self.consumers if one.process.alive]

    @contextmanager
    def watched(self) -> Iterator[None]:
        """A part takes many reads, and few parts are known ahead."""
        with (
            super().watched(),
            mock.patch.object(fetching, "CHUNK_BYTES", 1),
            mock.patch.object(fetching, "ENOUGH_ROWS", 1),
            mock.patch.object(dividing, "FIRST_ENTRIES", 1),
            mock.patch.object(dividing, "FIRST_COUNT", 1),
            mock.patch.object(parts_ahead, "MOST_PARTS", 4),
            mock.patch.object(parts_ahead, "MOST_LOWERS", 6),
            mock.patch.object(boundary_following, "AT_ONCE", 3),
            mock.patch.object(epoch_parts, "MOST_BYTES", 100),
        ):
            yield

    def _heal(self) -> None:
        super()._heal()
        self.consumers.append(Consumer(self))

    def _trouble(self) -> str:
        why = super()._trouble()
        if why:
            return why
        found = self._asked(b"HGETALL", keys.ends(SPACE))
        for name, end in zip(found[::2], found[1::2], strict=True):
            committed = self._asked(b"HGET", progress("g/s/#"), name)
            if int(committed or 0) < int(end):
                return f"the group has committed {committed} of {end} of {name}"
        return ""

    def lacks(self, stream: str, epoch: Epoch) -> bool:
        """Whether it is recorded that Redis lost some of that epoch in that stream."""
        return any((stream, epoch) in one for one in self.written.now.lacking.values())

    def progress(self) -> Counter[str]:
        """How far the group has committed each stream, as the store has it."""
        found = self._asked(b"HGETALL", progress("g/s/#"))
        return Counter({name.decode(): int(at) for name, at in zip(found[::2], found[1::2], strict=True)})

    def ends_at(self, lower: Antichain) -> dict[str, int]:
        """Where the streams ended at the first boundary with that frontier."""
        return next((ends for it, ends in self.written.now.bounds.values() if it == lower), {})

    def part_at(self, stream: str, start: int, of: History | None = None) -> tuple[Epoch, int] | None:
        """The epoch whose messages begin there, and where they end; None: it is not recorded that any do."""
        now = of or self.written.now
        gaps = {begin: to for some in now.gaps.values() for (it, begin), to in some.items() if it == stream}
        log, end = now.streams.get(stream, {}), start
        recorded = now.bounds[now.boundary][1].get(stream, 0) if now.bounds else 0
        while end in log and log[end].epoch == log[start].epoch:
            end += 1
            behind = gaps.get(end, end)
            if behind in log and log[behind].epoch == log[start].epoch:
                end = behind
        epoch = log[start].epoch if start in log else None
        begins = start - 1 not in log or log[start - 1].epoch != epoch
        return (epoch, end) if epoch is not None and begins and end <= recorded else None

    def course(self) -> None:
        super().course()
        self.group.ended()


def run(seed: int) -> GroupWorld:
    """Run one seed.

    Raises:
        Violation: an invariant does not hold; the world is in its `world` attribute.
    """
    world = GroupWorld(seed)
    try:
        world.run()
    except Exception as error:
        error.world = world  # type: ignore[attr-defined]
        raise
    return world
