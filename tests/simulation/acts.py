"""What happens to a world until it is healed, to consumers, hosts, store and spaces, as the seed draws it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from streamlease.agent.client import Client
from streamlease.protocol.errors import Indefinite, StoreUnavailable, StreamSealed
from streamlease.protocol.group_options import DEAD
from streamlease.protocol.ids import StreamId
from streamlease.registry.dead_letters import SPACE as DEAD_LETTERS
from streamlease.streams.log.keys import stream_log
from streamlease.streams.redis.connection import ask
from streamlease.streams.spaces.definitions import LEAST_COMPACT_AFTER_MS
from streamlease.testing.memory.keyspace import Stream
from streamlease.testing.memory.memory_connection import connect
from tests.simulation.observed import SPACE

if TYPE_CHECKING:
    from tests.simulation.world import World

UNANSWERED = (StoreUnavailable, Indefinite)
MOST_STREAMS = 14
MOST_GENERATIONS = 4


@dataclass
class Swarm:
    """Which things happen in a run, and how often."""

    weights: dict[str, float] = field(default_factory=dict)
    gap: int = 400
    """Mean time in ms between two acts."""
    seconds: float = 10.0


def drawn(world: World) -> Swarm:
    """Which faults this seed has, and how strong."""
    random = world.random
    swarm = Swarm(gap=random.choice((100, 250, 600)), seconds=random.choice((4.0, 8.0, 14.0)))

    def maybe(weight: float, chance: float = 0.4) -> float:
        return weight * random.choice((0.3, 1, 3)) if random.random() < chance else 0.0

    swarm.weights = {"publish": 4, "join": 1.5, "leave": maybe(1.5, 0.7), "operate": maybe(1.5)}
    if random.random() > 0.1:
        swarm.weights |= {
            "crash": maybe(0.6, 0.5),
            "crash_host": maybe(0.5),
            "end_host": maybe(0.4),
            "pause": maybe(0.7),
            "cut_off": maybe(0.4),
            "restart_store": maybe(0.3),
            "fail_over": maybe(0.3, 0.25),
            "jump": maybe(0.2, 0.2),
            "alter": maybe(0.6),
            "add_space": maybe(0.2),
            "damage": maybe(0.3, 0.25),
        }
        for name, strength in (
            ("loss", 0.2), ("duplicate", 0.2), ("late", 0.2), ("garbage", 0.1), ("refused", 0.1),
            ("broken", 0.05), ("unanswered", 0.05), ("unheard", 1.0), ("overdue", 0.03),
            ("crash_before", 0.01), ("crash_after", 0.01),
        ):  # fmt: skip
            if random.random() < 0.35:
                setattr(world.faults, name, random.random() * strength)
        if random.random() < 0.3:
            world.faults.slow = random.choice((30, 200))
        world.skewed = random.random() < 0.4
    return swarm


class Acts:
    """One method for each thing that can happen."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.kernel = world.kernel
        self.random = world.random
        self.store = world.store
        self.sometimes = world.sometimes
        self.admin = world.timeline.process("admin")
        self._client: Client
        self._publisher: Any
        self._spaces = 0

    def one(self, weights: dict[str, float]) -> None:
        """One of them."""
        name = self.random.choices(list(weights), list(weights.values()))[0]
        act: Callable[[], None] = getattr(self, f"do_{name}")
        act()

    async def begin(self, streams: int) -> None:
        """Make the spaces and the group."""
        world = self.world
        self._client = connect(world.server, embedded=False)
        self._publisher = self._client.publisher()
        await self._client.create_space(
            SPACE,
            ["a/+", "b/+"],
            streams=streams,
            compact_after_ms=LEAST_COMPACT_AFTER_MS if world.compacts else None,
        )
        await self._client.create_space(DEAD_LETTERS, [f"{DEAD}/#"], durability="replicated:1")
        await self._client.groups.join(world.shared, "earliest", options=world.poison.options)
        await self._confirm()

    async def _confirm(self) -> None:
        """What was published or made counts as ``replicated:1``: no failover loses it."""
        await ask(self._client.redis, [("WAIT", 1, 100)])

    def _as_admin(self, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
        async def done() -> None:
            with contextlib.suppress(*UNANSWERED):
                await work()
                await self._confirm()

        if not self.world.down:
            self.admin.start(done())

    # ------------------------------------------------------------ topics

    def do_publish(self) -> None:
        """Messages come in, one of seven of a topic that the group has not."""
        random = self.random
        own = [f"a/{name}/" for name in self.store.spaces if name != SPACE]
        topics = [
            random.choice([*own, *["a/"] * 6, "b/"]) + str(random.randint(0, 30))
            for _ in range(random.randint(1, 4 * max(1, len(self.store.order))))
        ]

        async def publish() -> None:
            with contextlib.suppress(StreamSealed):
                for topic in topics:
                    await self._publisher.submit(topic, b"x")
                await self._publisher.flush()

        self._as_admin(publish)

    def do_alter(self) -> None:
        """A space gets another generation, perhaps of the same size, or is sealed, or loses a spent one."""
        space = self.store.spaces[SPACE]
        if self.drop_spent() or space.ended:
            return
        if self.random.random() < 0.1:
            self.sometimes["a space is sealed"] += 1
            self.kernel.note("store", "the space is sealed")
            self._as_admin(lambda: self._client.spaces.generations.seal(SPACE))
        else:
            size = self.random.randint(1, 5)
            if len(space.generations) < MOST_GENERATIONS and len(self.store.order) + size <= MOST_STREAMS:
                self.sometimes["a generation follows another"] += 1
                self.kernel.note("store", "a generation of", size, "streams follows")
                self._as_admin(lambda: self._client.spaces.generations.alter(SPACE, streams=size))

    @property
    def generations(self) -> int:
        """How many the space has."""
        return len(self.store.spaces[SPACE].generations)

    def drop_spent(self) -> bool:
        """The oldest generation of the space goes, if the group is done with it; whether it does."""
        space, truth = self.store.spaces[SPACE], self.world.judge.truth.streams
        oldest = space.generations[0]
        streams = [str(stream) for stream in space.streams() if stream.generation == oldest.number]
        if len(space.generations) == 1 or not all(s in truth and truth[s].finished for s in streams):
            return False
        self.sometimes["a generation is dropped"] += 1
        self.kernel.note("store", "drops", *streams)
        self._as_admin(lambda: self._client.spaces.generations.drop(SPACE, oldest.number))
        return True

    def do_add_space(self) -> None:
        """Another space comes, of one stream."""
        if len(self.store.order) < MOST_STREAMS - 2:
            self.sometimes["a space is added"] += 1
            self._spaces += 1
            name = f"x{self._spaces}"
            self._as_admin(lambda: self._client.create_space(name, [f"a/{name}/+"]))

    def do_damage(self) -> None:
        """An entry that nobody has consumed loses its contents."""
        keys, truth = self.world.server.keys, self.world.judge.truth.streams
        for stream in self.random.sample(sorted(self.store.order), len(self.store.order)):
            entries = keys.of(stream_log(StreamId.parse(stream)).encode(), Stream)
            known = truth.get(stream)
            if entries and entries.ids and known is not None and entries.ids[-1][0] >= known.committed:
                self.sometimes["an entry is damaged"] += 1
                self.kernel.note("store", "the newest entry of", stream, "is damaged")
                name, _, *rest = entries.fields[-1]
                entries.fields[-1] = [name, b"?", *rest]
                return

    # ------------------------------------------------------------ consumers

    def do_join(self) -> None:
        """One consumer more."""
        world, random = self.world, self.random
        if len(world.alive(hosts=False)) >= 4:
            return
        if random.random() < world.queries:
            world.add_query()
        else:
            world.add_program(f"n{random.randint(0, 3)}" if random.random() < 0.4 else None)

    def do_leave(self) -> None:
        """A consumer leaves in good order."""
        staying = [
            consumer for consumer in self.world.consumers if not consumer.over and not consumer.leaving
        ]
        if staying:
            self.random.choice(staying).leave()

    def do_crash(self) -> None:
        """A consumer is killed."""
        if alive := self.world.alive(hosts=False):
            self.world.crash(self.random.choice(alive)[0])

    def do_operate(self) -> None:
        """An operator does something; see `operators`."""
        self.world.operators.act()

    # ------------------------------------------------------------ hosts

    def do_crash_host(self) -> None:
        """A host is killed; another may come."""
        world = self.world
        if alive := world.alive(hosts=True):
            world.crash(self.random.choice(alive)[0])
        if world.hosted and self.random.random() < 0.8:
            world.add_host()

    def do_end_host(self) -> None:
        """A host ends in good order; another comes."""
        world = self.world
        if world.staying:
            host = self.random.choice(world.staying)
            host.draining = True
            self.sometimes["a host ends in good order"] += 1

            async def leave() -> None:
                await host.real.close()
                world.end(host.process)

            host.process.start(leave())
            world.add_host()

    def do_pause(self) -> None:
        """A process is stopped for a while, and goes on as if nothing had been."""
        world = self.world
        if alive := world.alive():
            leading = [(h.process, h.line) for h in world.hosts if h.process.alive and h.real.leaders]
            process, _ = self.random.choice(leading if leading and self.random.random() < 0.6 else alive)
            seconds = self.random.choice((0.3, 3.0, 6.0, 12.0))
            self.sometimes["a pause of a leader" if process in dict(leading) else "a pause"] += 1
            self.kernel.note(process.name, "is stopped for", seconds)
            process.pause(seconds)

    def do_cut_off(self) -> None:
        """A process cannot reach the store for a while."""
        if alive := self.world.alive():
            process, line = self.random.choice(alive)
            seconds = self.random.choice((0.3, 3.0, 8.0))
            self.sometimes["a process is cut off"] += 1
            self.kernel.note(process.name, "is cut off for", seconds)
            line.cut_off(seconds)

    # ------------------------------------------------------------ the store

    def do_restart_store(self) -> None:
        """The store is away for a while."""
        seconds = self.random.choice((0.05, 0.8, 5.0))
        self.sometimes["a restart of the store"] += 1
        self.kernel.note("store", "restarts, away for", seconds)
        self.world.server.restart()
        self.world.be_down(seconds)

    def do_fail_over(self) -> None:
        """Another server takes over, and knows less."""
        server = self.world.server
        lost_ms, jump = self.random.choice((0, 20, 200, 2000)), self.random.choice((0, 0, -3000, 2000))
        lost = server.fail_over(lost_ms)
        server.ahead += jump
        self.world.be_down(self.random.choice((0.05, 1.5)))
        self.kernel.note("store", "fails over and loses", lost, "changes of", lost_ms, "ms, clock", jump)
        self.world.judge.failed_over(lost)
        if lost:
            self.world.operators.forget_answers()

    def do_jump(self) -> None:
        """The clock of the store is set."""
        ms = self.random.choice((-20_000, -1500, 1500, 5000, 20_000))
        self.sometimes["a clock is set"] += 1
        self.kernel.note("store", "its clock is set by", ms)
        self.world.server.ahead += ms
