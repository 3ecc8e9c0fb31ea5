"""One world of epochs: a server in memory, keepers, publishers, readers, and a seed that decides all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from random import Random
from typing import Any
from unittest import mock

from streamlease.agent.collections import collection, gathering
from streamlease.hosts import keepers, snapshot_maker
from streamlease.protocol.epochs.order import Epoch, bottom
from streamlease.protocol.ids import StreamId
from streamlease.streams.collections import points, snapshots
from streamlease.streams.epochs import keeping, keys, tidying
from streamlease.streams.log.keys import staged_part, stream_meta
from tests.simulation.epochs.actors import SPACE, Actor, AnySender, Closer, KeeperHost
from tests.simulation.epochs.acts import Acts, drawn
from tests.simulation.epochs.readers import AnyReader, CollectionReader, EagerReader, OffReader, Reader
from tests.simulation.epochs.truth import EpochTruth
from tests.simulation.epochs.written import Written
from tests.simulation.judge import Violation
from tests.simulation.simulated import SimulatedWorld, run_world

QUIET_SECONDS = 6.0
"""So long all must stay well."""


class EpochWorld(SimulatedWorld):
    """Everything of one seed."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        aside = Random(f"aside {seed}")
        """For what was thought of later, so that seeds stay what they are otherwise."""
        self.dimensions = self.random.choice((1, 1, 2))
        if self.dimensions == 2 and aside.random() < 0.4:
            self.dimensions = 3
        self.collection = self.random.random() < 0.5
        if self.collection and self.random.random() < 0.4:
            self.dimensions = 0  # no epochs
        self.forgets = self.collection and self.random.random() < 0.6
        """Whether retention removes what it may."""
        self.waits = self.dimensions > 0 and aside.random() < 0.3
        """Whether a publisher that is lost waits for an operator."""
        self.durability = self.random.choice(("memory", "memory", "replicated:1"))
        self.generations = 1
        self.written = Written(self.server, SPACE, self.dimensions)
        self.truth = EpochTruth(self.written, durable=self.durability != "memory")
        self.names = [f"p{number}" for number in range(self.random.randint(1, 3))]
        self.streams = self.random.randint(1, 4)
        self.keepers: list[KeeperHost] = []
        self.senders: list[AnySender] = []
        self.readers: list[AnyReader] = []
        self.closer: Closer | None = None
        self._numbers = 0
        self.kinds: list[type[AnyReader]] = [OffReader]
        """The ways in which the space can be read."""
        if self.dimensions:
            self.kinds += [Reader, EagerReader]
        if self.collection:
            self.kinds += [CollectionReader]
        self._weights = drawn(self)
        aborts = self.dimensions > 0 and (self.waits or aside.random() < 0.3)
        self._weights["abort"] = aside.choice((0.3, 1.0)) if aborts else 0.0
        self.acts = Acts(self)

    # ------------------------------------------------------------ what lines and actors ask

    @property
    def bottom(self) -> Epoch:
        """The least epoch."""
        return bottom(self.dimensions or 1)

    def next_of(self, stream: str) -> int:
        """The offset that the next message of a stream would get."""
        return int(self._asked(b"HGET", stream_meta(StreamId.parse(stream)), b"next") or 0)

    @property
    def ends_at_newest(self) -> dict[str, int]:
        """Where the streams end at the newest boundary that have messages."""
        now = self.written.now
        return now.bounds[now.boundary][1] if now.bounds else {}

    def number(self) -> int:
        """A number that was not there before."""
        self._numbers += 1
        return self._numbers

    @property
    def actors(self) -> list[Actor]:
        """Those that live."""
        everybody: list[Actor] = [*self.keepers, *self.senders, *self.readers]
        return [one for one in everybody if one.process.alive]

    # ------------------------------------------------------------ a run

    def figures(self) -> Counter[str]:
        return Counter(
            commands=self.server.commands,
            messages=len(self.truth.sent),
            epochs=len(self.truth.epochs),
            virtual=self.timeline.now,  # type: ignore[arg-type]  # seconds
        )

    def own_defects(self) -> Iterator[str]:
        """What the judge said in a task of an actor is its own word."""
        for process in self.timeline.processes:
            for task in process.loop.tasks:
                if task.done() and not task.cancelled() and isinstance(task.exception(), Violation):
                    raise task.exception()
        return
        yield

    def course(self) -> None:
        self.acts.admin.start(self.acts.begin())
        self.until(0.05)
        self.acts.do_keeper()
        self.acts.do_publish()
        self.acts.do_read()
        gap = self.random.choice((150, 400))

        def act() -> None:
            if not self.healing:
                self.acts.one(self._weights)
                self.kernel.after(1 + int(self.random.expovariate(1 / gap)), act)

        self.kernel.after(200, act)
        self.until(self.random.choice((6.0, 12.0)))
        self._heal()
        self.becomes_well(self._is_well)
        self.truth.all_there()
        for reader in self.readers:
            if reader.process.alive:
                reader.ended()

    def _heal(self) -> None:
        """No faults any more; whoever publishes leaves."""
        self.stop_faults()
        for one in self.actors:
            one.process.paused_until = min(one.process.paused_until, self.timeline.now + 1.0)
            one.line.cut_off_until = 0.0
        self.keepers.append(KeeperHost(self))
        self.acts.one_of_each()
        if self.waits:
            self.acts.abort_whoever_is_lost()
        for sender in self.senders:
            sender.leaving = True

    _well_since: float | None = None

    def _is_well(self) -> bool:
        """Nobody publishes, all that was given up is completed and read, and nothing is staged, for long."""
        self.why = self._trouble()
        if self.why:
            self._well_since = None
        elif self._well_since is None:
            self._well_since = self.timeline.now
        return self._well_since is not None and self.timeline.now - self._well_since >= QUIET_SECONDS

    def _trouble(self) -> str:
        if any(sender.process.alive for sender in self.senders):
            return "somebody still publishes"
        if self.dimensions and (trouble := self._open_epochs()):
            return trouble
        for reader in self.readers:
            if reader.process.alive and (trouble := reader.trouble):
                return trouble
        return ""

    def _open_epochs(self) -> str:
        writers = self._asked(b"HGETALL", keys.writers(SPACE))
        if any(record.endswith(b" here") for record in writers[1::2]):
            return "somebody counts as being there"
        if self.closer is None:
            self.closer = Closer(self)
        if not self.closer.done:
            return "somebody closes what is open"
        for shard in range(self.streams):
            if staged := self._asked(b"HKEYS", staged_part(StreamId(SPACE, 0, shard), "epochs")):
                return f"{staged[0]!r} is still staged"
            if left := self._asked(b"XLEN", staged_part(StreamId(SPACE, 0, shard), "log")):
                return f"{left} entries are left in a staged log"
        boundary = int(self._asked(b"HGET", keys.state(SPACE), b"boundary") or 0)
        newest = self._asked(b"XREVRANGE", keys.bounds(SPACE), b"+", b"-", b"COUNT", b"1")
        if boundary and (not newest or not newest[0][0].startswith(b"%d-" % boundary)):
            return "the newest boundary is not there"
        return "a boundary is pending" if self._asked(b"HGET", keys.state(SPACE), b"pending") else ""

    def _asked(self, name: bytes, *args: bytes | str) -> Any:
        return self.server.execute([name, *(one.encode() if isinstance(one, str) else one for one in args)])

    @contextmanager
    def watched(self) -> Iterator[None]:
        """What is rare in production happens often."""
        with ExitStack() as stack:
            enter = stack.enter_context
            enter(mock.patch.object(keeping, "SNAPSHOT_LINES", 10))
            enter(mock.patch.object(keeping, "PIECE_ROWS", 2))
            enter(mock.patch.object(keeping, "MOVE_ENTRIES", 2))
            enter(mock.patch.object(keeping, "DROP_ENTRIES", 2))
            enter(mock.patch.object(keepers, "TIDY_SECONDS", 3.0))
            enter(mock.patch.object(tidying, "KEPT_MS", 1500))
            enter(mock.patch.object(snapshot_maker, "LEAST_CHANGES", 4))
            enter(mock.patch.object(snapshots, "ENTRY_BYTES", 64))
            enter(mock.patch.object(snapshots, "AT_ONCE", 2))
            enter(mock.patch.object(snapshots, "FORMER_SECONDS", 2))
            enter(mock.patch.object(snapshots, "UNFINISHED_SECONDS", 3))
            enter(mock.patch.object(points, "AT_ONCE", 2))
            enter(mock.patch.object(gathering, "ENOUGH_ROWS", 5))
            enter(mock.patch.object(collection, "LOOK_SECONDS", 0.6))
            yield


def run(seed: int) -> EpochWorld:
    """Run one seed.

    Raises:
        Violation: an invariant does not hold; the world is in its `world` attribute.
    """
    return run_world(EpochWorld(seed))
