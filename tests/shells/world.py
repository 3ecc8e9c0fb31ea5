"""One world of real shells: a server in memory, hosts, programs, operators, and a seed that decides all.

Hosts are `LeaderHost` with its `Runner`, programs use `Client.subscribe`, operators `Agent.act`: the code
that runs in production, each in a process with an event loop of its own (`streamlease.testing.loops`).
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import hashlib
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from streamlease.hosts.host import HostConfig, LeaderHost
from streamlease.leader.core.lease import LeaseState
from streamlease.leader.core.machine import Leader, LeaderConfig
from streamlease.protocol.topics import SharedSubscription
from streamlease.registry.leadership import LeaderRecord, LeadershipConfig
from streamlease.registry.spawn import WINDOW_MS
from streamlease.streams.redis.connection import ask
from streamlease.testing.loops import BusyLoop, Process, Timeline
from streamlease.testing.memory_connection import connect, connect_redis
from streamlease.testing.memory_server import MemoryServer
from tests.shells.network import Faults, FaultyLine
from tests.shells.observed import SPACE, Observed
from tests.shells.programs import UNANSWERED, Program, RealOperators
from tests.shells.watching import watched
from tests.simulation.judge import Judge, Violation

LIVE_SECONDS = 120.0
"""Within so much time after the last fault everything must be well."""

BEGAN_AT = 1_000_000.0
MOST_STREAMS = 14


class Kernel:
    """The clock of the world in ms, its randomness, and what is written down about it."""

    def __init__(self, seed: int, timeline: Timeline) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.notes: list[tuple[int, str, tuple[Any, ...]]] = []
        self._timeline = timeline

    @property
    def now(self) -> int:
        """Milliseconds since the world began."""
        return int(self._timeline.now * 1000)

    def after(self, ms: float, act: Callable[[], None]) -> None:
        """Do `act` in `ms`."""
        self._timeline.after(ms / 1000, act)

    def note(self, who: str, *what: Any) -> None:
        """Write down that something happened. Nothing that changes later may be handed in."""
        self.notes.append((self.now, who, what))

    def transcript(self) -> list[str]:
        """What happened, one line each."""
        return [f"{now:>8} {who:<12} {' '.join(map(str, what))}" for now, who, what in self.notes]

    def digest(self) -> str:
        """Tells two transcripts apart."""
        return hashlib.blake2b("\n".join(self.transcript()).encode(), digest_size=16).hexdigest()

    def token(self) -> str:
        """A fresh token, the same in every run of the seed."""
        return f"{self.random.getrandbits(48):012x}"

    def chance(self, probability: float) -> bool:
        """Whether something of that probability happens."""
        return probability > 0 and self.random.random() < probability


@dataclass
class Swarm:
    """Which things happen in a run, and how often: the weights of `World`'s acts."""

    acts: dict[str, float] = field(default_factory=dict)
    gap: int = 400
    """Mean time in ms between two acts."""
    seconds: float = 15.0


@dataclass(eq=False)
class Host:
    """A leader host in a process of its own."""

    process: Process
    line: FaultyLine
    real: LeaderHost
    draining: bool = False


