"""What is to be read of an unfinished cut of an earlier process? The conversation that ends with its ranges.

* The leader is asked which ranges of the cut are still the query's; what another query took over meanwhile is
  read there, and not here again.
* A query that was silent for so long that it was given up finds the cut pinned in the streams that nobody
  took over: there it is fixed again as it was.
* Of whole epochs, such a cut is fixed again as a whole or not at all. If it is not, what of it is still the
  query's comes all together in its next cut, for there the same ends are pinned.
* A cut is read in part only once its loss cannot be lost (`docs/decisions/0075-a-cut-read-in-part.md`). A
  process after this one cannot know that the cut was read in part, and attests all of it; only a leader that
  knows of the take-over refuses that. So each stream must be leased again, to whomever, for longer than the
  tail of writes that a failover loses.
* Whoever reads a cut that went through the sink would hand on a batch without rows in its place. So a cut of
  which something is missing is refused if the leader knows that it is finished: the checkpoint is an old
  copy, or another process went on with it meanwhile. Where Spark writes the checkpoint later, it is empty.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, assert_never

from streamlease.protocol.cuts import NO_RANGES, Ranges
from streamlease.protocol.messages import CutFinished, CutFixed, CutResumed, LeaderToSession
from streamlease.spark.core import query_events as q
from streamlease.spark.core.checkpoint import CutOffset
from streamlease.spark.core.conversations.query_desk import ANSWER_SECONDS, NEWS_SECONDS, Desk
from streamlease.spark.core.finished_cuts import older_checkpoint
from streamlease.spark.core.losses import Losses
from streamlease.spark.core.outage import unsettled
from streamlease.spark.core.query_cuts import QueryCuts
from streamlease.spark.core.query_states import QueryMove

RESUME_SECONDS = 60.0
REGRANT_SECONDS = 2.0
"""How long a query that was given up waits for the streams of its unfinished cut."""

TAIL_SECONDS = 3.0
"""How long a take-over must have been known before a cut is read without what was taken over: longer than the
tail of writes that a failover loses."""

_M = QueryMove


class Resuming:
    """Answers `ReadAgain`.

    Args:
        subscription: what the query consumes, for messages.
        whole_epochs: whether each cut is to be whole epochs.
    """

    def __init__(
        self, desk: Desk, cuts: QueryCuts, losses: Losses, subscription: str, *, whole_epochs: bool = False
    ) -> None:
        self._desk = desk
        self._cuts = cuts
        self._losses = losses
        self._subscription = subscription
        self._whole_epochs = whole_epochs
        # Of the present conversation:
        self._cut = CutOffset("", "", 0)
        self._mine: set[str] = set()
        """The streams that are still the query's."""
        self._term = 0
        """That of the leader that said so."""
        self._finished = 0
        self._lost = NO_RANGES
        self._unknown = NO_RANGES
        """What is lost and not known to be anybody's."""
        self._looks = 0
        """How often it was seen that all of it is somebody's."""
        self._give_up = 0.0

    def begin(self, cut: CutOffset) -> None:
        """Spark asks."""
        self._cut = cut
        self._desk.move(_M.UNFINISHED)
        self._resume()

    def _resume(self) -> None:
        self._desk.ask(self._cuts.resume_cut(self._cut), RESUME_SECONDS)

    def _resumed(self, answer: CutResumed) -> None:
        self._mine, self._term = set(answer.ranges.streams), answer.term
        if len(self._mine) == len(self._cut.ranges):
            self._read()
            return
        self._desk.move(_M.FEWER)
        before = CutOffset(self._cuts.who.group, self._cuts.who.session, self._cut.cut - 1)
        self._desk.ask(self._cuts.finish_cut(before, answer.term), RESUME_SECONDS)

    def _told_finished(self, finished: int) -> None:
        if finished >= self._cut.cut:
            self._finished = finished
            self._desk.move(_M.BEHIND)
            self._desk.find(q.WrittenLate())
        elif self._mine:
            self._lose()
        else:
            self._desk.move(_M.NONE_LEFT)
            self._desk.wait(REGRANT_SECONDS)

    def _written(self, *, late: bool) -> None:
        """It is known whether Spark writes the checkpoint later; else it is an old copy.

        Raises:
            Fenced: it is.
        """
        if not late:
            raise older_checkpoint(self._cuts.who.session, self._cut.cut, self._finished)
        self._desk.reply(NO_RANGES)

    def regain(self) -> None:
        """The leader has given the query up: fix again the part of the cut that nobody took over."""
        pinned = self._cuts.pinned(self._cut)
        if len(pinned) < len(self._cut.ranges) and self._desk.is_waiting:
            return
        if not pinned or (self._whole_epochs and len(pinned) < len(self._cut.ranges)):
            self._lose()
            return
        self._desk.move(_M.PROPOSED)
        self._desk.ask(self._cuts.proposed.fix(pinned), ANSWER_SECONDS)

    def _fixed(self, answer: CutFixed) -> None:
        self._mine = set(self._cuts.proposed.take(answer).streams)
        if len(self._mine) == len(self._cut.ranges):
            self._read()
        else:
            self._lose()

    # ------------------------------------------------------------ what others took over

    def _lose(self) -> None:
        self._desk.move(_M.TAKEN_OVER)
        self._lost = Ranges.of(part for part in self._cut.ranges if part.stream not in self._mine)
        self._looks = 0
        self._look()

    def _look(self) -> None:
        self._unknown = self._lost
        self._give_up = self._desk.now + RESUME_SECONDS
        self._desk.wait(0.0)

    def look_again(self) -> None:
        """See whose the streams are that are lost.

        Raises:
            StoreUnavailable: no leader settles it.
        """
        desk = self._desk
        if desk.is_waiting:
            return
        if not self._unknown:
            self._look()  # the tail has passed
        if desk.now >= self._give_up:
            raise unsettled(self._subscription, RESUME_SECONDS)
        if desk.around.connected:
            desk.find(q.GroupView())
        else:
            desk.wait(NEWS_SECONDS)

    def _viewed(self, view: Mapping[str, Any] | None) -> None:
        self._desk.wait(NEWS_SECONDS)
        if view is None:
            return
        lease_epochs = {stream["stream"]: stream["lease_epoch"] for stream in view["streams"]}
        self._unknown = Ranges.of(
            part
            for part in self._unknown
            if lease_epochs.get(part.stream, part.lease_epoch + 1) <= part.lease_epoch
        )
        if self._unknown:
            return
        self._looks += 1
        if self._looks == 1:
            self._desk.wait(TAIL_SECONDS)
        elif self._desk.around.term == self._term:
            self._read()
        else:
            self._desk.move(_M.AGAIN)
            self._resume()

    def _read(self) -> None:
        """What is the query's own of the cut is read; it is open from now on."""
        cut = self._cut
        ranges = self._cuts.resumed(cut, self._term, self._mine)
        if lost := len(cut.ranges) - len(ranges):
            self._desk.say(
                logging.WARNING,
                f"{lost} of the {len(cut.ranges)} ranges of cut {cut.cut} were taken over by others, or "
                f"reset, and are not read again",
            )
        self._losses.suspect(ranges.streams)
        self._desk.reply(ranges)

    # ------------------------------------------------------------ answers

    def answered(self, answer: LeaderToSession) -> None:
        """The leader has answered the question."""
        match answer:
            case CutFixed():
                self._fixed(answer)
            case CutFinished():
                self._told_finished(answer.finished)
            case CutResumed():
                self._resumed(answer)
            case _:
                assert_never(answer)

    def found(self, what: q.Wanted, answer: Any) -> None:
        """What was wanted is known."""
        match what:
            case q.WrittenLate():
                self._written(late=answer)
            case q.GroupView():
                self._viewed(answer)
            case q.Arrival() | q.MeanSizes() | q.Floors() | q.Untold() | q.EpochBounds():
                raise AssertionError(f"nobody wanted {what}")
            case _:
                assert_never(what)
