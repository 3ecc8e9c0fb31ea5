"""When a query makes a cut of whole epochs: once all of its streams are there, and a boundary is known."""

from __future__ import annotations

import pytest

from streamlease.protocol.messages import FixCut
from streamlease.spark.core import query_events as q
from streamlease.spark.core.conversations.query_desk import ANSWER_SECONDS, NEWS_SECONDS
from streamlease.spark.core.epoch_ends import Bound, BoundsFound
from streamlease.spark.core.query_states import QueryState
from streamlease.spark.core.targets import holds_all
from tests.spark.query_rig import FRESH, A, B, Rig, part
from tests.spark.test_query_machine import view

BASE = Bound(0, ((0,),), {A: 0, B: 0})
FIRST = Bound(1, ((1,),), {A: 5, B: 3}, frozenset({((0,), A), ((0,), B)}))
OURS = view((A, FRESH, 0), (B, FRESH, 0))


def looked(rig: Rig) -> None:
    """The query looks at the group, and sees that both streams are its own."""
    rig.wait(NEWS_SECONDS)
    assert isinstance(rig.wanted.what, q.GroupView)
    rig.found(OURS)


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


def test_a_part_that_was_asked_back_meanwhile_is_told() -> None:
    rig = first_cut().fix(part(A, 0, 5))
    assert "cut 1: 1 of 2 streams were asked back just then" in rig.said


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
