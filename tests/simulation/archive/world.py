"""One world with an archive: a server in memory, a folder, who uses them, and a seed that decides all."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from streamlease.hosts import archiving
from streamlease.protocol.errors import StreamleaseError
from streamlease.protocol.ids import StreamId
from streamlease.streams.archive import archive_turns, stream_pieces, upkeep_steps
from streamlease.streams.archive import archiver as archiver_module
from streamlease.streams.archive.archiver import Archived, Archiver
from streamlease.streams.archive.iceberg_table import SpaceTable
from streamlease.streams.archive.upkeep_steps import tidy
from streamlease.streams.redis.connection import ask
from streamlease.streams.spaces.archive_settings import ArchiveSettings
from streamlease.streams.spaces.definitions import Space
from streamlease.streams.spaces.retention import Retention
from streamlease.testing.memory.memory_connection import connect
from streamlease.testing.timelines.loops import Process
from tests.simulation.archive.actors import (
    FAILURES,
    SPACE,
    Actor,
    AnyReader,
    Command,
    Cutter,
    Host,
    Listener,
    Sender,
)
from tests.simulation.archive.store import Store
from tests.simulation.archive.threads import Threading, Threads, blocking_redis, this_thread
from tests.simulation.archive.truth import ArchiveTruth
from tests.simulation.epochs.written import Written
from tests.simulation.judge import Violation
from tests.simulation.network import FaultyLine
from tests.simulation.simulated import SimulatedWorld, run_world

QUIET_SECONDS = 3.0
"""So long all must stay well."""

LOOK_SECONDS = 0.4
MOST = 3


class ArchiveWorld(SimulatedWorld):
    """Everything of one seed."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        random = self.random
        self.pointed = random.random() < 0.5
        """Whether Redis says where the table is, as for a bucket; else a catalog beside it does."""
        self.retention = random.choice((None, None, 40))
        """How many messages of a stream exist at least."""
        self.grace = 60.0
        """How old files are that are swept: longer than anything here takes."""
        self.streams = random.randint(1, 3)
        self.lines: dict[int, FaultyLine] = {}
        """By the client of a host."""
        self.folder = ""
        self.space: Space | None = None
        self.written = Written(self.server, SPACE, 0)
        self.written.came = lambda one: None
        self.truth = ArchiveTruth(self)
        self.threads = Threads(self)
        self.store = Store(self)
        self.hosts: list[Host] = []
        self.senders: list[Sender] = []
        self.readers: list[AnyReader] = []
        self.commands: list[Command] = []
        self._numbers = 0
        self._looked = 0.0
        self._weights = self._drawn()
        self._admin = self.timeline.process("admin")

    def _drawn(self) -> dict[str, float]:
        """Which faults this seed has, and how strong."""
        draw = self.random

        def maybe(weight: float, chance: float = 0.5) -> float:
            return weight * draw.choice((0.3, 1, 3)) if draw.random() < chance else 0.0

        for name, strength in (
            ("refused", 0.1), ("broken", 0.03), ("unanswered", 0.03), ("unheard", 1.0), ("overdue", 0.02),
            ("crash_before", 0.03), ("crash_after", 0.03),
        ):  # fmt: skip
            if draw.random() < 0.4:
                setattr(self.faults, name, draw.random() * strength)
        for name, strength in (
            ("failing", 0.02), ("unanswered", 0.02), ("lying", 0.3), ("crash", 0.01), ("slow", 0.5),
        ):  # fmt: skip
            if draw.random() < 0.4:
                setattr(self.store.faults, name, draw.random() * strength)
        return {
            "publish": 2.0, "read": 1.5, "command": 2.0, "crash": maybe(1.0), "pause": maybe(1.0),
            "cut_off": maybe(0.5), "host": maybe(1.0), "restart": maybe(0.3), "full": maybe(0.3),
            "fail_over": draw.choice((1.0, 3.0)) if self.seed % 3 == 0 else 0.0,
        }  # fmt: skip

    # ------------------------------------------------------------ what actors ask

    def number(self) -> int:
        """A number that was not there before."""
        self._numbers += 1
        return self._numbers

    def process(self, kind: str) -> tuple[Process, FaultyLine]:
        process, line = super().process(kind)
        if kind != Sender.kind:
            process.loop.__dict__["run_in_executor"] = partial(self.threads.run, process)
        return process, line

    @property
    def actors(self) -> list[Actor]:
        """Those that live."""
        everybody: list[Actor] = [*self.hosts, *self.senders, *self.readers, *self.commands]
        return [one for one in everybody if one.process.alive]

    def archived(self, who: str, done: Archived) -> None:
        """A run came to an end."""
        if done.troubles:
            raise Violation(f"{who} stands still: {done.troubles}")
        if done.files or done.healed:
            self.kernel.note(who, "archived", done.messages, "in", len(done.files), "healed", done.healed)
            self.sometimes["files are committed"] += bool(done.files)
            self.sometimes["a crash behind a commit is healed"] += bool(done.healed)

    # ------------------------------------------------------------ a run

    def figures(self) -> Counter[str]:
        return Counter(
            commands=self.server.commands,
            messages=len(self.written.texts),
            virtual=self.timeline.now,  # type: ignore[arg-type]  # seconds
        )

    def own_defects(self) -> Iterator[str]:
        """What the judge said in a task of an actor is its own word; and every offset is somewhere."""
        for process in self.timeline.processes:
            for task in process.loop.tasks:
                if task.done() and not task.cancelled() and isinstance(task.exception(), Violation):
                    raise task.exception()
        if self.timeline.now - self._looked >= LOOK_SECONDS:
            self._looked = self.timeline.now
            self.truth.look()
        return
        yield

    def course(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="streamlease-archive-")
        try:
            self._admin.start(self._begin())
            self.until(0.05)
            self.do_host()
            self.do_publish()
            self.do_read()
            gap = self.random.choice((150, 400))

            def act() -> None:
                if not self.healing:
                    name = self.random.choices([*self._weights], [*self._weights.values()])[0]
                    getattr(self, f"do_{name}")()
                    self.kernel.after(1 + int(self.random.expovariate(1 / gap)), act)

            self.kernel.after(200, act)
            self.until(self.random.choice((6.0, 12.0)))
            self._heal()
            self.becomes_well(self._is_well)
            self.truth.look()
            self.truth.whole(self._in_table())
            self._sweep()
        finally:
            self.threads.end()
            shutil.rmtree(self.folder)

    async def _begin(self) -> None:
        client = connect(self.server, embedded=False)
        keep = self.random.choice(((1, None), (2000, None), (None, 600)))
        self.space = await client.create_space(
            SPACE,
            ["s/#"],
            streams=self.streams,
            retention=Retention(messages=self.retention) if self.retention else None,
            durability="replicated:1",
            archive=ArchiveSettings.of(f"{self.folder}/archive", keep_ms=keep[0], keep_bytes=keep[1]),
        )
        await ask(client.redis, [("WAIT", 1, 100)])

    def _in_table(self) -> list[str]:
        assert self.space is not None and self.space.archive is not None
        table = SpaceTable.open(blocking_redis(self), self.space, self.space.archive)
        return [path for files in table.files().values() for path in files]

    def _sweep(self) -> None:
        """Nobody is about to commit anything any more: what is left belongs to the table, or is named."""
        assert self.space is not None
        assert self.space.archive is not None
        self.threads.end()
        archiver = Archiver(blocking_redis(self), self.space, self.space.archive)
        keep = self.timeline.now - time.time() - 10
        self.sometimes["files are swept"] += tidy(
            archiver, self.timeline.now + 10, grace=0, keep_seconds=keep
        )[1]
        self.truth.look()
        paths = self._in_table()
        self.truth.whole(paths)
        left = {str(path) for path in Path(self.folder, "archive", "data").rglob("*.parquet")}
        if left != {*paths}:
            raise Violation(f"[16] {sorted(left ^ {*paths})[:3]} are not both in the table and in the folder")

    def _heal(self) -> None:
        """No faults any more; whoever publishes leaves."""
        self.stop_faults()
        self.store.faults.stop()
        for one in self.actors:
            one.process.paused_until = min(one.process.paused_until, self.timeline.now + 1.0)
            one.line.cut_off_until = 0.0
        self.hosts.append(Host(self))
        self.readers.append(Listener(self))
        for sender in self.senders:
            sender.leaving = True

    _well_since: float | None = None

    def _is_well(self) -> bool:
        """Nobody publishes, and all is archived and read, for some time."""
        self.why = self._trouble()
        if self.why:
            self._well_since = None
        elif self._well_since is None:
            self._well_since = self.timeline.now
        return self._well_since is not None and self.timeline.now - self._well_since >= QUIET_SECONDS

    def _trouble(self) -> str:
        if any(one.process.alive for one in [*self.senders, *self.commands]):
            return "somebody still publishes, or archives by hand"
        for name, end in self.written.now.ends.items():
            next, _, archived, _ = self.truth.figures_of(StreamId.parse(name))
            if archived < next:
                return f"{archived} of {name} is archived, of {end}"
        for reader in self.readers:
            if reader.process.alive and (trouble := reader.trouble):
                return trouble
        return ""

    @contextmanager
    def watched(self) -> Iterator[None]:
        """What is rare in production happens often; clocks are those of the world."""

        def sleep(seconds: float) -> None:
            thread = this_thread()
            assert thread is not None
            thread.sleep(seconds)

        clock = SimpleNamespace(
            monotonic=lambda: self.timeline.now, time=lambda: self.timeline.now, sleep=sleep
        )
        of, commit = archiving.ArchiveUpkeep._of, SpaceTable.commit

        async def watched_of(upkeep: Any, *about: Any) -> Archived:
            try:
                return await of(upkeep, *about)
            except FAILURES as error:
                self.kernel.note("archiver", "fails", type(error).__name__)
                raise
            except StreamleaseError as error:
                raise Violation(f"[16] a host is told {type(error).__name__}: {error}") from error

        def watched_commit(table: SpaceTable, *about: Any) -> None:
            commit(table, *about)
            self.truth.committed(path for files in table.files().values() for path in files)

        with ExitStack() as stack:
            enter = stack.enter_context
            enter(self.store.in_place())
            enter(mock.patch.object(archiving.ArchiveUpkeep, "_of", watched_of))
            enter(mock.patch.object(SpaceTable, "commit", watched_commit))
            enter(mock.patch.object(archiving, "blocking_twin", self._twin))
            for module in (archiving, archiver_module, upkeep_steps, archive_turns):
                enter(mock.patch.object(module, "time", clock))
            for threaded in (archiving, archive_turns):
                enter(mock.patch.object(threaded, "threading", Threading(self.threads)))
            enter(mock.patch.object(archive_turns, "TURN_SECONDS", 4.0))
            listed = self.store.listed(upkeep_steps.listed)
            enter(mock.patch.object(upkeep_steps, "listed", listed))
            enter(mock.patch.object(archiving, "WAIT_SECONDS", 0.4))
            enter(mock.patch.object(archiving, "INTERVAL_SECONDS", 1.0))
            enter(mock.patch.object(archiving, "PRUNE_SECONDS", 1.5))
            enter(mock.patch.object(archiving, "MANY_FILES", 4))
            enter(mock.patch.object(archiver_module, "COMMIT_FILES", 2))
            enter(mock.patch.object(stream_pieces, "FILE_BYTES", 1500))
            yield

    def _twin(self, redis: Any) -> Any:
        return blocking_redis(self, self.lines[id(redis)])

    # ------------------------------------------------------------ what happens

    def _some(self, here: list[Any], kind: type[Any]) -> None:
        if sum(one.process.alive for one in here) < MOST:
            here.append(kind(self))

    def do_publish(self) -> None:
        """One more publisher, or one leaves."""
        here = [one for one in self.senders if one.process.alive]
        if len(here) == MOST:
            self.random.choice(here).leaving = True
        else:
            self.senders.append(Sender(self))

    def do_read(self) -> None:
        """One more reader."""
        self._some(self.readers, self.random.choice((Listener, Cutter)))

    def do_command(self) -> None:
        """Somebody archives by hand."""
        self._some(self.commands, Command)

    def do_host(self) -> None:
        """One more host."""
        self._some(self.hosts, Host)

    def do_crash(self) -> None:
        """A process is killed."""
        if here := self.actors:
            self.crash(self.random.choice(here).process)

    def do_pause(self) -> None:
        """A process is stopped for a while."""
        if here := self.actors:
            one, seconds = self.random.choice(here), self.random.choice((0.3, 3.0, 8.0))
            self.kernel.note(one.name, "is stopped for", seconds)
            self.sometimes["a pause"] += 1
            one.process.pause(seconds)

    def do_cut_off(self) -> None:
        """A process cannot reach the store for a while."""
        if here := self.actors:
            one, seconds = self.random.choice(here), self.random.choice((0.3, 3.0, 8.0))
            self.kernel.note(one.name, "is cut off for", seconds)
            one.line.cut_off(seconds)

    def do_full(self) -> None:
        """The store of files takes nothing more for a while."""
        self.store.faults.full_until = self.timeline.now + self.random.choice((0.5, 2.0))

    def do_restart(self) -> None:
        """The server ends and comes back, with all its data."""
        self.kernel.note("store", "is restarted")
        self.sometimes["a restart of the store"] += 1
        self.server.restart()
        self.be_down(self.random.choice((0.1, 2.0)))

    def do_fail_over(self) -> None:
        """Another server takes over, and knows less."""
        lost_ms = self.random.choice((0, 50, 400, 2000, 4000))
        lost = self.server.fail_over(lost_ms)
        self.be_down(self.random.choice((0.05, 1.5)))
        self.sometimes["a failover"] += 1
        self.kernel.note("store", "fails over and loses", lost, "changes of", lost_ms, "ms")
        if lost:
            self.sometimes["a failover that loses writes"] += 1
            self.written.failed_over()
            for reader in self.readers:
                self.crash(reader.process)  # nobody tells a plain reader that others write where it has read


def run(seed: int) -> ArchiveWorld:
    """Run one seed.

    Raises:
        Violation: an invariant does not hold; the world is in its `world` attribute.
    """
    return run_world(ArchiveWorld(seed))
