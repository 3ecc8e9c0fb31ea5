"""What the conversations of a query share: where it is, Spark's call, and what is to be done.

A conversation moves the query only through its table, asks the leader one question at a time, wants to know
one thing at a time, and ends with one answer. A question is sent again and again, and perhaps to another
leader, until it is answered or given up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, assert_never

from streamlease.protocol.errors import StreamleaseError
from streamlease.protocol.messages import (
    CutFinished,
    CutFixed,
    CutResumed,
    FinishCut,
    FixCut,
    LeaderToSession,
    ResumeCut,
    SessionToLeader,
)
from streamlease.spark.core import query_events as q
from streamlease.spark.core.query_states import QUERY_TRANSITIONS, QueryMove, QueryState

NEWS_SECONDS = 0.05
"""How long it is waited for news before Spark hears that there is none, or the group is looked at again."""

RESEND_SECONDS = 0.5
ANSWER_SECONDS = 2.0
"""How long one call waits for the leader; the next call goes on waiting."""

CONNECT_SECONDS = 0.05
"""How often it is looked whether the borrowers are connected."""


@dataclass(slots=True)
class Question:
    """One question, until it is answered or given up."""

    message: SessionToLeader
    seconds: float
    """For how long it is asked."""
    give_up: float
    again_at: float

    def is_due(self, now: float, *, connected: bool) -> bool:
        """Whether it is to be sent now; it is taken as sent, then."""
        if now < self.again_at:
            return False
        self.again_at = now + (RESEND_SECONDS if connected else CONNECT_SECONDS)
        return connected

    def is_answered_by(self, answer: LeaderToSession) -> bool:
        """Whether that is the answer, and not one to something that was asked before."""
        match self.message:
            case FixCut():
                return isinstance(answer, CutFixed) and answer.proposal == self.message.proposal
            case FinishCut():
                return isinstance(answer, CutFinished) and answer.finished >= self.message.finished
            case ResumeCut():
                return isinstance(answer, CutResumed) and answer.cut == self.message.cut
            case _:
                assert_never(self.message)


class Desk:
    """See the module."""

    def __init__(self) -> None:
        self.state = QueryState.NEW
        self.now = 0.0
        """The time (s) of the event that is being taken."""
        self.around = q.Surroundings()
        self.call: q.Call | None = None
        self.asked_at = 0.0
        """When Spark asked."""
        self.question: Question | None = None
        self.until = 0.0
        """When the state goes on although nothing has happened."""
        self.news_at: float | None = None
        """When there was news that nobody has looked at yet: what comes together is looked at together."""
        self._finding: q.Find | None = None
        self._numbers = 0
        self._effects: list[q.Effect] = []

    def move(self, move: QueryMove) -> None:
        """Take one step through the table."""
        target = QUERY_TRANSITIONS.get((self.state, move))
        if target is None:
            raise AssertionError(f"a query that is {self.state.value} cannot be {move.value}")
        self.state = target

    def do(self, effect: q.Effect) -> None:
        """Have that done."""
        self._effects.append(effect)

    def say(self, level: int, text: str, stream: str = "") -> None:
        """Have a line written to the log."""
        self.do(q.Say(level, text, stream))

    def taken(self) -> list[q.Effect]:
        """All that is to be done, in order."""
        effects, self._effects = self._effects, []
        return effects

    def wait(self, seconds: float) -> None:
        """Go on in so many seconds, if nothing happens before."""
        self.until = self.now + seconds

    @property
    def is_waiting(self) -> bool:
        """Whether it is too early to go on."""
        return self._finding is not None or self.now < self.until

    # ------------------------------------------------------------ questions

    def ask(self, message: SessionToLeader, seconds: float) -> None:
        """Ask the leader, for so long."""
        self.question = Question(message, seconds, self.now + seconds, self.now)

    def find(self, what: q.Wanted) -> None:
        """Have that found out."""
        self._numbers += 1
        self._finding = q.Find(self._numbers, what)
        self.do(self._finding)

    @property
    def is_finding(self) -> bool:
        """Whether something is being found out."""
        return self._finding is not None

    def found(self, number: int) -> q.Wanted | None:
        """What was wanted under that number; None if it is wanted no more."""
        finding = self._finding
        if finding is None or finding.number != number:
            return None
        self._finding = None
        return finding.what

    # ------------------------------------------------------------ the end of a call

    def reply(self, answer: Any = None, move: QueryMove = QueryMove.ANSWERED) -> None:
        """Spark has its answer."""
        self.clear()
        self.move(move)
        self.do(q.Reply(answer))

    def refuse(self, error: StreamleaseError, move: QueryMove = QueryMove.ANSWERED) -> None:
        """Spark's call, if there is one, ends with that error."""
        waits = self.clear()
        self.move(move)
        if waits:
            self.do(q.Refuse(error))

    def clear(self) -> bool:
        """Nothing of the call counts any more; whether there was one."""
        there, self.call = self.call is not None, None
        self.question = self._finding = self.news_at = None
        return there
