"""Which cuts went through the sink, as a query knows it, and what it attests by that."""

from __future__ import annotations

import pytest

from streamlease.borrower.book import Held
from streamlease.borrower.lease import StreamEvent
from streamlease.protocol.cuts import CutRange, Ranges
from streamlease.spark.core.checkpoint import CutOffset
from streamlease.spark.core.finished_cuts import FinishedCuts

S0, S1 = "s.0.0", "s.0.1"


def cut(number: int, *parts: CutRange) -> CutOffset:
    return CutOffset("g/a", "q", number, 1, Ranges.of(parts))


def pinned(stream: str, lease_epoch: int, start: int, end: int, follows: int | None) -> Held:
    """A stream that was granted again, in which a former cut is pinned."""
    held = Held.begin(0, stream, lease_epoch, start)
    held.pinned_end, held.follows = end, follows
    return held


def test_a_cut_is_unconfirmed_until_the_leader_confirms_it_or_one_behind_it() -> None:
    finished = FinishedCuts()
    assert not finished.unconfirmed
    finished.add(cut(3), told=False)
    finished.confirm(2)
    assert finished.unconfirmed
    finished.confirm(3)
    assert not finished.unconfirmed
    finished.add(cut(4), told=False)
    finished.confirm(7)
    assert not finished.unconfirmed


def test_what_the_leader_says_itself_need_not_be_confirmed_and_confirms_nothing() -> None:
    finished = FinishedCuts()
    finished.add(cut(3), told=True)
    assert not finished.unconfirmed
    finished.add(cut(4), told=False)
    finished.add(cut(5), told=True)
    assert finished.unconfirmed


def test_the_number_of_the_newest_one_never_falls_by_where_a_query_begins() -> None:
    finished = FinishedCuts()
    finished.begin_behind(4)
    assert (finished.newest, finished.last) == (4, None)
    finished.begin_behind(2)
    assert finished.newest == 4
    finished.add(cut(5), told=True)
    assert (finished.newest, finished.last) == (5, cut(5))


def test_what_is_pinned_is_attested_if_just_that_went_through() -> None:
    finished = FinishedCuts()
    assert finished.attested(pinned(S0, 2, 0, 5, follows=1)) is None
    finished.add(cut(1, CutRange(S0, 1, 0, 5)), told=True)
    assert finished.attested(pinned(S0, 2, 0, 5, follows=1)) == 5


@pytest.mark.parametrize(
    "held",
    [
        pytest.param(pinned(S1, 2, 0, 5, follows=1), id="another stream"),
        pytest.param(pinned(S0, 4, 0, 5, follows=3), id="somebody had it in between"),
        pytest.param(pinned(S0, 2, 0, 5, follows=None), id="whether somebody had it is not known"),
        pytest.param(pinned(S0, 2, 2, 5, follows=1), id="another start"),
        pytest.param(pinned(S0, 2, 0, 6, follows=1), id="another end"),
        pytest.param(Held.begin(0, S0, 2, 0), id="nothing is pinned"),
    ],
)
def test_nothing_else_is_attested(held: Held) -> None:
    finished = FinishedCuts()
    finished.add(cut(1, CutRange(S0, 1, 0, 5)), told=True)
    assert finished.attested(held) is None


def test_a_stream_whose_lease_is_over_is_not_attested() -> None:
    finished = FinishedCuts()
    finished.add(cut(1, CutRange(S0, 1, 0, 5)), told=True)
    held = pinned(S0, 2, 0, 5, follows=1)
    held.lease.move(StreamEvent.ENDED)
    assert finished.attested(held) is None


def test_only_the_last_cut_is_attested() -> None:
    finished = FinishedCuts()
    finished.add(cut(1, CutRange(S0, 1, 0, 5)), told=True)
    assert finished.attested(pinned(S0, 2, 0, 5, follows=1)) == 5
    finished.add(cut(2, CutRange(S0, 1, 5, 9)), told=True)
    assert finished.attested(pinned(S0, 2, 0, 5, follows=1)) is None
    assert finished.attested(pinned(S0, 2, 5, 9, follows=1)) == 9


def granted_again(lease_epoch: int, since: int, committed: int) -> Held:
    """A stream that the session never lost, and that this process is granted now."""
    held = Held.begin(0, S0, lease_epoch, committed)
    held.since = since
    return held


def test_what_the_leader_has_yet_to_hear_is_attested_of_a_stream_that_comes_again() -> None:
    """It was granted anew, to the same session, after its cut had gone through (seed 7744)."""
    finished = FinishedCuts()
    finished.add(cut(1, CutRange(S0, 3, 9, 35)), told=False)
    assert finished.attested(granted_again(6, 3, 9)) == 35
    assert finished.attested(granted_again(6, 4, 9)) is None, "somebody had it in between"
    assert finished.attested(granted_again(6, 3, 35)) is None, "that is known"
    assert finished.attested(granted_again(6, 3, 8)) is None, "something is missing before it"
    finished.confirm(1)
    assert finished.attested(granted_again(6, 3, 9)) is None, "the leader knows, and says something else"


def test_what_an_earlier_process_read_is_attested_by_the_leader_alone() -> None:
    finished = FinishedCuts()
    finished.add(cut(1, CutRange(S0, 3, 0, 9)), told=False)
    finished.add(cut(2, CutRange(S0, 3, 9, 35)), told=True)
    assert finished.attested(granted_again(6, 3, 9)) is None
