"""A machine of a query on made-up events, and a way to each of its states."""

from __future__ import annotations

from typing import Any

from streamlease.borrower.events import StreamGranted
from streamlease.protocol.cuts import CutRange, Ranges
from streamlease.protocol.errors import (
    Fenced,
)
from streamlease.protocol.messages import (
    CutFinished,
    CutFixed,
    CutResumed,
    FixCut,
    Progress,
    SessionToLeader,
)
from streamlease.spark.core import query_events as q
from streamlease.spark.core.checkpoint import CutOffset
from streamlease.spark.core.conversations import resuming
from streamlease.spark.core.limits import Limits
from streamlease.spark.core.query_machine import QueryConfig, QueryMachine
from streamlease.spark.core.query_states import QueryMove, QueryState

S, M = QueryState, QueryMove
GROUP, SESSION, FRESH = "g/t", "q-old", "q-new"
A, B = "s.0.0", "s.0.1"
TERM = 7


def part(stream: str, start: int, end: int, lease_epoch: int = 1) -> CutRange:
    return CutRange(stream, lease_epoch, start, end)


def offset(cut: int, *parts: CutRange, session: str = SESSION, term: int = TERM) -> CutOffset:
    return CutOffset(GROUP, session, cut, term, Ranges.of(parts))


OLD = offset(4, part(A, 0, 5), part(B, 0, 5))
"""The newest cut in a checkpoint."""


class Rig:
    """A machine, what it did, and a leader and a Redis that answer what a test says."""

    def __init__(self, **config: Any) -> None:
        self.machine = QueryMachine(QueryConfig(GROUP, "$shared/g/t", FRESH, **config))
        self.now = 100.0
        self.done: list[q.Effect] = []

    # ------------------------------------------------------------ events

    def step(self, *events: q.Event) -> list[q.Effect]:
        """What follows from these events."""
        effects = [effect for event in events for effect in self.machine.step(event, self.now)]
        self.done += effects
        return effects

    def wait(self, seconds: float) -> list[q.Effect]:
        """Let time pass, as a loop with a timer does."""
        end, effects = self.now + seconds, list[q.Effect]()
        while (due := self.machine.due) is not None and due <= end:
            assert due > self.now or not effects or len(effects) < 1000, "it waits for nothing"
            self.now = max(self.now, due)
            effects += self.step(q.Moment())
        self.now = end
        return effects + self.step(q.Moment())

    def soon(self) -> Rig:
        """What is due already happens, as in the next turn of a loop."""
        if (due := self.machine.due) is not None and due <= self.now:
            self.step(q.Moment())
        return self

    def found(self, answer: Any) -> list[q.Effect]:
        """The newest thing that was wanted is known."""
        return self.step(q.FoundOut(self.wanted.number, answer))

    def hear(self, message: Any) -> list[q.Effect]:
        return self.step(q.Heard(message))

    # ------------------------------------------------------------ what it did

    @property
    def wanted(self) -> q.Find:
        return next(effect for effect in reversed(self.done) if isinstance(effect, q.Find))

    @property
    def told(self) -> SessionToLeader:
        """The newest message to the leader."""
        return next(effect.message for effect in reversed(self.done) if isinstance(effect, q.Tell))

    @property
    def answer(self) -> Any:
        """The newest answer to Spark, or the error."""
        last = next(effect for effect in reversed(self.done) if isinstance(effect, q.Reply | q.Refuse))
        return last.error if isinstance(last, q.Refuse) else last.answer

    @property
    def said(self) -> str:
        return "\n".join(effect.text for effect in self.done if isinstance(effect, q.Say))

    # ------------------------------------------------------------ ways to the states

    def begin(self, cut: CutOffset = OLD, *, finished: bool = True, led: bool = True) -> Rig:
        self.step(q.BeginQuery(cut, finished))
        self.found(3)
        if led:
            self.step(q.Surroundings(connected=True, term=TERM))
        return self

    def begin_anew(self) -> Rig:
        return self.begin(offset(0, session=FRESH))

    def grant(self, *streams: str, lease_epoch: int = 1, progress: int = 0, **more: Any) -> Rig:
        for stream in streams:
            resumes = more.get("resumes")
            given = StreamGranted(
                stream, lease_epoch, progress, more.get("pinned"), resumes, more.get("follows")
            )
            self.step(q.StreamCame(0, given))
        return self.soon()

    def ends(self, end: int, *streams: str) -> Rig:
        self.step(*(q.EndMoved(stream, end) for stream in streams))
        return self.soon()

    def ask(self, start: CutOffset | None = None, limits: Limits | None = None) -> Rig:
        self.step(q.NextCut(start or offset(0, session=FRESH), limits or Limits()))
        return self.soon()

    def fix(self, *parts: CutRange, finished: int = 0, progress: tuple[Progress, ...] = ()) -> Rig:
        """The leader fixes what was asked for, or these ranges."""
        asked = self.told
        assert isinstance(asked, FixCut)
        ranges = Ranges.of(parts) if parts or finished or progress else None
        self.hear(
            CutFixed(
                group=GROUP, session=asked.session, term=TERM, cut=asked.cut, ranges=ranges,
                proposal=asked.proposal, finished=finished, progress=progress,
            )
        )  # fmt: skip
        return self

    def finished(self, cut: int) -> Rig:
        self.hear(CutFinished(group=GROUP, session=SESSION, term=TERM, finished=cut))
        return self

    def resumed(self, cut: int, *parts: CutRange) -> Rig:
        self.hear(CutResumed(group=GROUP, session=SESSION, term=TERM, cut=cut, ranges=Ranges.of(parts)))
        return self

    def open(self) -> CutOffset:
        """A fresh query with a cut."""
        self.begin_anew().grant(A, B).ends(5, A, B).ask().fix()
        found: CutOffset = self.answer
        return found


