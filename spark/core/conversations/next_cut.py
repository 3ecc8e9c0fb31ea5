"""What follows a cut? The conversation that ends with the next cut, fixed, or with nothing new.

First it is settled what went through the sink (`Finishing`). Then a cut is made of what waits. One in whose
streams the leader went on without the query is given out once it is known whether retention removed something
there.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from streamlease.protocol.messages import CutFinished, CutFixed, CutResumed, LeaderToSession
from streamlease.spark.core import query_events as q
from streamlease.spark.core.available import AvailableNow, View
from streamlease.spark.core.checkpoint import CutOffset
from streamlease.spark.core.conversations.epoch_cut import EpochCut
from streamlease.spark.core.conversations.finishing import Finishing
from streamlease.spark.core.conversations.query_desk import ANSWER_SECONDS, NEWS_SECONDS, Desk
from streamlease.spark.core.limits import Limits
from streamlease.spark.core.losses import Losses, gone_on
from streamlease.spark.core.query_cuts import QueryCuts
from streamlease.spark.core.query_states import QueryMove

_M = QueryMove
_NOTHING = Limits()


class NextCuts:
    """Answers `NextCut`.

    Args:
        finishing: what comes first.
        fresh: the session of a query that begins without a checkpoint, if that is this process.
        fail_on_data_loss: whether the query is to fail where retention removed messages that it has not read.
        epochs: makes the cuts, if they are to be whole epochs.
    """

    def __init__(
        self,
        desk: Desk,
        cuts: QueryCuts,
        losses: Losses,
        available: AvailableNow,
        finishing: Finishing,
        *,
        fresh: str,
        fail_on_data_loss: bool,
        epochs: EpochCut | None = None,
    ) -> None:
        self._desk = desk
        self._cuts = cuts
        self._losses = losses
        self._available = available
        self._finishing = finishing
        self._fresh = fresh
        self._fail_on_data_loss = fail_on_data_loss
        self._epochs = epochs
        self._fixed_at: float | None = None
        """When the last cut was fixed."""
        # Of the present conversation:
        self._start = CutOffset("", "", 0)
        self._limits = _NOTHING
        self._seconds = 0.0
        """For how long it waits until it is settled whose the streams are."""
        self._may_have_none = False
        self._view: View | None = None
        self._view_asked_at = 0.0
        self._result: CutOffset | None = None
        self._passed: dict[str, int] = {}
        self._floors: Mapping[str, int] = {}

    def begin(self, call: q.NextCut) -> None:
        """Spark asks."""
        self._start, self._limits = call.start, call.limits
        fresh = not call.start.cut and call.start.session == self._fresh
        self._seconds, self._may_have_none = self._available.ask(fresh=fresh)
        self._view = None
        self._begin()

    def _begin(self) -> None:
        if self._finishing.begin(self._start):
            self._look()

    # ------------------------------------------------------------ the next one

    def _look(self) -> None:
        self._desk.move(_M.WANTED)
        self._desk.wait(NEWS_SECONDS)

    def look_again(self) -> None:
        """Propose a cut, if there is something to make it of."""
        desk = self._desk
        if desk.is_finding:
            return
        if self._cuts.proposed.message is None:
            self._propose({})
        if (proposed := self._cuts.proposed.message) is not None:
            desk.move(_M.PROPOSED)
            desk.ask(proposed, ANSWER_SECONDS)
        elif not desk.is_waiting:
            self._find_nothing()

    def _propose(self, means: Mapping[str, float], view: View | None = None) -> None:
        """Propose a cut, if that can be done by what is known.

        Args:
            means: size of a message of each stream, where a limit of bytes asks for it.
            view: of the group, just now; only with one can the only cut be made.
        """
        cuts, targets, limits = self._cuts, self._available.targets, self._limits
        if self._epochs is not None:
            if not self._available.has_one_cut or self._is_at_hand(view):
                self._epochs.propose(limits.max_epochs, targets)
            return
        if targets is not None:
            limits = limits.at_once()  # there will not be more
        waiting, pinned = cuts.unread.counts(targets), cuts.unread.pinned_ends()
        milliseconds = self._milliseconds(limits)
        if not pinned and not limits.is_worth_a_cut(sum(waiting.values()), milliseconds):
            return
        if self._available.has_one_cut and not self._is_at_hand(view):
            return
        if limits.max_bytes is not None:
            if not means:
                self._desk.find(q.MeanSizes((*{**waiting, **pinned},)))
                return
            waiting = {stream: count for stream, count in waiting.items() if stream in means}
        cuts.proposed.make(waiting, limits, milliseconds, means)

    def _milliseconds(self, limits: Limits) -> int:
        """How long ago the last cut was fixed, as far as that matters."""
        if self._fixed_at is None:
            return limits.max_delay_ms
        return min(limits.max_delay_ms, int((self._desk.now - self._fixed_at) * 1000))

    def _fixed(self, answer: CutFixed) -> None:
        self._fixed_at = self._desk.now
        if self._cuts.proposed.is_older(answer):
            self._finishing.overtaken(answer.finished)
            return
        self._result = self._cuts.fixed(answer)
        if self._epochs is not None:
            self._epochs.fixed(self._result)
        self._passed = self._losses.passed()
        if self._passed:
            self._desk.move(_M.PASSED_OVER)
            self._desk.find(q.Floors((*self._passed,)))
        else:
            self._give()

    def _weigh(self, floors: Mapping[str, int]) -> None:
        """Which of the streams that went on have lost messages?"""
        self._floors = floors
        gone = {stream: offset for stream, offset in self._passed.items() if floors.get(stream, 0) > offset}
        if gone and self._fail_on_data_loss:
            self._desk.find(q.Untold(gone))
        else:
            self._tell_lost(gone)

    def _tell_lost(self, gone: Mapping[str, int]) -> None:
        """Say what retention removed.

        Raises:
            HistoryTruncated: it did, and the query is to fail then.
        """
        self._losses.told(self._passed)
        errors = [gone_on(stream, offset, self._floors[stream]) for stream, offset in gone.items()]
        for error in errors:
            self._desk.say(logging.WARNING, str(error), error.stream)
        if errors and self._fail_on_data_loss:
            raise errors[0]
        self._give()

    def _give(self) -> None:
        if self._result is not None:
            self._desk.reply(self._result)
        else:
            self.no_cut()

    # ------------------------------------------------------------ no cut

    def no_cut(self) -> None:
        """There is none so far; whoever reads what is available now must have one, or the end."""
        if self._available.targets is None:
            self._desk.reply(self._start)
        elif self._has_waited_long():
            self._wait_no_longer()
        else:
            self._desk.move(_M.ANSWERED)
            self._begin()

    def _find_nothing(self) -> None:
        """Nothing is there to be read. Is it the end of what is available now?"""
        desk = self._desk
        if self._available.targets is None:
            if self._epochs is not None and self._epochs.may_wait():
                self._look_at_group()
            elif self._is_early():
                desk.wait(NEWS_SECONDS)
            else:
                desk.reply(self._start)
        elif self._has_waited_long():
            self._wait_no_longer()
        else:
            self._look_at_group()

    def _look_at_group(self) -> None:
        desk = self._desk
        if desk.around.connected:
            self._view_asked_at = desk.now
            desk.find(q.GroupView())
        else:
            self._view = None
            desk.wait(NEWS_SECONDS)

    def _is_early(self) -> bool:
        """Whether the first streams of a query, or their ends, are still on their way.

        Spark makes a first micro-batch in any case, and an empty one would keep the first rows waiting.
        """
        return (
            self._may_have_none
            and not self._has_waited_long()
            and not self._cuts.unread.is_known_of_streams()
        )

    def _has_waited_long(self) -> bool:
        return self._desk.now - self._desk.asked_at >= self._seconds

    def _wait_no_longer(self) -> None:
        if not self._may_have_none:
            raise self._available.unsettled(self._view, self._desk.around.trouble)
        self._desk.reply(self._start)

    def _viewed(self, view: View | None) -> None:
        self._view = view
        self._desk.wait(NEWS_SECONDS)
        if view is None:
            return
        if self._epochs is not None:
            self._epochs.viewed(view)
        if self._available.has_one_cut or self._epochs is not None:
            self._propose({}, view)
            if self._desk.is_finding or self._cuts.proposed.message is not None:
                return
        waited = self._view_asked_at - self._desk.asked_at
        if self._available.targets is not None and self._available.is_exhausted(view, waited):
            self._desk.reply(self._start)

    def _is_at_hand(self, view: View | None) -> bool:
        """Whether the only cut, if it is made now, can hold all."""
        waited = self._view_asked_at - self._desk.asked_at
        if view is None or not self._available.is_at_hand(view, waited):
            return False
        if (left_out := self._available.left_out(view)) is not None:
            self._desk.say(logging.WARNING, left_out)
        return True

    # ------------------------------------------------------------ answers

    def answered(self, answer: LeaderToSession) -> None:
        """The leader has answered the question."""
        match answer:
            case CutFixed():
                self._fixed(answer)
            case CutFinished() | CutResumed():
                if self._finishing.answered(answer):
                    self._look()

    def found(self, what: q.Wanted, answer: Any) -> None:
        """What was wanted is known."""
        match what:
            case q.WrittenLate():
                self._finishing.written(late=answer)
            case q.MeanSizes():
                self._propose(answer, self._view)
            case q.GroupView():
                self._viewed(answer)
            case q.EpochBounds():
                assert self._epochs is not None
                self._epochs.found(answer)
                self._propose({}, self._view)
            case q.Floors():
                self._weigh(answer)
            case q.Untold():
                self._tell_lost(answer)
            case q.Arrival():
                raise AssertionError("a query that asks for a cut has arrived")
