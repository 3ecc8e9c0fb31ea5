"""Spark queries: the real `QueryMachine`, a loop around it, and Spark's own steps.

A batch is: its end stands in the offset log, it is read, the sink takes it as one transaction under its
number, the commit log names it. A query can be killed between any two steps, and comes back from its logs.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, assert_never

from streamlease.agent.session import Session, SessionConfig
from streamlease.borrower.events import (
    FailureAnswered,
    ProgressAcknowledged,
    StreamGone,
    StreamGranted,
    StreamRevoking,
)
from streamlease.borrower.life import BorrowerConfig
from streamlease.protocol.cuts import Ranges
from streamlease.protocol.errors import Fenced, StreamleaseError
from streamlease.protocol.messages import CutRead, LeaderToSession
from streamlease.spark.core import query_events as q
from streamlease.spark.core.checkpoint import CutOffset
from streamlease.spark.core.limits import Limits
from streamlease.spark.core.query_machine import QueryConfig, QueryMachine
from streamlease.spark.core.query_states import QueryState
from tests.simulation.agents import GONE, SUBSCRIPTION, SimAgent
from tests.simulation.kernel import Process, Routine

if TYPE_CHECKING:
    from tests.simulation.world import World

CLOSE_MS = 5000
_S = QueryState
SEEN = {
    (_S.REGAINING, _S.ASKING): "a cut is fixed again after the query was given up",
    (_S.LOSING, _S.RESUMING): "a take-over was lost before its cut was read in part",
}


@dataclass
class Checkpoint:
    """What outlives a query: Spark's two logs, and its sink."""

    session: str
    slots: int
    offsets: list[CutOffset] = field(default_factory=list)
    """The end of each batch."""
    committed: int = 0
    """How many batches the commit log names."""
    sink: dict[int, Ranges] = field(default_factory=dict)
    running: bool = False
    began: bool = False
    """Whether a process has run on it."""
    restored: int = 0
    """How often it was replaced by an older one."""

    def restore(self, world: World, batches: int) -> None:
        """A backup of some batches ago takes its place, and that of the sink: what followed never was."""
        kept = min(self.committed, len(self.offsets)) - batches
        if kept < 1:
            return
        world.sometimes["an older checkpoint is restored"] += 1
        world.kernel.note("world", "restores", self.session, "as of cut", self.offsets[kept - 1].cut)
        self.restored += 1
        for number in [number for number in self.sink if number > kept]:
            world.judge.undone(self.session, self.sink.pop(number))
        del self.offsets[kept:]
        self.committed = kept


class Stopped(StreamleaseError):
    """The query was told to stop in the middle of a batch."""


