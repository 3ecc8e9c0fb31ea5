"""One world of real shells: a server in memory, hosts, consumers, operators, and a seed that decides all.

Hosts are `LeaderHost` with its `Runner`, programs use `Client.subscribe`, queries `AsyncQuery`, operators
`Client` and `Agent.act`: the code that runs in production, each in a process with an event loop of its own
(`streamlease.testing.timelines.loops`).
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

from streamlease.hosts.host import HostConfig, LeaderHost
from streamlease.leader.core.lease import LeaseState
from streamlease.leader.core.machine import Leader, LeaderConfig
from streamlease.protocol.topics import SharedSubscription
from streamlease.registry.leadership import LeaderRecord, LeadershipConfig
from streamlease.registry.spawn import WINDOW_MS
from streamlease.testing.memory.memory_connection import connect_redis
from streamlease.testing.timelines.loops import Process
from tests.simulation.acts import UNANSWERED, Acts, drawn
from tests.simulation.judge import Judge
from tests.simulation.network import FaultyLine
from tests.simulation.observed import Observed
from tests.simulation.operators import Operators
from tests.simulation.poison import Poison
from tests.simulation.programs import Program, names_of
from tests.simulation.queries import Checkpoint, Query
from tests.simulation.simulated import SimulatedWorld, run_world
from tests.simulation.watching import watched


@dataclass(eq=False)
class Host:
    """A leader host in a process of its own."""

    process: Process
    line: FaultyLine
    real: LeaderHost
    draining: bool = False

    @property
    def drained(self) -> bool:
        """Whether an operator wants it to lead nothing."""
        return self.real._hand_out.drained


class World(SimulatedWorld):
    """Everything of one seed."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.subscription = "$shared/g/a/#"
        self.shared = SharedSubscription.parse(self.subscription)
        self.group = self.shared.id
        self.store = Observed(self.server, self.group)
        self.judge = Judge(self.kernel, self.store, self.sometimes)
        self.machines: dict[int, Leader] = {}
        """By term: the machine that was recovered in it."""
        self.hosts: list[Host] = []
        self.consumers: list[Program | Query] = []
        self.checkpoints: list[Checkpoint] = []
        self.leadership = LeadershipConfig()
        self.config = LeaderConfig(revocation_timeout=6000, idle_timeout=8000)
        self.session_timeout = self.random.choice((4.0, 10.0))
        self.embedded = self.random.random() < 0.3
        apart = random.Random(f"hosts {seed}")
        self.hosted = not self.embedded or apart.random() < 0.5
        """Whether hosts come and go, perhaps beside consumers that may lead as well; drawn apart likewise."""
        self.early_hosts = apart.choice((0, 0, 1)) if self.hosted else 0
        """So many are there before the first consumer, where consumers may lead."""
        self.needs_host = not self.embedded or (self.hosted and apart.random() < 0.5)
        """Whether a host is to be there in the end."""
        self.queries = self.random.choice((0.0, 0.0, 0.5, 1.0, 1.0))
        """The share of queries among the consumers."""
        self.judge.only_queries = self.queries == 1.0
        self.compacts = random.Random(f"compaction {seed}").random() < 0.4
        """Whether small entries are merged; drawn apart, so that seeds keep what they are known for."""
        self.poison = Poison(self.random)
        self.judge.options = self.poison.options
        self.skewed = False
        self.healed_at = 0.0
        """When all was well again."""
        self._jobs: dict[str, int] = {}
        self.swarm = drawn(self)
        self.acts = Acts(self)
        self.operators = Operators(self)

    # ------------------------------------------------------------ processes

    def rate(self) -> float:
        return self.random.uniform(0.9, 1.1) if self.skewed else 1.0

    def end(self, process: Process) -> None:
        """The process ends by itself."""
        if self.over:
            return
        process.kill()
        if self.healing and all(consumer.over or consumer.leaving for consumer in self.consumers):
            self.add_program(None)

    def add_program(self, name: str | None) -> None:
        """One program more."""
        process, line = self.process("prog")
        self.consumers.append(Program(self, process, line, name))

    def add_query(self) -> None:
        """A new query, or one that comes back from its checkpoint, which may be an older one."""
        waiting = [checkpoint for checkpoint in self.checkpoints if not checkpoint.running]
        if waiting and self.random.random() < 0.7:
            checkpoint = self.random.choice(waiting)
            self.sometimes["a query comes back"] += 1
            if self.random.random() < 0.25:
                checkpoint.restore(self, self.random.randint(1, 3))
        else:
            checkpoint = Checkpoint(self.random.randint(1, 3))
            self.checkpoints.append(checkpoint)
        process, line = self.process("query")
        self.consumers.append(Query(self, process, line, checkpoint))

    @property
    def staying(self) -> list[Host]:
        """The hosts that live and are not about to end."""
        return [host for host in self.hosts if host.process.alive and not host.draining]

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

    def alive(self, hosts: bool | None = None) -> list[tuple[Process, FaultyLine]]:
        """The processes that run: those of hosts, of consumers, or both."""
        found = [(host.process, host.line) for host in self.hosts] if hosts is not False else []
        if hosts is not True:
            found += [(consumer.process, consumer.line) for consumer in self.consumers]
        return [(process, line) for process, line in found if process.alive]

    # ------------------------------------------------------------ a run

    def watched(self) -> AbstractContextManager[None]:
        return watched(self)

    def figures(self) -> Counter[str]:
        return Counter(
            commands=self.server.commands,
            deliveries=self.judge.deliveries,
            virtual=self.healed_at,  # type: ignore[arg-type]  # seconds
        )

    def own_defects(self) -> Iterator[str]:
        for host in self.hosts:
            if host.process.alive and host.real.failure is not None:
                yield f"{host.process.name} failed: {host.real.failure}"

    def course(self) -> None:
        self.acts.admin.start(self.acts.begin(self.random.randint(1, 6)))
        self.until(0.05)
        for _ in range(self.early_hosts if self.embedded else self.random.randint(1, 3)):
            self.add_host()
        for _ in range(self.random.randint(1, 3)):
            self.acts.do_join()

        def act() -> None:
            if not self.healing:
                self.acts.one(self.swarm.weights)
                self.kernel.after(1 + int(self.random.expovariate(1 / self.swarm.gap)), act)

        self.kernel.after(500, act)
        self.until(self.swarm.seconds)
        self.heal()
        self._becomes_well()
        while self.acts.drop_spent():  # as people do when all is quiet
            self._becomes_well(generations=self.acts.generations - 1)
        self.healed_at = self.timeline.now
        self.sometimes["small entries are merged"] += self.store.merged
        self.judge.bounded(self.machines[self.store.record.term])

    def _becomes_well(self, generations: int | None = None) -> None:
        def well() -> bool:
            return generations in (None, self.acts.generations) and self.is_well()

        self.becomes_well(well)

    def heal(self) -> None:
        """No faults any more; somebody consumes, and there is a host or agents have their own."""
        self.stop_faults()
        for process, line in [*self.alive(), (self.operators.process, self.operators.line)]:
            process.paused_until = min(process.paused_until, self.timeline.now + 2.0)
            line.cut_off_until = 0.0
        if self.needs_host and not self.staying:
            self.add_host()
        if all(consumer.over or consumer.leaving for consumer in self.consumers):
            self.acts.do_join()
        if all(consumer.over or consumer.leaving for consumer in self.consumers):
            self.add_program(None)
        self.acts.do_publish()
        self.operators.heal()

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
        if any(host.drained and host.real.leaders for host in self.staying):
            return "a drained host leads"
        if any(host.drained != (host is self.operators.spare) for host in self.staying):
            return "not all hosts are as the operators want them"
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
        names = {name for consumer in self.consumers for name in names_of(consumer)}
        loads = Counter(lease.name for lease in machine.leases.values())
        if not set(loads) <= names:
            return f"a dead borrower holds streams: {sorted(set(loads) - names)}"
        if {peer.name for peer in machine.peers.values() if peer.borrower} != names:
            return "not all are connected"
        if not names:
            return "nobody consumes"
        sizes = [loads[name] for name in sorted(names)]
        return f"not balanced: {dict(loads)}" if max(sizes) - min(sizes) > 1 else ""


def run(seed: int) -> World:
    """Run one seed.

    Raises:
        Violation: an invariant does not hold; the world is in its `world` attribute.
    """
    return run_world(World(seed))
