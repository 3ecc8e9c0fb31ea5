"""When a query makes a cut of whole epochs: once all of its streams are there, and a boundary is known."""

from __future__ import annotations

from typing import Any

import pytest

from streamlease.borrower.events import StreamGone, StreamRevoking
from streamlease.protocol.messages import FixCut, Progress
from streamlease.spark.core import query_events as q
from streamlease.spark.core.conversations import resuming
from streamlease.spark.core.conversations.query_desk import ANSWER_SECONDS, NEWS_SECONDS
from streamlease.spark.core.epoch_ends import Bound, BoundsFound
from streamlease.spark.core.limits import Limits
from streamlease.spark.core.query_states import QueryState
from streamlease.spark.core.targets import holds_all
from tests.spark.query_rig import FRESH, OLD, SESSION, A, B, Rig, lose_for_good, part
from tests.spark.test_query_machine import view

BASE = Bound(0, ((0,),), {A: 0, B: 0})
FIRST = Bound(1, ((1,),), {A: 5, B: 3}, frozenset({((0,), A), ((0,), B)}))
OURS = view((A, FRESH, 0), (B, FRESH, 0))
MOVING = view((A, FRESH, 0), (B, FRESH, 0), state="rebalancing")


def looked(rig: Rig, seen: Any = OURS) -> None:
    """The query looks at the group, and sees that both streams are its own."""
    rig.wait(NEWS_SECONDS)
    assert isinstance(rig.wanted.what, q.GroupView)
    rig.found(seen)


def test_a_stream_that_is_still_to_come_is_waited_for() -> None:
    rig = Rig(whole_epochs=True).begin_anew().grant(A).ends(5, A).ask()
    looked(rig)
    assert rig.machine.state is QueryState.LOOKING
    assert isinstance(rig.wanted.what, q.GroupView), "B is not here, so no boundary is asked for"
    rig.grant(B).ends(3, B)
    looked(rig)
    assert rig.wanted.what == q.EpochBounds({A: 0, B: 0}, anew=True)
    rig.found(BoundsFound((), True, BASE))
    assert rig.wanted.what == q.EpochBounds({A: 0, B: 0}, anew=False)
    rig.found(BoundsFound((FIRST,)))
    assert isinstance(rig.told, FixCut)
    assert {one.stream: one.end for one in rig.told.ranges} == {A: 5, B: 3}


def first_cut() -> Rig:
    rig = Rig(whole_epochs=True).begin_anew().grant(A, B).ends(5, A, B).ask()
    looked(rig)
    rig.found(BoundsFound((), True, BASE))
    rig.found(BoundsFound((FIRST,)))
    return rig


def test_the_group_is_looked_at_again_only_if_the_leases_have_changed() -> None:
    rig = first_cut().fix()
    assert rig.machine.report()["epochs"] == {"boundary": 1, "lower": [[1]]}
    rig.ends(9, A).ask(rig.answer)
    assert isinstance(rig.wanted.what, q.EpochBounds)
    other = first_cut().fix()
    other.grant(B, lease_epoch=2, progress=3, resumes=1).ends(9, A).ask(other.answer)
    other.wait(NEWS_SECONDS)
    assert isinstance(other.wanted.what, q.GroupView)


def test_a_cut_of_which_a_stream_is_asked_back_is_made_anew_with_all_of_it() -> None:
    """B is on its way from one slot to another, which the leader knows first: it fixes nothing."""
    rig = first_cut()
    assert isinstance(rig.told, FixCut)
    assert rig.told.whole
    first = rig.told.proposal
    rig.fix(progress=(Progress(stream=B, lease_epoch=1, offset=0),))
    assert rig.answer.cut == 0
    rig.step(StreamRevoking(B, 1))
    assert isinstance(rig.done[-1], q.ReportProgress), "nothing holds it"
    rig.ask()
    looked(rig, MOVING)
    rig.step(StreamGone(B, 1))
    looked(rig, MOVING)
    assert rig.told.proposal == first, "what is left of the epoch is not taken without B"
    rig.grant(B, lease_epoch=2, resumes=2)
    looked(rig)
    assert isinstance(rig.told, FixCut)
    assert (rig.told.cut, rig.told.whole) == (1, True)
    assert {one.stream: (one.lease_epoch, one.end) for one in rig.told.ranges} == {A: (1, 5), B: (2, 3)}


