"""Spark's calls, one at a time: which conversation answers each, and who gets what it waits for."""

from __future__ import annotations

from typing import Any, assert_never

from streamlease.protocol.errors import InvalidInput, StreamleaseError
from streamlease.protocol.messages import LeaderToSession
from streamlease.spark.core import query_events as q
from streamlease.spark.core.conversations.next_cut import NextCuts
from streamlease.spark.core.conversations.query_desk import Desk, Question
from streamlease.spark.core.conversations.resuming import Resuming
from streamlease.spark.core.losses import Losses
from streamlease.spark.core.outage import Outage, unled
from streamlease.spark.core.query_cuts import QueryCuts
from streamlease.spark.core.query_states import CALLED, QUERY_TRANSITIONS, QueryMove, QueryState

_S, _M = QueryState, QueryMove


class Calls:
    """Answers `BeginQuery` itself, and lets `NextCuts` and `Resuming` answer the others.

    Args:
        subscription: what the query consumes, for messages.
    """

    def __init__(
        self,
        desk: Desk,
        cuts: QueryCuts,
        losses: Losses,
        outage: Outage,
        next_cuts: NextCuts,
        resuming: Resuming,
        subscription: str,
    ) -> None:
        self._desk = desk
        self._cuts = cuts
        self._losses = losses
        self._outage = outage
        self._next_cuts = next_cuts
        self._resuming = resuming
        self._subscription = subscription
        self._error: StreamleaseError | None = None
        """Why the session ended: what every call is told from then on."""

    # ------------------------------------------------------------ events: False is "refused"

    def begin(self, call: q.BeginQuery | q.NextCut | q.ReadAgain) -> bool:
        """Spark asks."""
        desk, opened = self._desk, self._cuts.open
        if desk.call is not None:
            return False
        if desk.state is not (_S.NEW if isinstance(call, q.BeginQuery) else _S.SERVING):
            desk.do(q.Refuse(self._error or InvalidInput(f"the query is {desk.state.value}: make a new one")))
            return self._error is not None
        if isinstance(call, q.ReadAgain) and opened is not None and self._cuts.is_open(call.cut):
            desk.do(q.Reply(opened.ranges))  # this process fixed it, or resumed it, itself
            return True
        desk.call, desk.asked_at = call, desk.now
        match call:
            case q.BeginQuery():
                desk.move(_M.BEGUN)
                desk.find(q.Arrival())
            case q.NextCut():
                self._next_cuts.begin(call)
            case q.ReadAgain():
                self._resuming.begin(call.cut)
            case _:
                assert_never(call)
        return True

    def given_up(self) -> bool:
        """Spark waits no longer."""
        if self._desk.call is None or isinstance(self._desk.call, q.StopQuery):
            return False
        self._desk.clear()
        self._desk.move(_M.ANSWERED)
        return True

    def found(self, event: q.FoundOut) -> bool:
        """What a conversation wanted to know was found out."""
        what, call = self._desk.found(event.number), self._desk.call
        if what is None:
            return False
        if isinstance(call, q.BeginQuery):
            self._arrived(call, event.answer)
        elif isinstance(call, q.NextCut):
            self._next_cuts.found(what, event.answer)
        else:
            self._resuming.found(what, event.answer)
        return True

    def answered(self, message: LeaderToSession) -> bool:
        """The leader said something; whether a conversation has asked for it."""
        desk, call = self._desk, self._desk.call
        if desk.question is None or not desk.question.is_answered_by(message):
            return False
        desk.question = None
        if isinstance(call, q.NextCut):
            self._next_cuts.answered(message)
        elif isinstance(call, q.ReadAgain):
            self._resuming.answered(message)
        return True

    def session_failed(self, error: StreamleaseError | None) -> bool:
        """The session ended by itself."""
        if error is None or (self._desk.state, _M.OVER) not in QUERY_TRANSITIONS:
            return False
        self._error = error
        self._desk.refuse(error, _M.OVER)
        return True

    def _arrived(self, call: q.BeginQuery, arrival: Any) -> None:
        cut = call.cut
        who = self._cuts.who
        who.session, who.arrival = cut.session, arrival
        if call.finished:
            self._losses.begin(cut)
        self._desk.do(q.OpenSession(cut.session, arrival, cut.term))
        if cut.ranges:
            self._desk.do(q.Attest(cut.ranges, call.finished))
        self._desk.reply(move=_M.ARRIVED)

    # ------------------------------------------------------------ what goes on by itself

    def go_on(self) -> None:
        """Do what has become due, or possible, in the conversation that there is.

        Raises:
            StoreUnavailable: Redis, or a leader, has not answered for too long.
        """
        if self._desk.state not in CALLED:
            return
        self._outage.check(self._desk.now)
        if self._desk.question is None:
            self._look()
        if self._desk.question is not None:
            self._ask(self._desk.question)

    def _look(self) -> None:
        match self._desk.state:
            case _S.LOOKING if self._desk.news_at is None:
                self._next_cuts.look_again()
            case _S.REGAINING:
                self._resuming.regain()
            case _S.LOSING:
                self._resuming.look_again()

    def _ask(self, question: Question) -> None:
        desk = self._desk
        if desk.now >= question.give_up:
            desk.question = None
            if not isinstance(desk.call, q.NextCut):
                raise unled(self._subscription, question.seconds)
            self._next_cuts.no_cut()
        elif question.is_due(desk.now, connected=desk.around.connected):
            desk.do(q.Tell(question.message))
