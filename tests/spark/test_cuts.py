"""What a query decides about its streams and cuts, without a leader or a Redis."""

from __future__ import annotations

from streamlease.borrower.events import Progressed, StreamGone, StreamGranted, StreamRevoking
from streamlease.protocol.cuts import CutRange, Ranges
from streamlease.protocol.messages import CutFixed, CutResumed, FixCut, Progress
from streamlease.spark.core.checkpoint import CutOffset
from streamlease.spark.core.limits import Limits
from streamlease.spark.core.query_cuts import QueryCuts

S0 = "s.0.0"


class Query:
    """A query's cuts, and what it reports to its borrowers."""

    def __init__(self) -> None:
        self.reported: list[Progressed] = []
        self.cuts = QueryCuts("g/a", lambda slot, event: self.reported.append(event))
        self.cuts.who.session, self.cuts.who.arrival = "q", 1

    def grant(
        self, lease_epoch: int, progress: int, pinned: int | None = None, resumes: int | None = None
    ) -> None:
        self.cuts.granted(0, StreamGranted(S0, lease_epoch, progress, pinned, resumes))

    def propose(self, end: int) -> FixCut | None:
        self.cuts.unread.ends_at(S0, end)
        return self.cuts.proposed.make(self.cuts.unread.counts(), Limits())

    def open(self, number: int, start: int, end: int, lease_epoch: int) -> CutOffset:
        assert self.propose(end) is not None
        part = CutRange(stream=S0, lease_epoch=lease_epoch, start=start, end=end)
        cut = self.cuts.fixed(
            CutFixed(group="g/a", session="q", term=1, cut=number, ranges=Ranges.of((part,)))
        )
        assert cut is not None
        return cut


def test_a_revoked_stream_leaves_once_its_cut_is_finished() -> None:
    query = Query()
    query.cuts.settle()
    query.grant(1, 0)
    cut = query.open(1, 0, 5, 1)
    query.cuts.revoking(StreamRevoking(S0, 1))
    assert query.reported == []
    query.cuts.finish(cut)
    assert query.reported == [Progressed(S0, 1, 5, final=True)]


def test_a_query_that_comes_back_gives_nothing_away_before_it_knows_what_became_of_its_last_cut() -> None:
    query = Query()
    query.grant(2, 0, resumes=1)
    query.cuts.revoking(StreamRevoking(S0, 2))
    assert query.reported == []  # cut 1, up to 5, may be in the sink
    done = CutOffset("g/a", "q", 1, 1, Ranges.of((CutRange(S0, 1, 0, 5),)))
    query.cuts.finish(done)
    assert [event.final for event in query.reported] == [True]


def test_a_stream_that_comes_only_after_its_cut_went_through_is_not_read_again() -> None:
    """A restarted query reads its last cut while no leader has granted its streams to it."""
    query = Query()
    done = CutOffset("g/a", "q", 1, 1, Ranges.of((CutRange(S0, 3, 9, 35),)))
    query.cuts.resume_cut(done)
    query.cuts.resumed(done, 6, {S0})
    query.cuts.finish(done)
    query.grant(6, 9, resumes=3)
    assert query.reported == [Progressed(S0, 6, 35)]
    query.cuts.revoking(StreamRevoking(S0, 6))
    assert query.reported[1:] == [Progressed(S0, 6, 35, final=True)]


def test_a_query_without_a_last_cut_gives_a_stream_back_at_once() -> None:
    query = Query()
    query.grant(1, 3)
    query.cuts.revoking(StreamRevoking(S0, 1))
    assert query.reported == []
    query.cuts.settle()
    assert query.reported == [Progressed(S0, 1, 3, final=True, durable=True)]


def test_a_stream_that_somebody_else_had_is_no_part_of_the_open_cut_any_more() -> None:
    query = Query()
    query.grant(1, 0)
    query.open(1, 0, 5, 1)
    query.grant(4, 2, resumes=3)  # the grant of lease epoch 3 was lost; lease epoch 2 was another query's
    assert query.cuts.open_streams == set()
    assert query.cuts.held[S0].committed == 2


def test_a_pinned_end_that_the_leader_says_is_committed_pins_nothing_any_more() -> None:
    query = Query()
    query.cuts.settle()
    query.grant(2, 0, pinned=5)
    query.cuts.believe((Progress(stream=S0, lease_epoch=2, offset=5),))
    proposed = query.propose(9)
    assert proposed is not None
    assert [(part.start, part.end) for part in proposed.ranges] == [(5, 9)]


