"""The conversation about what went through the sink, by itself: what it asks, does, and ends with."""

from __future__ import annotations

import pytest

from streamlease.borrower.events import StreamGranted
from streamlease.protocol.cuts import CutRange, Ranges
from streamlease.protocol.errors import Fenced
from streamlease.protocol.messages import CutFinished, CutFixed, CutResumed, FinishCut, ResumeCut
from streamlease.spark.core import query_events as q
from streamlease.spark.core.checkpoint import CutOffset
from streamlease.spark.core.conversations.finishing import Finishing
from streamlease.spark.core.conversations.query_desk import RESEND_SECONDS, Desk
from streamlease.spark.core.losses import Losses
from streamlease.spark.core.query_cuts import QueryCuts
from streamlease.spark.core.query_states import QueryState

GROUP, OLD, FRESH = "g/t", "q-old", "q-new"
A = "s.0.0"
TERM = 7
LAST = CutOffset(GROUP, OLD, 4, TERM, Ranges.of((CutRange(A, 1, 0, 5),)))
"""The newest cut in a checkpoint."""


class Conversation:
    """A desk at which Spark waits, and what is done at it."""

    def __init__(self, session: str = OLD) -> None:
        self.desk = Desk()
        self.desk.state, self.desk.now = QueryState.SERVING, 100.0
        self.desk.around = q.Surroundings(connected=True, term=TERM)
        self.cuts = QueryCuts(GROUP, lambda slot, progress: None)
        self.cuts.who.session = session
        self.finishing = Finishing(self.desk, self.cuts, Losses(self.cuts), fresh=FRESH)

    @property
    def state(self) -> str:
        return self.desk.state.value

    @property
    def asked(self) -> object:
        assert self.desk.question is not None
        return self.desk.question.message

    def told(self) -> list[object]:
        return [one.message for one in self.desk.taken() if isinstance(one, q.Tell)]

    def finished(self, cut: int) -> bool:
        return self.finishing.answered(CutFinished(group=GROUP, session=OLD, term=TERM, finished=cut))

    def resumed(self, cut: int, *parts: CutRange) -> bool:
        ranges = Ranges.of(parts)
        return self.finishing.answered(
            CutResumed(group=GROUP, session=OLD, term=TERM, cut=cut, ranges=ranges)
        )

    def open(self) -> CutOffset:
        """A cut that this process has open."""
        self.cuts.settle()
        self.cuts.granted(0, StreamGranted(A, 1, 0, None, None))
        asked = self.cuts.proposed.fix({A: 5})
        cut = self.cuts.fixed(
            CutFixed(
                group=GROUP, session=FRESH, term=TERM, cut=asked.cut, ranges=None, proposal=asked.proposal
            )
        )
        assert cut is not None
        return cut


def test_a_query_that_begins_has_nothing_to_finish() -> None:
    new = Conversation(FRESH)
    assert new.finishing.begin(CutOffset(GROUP, FRESH, 0))
    assert new.cuts.settled
    assert (new.desk.question, new.desk.taken()) == (None, [])


def test_a_cut_that_is_open_is_finished_at_once_and_told_until_it_is_confirmed() -> None:
    query = Conversation(FRESH)
    cut = query.open()
    assert query.finishing.again_at is None
    assert query.finishing.begin(cut)
    effects = query.desk.taken()
    assert q.CountMessages(committed=5) in effects
    assert q.Attest(cut.ranges, True) in effects
    assert [type(one.message) for one in effects if isinstance(one, q.Tell)] == [FinishCut]
    assert query.cuts.held[A].committed == 5
    again_at = query.finishing.again_at
    assert again_at == 100.0 + RESEND_SECONDS
    query.finishing.tell_again()
    assert query.told() == [], "it is not due yet"
    query.desk.now = again_at
    query.finishing.tell_again()
    assert [one.finished for one in query.told() if isinstance(one, FinishCut)] == [cut.cut]
    assert query.finishing.again_at == again_at + RESEND_SECONDS
    query.cuts.finished.confirm(cut.cut)
    query.desk.now += 2 * RESEND_SECONDS
    query.finishing.tell_again()
    assert (query.finishing.again_at, query.told()) == (None, [])


def test_a_cut_of_an_earlier_process_is_finished_by_asking_twice() -> None:
    query = Conversation()
    assert not query.finishing.begin(LAST)
    assert query.state == "finishing"
    assert isinstance(query.asked, FinishCut)
    assert query.asked.ranges == LAST.ranges
    assert not query.finished(4)
    assert query.state == "following"
    assert isinstance(query.asked, ResumeCut)
    assert (query.asked.cut, query.cuts.settled) == (5, False)
    assert query.resumed(5)
    assert query.desk.taken() == [q.Attest(LAST.ranges, True)]
    assert (query.cuts.finished.newest, query.cuts.settled) == (4, True)


def test_a_cut_that_no_checkpoint_names_is_given_to_spark() -> None:
    query = Conversation()
    query.finishing.begin(LAST)
    query.finished(4)
    assert not query.resumed(5, CutRange(A, 1, 5, 9))
    (reply,) = [one.answer for one in query.desk.taken() if isinstance(one, q.Reply)]
    assert reply == CutOffset(GROUP, OLD, 5, TERM, Ranges.of((CutRange(A, 1, 5, 9),)))
    assert query.cuts.open == reply
    assert query.state == "serving"


def test_a_checkpoint_that_lacks_a_finished_cut_is_an_old_copy() -> None:
    query = Conversation()
    query.finishing.begin(LAST)
    assert not query.finished(6)
    assert query.state == "overtaken"
    assert query.desk.is_finding
    with pytest.raises(Fenced, match=r"^cut 5 of query q-old was finished already, by cut 6"):
        query.finishing.written(late=False)


@pytest.mark.parametrize("when", ["it asked what is finished", "it had a cut fixed"])
def test_a_checkpoint_that_spark_writes_later_is_gone_on_behind(when: str) -> None:
    query = Conversation()
    query.cuts.granted(0, StreamGranted(A, 2, 5, None, None))
    query.finishing.begin(LAST)
    if when == "it asked what is finished":
        query.finished(6)
    else:
        query.finished(4)
        query.resumed(5)
        query.cuts.proposed.fix({A: 9})
        query.desk.state = QueryState.ASKING
        query.finishing.overtaken(6)
    query.finishing.written(late=True)
    assert query.state == "following"
    assert isinstance(query.asked, ResumeCut)
    assert query.asked.cut == 7
    query.desk.taken()
    assert query.resumed(7)
    said = [one.text for one in query.desk.taken() if isinstance(one, q.Say)]
    assert said == ["the checkpoint ends with cut 4: the query goes on behind cut 6"]
    assert query.cuts.finished.newest == 6
    assert query.cuts.proposed.message is None
