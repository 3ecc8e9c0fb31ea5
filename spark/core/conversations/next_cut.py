"""What follows a cut? The conversation that ends with the next cut, fixed, or with nothing new.

A cut of an earlier process is finished by asking: the leader says whether that is the newest one, and what is
open behind it. A process that ends before its checkpoint names the cut that it has just fixed leaves it open.
None of it was read; but none of its streams may be given away before that is known, so it comes next.

Then a cut is made of what waits. One in whose streams the leader went on without the query is given out once
it is known whether retention removed something there.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from streamlease.protocol.messages import CutFinished, CutFixed, CutResumed, LeaderToSession
from streamlease.spark.core import query_events as q
from streamlease.spark.core.available import AvailableNow, View
from streamlease.spark.core.checkpoint import CutOffset
from streamlease.spark.core.conversations.query_desk import ANSWER_SECONDS, NEWS_SECONDS, RESEND_SECONDS, Desk
from streamlease.spark.core.limits import Limits
from streamlease.spark.core.losses import Losses, gone_on
from streamlease.spark.core.query_cuts import QueryCuts, older_checkpoint
from streamlease.spark.core.query_states import QueryMove

_M = QueryMove
_NOTHING = Limits()


class NextCuts:
    """Answers `NextCut`.

    Args:
        fresh: the session of a query that begins without a checkpoint, if that is this process.
        fail_on_data_loss: whether the query is to fail where retention removed messages that it has not read.
    """

    def __init__(
        self,
        desk: Desk,
        cuts: QueryCuts,
        losses: Losses,
        available: AvailableNow,
        *,
        fresh: str,
        fail_on_data_loss: bool,
    ) -> None:
        self._desk = desk
        self._cuts = cuts
        self._losses = losses
        self._available = available
        self._fresh = fresh
        self._fail_on_data_loss = fail_on_data_loss
        self.confirm_at = 0.0
        """When the leader is told again of a cut that it has not confirmed."""
        self._fixed_at: float | None = None
        """When the last cut was fixed."""
        # Of the present conversation:
        self._start = CutOffset("", "", 0)
        self._limits = _NOTHING
        self._seconds = 0.0
        """For how long it waits until it is settled whose the streams are."""
        self._may_have_none = False
        self._done = self._start
        """The cut behind which the query goes on."""
        self._overtaken_by = 0
        """The newest cut that is finished, if the checkpoint lacks it."""
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
        cuts, start = self._cuts, self._start
        # A process that has come no further than cut 0 may have fixed cut 1, too, or be an old copy.
        if start.cut > cuts.finished or not (cuts.settled or start.session == self._fresh):
            if not cuts.is_open(start):
                self._done, self._overtaken_by = start, 0
                self._desk.move(_M.FIXED_BEFORE)
                self._desk.ask(cuts.finish_cut(start, self._desk.around.term), ANSWER_SECONDS)
                return
            self._finish(start)
        cuts.settle()
        self._look()

    # ------------------------------------------------------------ the cut that went through

    def _finish(self, done: CutOffset) -> None:
        """It is the one that this process has open."""
        self.tell_finished(done)
        self._desk.do(q.CountMessages(committed=done.ranges.messages))
        self._cuts.finish(done)
        self._finished(done)

    def _finished(self, done: CutOffset) -> None:
        self.attest(self._cuts.went_through or done, finished=True)

    def tell_finished(self, done: CutOffset) -> None:
        """Tell the leader, and again until it confirms."""
        self.confirm_at = self._desk.now + RESEND_SECONDS
        self._desk.do(q.Tell(self._cuts.finish_cut(done, self._desk.around.term)))

    def attest(self, cut: CutOffset, *, finished: bool) -> None:
        """Keep for a leader that has lost it how far the cut's streams are consumed."""
        if cut.ranges:
            self._desk.do(q.Attest(cut.ranges, finished))

    def _behind(self, done: CutOffset, finished: int) -> None:
        """The leader knows of finished cuts behind `done`, where the checkpoint ends."""
        self._done, self._overtaken_by = done, finished
        self._desk.move(_M.BEHIND)
        self._desk.find(q.WrittenLate())

    def _written(self, *, late: bool) -> None:
        """It is known whether Spark writes the checkpoint later; else it is an old copy.

        Raises:
            Fenced: it is.
        """
        if not late:
            raise older_checkpoint(self._done.session, self._done.cut + 1, self._overtaken_by)
        term = self._desk.around.term
        self._done = CutOffset(self._cuts.group, self._cuts.session, self._overtaken_by, term)
        self._desk.move(_M.WRITTEN_LATER)
        self._desk.ask(self._cuts.ask_for_next(self._done), ANSWER_SECONDS)

    def _followed(self, following: CutResumed) -> None:
        """The leader says what is open behind the last finished cut."""
        if self._overtaken_by:
            self._desk.say(
                logging.INFO,
                f"the checkpoint ends with cut {self._start.cut}: "
                f"the query goes on behind cut {self._overtaken_by}",
            )
            self._cuts.proposed = None
            self._losses.forget()
        self._cuts.finish(self._done, following)
        self._finished(self._done)
        if self._cuts.open is not None:
            self._desk.reply(self._cuts.open)
        else:
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
        if self._cuts.proposed is None:
            self._propose({})
        if self._cuts.proposed is not None:
            desk.move(_M.PROPOSED)
            desk.ask(self._cuts.proposed, ANSWER_SECONDS)
        elif not desk.is_waiting:
            self._find_nothing()

    def _propose(self, means: Mapping[str, float], view: View | None = None) -> None:
        """Propose a cut, if that can be done by what is known.

        Args:
            means: size of a message of each stream, where a limit of bytes asks for it.
            view: of the group, just now; only with one can the only cut be made.
        """
        cuts, targets, limits = self._cuts, self._available.targets, self._limits
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
        cuts.propose(waiting, limits, milliseconds, means)

    def _milliseconds(self, limits: Limits) -> int:
        """How long ago the last cut was fixed, as far as that matters."""
        if self._fixed_at is None:
            return limits.max_delay_ms
        return min(limits.max_delay_ms, int((self._desk.now - self._fixed_at) * 1000))

    def _fixed(self, answer: CutFixed) -> None:
        self._fixed_at = self._desk.now
        if self._cuts.is_older(answer):
            self._behind(self._start, answer.finished)
            return
        self._result = self._cuts.fixed(answer)
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
            desk.reply(self._start)
        elif self._has_waited_long():
            self._wait_no_longer()
        elif desk.around.connected:
            self._view_asked_at = desk.now
            desk.find(q.GroupView())
        else:
            self._view = None
            desk.wait(NEWS_SECONDS)

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
        if self._available.has_one_cut:
            self._propose({}, view)
            if self._desk.is_finding or self._cuts.proposed is not None:
                return
        if self._available.is_exhausted(view, self._view_asked_at - self._desk.asked_at):
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
            case CutFinished():
                if answer.finished > self._done.cut:
                    self._behind(self._done, answer.finished)
                else:
                    self._desk.move(_M.CONFIRMED)
                    self._desk.ask(self._cuts.ask_for_next(self._done), ANSWER_SECONDS)
            case CutResumed():
                self._followed(answer)

    def found(self, what: q.Wanted, answer: Any) -> None:
        """What was wanted is known."""
        match what:
            case q.WrittenLate():
                self._written(late=answer)
            case q.MeanSizes():
                self._propose(answer, self._view)
            case q.GroupView():
                self._viewed(answer)
            case q.Floors():
                self._weigh(answer)
            case q.Untold():
                self._tell_lost(answer)
            case q.Arrival():
                raise AssertionError("a query that asks for a cut has arrived")
