"""The durable cuts of a group's sessions, by themselves."""

from __future__ import annotations

from streamlease.leader.core.state.group_cuts import GroupCuts
from streamlease.leader.core.state.group_state import GroupState
from streamlease.leader.core.state.records import CutClosed, CutOpened
from streamlease.protocol.cuts import CutRange, Ranges

S0, S1 = "s.0.0", "s.0.1"
BOTH = Ranges.of((CutRange(S0, 1, 0, 5), CutRange(S1, 1, 3, 4)))


def opened(session: str = "q", cut: int = 4, ranges: Ranges = BOTH) -> GroupCuts:
    cuts = GroupCuts()
    cuts.open(CutOpened(session=session, cut=cut, ranges=ranges))
    return cuts


def test_whoever_has_a_cut_opened_has_finished_all_before_it() -> None:
    cuts = opened(cut=4)
    assert (cuts["q"].cut, cuts["q"].finished) == (4, 3)
    assert cuts.get("other") is None
    assert list(cuts) == ["q"]


def test_what_is_left_of_a_cut_is_consumed_when_it_is_closed() -> None:
    cuts = opened()
    assert cuts.leave("q", S0) == 5
    assert cuts.close(CutClosed(session="q", cut=4)) == BOTH[1:]
    assert (cuts["q"].cut, cuts["q"].finished) == (0, 4)
    assert cuts.close(CutClosed(session="q", cut=4)) == (), "it comes a second time"


def test_a_cut_that_is_not_open_consumes_nothing_and_closes_no_other() -> None:
    cuts = opened(cut=4)
    assert cuts.close(CutClosed(session="q", cut=3)) == ()
    assert (cuts["q"].cut, cuts["q"].finished) == (4, 3)
    assert cuts.close(CutClosed(session="new", cut=7)) == ()
    assert (cuts["new"].cut, cuts["new"].finished) == (0, 7)


def test_a_stream_leaves_the_cut_of_its_session_only() -> None:
    cuts = opened()
    cuts.open(CutOpened(session="other", cut=1, ranges=Ranges.of((CutRange(S1, 1, 3, 9),))))
    assert cuts.in_open() == {S0: "q", S1: "other"}
    assert cuts.leave("q", S1) == 4
    assert cuts.leave("q", S1) is None
    assert cuts.leave("nobody", S1) is None
    assert cuts.leave(None, S1) is None
    assert (cuts.has_open("q", S0), cuts.has_open("q", S1), cuts.has_open("other", S1)) == (True, False, True)
    assert not cuts.has_open(None, S0)
    assert not cuts.has_open("nobody", S0)


def test_a_stream_that_is_gone_is_in_no_cut() -> None:
    cuts = opened()
    cuts.open(CutOpened(session="other", cut=1, ranges=Ranges.of((CutRange(S1, 1, 3, 9),))))
    cuts.forget_stream(S1)
    assert cuts.in_open() == {S0: "q"}


def test_a_session_that_is_forgotten_says_what_was_open() -> None:
    cuts = opened()
    cuts.leave("q", S0)
    assert cuts.forget("q") == BOTH[1:]
    assert cuts.forget("q") == ()
    assert list(cuts) == []


def test_they_are_stored_as_a_document_with_a_field_for_each_session() -> None:
    state = GroupState(sessions=opened())
    ranges = '{"streams":["s.0.0","s.0.1"],"lease_epochs":[1,1],"starts":[0,3],"ends":[5,4]}'
    assert f'"sessions":{{"q":{{"finished":3,"cut":4,"ranges":{ranges}}}}}' in state.snapshot().decode()
    assert GroupState.restore(state.snapshot()) == state
