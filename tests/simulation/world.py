"""One world: a store, hosts, programs, queries, and a seed that decides what happens to them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from streamlease.borrower.life import BorrowerConfig
from streamlease.leader.core.lease import LeaseState
from streamlease.leader.core.machine import LeaderConfig
from streamlease.registry.leadership import LeadershipConfig
from tests.simulation import generations
from tests.simulation.agents import Program
from tests.simulation.hosts import SimHost
from tests.simulation.judge import Judge, Violation
from tests.simulation.kernel import Kernel, Process
from tests.simulation.net import Faults, Net, Postbox
from tests.simulation.operators import Operators
from tests.simulation.poison import Poison
from tests.simulation.queries import Checkpoint, Query
from tests.simulation.store import Store

LIVE_MS = 120_000
"""Within so much time after the last fault everything must be well."""


@dataclass
class Swarm:
    """Which things happen in a run, and how often: the weights of `World`'s acts."""

    acts: dict[str, float] = field(default_factory=dict)
    gap: int = 400
    """Mean time in ms between two acts."""
    duration: int = 20_000


class World:
    """Everything of one seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.kernel = Kernel(seed)
        self.random = self.kernel.random
        self.sometimes: Counter[str] = Counter()
        self.faults = Faults()
        self.store = Store(self.kernel)
        self.net = Net(self.kernel, self.store, self.faults, self.sometimes)
        self.net.on_crash = self.crash
        self.judge = Judge(self.kernel, self.store, self.sometimes)
        self.operators = Operators(self)
        self.boxes: dict[str, Postbox] = {}
        self.store.on_letter = self._letter
        self.hosts: list[SimHost] = []
        self.consumers: list[Program | Query] = []
        self.checkpoints: list[Checkpoint] = []
        self.leadership = LeadershipConfig()
        self.config = LeaderConfig(revocation_timeout=6000, idle_timeout=8000)
        self.borrower = BorrowerConfig(session_timeout=self.random.choice((4000, 10_000)))
        self.embedded = self.random.random() < 0.3
        self.queries = self.random.choice((0.0, 0.0, 0.5, 1.0, 1.0))
        """The share of queries among the consumers."""
        self.judge.only_queries = self.queries == 1.0
        self.poison = Poison(self.random)
        self.judge.options = self.poison.options
        self.skewed = False
        self.healing = False
        self._processes = 0
        self._spaces = 0
        self.swarm = self._draw()

    # ------------------------------------------------------------ drawing

    def _draw(self) -> Swarm:
        """Which faults this seed has, and how strong."""
        random = self.random
        swarm = Swarm(gap=random.choice((150, 400, 1000)), duration=random.choice((8000, 15_000, 25_000)))

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
                "add_streams": maybe(0.2),
                "alter": maybe(0.6),
            }
            for name, strength in (
                ("loss", 0.2), ("duplicate", 0.2), ("late", 0.2), ("refused", 0.1), ("unanswered", 0.1),
                ("overdue", 0.03), ("crash_before", 0.01), ("crash_after", 0.01),
            ):  # fmt: skip
                if random.random() < 0.35:
                    setattr(self.faults, name, random.random() * strength)
            if random.random() < 0.3:
                self.faults.slow = random.choice((30, 200, 900))
            self.skewed = random.random() < 0.4
        return swarm

    # ------------------------------------------------------------ processes

    def process(self, kind: str) -> Process:
        """A new process, perhaps with a clock that is wrong."""
        self._processes += 1
        rate = self.random.uniform(0.9, 1.1) if self.skewed else 1.0
        return Process(self.kernel, f"{kind}{self._processes}", rate, self.random.randint(0, 10**6))

    def end(self, process: Process) -> None:
        """The process ends by itself."""
        process.end()
        if self.healing and all(consumer.over or consumer.leaving for consumer in self.consumers):
            self.consumers.append(Program(self, self.process("prog"), None))

    def crash(self, process: Process) -> None:
        """The process is killed."""
        self.kernel.note(process.name, "is killed")
        process.end()

    def _letter(self, owner: str) -> None:
        box = self.boxes.get(owner)
        if box is not None:
            box.look()

    def _alive(self, hosts: bool | None = None) -> list[Process]:
        found = [host.process for host in self.hosts] if hosts is not False else []
        found += [consumer.process for consumer in self.consumers] if hosts is not True else []
        return list(dict.fromkeys(process for process in found if process.alive))

    def spawn(self, above: int) -> None:
        """A spawn job: some host takes it, perhaps late, perhaps one that dies with it."""
        self.sometimes["a leader is spawned"] += 1

        def place() -> None:
            waiting = [host for host in self.hosts if host.process.alive and host.registered]
            if waiting:
                self.random.choice(waiting).lead(above)

        self.kernel.after(self.random.choice((5, 50, 800)) if not self.healing else 5, place)

    def add_host(self) -> None:
        """One leader host more."""
        self.hosts.append(SimHost(self, self.process("host")))

    # ------------------------------------------------------------ acts

    def do_publish(self) -> None:
        """Messages come in."""
        for stream in self.store.streams:
            if self.random.random() < 0.5:
                self.store.append(stream, self.random.randint(1, 6))

    def do_join(self) -> None:
        """One consumer more."""
        if len(self._alive(hosts=False)) >= 5:
            return
        if self.random.random() < self.queries:
            self._start_query()
        else:
            name = f"n{self.random.randint(0, 3)}" if self.random.random() < 0.4 else None
            self.consumers.append(Program(self, self.process("prog"), name))

    def _start_query(self) -> None:
        """A new query, or one that comes back from its checkpoint."""
        waiting = [checkpoint for checkpoint in self.checkpoints if not checkpoint.running]
        if waiting and self.random.random() < 0.7:
            checkpoint = self.random.choice(waiting)
            self.sometimes["a query comes back"] += 1
            if self.random.random() < 0.25:
                checkpoint.restore(self, self.random.randint(1, 3))
        else:
            checkpoint = Checkpoint(f"q{self.kernel.token()[:6]}", self.random.randint(1, 3))
            self.checkpoints.append(checkpoint)
        self.consumers.append(Query(self, self.process("query"), checkpoint))

    def lease_epochs(self) -> dict[str, int] | None:
        """What `describe` says, if somebody leads."""
        if not self.store.record.held or self.store.down:
            return None
        return {stream: progress.lease_epoch for stream, progress in self.judge.truth.streams.items()}

    def do_leave(self) -> None:
        """A consumer leaves in good order."""
        staying = [consumer for consumer in self.consumers if not consumer.over and not consumer.leaving]
        if staying:
            self.random.choice(staying).leave()

    def do_crash(self) -> None:
        """A consumer is killed."""
        if alive := self._alive(hosts=False):
            self.crash(self.random.choice(alive))

    def do_crash_host(self) -> None:
        """A host is killed; another may come."""
        if alive := self._alive(hosts=True):
            self.crash(self.random.choice(alive))
        if not self.embedded and self.random.random() < 0.8:
            self.add_host()

    def do_drain_host(self) -> None:
        """A host gives its leaders up in good order; another comes."""
        staying = [host for host in self.hosts if host.process.alive and not host.draining]
        staying = [host for host in staying if host.registered]
        if staying:
            self.sometimes["a host drains"] += 1
            self.random.choice(staying).drain()
            self.add_host()

    def do_pause(self) -> None:
        """A process is stopped for a while, and goes on as if nothing had been."""
        if alive := self._alive():
            leading = [host.process for host in self.hosts if host.runner is not None and host.process.alive]
            process = self.random.choice(leading if leading and self.random.random() < 0.4 else alive)
            ms = self.random.choice((300, 3000, 6000, 12_000))
            self.sometimes["a pause of a leader" if process in leading else "a pause"] += 1
            self.kernel.note(process.name, "is stopped for", ms)
            process.pause(ms)

    def do_cut_off(self) -> None:
        """A process cannot reach the store for a while."""
        if alive := self._alive():
            process = self.random.choice(alive)
            ms = self.random.choice((300, 3000, 8000))
            self.sometimes["a process is cut off"] += 1
            self.kernel.note(process.name, "is cut off for", ms)
            process.cut_off(ms)

    def do_restart_store(self) -> None:
        """The store is away for a while."""
        ms = self.random.choice((50, 800, 5000))
        self.sometimes["a restart of the store"] += 1
        self.kernel.note("store", "restarts, away for", ms)
        self.store.restart(ms)

    def do_fail_over(self) -> None:
        """Another server takes over, and knows less."""
        lost_ms = self.random.choice((0, 20, 200, 2000))
        jump = self.random.choice((0, 0, -3000, 2000))
        lost = self.store.fail_over(self.random.choice((50, 1500)), lost_ms, jump)
        self.kernel.note("store", "fails over and loses", lost, "changes of", lost_ms, "ms, clock", jump)
        self.judge.failed_over(lost)

    def do_jump(self) -> None:
        """The clock of the store is set."""
        ms = self.random.choice((-20_000, -1500, 1500, 5000, 20_000))
        self.sometimes["a clock is set"] += 1
        self.kernel.note("store", "its clock is set by", ms)
        self.store.jumped += ms

    def do_add_streams(self) -> None:
        """Another space comes, of one stream."""
        if len(self.store.streams) < 12:
            self.sometimes["new streams appear"] += 1
            self._spaces += 1
            self.store.streams[f"x{self._spaces}.0.0"] = 0

    def do_alter(self) -> None:
        """The space gets another generation; see `generations`."""
        generations.alter(self)

    def do_operate(self) -> None:
        """An operator does something; see `operators`."""
        self.operators.act()

    # ------------------------------------------------------------ a run

    def run(self) -> None:
        """Everything, from the beginning to the end.

        Raises:
            Violation: an invariant does not hold.
        """
        self.store.space.follow(self.random.randint(1, 8))
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
        self.kernel.run(self.swarm.duration)
        self.heal()
        if not self.kernel.run(self.kernel.now + LIVE_MS, self.is_well):
            raise Violation(f"not well within {LIVE_MS} ms after the last fault: {self.why}")
        self.judge.bounded(None)

    def heal(self) -> None:
        """No faults any more; somebody consumes, and there is a host or agents have their own."""
        self.kernel.note("world", "heals")
        self.healing = True
        self.faults.stop()
        self.store.down_until = 0
        for process in self._alive():
            process.paused_until = min(process.paused_until, self.kernel.now + 2000)
            process.cut_off_until = 0
        if not self.embedded and not any(host.process.alive and not host.draining for host in self.hosts):
            self.add_host()
        if all(consumer.over or consumer.leaving for consumer in self.consumers):
            self.do_join()
            if all(consumer.over or consumer.leaving for consumer in self.consumers):
                self.consumers.append(Program(self, self.process("prog"), None))
        for stream in self.store.streams:
            self.store.append(stream, 1)
        self.operators.heal()

    why = ""

    def is_well(self) -> bool:
        """[11] Every stream is owned, fairly, by somebody who is alive, and consumed to its end."""
        self.why = self._trouble()
        return not self.why

    def _trouble(self) -> str:
        leaders = [
            host.runner
            for host in self.hosts
            if host.process.alive and host.runner is not None and host.runner.term == self.store.record.term
        ]
        if not leaders or leaders[0].machine is None or not self.store.record.held:
            return "nobody leads"
        machine = leaders[0].machine
        if any(consumer.leaving and not consumer.over for consumer in self.consumers):
            return "somebody is still leaving"
        known = self.judge.truth.streams
        if set(known) != set(self.store.streams):
            return f"the group has {sorted(known)} instead of {sorted(self.store.streams)}"
        for stream, end in self.store.streams.items():
            if known[stream].finished:
                continue
            lease = machine.leases.get(stream)
            if lease is None or lease.state is not LeaseState.GRANTED:
                return f"{stream} is {lease.state if lease is not None else 'free'}"
            if stream in self.store.space.sealed or known[stream].committed != end:
                return f"{stream} is at {known[stream].committed} of {end}"
        names = {name for consumer in self.consumers for name in self._names(consumer)}
        loads = Counter(lease.name for lease in machine.leases.values())
        if not set(loads) <= names:
            return f"a dead borrower holds streams: {set(loads) - names}"
        if {peer.name for peer in machine.peers.values() if peer.borrower} != names:
            return "not all are connected"
        if not names:
            return "nobody consumes"
        sizes = [loads[name] for name in names]
        if max(sizes) - min(sizes) > 1:
            return f"not balanced: {dict(loads)}"
        return ""

    @staticmethod
    def _names(consumer: Program | Query) -> tuple[str, ...]:
        session = consumer.session
        return session.config.names if session is not None and not session.over and not consumer.over else ()
