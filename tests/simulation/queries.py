"""Spark queries: the real `QueryCuts`, asked and told by the rules of the session, and Spark's own steps.

A batch is: its end stands in the offset log, it is read, the sink takes it as one transaction under its
number, the commit log names it. A query can be killed between any two steps, and comes back from its logs.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from streamlease.agent.session import Session, SessionConfig
from streamlease.borrower.events import (
    FailureAnswered,
    ProgressAcknowledged,
    StreamGone,
    StreamGranted,
    StreamRevoking,
)
from streamlease.borrower.life import BorrowerConfig
from streamlease.protocol.errors import Fenced, StoreUnavailable, StreamleaseError
from streamlease.protocol.messages import CutFinished, CutFixed, CutRead, CutResumed, LeaderToSession
from streamlease.spark.core.checkpoint import CutOffset, SlotRange
from streamlease.spark.core.cuts import QueryCuts, older_checkpoint
from streamlease.spark.core.limits import Limits
from tests.simulation.agents import GONE, SUBSCRIPTION, SimAgent
from tests.simulation.kernel import Process, Routine

if TYPE_CHECKING:
    from tests.simulation.world import World

RESEND_MS = 500
ANSWER_MS = 2000
RESUME_MS = 60_000
REGRANT_MS = 2000
LEAVE_MS = 5000
TAIL_MS = 3000


@dataclass
class Checkpoint:
    """What outlives a query: Spark's two logs, and its sink."""

    session: str
    slots: int
    offsets: list[CutOffset] = field(default_factory=list)
    """The end of each batch."""
    committed: int = 0
    """How many batches the commit log names."""
    sink: dict[int, tuple[SlotRange, ...]] = field(default_factory=dict)
    running: bool = False
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
        self.cuts = QueryCuts("g/#", self._progressed)
        self.leaving = False
        self.over = False
        self._error: StreamleaseError | None = None
        self._left = False
        self._waiting: type[LeaderToSession] | None = None
        self._answer: Any = None
        self._confirm_at = 0
        checkpoint.running = True
        process.ends.append(self._gone)
        process.start(self._run())

    def _gone(self) -> None:
        self.over = True
        self.checkpoint.running = False

    def leave(self) -> None:
        """Stop: between two batches, or in the middle of one."""
        self.leaving = True

    # ------------------------------------------------------------ handler

    def _progressed(self, slot: int, event: Any) -> None:
        if self.session is not None:
            self.session.progressed(slot, event)

    def granted(self, slot: int, grant: StreamGranted) -> None:
        """See `QuerySession`."""
        name = f"{self.checkpoint.session} in {self.process.name}"
        self.world.judge.believes(name, grant.stream, grant.lease_epoch)
        self.cuts.granted(slot, grant)

    def acknowledged(self, slot: int, ack: ProgressAcknowledged) -> None:
        """See `QuerySession`."""
        self.world.judge.acknowledged(ack.stream, ack.offset)

    def answered(self, slot: int, answer: FailureAnswered) -> None:
        """See `QuerySession`."""

    def revoking(self, slot: int, revoking: StreamRevoking) -> None:
        """See `QuerySession`."""
        self.cuts.revoking(revoking)

    def gone(self, slot: int, gone: StreamGone) -> None:
        """See `QuerySession`."""
        self.cuts.gone(gone)

    def received(self, message: LeaderToSession | CutRead) -> None:
        """See `QuerySession`."""
        cuts = self.cuts
        match message:
            case CutFixed():
                cuts.confirm(message.finished)
                if cuts.is_meant(message):
                    cuts.believe(message.progress)
                    self._answered(message)
            case CutFinished():
                cuts.confirm(message.finished)
                cuts.believe(message.progress)
                self._answered(message)
            case CutResumed():
                self._answered(message)

    def failed(self, error: StreamleaseError) -> None:
        """See `QuerySession`."""
        self._error = error
        self._left = True

    def ended(self) -> None:
        """See `QuerySession`."""
        self._left = True

    def _answered(self, message: Any) -> None:
        if self._waiting is type(message):
            self._answer, self._waiting = message, None

    # ------------------------------------------------------------ what QuerySession does

    def _begin(self) -> Routine:
        checkpoint = self.checkpoint
        while True:
            try:
                arrival = yield self.agent.call(lambda store: store.arrive())
                break
            except GONE:
                yield 300
        names = tuple(f"{checkpoint.session}/{slot}" for slot in range(checkpoint.slots))
        timers = BorrowerConfig(session_timeout=self.world.borrower.session_timeout)
        config = SessionConfig(SUBSCRIPTION, checkpoint.session, names, arrival, timers)
        self.cuts.session, self.cuts.arrival = checkpoint.session, arrival
        self.session = Session(
            self.agent, config, self, clock=self.process.clock, token=self.world.kernel.token
        )
        if checkpoint.offsets:
            finished = checkpoint.committed == len(checkpoint.offsets)
            self.session.saw_term(checkpoint.offsets[-1].term)
            self._attest(checkpoint.offsets[-1], finished=finished)
        self.session.start()
        self.agent.add_ticker(self._tick)
        self.process.start(self._look())

    def _attest(self, cut: CutOffset, *, finished: bool) -> None:
        """See `QuerySession`."""
        assert self.session is not None
        self.session.attested.add_all(
            (part.slot, part.stream, part.lease_epoch, part.end if finished else part.start)
            for part in cut.ranges
        )

    def _look(self) -> Routine:
        while not self._left:
            held = sorted(self.cuts.held)
            if held:
                with contextlib.suppress(*GONE):  # injected by `Faults`: the next round asks again
                    ends = yield self.agent.call(lambda store, held=held: store.ends(held))
                    for stream in held:
                        self.cuts.streams.ends_at(stream, ends.get(stream))
            yield self.random.randint(50, 300)

    def _tick(self, now: int) -> None:
        done = self.cuts.went_through
        if self.cuts.unconfirmed and done and self.session is not None and now >= self._confirm_at:
            self._confirm_at = now + RESEND_MS
            self.session.post(self.cuts.finish_cut(done, self.session.term))

    def _ask(self, question: Any, kind: type[LeaderToSession], ms: int) -> Routine:
        clock, session = self.process.clock, self.session
        assert session is not None
        self._waiting, self._answer = kind, None
        give_up = clock() + ms
        while clock() < give_up:
            sent = session.connected and session.post(question)
            until = clock() + (RESEND_MS if sent else 50)
            while clock() < until:
                if self._answer is not None:
                    return self._answer
                yield 20
                self._raise_error()
        self._waiting = None
        return None

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error
        if self.leaving and self.random.random() < 0.02:
            raise Stopped

    def _next_cut(self, start: CutOffset) -> Routine:
        cuts = self.cuts
        self._raise_error()
        if start.cut > cuts.finished:
            if not (yield from self._finish(start)):
                return start
            if cuts.open is not None:
                self.world.sometimes["a cut that no checkpoint names is taken up"] += 1
                return cuts.open
        if cuts.proposed is None and cuts.propose(cuts.streams.waiting(), Limits(self.limit)) is None:
            yield 50
            self._raise_error()
            cuts.propose(cuts.streams.waiting(), Limits(self.limit))
        if cuts.proposed is None:
            return start
        fixed = yield from self._ask(cuts.proposed, CutFixed, ANSWER_MS)
        if fixed is None:
            return start
        if cuts.is_older(fixed):
            raise older_checkpoint(start.session, start.cut + 1, fixed.finished)
        return cuts.fixed(fixed) or start

    def _finish(self, done: CutOffset) -> Routine:
        assert self.session is not None
        message, following = self.cuts.finish_cut(done, self.session.term), None
        if self.cuts.is_open(done):
            self.session.post(message)
            self._confirm_at = self.process.clock() + RESEND_MS
        else:
            if (yield from self._ask(message, CutFinished, ANSWER_MS)) is None:
                return False
            following = yield from self._ask(self.cuts.ask_for_next(done), CutResumed, ANSWER_MS)
            if following is None:
                return False
        self.cuts.finish(done, following)
        self._attest(self.cuts.went_through or done, finished=True)
        return True

    def _ranges_of(self, cut: CutOffset) -> Routine:
        cuts = self.cuts
        if cuts.open is not None and cuts.is_open(cut):
            return cuts.open.ranges
        while True:
            resumed = yield from self._ask(cuts.resume_cut(cut), CutResumed, RESUME_MS)
            if resumed is None:
                raise StoreUnavailable("no leader answered")
            mine = {part.stream for part in resumed.ranges}
            if not mine:
                mine = yield from self._fix_again(cut)
                self.world.sometimes["a cut is fixed again after the query was given up"] += bool(mine)
            lost = [part for part in cut.ranges if part.stream not in mine]
            if not lost or (yield from self._is_lost_for_good(resumed.term, lost)):
                break
            self.world.sometimes["a take-over was lost before its cut was read in part"] += 1
        ranges = cuts.resumed(cut, resumed.term, mine)
        self.world.sometimes["a cut is resumed"] += len(ranges) == len(cut.ranges)
        self.world.sometimes["a cut is resumed in part"] += 0 < len(ranges) < len(cut.ranges)
        return ranges

    def _fix_again(self, cut: CutOffset) -> Routine:
        cuts = self.cuts
        give_up = self.process.clock() + REGRANT_MS
        while True:
            pinned = cuts.pinned(cut)
            if len(pinned) == len(cut.ranges) or self.process.clock() >= give_up:
                break
            yield 50
            self._raise_error()
        if not pinned:
            return set()
        cuts.proposed = cuts.fix_cut(pinned)
        fixed = yield from self._ask(cuts.proposed, CutFixed, ANSWER_MS)
        if fixed is None:
            raise StoreUnavailable("no leader answered")
        mine = {part.stream for part in cuts.ranges_of(fixed)}
        cuts.proposed = None
        return mine

    def _is_lost_for_good(self, term: int, lost: list[SlotRange]) -> Routine:
        """See `QuerySession`."""
        assert self.session is not None
        yield from self._wait_until_leased_again(lost)
        give_up = self.process.clock() + TAIL_MS
        while self.process.clock() < give_up:
            yield 50
            self._raise_error()
        yield from self._wait_until_leased_again(lost)
        return self.session.term == term

    def _wait_until_leased_again(self, lost: list[SlotRange]) -> Routine:
        give_up = self.process.clock() + RESUME_MS
        while lost and self.process.clock() < give_up:
            lease_epochs = self.world.lease_epochs()
            if lease_epochs is not None:
                lost = [part for part in lost if lease_epochs.get(part.stream, 1 << 60) <= part.lease_epoch]
            yield 50
            self._raise_error()
        if lost:
            raise StoreUnavailable("the streams were not settled")

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
                end = yield from self._next_cut(start)
                if end == start:
                    yield 30
                    continue
                yield from self._pass_time()
                checkpoint.offsets.append(end)
                yield from self._pass_time()
                yield from self._batch()
            yield from self._leave()
        except StreamleaseError as error:
            self.world.kernel.note(self.process.name, "query fails:", type(error).__name__)
            self.world.sometimes[f"a query ends with {type(error).__name__}"] += 1
            if isinstance(error, Fenced):
                checkpoint.running = True  # nobody starts it again
                self.process.ends.remove(self._gone)
                self.over = True
        self.world.end(self.process)

    def _batch(self) -> Routine:
        """Read the newest batch of the offset log, and put it into the sink."""
        checkpoint = self.checkpoint
        number = len(checkpoint.offsets)
        cut = checkpoint.offsets[-1]
        ranges = yield from self._ranges_of(cut)
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
        self._raise_error()
        if self.world.kernel.chance(self.world.faults.crash_before * 3):
            self.world.sometimes["a query is killed between two steps of a batch"] += 1
            self.world.crash(self.process)
            yield 1

    def _leave(self) -> Routine:
        """See `QuerySession._leave`: in good order only if nothing may be unknown to the leader."""
        assert self.session is not None
        give_up = self.process.clock() + LEAVE_MS
        while self.cuts.unconfirmed and self.process.clock() < give_up:
            yield 50
        settled = self.cuts.settled and self.cuts.open is None and not self.cuts.unconfirmed
        if settled and not self.session.over:
            self.session.disconnect()
            while not self._left or not self.agent.idle:
                yield 50
                if self.process.clock() > give_up + LEAVE_MS:
                    break
            self.world.sometimes["a query leaves in good order"] += 1
        self.world.kernel.note(self.process.name, "has left")
