"""Every move of a query, and every event that is not legal."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from streamlease.borrower.events import StreamGone, StreamGranted, StreamRevoking
from streamlease.protocol.cuts import NO_RANGES
from streamlease.protocol.errors import (
    Fenced,
    InvalidInput,
    StoreUnavailable,
)
from streamlease.protocol.messages import (
    CutFixed,
    CutResumed,
)
from streamlease.spark.core import query_events as q
from streamlease.spark.core.conversations import resuming, stopping
from streamlease.spark.core.conversations.query_desk import Desk
from streamlease.spark.core.limits import Limits
from streamlease.spark.core.query_states import CALLED, QUERY_TRANSITIONS, QueryMove, QueryState
from tests.spark.query_rig import (
    GROUP,
    OLD,
    SESSION,
    TERM,
    A,
    B,
    M,
    Rig,
    S,
    lose_for_good,
    part,
    rig_in,
)

# ---------------------------------------------------------------- the table


@pytest.mark.parametrize("state", S, ids=lambda state: state.value)
def test_there_is_a_way_to_every_state(state: QueryState) -> None:
    assert rig_in(state).machine.state is state


Act = Callable[[Rig], Any]
Way = tuple[QueryState, tuple[Act, ...]]
"""A state to begin in, and what is done then."""


def way(state: QueryState, *acts: Act) -> Way:
    return state, acts


def late(rig: Rig) -> None:
    """Spark writes the checkpoint later."""
    rig.found(True)


def stop(rig: Rig) -> None:
    rig.step(q.StopQuery())


def give_up(rig: Rig) -> None:
    rig.step(q.GivenUp())


def over(rig: Rig) -> None:
    rig.step(q.SessionOver(Fenced("replaced")))


def leave_unconfirmed(rig: Rig) -> None:
    """The leader has not confirmed the last cut, and none is open."""
    cuts = rig.machine.cuts
    cuts.settled, cuts.finished.unconfirmed, cuts.open = True, True, None


def confirm_all(rig: Rig) -> None:
    """The leader has confirmed the last cut, and none is open."""
    cuts = rig.machine.cuts
    cuts.settled, cuts.finished.unconfirmed, cuts.open = True, False, None


def leave_open(rig: Rig) -> None:
    """A cut is open."""
    rig.machine.cuts.open = OLD


def regain(rig: Rig) -> None:
    """The streams of the cut come back, and must be read as before."""
    rig.grant(A, B, lease_epoch=2, pinned=5, follows=1)


FOLLOWING_CUT: dict[tuple[QueryState, QueryMove], Way] = {
    (S.NEW, M.BEGUN): way(S.NEW, lambda rig: rig.step(q.BeginQuery(OLD, True))),
    (S.STARTING, M.ARRIVED): way(S.STARTING, lambda rig: rig.found(3)),
    (S.SERVING, M.FIXED_BEFORE): way(S.SERVING, lambda rig: rig.ask(OLD)),
    (S.SERVING, M.WANTED): way(S.NEW, Rig.begin_anew, Rig.ask),
    (S.FINISHING, M.CONFIRMED): way(S.FINISHING, lambda rig: rig.finished(4)),
    (S.FINISHING, M.BEHIND): way(S.FINISHING, lambda rig: rig.finished(6)),
    (S.OVERTAKEN, M.WRITTEN_LATER): way(S.OVERTAKEN, late),
    (S.FOLLOWING, M.WANTED): way(S.FOLLOWING, lambda rig: rig.resumed(5)),
    (S.LOOKING, M.PROPOSED): way(S.LOOKING, lambda rig: rig.grant(A).ends(5, A)),
    (S.ASKING, M.BEHIND): way(S.ASKING, lambda rig: rig.fix(finished=6)),
    (S.ASKING, M.PASSED_OVER): way(S.CHECKING),
}
UNFINISHED_CUT: dict[tuple[QueryState, QueryMove], Way] = {
    (S.SERVING, M.UNFINISHED): way(S.SERVING, lambda rig: rig.step(q.ReadAgain(OLD))),
    (S.RESUMING, M.FEWER): way(S.RESUMING, lambda rig: rig.resumed(4)),
    (S.FINISHING, M.NONE_LEFT): way(S.REGAINING),
    (S.FINISHING, M.TAKEN_OVER): way(S.LOSING),
    (S.REGAINING, M.PROPOSED): way(S.REGAINING, regain),
    (S.REGAINING, M.TAKEN_OVER): way(S.REGAINING, lambda rig: rig.wait(resuming.REGRANT_SECONDS)),
    (S.ASKING, M.TAKEN_OVER): way(S.REGAINING, regain, lambda rig: rig.fix(part(A, 0, 5, 2))),
    (S.LOSING, M.AGAIN): way(S.LOSING, lambda rig: lose_for_good(rig, term=TERM + 1)),
}
THE_END: dict[tuple[QueryState, QueryMove], Way] = {
    **{(state, M.ANSWERED): way(state, give_up) for state in (S.STARTING, *CALLED)},
    **{(state, M.STOPPED): way(state, leave_unconfirmed, stop) for state in (S.SERVING, *CALLED)},
    **{(state, M.SETTLED): way(state, confirm_all, stop) for state in (S.SERVING, *CALLED)},
    (S.CONFIRMING, M.SETTLED): way(S.CONFIRMING, lambda rig: rig.finished(1)),
    **{(state, M.SILENCED): way(state, stop) for state in (S.NEW, S.STARTING, S.FAILED)},
    **{(state, M.SILENCED): way(state, leave_open, stop) for state in (S.SERVING, *CALLED)},
    (S.CONFIRMING, M.SILENCED): way(S.CONFIRMING, lambda rig: rig.wait(stopping.LEAVE_SECONDS)),
    (S.LEAVING, M.SILENCED): way(S.LEAVING, lambda rig: rig.step(q.SessionOver())),
    **{(state, M.OVER): way(state, over) for state in (S.STARTING, S.SERVING, *CALLED)},
}
WAYS = FOLLOWING_CUT | UNFINISHED_CUT | THE_END
"""For every move, how it comes about."""


@pytest.fixture
def moves(monkeypatch: pytest.MonkeyPatch) -> list[tuple[QueryState, QueryMove]]:
    """The moves that machines take."""
    taken: list[tuple[QueryState, QueryMove]] = []
    real = Desk.move

    def move(desk: Desk, move: QueryMove) -> None:
        taken.append((desk.state, move))
        real(desk, move)

    monkeypatch.setattr(Desk, "move", move)
    return taken


def test_every_row_of_the_table_has_a_way_and_no_way_is_without_a_row() -> None:
    assert WAYS.keys() == QUERY_TRANSITIONS.keys()


@pytest.mark.parametrize(("state", "move"), WAYS, ids=lambda value: value.value)
def test_every_row_of_the_table_is_taken(
    state: QueryState, move: QueryMove, moves: list[tuple[QueryState, QueryMove]]
) -> None:
    beginning, acts = WAYS[state, move]
    rig = rig_in(beginning)
    for act in acts:
        act(rig)
    assert (state, move) in moves


@pytest.mark.parametrize(
    ("state", "move"),
    [pair for pair in itertools.product(S, M) if pair not in QUERY_TRANSITIONS],
    ids=lambda value: value.value,
)
def test_no_other_move_is_possible(state: QueryState, move: QueryMove) -> None:
    desk = Desk()
    desk.state = state
    with pytest.raises(AssertionError, match=f"{state.value} cannot be {move.value}"):
        desk.move(move)
    assert desk.state is state


# ---------------------------------------------------------------- illegal events

EVENTS: dict[str, q.Event] = {
    "begin": q.BeginQuery(OLD, True),
    "next cut": q.NextCut(OLD, Limits()),
    "read again": q.ReadAgain(OLD),
    "stop": q.StopQuery(),
    "given up": q.GivenUp(),
    "found out": q.FoundOut(99, True),
    "not found out": q.NotFoundOut(99, StoreUnavailable("away")),
    "a stream came": q.StreamCame(0, StreamGranted(A, 1, 0, None, None)),
    "revoking what is not held": StreamRevoking("s.0.9", 1),
    "gone what is not held": StreamGone("s.0.9", 1),
    "an answer that nobody asked for": q.Heard(
        CutFixed(group=GROUP, session=SESSION, term=TERM, cut=9, ranges=NO_RANGES, proposal=99)
    ),
    "a cut that nobody asked for": q.Heard(
        CutResumed(group=GROUP, session=SESSION, term=TERM, cut=99, ranges=NO_RANGES)
    ),
    "an end": q.EndMoved(A, 3),
    "ends are watched": q.EndsWatched(),
    "targets": q.TargetsKnown({A: 3}, False),
    "went behind": q.WentBehind(A),
    "the session left": q.SessionOver(),
    "the session failed": q.SessionOver(Fenced("replaced")),
}
SESSIONLESS = {S.NEW, S.STARTING, S.ENDED}
IN_SESSION = {"a stream came", "an end", "ends are watched", "went behind"}


def is_legal(state: QueryState, name: str) -> bool:
    match name:
        case "begin":
            return state in (S.NEW, S.FAILED)  # which answers with its error
        case "next cut" | "read again":
            return state in (S.SERVING, S.FAILED)
        case "stop":
            return state not in (S.CONFIRMING, S.LEAVING, S.ENDED)
        case "given up":
            return state in (S.STARTING, *CALLED)
        case "targets":
            return state in (S.NEW, S.SERVING)
        case "the session left":
            return state in (S.CONFIRMING, S.LEAVING)
        case "the session failed":
            return (state, M.OVER) in QUERY_TRANSITIONS or state in (S.CONFIRMING, S.LEAVING)
        case _:
            return name in IN_SESSION and state not in SESSIONLESS


@pytest.mark.parametrize("name", EVENTS)
@pytest.mark.parametrize("state", S, ids=lambda state: state.value)
def test_an_event_that_is_not_legal_is_told_and_changes_nothing(state: QueryState, name: str) -> None:
    rig = rig_in(state)
    refused, call = rig.machine.refused, rig.machine._desk.call
    effects = rig.step(EVENTS[name])
    told = [effect for effect in effects if isinstance(effect, q.EventRefused)]
    if is_legal(state, name):
        assert not told
        return
    assert told == [q.EventRefused(type(EVENTS[name]).__name__, state.value)]
    assert (rig.machine.refused, rig.machine.state, rig.machine._desk.call) == (refused + 1, state, call)
    assert all(isinstance(effect, q.EventRefused | q.Refuse) for effect in effects)


@pytest.mark.parametrize(("state", "text"), [(S.NEW, "new"), (S.ENDED, "ended")])
def test_who_asks_a_query_that_has_not_begun_or_has_ended_is_refused(state: QueryState, text: str) -> None:
    rig = rig_in(state)
    rig.step(q.NextCut(OLD, Limits()))
    assert isinstance(rig.answer, InvalidInput)
    assert text in str(rig.answer)