def test_a_cut_that_was_refused_is_not_made_anew_before_the_group_is_looked_at() -> None:
    """The answer may come before the word that a stream is asked back."""
    rig = first_cut()
    rig.fix(progress=(Progress(stream=B, lease_epoch=1, offset=0),))
    asked = len([one for one in rig.done if isinstance(one, q.Tell)])
    rig.ask()
    looked(rig, MOVING)
    assert len([one for one in rig.done if isinstance(one, q.Tell)]) == asked


def test_a_part_that_was_taken_out_by_force_is_told() -> None:
    rig = first_cut().fix(part(A, 0, 5))
    assert "cut 1: 1 of 2 streams were taken out of it by force" in rig.said


def given_up(whole_epochs: bool) -> Rig:
    """A query that comes back to its cut after its leader has given it up; one of two streams is there."""
    rig = Rig(whole_epochs=whole_epochs).begin(finished=False)
    rig.step(q.ReadAgain(OLD))
    rig.resumed(4).finished(3)
    assert rig.machine.state is QueryState.REGAINING
    rig.grant(A, lease_epoch=2, pinned=5, follows=1)
    rig.wait(resuming.REGRANT_SECONDS)
    return rig


def test_a_cut_that_does_not_come_back_as_a_whole_is_read_with_the_next_one() -> None:
    assert isinstance(given_up(whole_epochs=False).told, FixCut), "without epochs, what is there is read now"
    rig = given_up(whole_epochs=True)
    assert rig.machine.state is QueryState.LOSING
    rig.grant(B, lease_epoch=2, pinned=5, follows=1)
    lose_for_good(rig)
    assert rig.answer == ()
    rig.step(q.NextCut(OLD, Limits()))
    looked(rig, view((A, SESSION, 0), (B, SESSION, 0)))
    rig.found(BoundsFound((), True, BASE))
    rig.found(BoundsFound((FIRST._replace(ends={A: 5, B: 5}),)))
    assert isinstance(rig.told, FixCut)
    assert {one.stream: (one.start, one.end) for one in rig.told.ranges} == {A: (0, 5), B: (0, 5)}


def test_spark_does_not_wait_for_long_while_streams_move() -> None:
    rig = Rig(whole_epochs=True).begin_anew().grant(A).ends(5, A).ask()
    for _ in range(100):
        rig.wait(NEWS_SECONDS)
        if rig.machine.state is QueryState.SERVING:
            break
        if isinstance(rig.wanted.what, q.GroupView) and rig.machine.due is None:
            rig.found(OURS)
    assert rig.machine.state is QueryState.SERVING
    assert rig.answer.cut == 0
    assert ANSWER_SECONDS <= rig.now - 100 < ANSWER_SECONDS + 1


@pytest.mark.parametrize(
    ("state", "granted", "patient", "expected"),
    [
        ("stable", {A, B}, True, True),
        ("stable", {A}, True, False),
        ("rebalancing", {A, B}, True, False),
        ("rebalancing", {A, B}, False, True),
        ("rebalancing", {A}, False, False),
        ("paused", {A, B}, False, False),
    ],
)
def test_what_it_holds_in_all(state: str, granted: set[str], patient: bool, expected: bool) -> None:
    seen = view((A, FRESH, 0), (B, FRESH, 0), ("s.0.2", "q-other", 0), ("s.0.3", None, 0), state=state)
    assert holds_all(seen, FRESH, granted, patient=patient) is expected