def test_an_answer_that_is_older_than_the_lease_says_nothing_of_its_progress() -> None:
    query = Query()
    query.cuts.settle()
    query.grant(1, 8)
    assert query.propose(9) is not None
    query.grant(3, 6)  # reset by an operator, while the answer was on its way
    part = CutRange(stream=S0, lease_epoch=1, start=8, end=9)
    cut = query.cuts.fixed(CutFixed(group="g/a", session="q", term=1, cut=1, ranges=Ranges.of((part,))))
    assert cut is not None
    query.cuts.finish(cut)
    assert query.cuts.held[S0].committed == 6


def test_final_progress_that_the_leader_did_not_hear_is_said_again_by_who_gets_the_stream_once_more() -> None:
    query = Query()
    query.cuts.settle()
    query.grant(1, 0)
    query.cuts.finish(query.open(1, 0, 5, 1))
    query.cuts.revoking(StreamRevoking(S0, 1))
    query.cuts.gone(StreamGone(S0, 1))  # with the leader
    query.grant(2, 0, resumes=1)
    assert query.cuts.held[S0].committed == 5
    query.cuts.revoking(StreamRevoking(S0, 2))
    query.cuts.gone(StreamGone(S0, 2))
    query.grant(4, 3)  # somebody else had it
    assert query.cuts.held[S0].committed == 3


def test_a_revoked_stream_whose_borrower_ends_before_its_cut_does_is_committed_with_the_cut() -> None:
    query = Query()
    query.cuts.settle()
    query.grant(1, 0)
    cut = query.open(1, 0, 5, 1)
    query.cuts.revoking(StreamRevoking(S0, 1))
    query.cuts.gone(StreamGone(S0, 1))  # its leader stepped down
    query.cuts.finish(cut)
    query.grant(2, 0, resumes=1)
    query.cuts.revoking(StreamRevoking(S0, 2))
    assert query.reported[-1] == Progressed(S0, 2, 5, final=True)


def test_a_query_that_comes_back_gives_nothing_away_of_a_cut_that_its_checkpoint_does_not_name() -> None:
    query = Query()
    query.grant(2, 5, resumes=1)
    query.cuts.revoking(StreamRevoking(S0, 2))
    done = CutOffset("g/a", "q", 1, 1, Ranges.of((CutRange(S0, 1, 0, 5),)))
    asked = query.cuts.ask_for_next(done)
    assert (asked.cut, asked.ranges) == (2, ())
    part = CutRange(stream=S0, lease_epoch=1, start=5, end=9)
    following = CutResumed(group="g/a", session="q", term=1, cut=2, ranges=Ranges.of((part,)))
    cut = query.cuts.finish(done, following)
    assert cut == CutOffset("g/a", "q", 2, 1, Ranges.of((CutRange(S0, 1, 5, 9),)))
    assert query.cuts.open == cut
    assert query.reported == []  # Spark is given the cut, and reads it
    query.cuts.finish(cut)
    assert query.reported == [Progressed(S0, 2, 9, final=True)]


def test_an_answer_to_what_was_proposed_before_is_not_meant() -> None:
    query = Query()
    query.cuts.settle()
    query.grant(1, 0)
    first = query.propose(5)
    assert first is not None
    nothing = CutFixed(group="g/a", session="q", term=1, cut=1, ranges=Ranges.of(()), proposal=first.proposal)
    assert query.cuts.proposed.is_meant(nothing)
    assert query.cuts.fixed(nothing) is None
    second = query.propose(9)
    assert second is not None
    assert first.cut == second.cut
    late = CutFixed(group="g/a", session="q", term=1, cut=1, ranges=None, proposal=first.proposal)
    assert not query.cuts.proposed.is_meant(late)
    answer = late.model_copy(update={"proposal": second.proposal})
    assert query.cuts.proposed.is_meant(answer)
    cut = query.cuts.fixed(answer)
    assert cut is not None
    assert cut.ranges == (CutRange(S0, 1, 0, 9),)


def test_only_the_leader_that_fixed_a_cut_is_not_told_what_it_was() -> None:
    query = Query()
    query.cuts.settle()
    query.grant(1, 0)
    cut = query.open(1, 0, 5, 1)
    assert query.cuts.finish_cut(cut, 1).ranges is None
    assert query.cuts.finish_cut(cut, 2).ranges == (CutRange(S0, 1, 0, 5),)
    query.cuts.finish(cut)
    done = query.cuts.finished.last
    assert done is not None
    assert query.cuts.finish_cut(done, 1).ranges is None
    assert query.cuts.finish_cut(done, 2).ranges == (CutRange(S0, 1, 0, 5),)


def test_a_leader_is_told_what_the_cut_of_an_earlier_process_was() -> None:
    query = Query()
    done = CutOffset("g/a", "q", 1, 1, Ranges.of((CutRange(S0, 1, 0, 5),)))
    assert query.cuts.finish_cut(done, 1).ranges == (CutRange(S0, 1, 0, 5),)
