"""How does a query end? The conversation that ends with its last word, or without one.

* A query that stops while a cut is open falls silent instead of giving its streams back: only its checkpoint
  knows what became of the cut, so it has until its session timeout to return.
* One whose last cut went through the sink waits until the leader knows that. Then it gives its streams back.
"""

from __future__ import annotations

from streamlease.protocol.errors import InvalidInput
from streamlease.spark.core import query_events as q
from streamlease.spark.core.conversations.query_desk import Desk
from streamlease.spark.core.query_cuts import QueryCuts
from streamlease.spark.core.query_states import QueryMove, QueryState

LEAVE_SECONDS = 5.0
"""How long a query that stops waits until its last cut is confirmed: longer than a leader's ttl."""

_S, _M = QueryState, QueryMove


class Stopping:
    """Answers `StopQuery`."""

    def __init__(self, desk: Desk, cuts: QueryCuts) -> None:
        self._desk = desk
        self._cuts = cuts

    def begin(self, call: q.StopQuery) -> bool:
        """Spark stops the query, also in the middle of a call; False if it stops, or ended, already."""
        desk = self._desk
        if isinstance(desk.call, q.StopQuery) or desk.state is _S.ENDED:
            return False
        if desk.clear():
            desk.do(q.Refuse(InvalidInput("the query is stopped")))
        desk.call = call
        # Without a word, unless the leader knows, or will, of all that went through.
        silent = desk.state in (_S.NEW, _S.STARTING, _S.FAILED)
        if silent or self._cuts.open is not None or not self._cuts.settled:
            desk.reply(move=_M.SILENCED)
        elif self._cuts.finished.unconfirmed:
            desk.move(_M.STOPPED)
            desk.wait(LEAVE_SECONDS)
        else:
            self._leave()
        return True

    def go_on(self) -> None:
        """Leave as soon as the last cut is confirmed, or without a word if that takes too long."""
        if not self._cuts.finished.unconfirmed:
            self._leave()
        elif not self._desk.is_waiting:
            self._desk.reply(move=_M.SILENCED)

    def session_over(self) -> bool:
        """The session is over; whether that is what the query waits for."""
        leaves = self._desk.state in (_S.CONFIRMING, _S.LEAVING)
        if leaves:
            self._desk.reply(move=_M.SILENCED)
        return leaves

    def _leave(self) -> None:
        self._desk.move(_M.SETTLED)
        self._desk.do(q.LeaveGroup())
