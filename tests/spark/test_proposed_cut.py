"""What a query proposes of what waits, and which answers count for it."""

from __future__ import annotations

from streamlease.borrower.book import Held
from streamlease.protocol.cuts import NO_RANGES, CutRange, Ranges
from streamlease.protocol.messages import CutFixed, FixCut
from streamlease.spark.core.checkpoint import CutOffset
from streamlease.spark.core.finished_cuts import FinishedCuts
from streamlease.spark.core.limits import Limits
from streamlease.spark.core.proposed_cut import ProposedCut, QueryIdentity
from streamlease.spark.core.unread import UnreadMessages

S0, S1, S2 = "s.0.0", "s.0.1", "s.0.2"


class Query:
    """Streams with messages, and what is proposed of them."""

    def __init__(self, **ends: int) -> None:
        names = {"s0": S0, "s1": S1, "s2": S2}
        self.held: dict[str, Held] = {}
        self.unread = UnreadMessages(self.held)
        self.finished = FinishedCuts()
        self.proposed = ProposedCut(QueryIdentity("g/a", "q", 3), self.finished, self.held, self.unread)
        for number, (name, end) in enumerate(ends.items()):
            stream = names[name]
            self.held[stream] = Held.begin(0, stream, number + 1, 0)
            self.unread.ends_at(stream, end)
            self.unread.look_at(stream)

    def pin(self, stream: str, end: int) -> None:
        self.held[stream].pinned_end = end
        self.unread.look_at(stream)

    def make(self, limits: Limits | None = None, milliseconds: int = 0) -> dict[str, tuple[int, int]]:
        """What is proposed now, by stream."""
        made = self.proposed.make(self.unread.counts(), limits or Limits(), milliseconds)
        assert made is self.proposed.message
        return {part.stream: (part.start, part.end) for part in made.ranges} if made is not None else {}


def answer(proposal: FixCut, ranges: Ranges | None = None, finished: int = 0) -> CutFixed:
    return CutFixed(
        group="g/a", session="q", term=1, cut=proposal.cut, ranges=ranges, proposal=proposal.proposal,
        finished=finished,
    )  # fmt: skip


def test_a_cut_is_proposed_of_all_that_waits_behind_the_newest_finished_one() -> None:
    query = Query(s0=5, s1=2)
    query.finished.add(CutOffset("g/a", "q", 7), told=True)
    assert query.make() == {S0: (0, 5), S1: (0, 2)}
    asked = query.proposed.message
    assert asked is not None
    assert (asked.group, asked.session, asked.arrival) == ("g/a", "q", 3)
    assert (asked.cut, asked.finished) == (8, 7)
    assert asked.ranges == (CutRange(S0, 1, 0, 5), CutRange(S1, 2, 0, 2))


def test_nothing_is_proposed_of_nothing() -> None:
    query = Query(s0=0)
    assert query.make() == {}
    assert not query.proposed.holds(S0)


def test_too_little_waits_until_it_has_waited_long() -> None:
    query = Query(s0=5)
    few = Limits(min_rows=6, max_delay_ms=1000)
    assert query.make(few, 999) == {}
    assert query.make(few, 1000) == {S0: (0, 5)}


def test_a_pinned_part_is_taken_whole_and_leaves_less_for_the_rest() -> None:
    query = Query(s0=9, s1=9)
    query.pin(S0, 5)
    assert query.make(Limits(max_rows=7)) == {S0: (0, 5), S1: (0, 2)}
    assert query.make(Limits(max_rows=5)) == {S0: (0, 5)}
    assert query.make(Limits(max_rows=1)) == {S0: (0, 5)}


def test_a_stream_that_got_nothing_comes_first_in_the_next_cut() -> None:
    query = Query(s0=9, s1=5, s2=5)
    got = [next(iter(query.make(Limits(max_rows=1)))) for _ in range(3)]
    assert got[0] == S0
    assert {*got} == {S0, S1, S2}


def test_a_stream_is_held_while_a_part_of_it_is_proposed() -> None:
    query = Query(s0=5, s1=5)
    assert not query.proposed.holds(S0)
    query.proposed.fix({S0: 3})
    assert query.proposed.holds(S0)
    assert not query.proposed.holds(S1)
    query.proposed.fix({S1: 3})
    assert (query.proposed.holds(S0), query.proposed.holds(S1)) == (False, True)
    query.proposed.withdraw()
    assert not query.proposed.holds(S1)


def test_only_the_answer_to_the_newest_proposal_is_meant() -> None:
    query = Query(s0=5)
    first = query.proposed.fix({S0: 3})
    second = query.proposed.fix({S0: 5})
    assert not query.proposed.is_meant(answer(first))
    assert query.proposed.is_meant(answer(second))
    query.proposed.withdraw()
    assert not query.proposed.is_meant(answer(second))


def test_an_answer_fixes_all_or_what_it_says_and_then_nothing_is_proposed() -> None:
    query = Query(s0=5, s1=5)
    asked = query.proposed.fix({S0: 3, S1: 5})
    assert query.proposed.take(answer(asked)) == asked.ranges
    assert query.proposed.message is None
    asked = query.proposed.fix({S0: 3, S1: 5})
    less = Ranges.of((CutRange(S1, 2, 0, 5),))
    assert query.proposed.take(answer(asked, less)) == less
    asked = query.proposed.fix({S0: 3})
    assert query.proposed.take(answer(asked, NO_RANGES)) == ()


def test_a_leader_that_fixes_nothing_and_has_finished_that_cut_knows_more_than_the_checkpoint() -> None:
    query = Query(s0=5)
    asked = query.proposed.fix({S0: 3})
    assert query.proposed.is_older(answer(asked, NO_RANGES, finished=asked.cut))
    assert not query.proposed.is_older(answer(asked, NO_RANGES, finished=asked.cut - 1))
    assert not query.proposed.is_older(answer(asked, finished=asked.cut))
    query.proposed.withdraw()
    assert not query.proposed.is_older(answer(asked, NO_RANGES, finished=asked.cut))