class World:
    """Everything of one seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.timeline = Timeline()
        self.kernel = Kernel(seed, self.timeline)
        self.random = self.kernel.random
        self.sometimes: Counter[str] = Counter()
        self.faults = Faults()
        self.server = MemoryServer(lambda: BEGAN_AT + self.timeline.now, replicated=True)
        self.subscription = "$shared/g/a/#"
        self.shared = SharedSubscription.parse(self.subscription)
        self.group = self.shared.id
        self.store = Observed(self.server, self.group)
        self.judge = Judge(self.kernel, self.store, self.sometimes)  # type: ignore[arg-type]
        self.defects: list[str] = []
        self.causes: list[BaseException | None] = []
        self.answers: dict[str, bool] = {}
        self.machines: dict[int, Leader] = {}
        """By term: the machine that was recovered in it."""
        self.hosts: list[Host] = []
        self.consumers: list[Program] = []
        self.leadership = LeadershipConfig()
        self.config = LeaderConfig(revocation_timeout=6000, idle_timeout=8000)
        self.session_timeout = self.random.choice((4.0, 10.0))
        self.embedded = self.random.random() < 0.3
        self.skewed = False
        self.healing = False
        self.over = False
        self.healed_at = 0.0
        """When all was well again."""
        self._down_until = 0.0
        self._jobs: dict[str, int] = {}
        self._processes = 0
        self.swarm = self._draw()
        self.admin = self.timeline.process("admin")
        self.operator, self.operator_line = self.process("operator")
        self.operators = RealOperators(self)

    # ------------------------------------------------------------ drawing

    def _draw(self) -> Swarm:
        """Which faults this seed has, and how strong."""
        random = self.random
        swarm = Swarm(gap=random.choice((150, 400, 1000)), seconds=random.choice((8.0, 15.0, 25.0)))

        def maybe(weight: float, chance: float = 0.4) -> float:
            return weight * random.choice((0.3, 1, 3)) if random.random() < chance else 0.0

        swarm.acts = {"publish": 6, "join": 1, "leave": maybe(1, 0.7), "operate": maybe(1.5)}
        if random.random() > 0.1:
            swarm.acts |= {
                "crash": maybe(0.6, 0.5),
                "crash_host": maybe(0.5),
                "drain_host": maybe(0.4),
                "pause": maybe(0.7),
                "cut_off": maybe(0.4),
                "restart_store": maybe(0.3),
                "fail_over": maybe(0.3, 0.25),
                "jump": maybe(0.2, 0.2),
                "alter": maybe(0.4),
            }
            for name, strength in (
                ("loss", 0.2), ("duplicate", 0.2), ("late", 0.2), ("garbage", 0.1), ("refused", 0.1),
                ("broken", 0.05), ("unanswered", 0.05), ("overdue", 0.03), ("crash_before", 0.01),
                ("crash_after", 0.01),
            ):  # fmt: skip
                if random.random() < 0.35:
                    setattr(self.faults, name, random.random() * strength)
            if random.random() < 0.3:
                self.faults.slow = random.choice((30, 200))
            self.skewed = random.random() < 0.4
        return swarm

    # ------------------------------------------------------------ processes

    @property
    def down(self) -> bool:
        """Whether the store answers nothing now."""
        return self._down_until > self.timeline.now

    def process(self, kind: str) -> tuple[Process, FaultyLine]:
        """A new process, perhaps with a clock that is wrong, and its line."""
        self._processes += 1
        rate = self.random.uniform(0.9, 1.1) if self.skewed else 1.0
        process = self.timeline.process(f"{kind}{self._processes}", rate, self.random.randint(0, 10**5))
        line = FaultyLine(self, process)
        process.ends.append(lambda: line.cut_off(1e9))
        return process, line

    def end(self, process: Process) -> None:
        """The process ends by itself."""
        if self.over:
            return
        process.kill()
        if self.healing and all(consumer.over or consumer.leaving for consumer in self.consumers):
            self._add_program(None)

    def crash(self, process: Process) -> None:
        """The process is killed."""
        if process.alive and not self.over:
            self.kernel.note(process.name, "is killed")
            process.kill()

    def _add_program(self, name: str | None) -> None:
        process, line = self.process("prog")
        self.consumers.append(Program(self, process, line, name))

    def add_host(self) -> None:
        """One leader host more."""
        process, line = self.process("host")

        async def run() -> None:
            config = HostConfig(process.name, self.config, self.leadership)
            real = LeaderHost(connect_redis(self.server, line), config, place=self._place)
            while True:
                try:
                    await real.start()
                    break
                except UNANSWERED:
                    await asyncio.sleep(0.3)
            self.hosts.append(Host(process, line, real))

        process.start(run())

    async def _place(self, group: str, record: LeaderRecord, above: int) -> None:
        """Instead of the queue of spawn jobs: some host leads, perhaps late, perhaps one that dies."""
        job = f"{record.term + 1}-{record.read_at // WINDOW_MS}"
        if self._jobs.get(job, 0) > self.server.now():
            return
        self._jobs[job] = self.server.now() + 10_000
        self.sometimes["a leader is spawned"] += 1

        def take() -> None:
            waiting = [host for host in self.hosts if host.process.alive and not host.draining]
            if waiting:
                host = self.random.choice(waiting)
                host.process.loop.call_soon(host.real.lead, group, above)

        self.kernel.after(self.random.choice((5, 50, 800)) if not self.healing else 5, take)

    def _alive(self, hosts: bool | None = None) -> list[tuple[Process, FaultyLine]]:
        found = [(host.process, host.line) for host in self.hosts] if hosts is not False else []
        if hosts is not True:
            found += [(consumer.process, consumer.line) for consumer in self.consumers]
        return [(process, line) for process, line in found if process.alive]

    # ------------------------------------------------------------ acts

    async def _begin(self, streams: int) -> None:
        self._client = connect(self.server, embedded=False)
        self._publisher = self._client.publisher()
        await self._client.create_space(SPACE, ["#"], streams=streams)
        await self._client.groups.join(self.shared, "earliest")
        await self._confirm()

    async def _confirm(self) -> None:
        """What was published or made counts as ``replicated:1``: no failover loses it."""
        await ask(self._client.redis, [("WAIT", 1, 100)])

    def _as_admin(self, work: Any) -> None:
        async def done() -> None:
            with contextlib.suppress(*UNANSWERED):
                await work()
                await self._confirm()

        if not self.down:
            self.admin.start(done())

    def do_publish(self) -> None:
        """Messages come in, one of seven of a topic that the group has not."""
        topics = [
            f"{'a' if self.random.random() < 6 / 7 else 'b'}/{self.random.randint(0, 30)}"
            for _ in range(self.random.randint(1, 4 * max(1, len(self.store.order))))
        ]

        async def publish() -> None:
            for topic in topics:
                await self._publisher.submit(topic, b"x")
            await self._publisher.flush()

        self._as_admin(publish)

    def do_join(self) -> None:
        """One consumer more."""
        if len(self._alive(hosts=False)) < 4:
            self._add_program(f"n{self.random.randint(0, 3)}" if self.random.random() < 0.4 else None)

    def do_leave(self) -> None:
        """A consumer leaves in good order."""
        staying = [consumer for consumer in self.consumers if not consumer.over and not consumer.leaving]
        if staying:
            self.random.choice(staying).leave()

    def do_crash(self) -> None:
        """A consumer is killed."""
        if alive := self._alive(hosts=False):
            self.crash(self.random.choice(alive)[0])

    def do_crash_host(self) -> None:
        """A host is killed; another may come."""
        if alive := self._alive(hosts=True):
            self.crash(self.random.choice(alive)[0])
        if not self.embedded and self.random.random() < 0.8:
            self.add_host()

    def do_drain_host(self) -> None:
        """A host gives its leaders up in good order; another comes."""
        staying = [host for host in self.hosts if host.process.alive and not host.draining]
        if staying:
            host = self.random.choice(staying)
            host.draining = True
            self.sometimes["a host drains"] += 1

            async def leave() -> None:
                await host.real.close()
                self.end(host.process)

            host.process.start(leave())
            self.add_host()

    def do_pause(self) -> None:
        """A process is stopped for a while, and goes on as if nothing had been."""
        if alive := self._alive():
            leading = [(h.process, h.line) for h in self.hosts if h.process.alive and h.real.leaders]
            process, _ = self.random.choice(leading if leading and self.random.random() < 0.4 else alive)
            seconds = self.random.choice((0.3, 3.0, 6.0, 12.0))
            self.sometimes["a pause of a leader" if process in dict(leading) else "a pause"] += 1
            self.kernel.note(process.name, "is stopped for", seconds)
            process.pause(seconds)

    def do_cut_off(self) -> None:
        """A process cannot reach the store for a while."""
        if alive := self._alive():
            process, line = self.random.choice(alive)
            seconds = self.random.choice((0.3, 3.0, 8.0))
            self.sometimes["a process is cut off"] += 1
            self.kernel.note(process.name, "is cut off for", seconds)
            line.cut_off(seconds)

    def do_restart_store(self) -> None:
        """The store is away for a while."""
        seconds = self.random.choice((0.05, 0.8, 5.0))
        self.sometimes["a restart of the store"] += 1
        self.kernel.note("store", "restarts, away for", seconds)
        self.server.restart()
        self._down_until = self.timeline.now + seconds

    def do_fail_over(self) -> None:
        """Another server takes over, and knows less."""
        lost_ms, jump = self.random.choice((0, 20, 200, 2000)), self.random.choice((0, 0, -3000, 2000))
        lost = self.server.fail_over(lost_ms)
        self.server.ahead += jump
        self._down_until = self.timeline.now + self.random.choice((0.05, 1.5))
        self.kernel.note("store", "fails over and loses", lost, "changes of", lost_ms, "ms, clock", jump)
        self.judge.failed_over(lost)

    def do_jump(self) -> None:
        """The clock of the store is set."""
        ms = self.random.choice((-20_000, -1500, 1500, 5000, 20_000))
        self.sometimes["a clock is set"] += 1
        self.kernel.note("store", "its clock is set by", ms)
        self.server.ahead += ms

    def do_alter(self) -> None:
        """The space gets another generation."""
        size = self.random.randint(1, 5)
        if len(self.store.order) + size <= MOST_STREAMS:
            self.sometimes["a generation follows another"] += 1
            self.kernel.note("store", "a generation of", size, "streams follows")
            self._as_admin(lambda: self._client.spaces.alter(SPACE, streams=size))

    def do_operate(self) -> None:
        """An operator does something; see `operators`."""
        self.operators.act()

    # ------------------------------------------------------------ a run

    def run(self) -> None:
        """Everything, from the beginning to the end.

        Raises:
            Violation: an invariant does not hold.
        """
        gc.disable()  # next to nothing here is cyclic, and looking for it takes a tenth of the time
        try:
            with watched(self):
                try:
                    self._run()
                finally:
                    self.over = True
                    self.timeline.end()
        finally:
            gc.enable()

    def _run(self) -> None:
        self.admin.start(self._begin(self.random.randint(1, 6)))
        self._until(0.05)
        for _ in range(self.random.randint(1, 3) if not self.embedded else 0):
            self.add_host()
        for _ in range(self.random.randint(1, 3)):
            self.do_join()
        acts: dict[str, Callable[[], None]] = {name: getattr(self, f"do_{name}") for name in self.swarm.acts}

        def act() -> None:
            if not self.healing:
                name = self.random.choices(list(acts), list(self.swarm.acts.values()))[0]
                acts[name]()
                self.kernel.after(1 + int(self.random.expovariate(1 / self.swarm.gap)), act)

        self.kernel.after(500, act)
        self._until(self.swarm.seconds)
        self.heal()
        if not self._until(self.timeline.now + LIVE_SECONDS, self.is_well):
            raise Violation(f"not well within {LIVE_SECONDS:.0f} s after the last fault: {self.why}")
        self.healed_at = self.timeline.now

    def _until(self, at: float, done: Callable[[], bool] = lambda: False) -> bool:
        def look() -> bool:
            self._look_for_defects()
            return done()

        try:
            return self.timeline.run(at, look)
        except BusyLoop as busy:
            raise Violation(str(busy)) from None
        finally:
            self._look_for_defects()

    def _look_for_defects(self) -> None:
        """A defect that the product itself noticed, or that nobody did; the judge's own word comes first."""
        for cause in self.causes:
            if isinstance(cause, Violation):
                raise cause
        for process in self.timeline.processes:
            for trouble in process.loop.troubles:
                error = trouble.get("exception")
                if isinstance(error, Violation):
                    raise error
                self.defects.append(f"{process.name}: {trouble.get('message')}: {error!r}")
            process.loop.troubles.clear()
        for host in self.hosts:
            if host.process.alive and host.real.failure is not None:
                self.defects.append(f"{host.process.name} failed: {host.real.failure}")
        if self.defects:
            raise Violation(self.defects[0])

    def recovered(self, leader: Leader) -> None:
        """[9] A leader has read the journal."""
        self.sometimes["a recovery"] += 1
        self.machines[leader.term] = leader
        if self.store.record.term == leader.term and leader.ledger.lineage == self.store.incarnation:
            self.judge.demand(
                leader.durable == self.judge.truth, leader.host, "did not recover what the journal says"
            )

    def heal(self) -> None:
        """No faults any more; somebody consumes, and there is a host or agents have their own."""
        self.kernel.note("world", "heals")
        self.healing = True
        self.faults.stop()
        self._down_until = 0.0
        for process, line in [*self._alive(), (self.operator, self.operator_line)]:
            process.paused_until = min(process.paused_until, self.timeline.now + 2.0)
            line.cut_off_until = 0.0
        if not self.embedded and not any(host.process.alive and not host.draining for host in self.hosts):
            self.add_host()
        if all(consumer.over or consumer.leaving for consumer in self.consumers):
            self._add_program(None)
        self.do_publish()
        self.operators.heal()

    why = ""

    def is_well(self) -> bool:
        """[11] Every stream is owned, fairly, by somebody who is alive, and consumed to its end."""
        self.why = self._trouble()
        return not self.why

    def _trouble(self) -> str:
        record = self.store.record
        machine = self.machines.get(record.term)
        if machine is None or not record.held or record.expired:
            return "nobody leads"
        if any(consumer.leaving and not consumer.over for consumer in self.consumers):
            return "somebody is still leaving"
        known, streams, sealed = self.judge.truth.streams, self.store.streams, self.store.sealed
        if set(known) != set(streams):
            return f"the group has {sorted(known)} instead of {sorted(streams)}"
        for stream, end in streams.items():
            if known[stream].finished:
                continue
            lease = machine.leases.get(stream)
            if lease is None or lease.state is not LeaseState.GRANTED:
                return f"{stream} is {lease.state if lease is not None else 'free'}"
            if stream in sealed or known[stream].committed != end:
                return f"{stream} is at {known[stream].committed} of {end}"
        names = {name for consumer in self.consumers for name in self._names(consumer)}
        loads = Counter(lease.name for lease in machine.leases.values())
        if not set(loads) <= names:
            return f"a dead borrower holds streams: {sorted(set(loads) - names)}"
        if {peer.name for peer in machine.peers.values() if peer.borrower} != names:
            return "not all are connected"
        if not names:
            return "nobody consumes"
        sizes = [loads[name] for name in sorted(names)]
        return f"not balanced: {dict(loads)}" if max(sizes) - min(sizes) > 1 else ""

    @staticmethod
    def _names(consumer: Program) -> tuple[str, ...]:
        session = consumer.session
        return session.config.names if session is not None and not session.over and not consumer.over else ()


def run(seed: int) -> World:
    """Run one seed.

    Raises:
        Violation: an invariant does not hold; the world is in its `world` attribute.
    """
    world = World(seed)
    try:
        world.run()
    except Exception as error:
        error.world = world  # type: ignore[attr-defined]
        raise
    return world