def rig_in(state: QueryState) -> Rig:
    """A machine in that state."""
    rig = Rig()
    match state:
        case S.NEW:
            pass
        case S.STARTING:
            rig.step(q.BeginQuery(OLD, True))
        case S.SERVING:
            rig.begin()
        case S.FINISHING:
            rig.begin().ask(OLD)
        case S.OVERTAKEN:
            rig.begin().ask(OLD).finished(6)
        case S.FOLLOWING:
            rig.begin().ask(OLD).finished(4)
        case S.LOOKING:
            rig.begin_anew().ask()
        case S.ASKING:
            rig.begin_anew().grant(A).ends(5, A).ask()
        case S.CHECKING:
            rig.begin_anew().grant(A, B).ends(5, A, B).ask()
            rig.fix(part(A, 0, 5), progress=(Progress(stream=B, lease_epoch=1, offset=3),))
        case S.RESUMING:
            rig.begin(finished=False).step(q.ReadAgain(OLD))
        case S.REGAINING:
            rig.begin(finished=False).step(q.ReadAgain(OLD))
            rig.resumed(4).finished(3)
        case S.LOSING:
            rig.begin(finished=False).step(q.ReadAgain(OLD))
            rig.resumed(4, part(A, 0, 5)).finished(3)
        case S.CONFIRMING:
            cut = rig.open()
            rig.ask(cut)
            rig.wait(1.0)
            rig.step(q.StopQuery())
        case S.LEAVING:
            rig.begin_anew().ask().wait(1.0)
            rig.step(q.StopQuery())
        case S.FAILED:
            rig.begin().step(q.SessionOver(Fenced("replaced")))
        case S.ENDED:
            rig.step(q.StopQuery())
    assert rig.machine.state is state
    return rig


def lose_for_good(rig: Rig, term: int = TERM) -> None:
    """Others have what was taken over, for long enough."""
    view = {"streams": [{"stream": A, "lease_epoch": 9}, {"stream": B, "lease_epoch": 9}]}
    rig.step(q.Moment())
    rig.found(view)
    rig.step(q.Surroundings(connected=True, term=term))
    seen = rig.wanted
    rig.wait(resuming.TAIL_SECONDS - 0.01)
    assert rig.wanted is seen, "not before it has stood for longer than a failover takes back"
    rig.wait(0.01)
    rig.found(view)