class Query:
    """One process with a Spark driver; the handler of its session."""

    def __init__(self, world: World, process: Process, checkpoint: Checkpoint) -> None:
        self.world = world
        self.process = process
        self.checkpoint = checkpoint
        self.random = world.kernel.random
        self.limit = self.random.choice((None, None, 5))
        self.patience = self.random.choice((20, 150, 600))
        self.agent = SimAgent(world, process)
        self.session: Session | None = None
        self.machine = QueryMachine(
            QueryConfig(
                group="g/#",
                subscription=str(SUBSCRIPTION),
                fresh="" if checkpoint.began else checkpoint.session,
                slots=checkpoint.slots,
                session_timeout_ms=world.borrower.session_timeout,
                fail_on_data_loss=False,
            )
        )
        self.leaving = False
        self.over = False
        self._reply: q.Reply | q.Refuse | None = None
        self._events: list[q.Event] = []
        self._is_stepping = False
        self._around = q.Surroundings()
        checkpoint.running = checkpoint.began = True
        process.ends.append(self._gone)
        process.start(self._run())

    def _gone(self) -> None:
        self.over = True
        self.checkpoint.running = False

    def leave(self) -> None:
        """Stop: between two batches, or in the middle of one."""
        self.leaving = True

    # ------------------------------------------------------------ handler

    def granted(self, slot: int, grant: StreamGranted) -> None:
        """See `QueryLoop`."""
        name = f"{self.checkpoint.session} in {self.process.name}"
        self.world.judge.believes(name, grant.stream, grant.lease_epoch)
        self._step(q.StreamCame(slot, grant))

    def acknowledged(self, slot: int, ack: ProgressAcknowledged) -> None:
        """See `QueryLoop`."""
        self.world.judge.acknowledged(ack.stream, ack.offset)

    def answered(self, slot: int, answer: FailureAnswered) -> None:
        """See `QueryLoop`."""

    def revoking(self, slot: int, revoking: StreamRevoking) -> None:
        """See `QueryLoop`."""
        self._step(revoking)

    def gone(self, slot: int, gone: StreamGone) -> None:
        """See `QueryLoop`."""
        self._step(gone)

    def received(self, message: LeaderToSession | CutRead) -> None:
        """See `QueryLoop`."""
        self._step(q.Heard(message))

    def failed(self, error: StreamleaseError) -> None:
        """See `QueryLoop`."""
        self._step(q.SessionOver(error))

    def ended(self) -> None:
        """See `QueryLoop`."""
        self._step(q.SessionOver())

    # ------------------------------------------------------------ the loop

    def _step(self, event: q.Event) -> None:
        self._events.append(event)
        if self._is_stepping:
            return
        self._is_stepping = True
        while self._events:
            self._look_around()
            self._take(self._events.pop(0))
        self._is_stepping = False

    def _look_around(self) -> None:
        if self.session is not None:
            around = q.Surroundings(self.session.connected, self.session.term)
            if around != self._around:
                self._around = around
                self._take(around)

    def _take(self, event: q.Event) -> None:
        before = self.machine.state
        for effect in self.machine.step(event, self.process.clock() / 1000):
            self._carry_out(effect)
        taken_up = before is _S.FOLLOWING and self.machine.cuts.open is not None
        self.world.sometimes["a cut that no checkpoint names is taken up"] += taken_up
        if (seen := SEEN.get((before, self.machine.state))) is not None:
            self.world.sometimes[seen] += 1

    def _carry_out(self, effect: q.Effect) -> None:
        match effect:
            case q.Reply() | q.Refuse():
                self._reply = effect
            case q.Find():
                self.process.start(self._find_out(effect))
            case q.OpenSession():
                self._open(effect)
            case q.Tell():
                self._its_session.post(effect.message)
            case q.ReportProgress():
                self._its_session.progressed(effect.slot, effect.progress)
            case q.Attest():
                self._its_session.attested.add_all(effect.rows)
            case q.GoBehind():
                self._events.append(q.WentBehind(effect.stream))
            case q.LeaveGroup():
                self.world.sometimes["a query leaves in good order"] += 1
                self._its_session.disconnect()
            case q.Say() | q.EventRefused():
                self.world.kernel.note(self.process.name, effect)
            case q.WatchEnds() | q.CountMessages():
                pass
            case _:
                assert_never(effect)

    @property
    def _its_session(self) -> Session:
        assert self.session is not None
        return self.session

    def _open(self, effect: q.OpenSession) -> None:
        checkpoint = self.checkpoint
        names = tuple(f"{checkpoint.session}/{slot}" for slot in range(checkpoint.slots))
        timers = BorrowerConfig(session_timeout=self.world.borrower.session_timeout)
        config = SessionConfig(SUBSCRIPTION, checkpoint.session, names, effect.arrival, timers)
        self.session = Session(
            self.agent, config, self, clock=self.process.clock, token=self.world.kernel.token
        )
        self.session.saw_term(effect.term)
        self.session.start()
        self.agent.add_ticker(self._tick)
        self.process.start(self._look())

    def _tick(self, now: int) -> None:
        self._step(q.Moment())

    def _look(self) -> Routine:
        while not self._its_session.over:
            held = sorted(self.machine.cuts.held)
            if held:
                with contextlib.suppress(*GONE):  # injected by `Faults`: the next round asks again
                    ends = yield self.agent.call(lambda store, held=held: store.ends(held))
                    for stream in held:
                        self._step(q.EndMoved(stream, ends.get(stream)))
                    self._step(q.EndsWatched())
            yield self.random.randint(50, 300)

    def _find_out(self, find: q.Find) -> Routine:
        answer: Any = None
        match find.what:
            case q.Arrival():
                while answer is None:
                    try:
                        answer = yield self.agent.call(lambda store: store.arrive())
                    except GONE:
                        yield 300
            case q.GroupView():
                yield self.random.randint(1, 50)
                lease_epochs = self.world.lease_epochs()
                if lease_epochs is not None:
                    rows = [{"stream": stream, "lease_epoch": at} for stream, at in lease_epochs.items()]
                    answer = {"streams": rows}
            case q.WrittenLate():
                answer = False
            case q.Floors():
                answer = {}
            case _:
                raise AssertionError(f"nobody answers {find.what}")
        self._step(q.FoundOut(find.number, answer))

    def _call(self, call: q.Call) -> Routine:
        """Spark asks, and waits."""
        self._reply = None
        self._step(call)
        while (reply := self._reply) is None:
            yield 20
            self._step(q.Moment())
            if self.leaving and not isinstance(call, q.StopQuery) and self.random.random() < 0.02:
                self._step(q.GivenUp())
                raise Stopped
        if isinstance(reply, q.Refuse):
            raise reply.error
        return reply.answer

    # ------------------------------------------------------------ what Spark does

    def _run(self) -> Routine:
        checkpoint = self.checkpoint
        try:
            yield from self._begin()
            if checkpoint.offsets and checkpoint.committed < len(checkpoint.offsets):
                self.world.sometimes["a query runs its last batch again"] += 1
                yield from self._batch()
            while not self.leaving:
                start = (
                    checkpoint.offsets[-1] if checkpoint.offsets else CutOffset("g/#", checkpoint.session, 0)
                )
                end = yield from self._call(q.NextCut(start, Limits(self.limit)))
                if end == start:
                    yield 30
                    continue
                yield from self._pass_time()
                checkpoint.offsets.append(end)
                yield from self._pass_time()
                yield from self._batch()
            yield from self._call(q.StopQuery())
            yield from self._close()
        except StreamleaseError as error:
            self.world.kernel.note(self.process.name, "query fails:", type(error).__name__)
            self.world.sometimes[f"a query ends with {type(error).__name__}"] += 1
            if isinstance(error, Fenced):
                checkpoint.running = True  # nobody starts it again
                self.process.ends.remove(self._gone)
                self.over = True
        self.world.end(self.process)

    def _begin(self) -> Routine:
        checkpoint = self.checkpoint
        newest = checkpoint.offsets[-1] if checkpoint.offsets else CutOffset("g/#", checkpoint.session, 0)
        finished = checkpoint.committed == len(checkpoint.offsets)
        yield from self._call(q.BeginQuery(newest, finished))

    def _batch(self) -> Routine:
        """Read the newest batch of the offset log, and put it into the sink."""
        checkpoint, sometimes = self.checkpoint, self.world.sometimes
        number = len(checkpoint.offsets)
        cut = checkpoint.offsets[-1]
        is_resumed = self.machine.cuts.open is None
        ranges = yield from self._call(q.ReadAgain(cut))
        sometimes["a cut is resumed"] += is_resumed and len(ranges) == len(cut.ranges)
        sometimes["a cut is resumed in part"] += is_resumed and 0 < len(ranges) < len(cut.ranges)
        self.world.judge.cut_read(f"{checkpoint.session}/{checkpoint.restored}", cut, ranges)
        yield from self._pass_time()
        if number not in checkpoint.sink:
            checkpoint.sink[number] = ranges
            for part in ranges:
                self.world.judge.delivered(
                    checkpoint.session, part.stream, part.lease_epoch, part.start, part.end, whole=True
                )
        yield from self._pass_time()
        checkpoint.committed = number
        yield from self._pass_time()

    def _pass_time(self) -> Routine:
        yield self.random.randint(1, 20 if self.world.healing else self.patience)
        if self.leaving and self.random.random() < 0.02:
            raise Stopped
        if self.world.kernel.chance(self.world.faults.crash_before * 3):
            self.world.sometimes["a query is killed between two steps of a batch"] += 1
            self.world.crash(self.process)
            yield 1

    def _close(self) -> Routine:
        """See `QueryLoop.stop`: what was posted leaves."""
        give_up = self.process.clock() + CLOSE_MS
        while not self.agent.idle and self.process.clock() < give_up:
            yield 50
        self.world.kernel.note(self.process.name, "has left")
