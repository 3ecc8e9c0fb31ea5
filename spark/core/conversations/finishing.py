"""What went through the sink, and what is open behind it? What `NextCuts` must know before it makes a cut.

* That Spark asks for what follows a cut proves that it went through. If this process has it open, it is
  finished at once, and the leader is told so until it confirms.
* A cut of an earlier process is finished by asking: the leader says whether it is the newest one, and what is
  open behind it. A process that ends before its checkpoint names the cut that it has just fixed leaves it
  open. None of it was read; but none of its streams may be given away before that is known, so it comes next.
* If the leader knows of finished cuts that the checkpoint lacks, the query goes on behind them where Spark
  writes the checkpoint later; otherwise the checkpoint is an old copy.

===========  ======================  ===============================================
it is asked  and answered            then
===========  ======================  ===============================================
finished?    `CutFinished`, just so  what is open behind it?
finished?    `CutFinished`, more is  written later? (`overtaken`, also from outside)
written?     it is                   what is open behind the newest one?
written?     it is not               `Fenced`
behind it?   `CutResumed`, a cut     Spark gets that
behind it?   `CutResumed`, none      the next one may be made
===========  ======================  ===============================================
"""

from __future__ import annotations

import logging

from streamlease.protocol.messages import CutFinished, CutResumed
from streamlease.spark.core import query_events as q
from streamlease.spark.core.checkpoint import CutOffset
from streamlease.spark.core.conversations.query_desk import ANSWER_SECONDS, RESEND_SECONDS, Desk
from streamlease.spark.core.finished_cuts import older_checkpoint
from streamlease.spark.core.losses import Losses
from streamlease.spark.core.query_cuts import QueryCuts
from streamlease.spark.core.query_states import QueryMove

_M = QueryMove


class Finishing:
    """See the module.

    Args:
        fresh: the session of a query that begins without a checkpoint, if that is this process.
    """

    def __init__(self, desk: Desk, cuts: QueryCuts, losses: Losses, *, fresh: str) -> None:
        self._desk = desk
        self._cuts = cuts
        self._losses = losses
        self._fresh = fresh
        self._again_at = 0.0
        """When the leader is told again of a cut that it has not confirmed."""
        # Of the present conversation:
        self._start = CutOffset("", "", 0)
        """Where the checkpoint ends."""
        self._done = self._start
        """The cut behind which the query goes on."""
        self._overtaken_by = 0
        """The newest cut that is finished, if the checkpoint lacks it."""

    def begin(self, start: CutOffset) -> bool:
        """That cut went through; whether the next one may be made at once."""
        cuts, self._start = self._cuts, start
        # A process that has come no further than cut 0 may have fixed cut 1, too, or be an old copy.
        if start.cut > cuts.finished.newest or not (cuts.settled or start.session == self._fresh):
            if not cuts.is_open(start):
                self._done, self._overtaken_by = start, 0
                self._desk.move(_M.FIXED_BEFORE)
                self._desk.ask(cuts.finish_cut(start, self._desk.around.term), ANSWER_SECONDS)
                return False
            self._finish(start)
        cuts.settle()
        return True

    def overtaken(self, finished: int) -> None:
        """The leader knows of finished cuts behind `start`, where the checkpoint ends."""
        self._behind(self._start, finished)

    def answered(self, answer: CutFinished | CutResumed) -> bool:
        """The leader has answered the question; whether the next cut may be made."""
        if isinstance(answer, CutResumed):
            return self._followed(answer)
        if answer.finished > self._done.cut:
            self._behind(self._done, answer.finished)
        else:
            self._desk.move(_M.CONFIRMED)
            self._desk.ask(self._cuts.ask_for_next(self._done), ANSWER_SECONDS)
        return False

    def written(self, *, late: bool) -> None:
        """It is known whether Spark writes the checkpoint later; else it is an old copy.

        Raises:
            Fenced: it is.
        """
        if not late:
            raise older_checkpoint(self._done.session, self._done.cut + 1, self._overtaken_by)
        who, term = self._cuts.who, self._desk.around.term
        self._done = CutOffset(who.group, who.session, self._overtaken_by, term)
        self._desk.move(_M.WRITTEN_LATER)
        self._desk.ask(self._cuts.ask_for_next(self._done), ANSWER_SECONDS)

    def _behind(self, done: CutOffset, finished: int) -> None:
        self._done, self._overtaken_by = done, finished
        self._desk.move(_M.BEHIND)
        self._desk.find(q.WrittenLate())

    def _followed(self, following: CutResumed) -> bool:
        """The leader says what is open behind the last finished cut."""
        if self._overtaken_by:
            self._desk.say(
                logging.INFO,
                f"the checkpoint ends with cut {self._start.cut}: "
                f"the query goes on behind cut {self._overtaken_by}",
            )
            self._cuts.proposed.withdraw()
            self._losses.forget()
        opened = self._cuts.finish(self._done, following)
        self._attest(self._done)
        if opened is not None:
            self._desk.reply(opened)
        return opened is None

    # ------------------------------------------------------------ the cut that this process has open

    def _finish(self, done: CutOffset) -> None:
        self._tell(done)
        self._desk.do(q.CountMessages(committed=done.ranges.messages))
        self._cuts.finish(done)
        self._attest(done)

    def _tell(self, done: CutOffset) -> None:
        self._again_at = self._desk.now + RESEND_SECONDS
        self._desk.do(q.Tell(self._cuts.finish_cut(done, self._desk.around.term)))

    @property
    def again_at(self) -> float | None:
        """When (s) the leader is to be told again; None if it has confirmed."""
        return self._again_at if self._cuts.finished.unconfirmed else None

    def tell_again(self) -> None:
        """Tell the leader of the last cut, if it has not confirmed it in time."""
        again_at, done = self.again_at, self._cuts.finished.last
        if again_at is not None and done is not None and self._desk.now >= again_at:
            self._tell(done)

    def _attest(self, done: CutOffset) -> None:
        """Keep for a leader that has lost it how far the cut's streams are consumed."""
        ranges = (self._cuts.finished.last or done).ranges
        if ranges:
            self._desk.do(q.Attest(ranges, True))
