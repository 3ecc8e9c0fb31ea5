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
from streamlease.spark.core import query_machine, resuming
from streamlease.spark.core.limits import Limits
from streamlease.spark.core.query_desk import Desk
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


def ways() -> dict[tuple[QueryState, QueryMove], Callable[[], Rig]]:
    """For every move, how it comes about."""

    def do(state: QueryState, *acts: Callable[[Rig], Any]) -> Callable[[], Rig]:
        def run() -> Rig:
            rig = rig_in(state)
            for act in acts:
                act(rig)
            return rig

        return run

    def late(rig: Rig) -> None:
        rig.found(True)

    def stop(rig: Rig) -> None:
        rig.step(q.StopQuery())

    def give_up(rig: Rig) -> None:
        rig.step(q.GivenUp())

    def over(rig: Rig) -> None:
        rig.step(q.SessionOver(Fenced("replaced")))

    def unconfirmed_and_called(state: QueryState) -> Callable[[], Rig]:
        """A query that has finished a cut, which nobody has confirmed, is asked something and stopped."""

        def run() -> Rig:
            rig = rig_in(state)
            rig.machine.cuts.settled = rig.machine.cuts.unconfirmed = True
            rig.machine.cuts.open = None
            stop(rig)
            return rig

        return run

    def settled_and_called(state: QueryState) -> Callable[[], Rig]:
        def run() -> Rig:
            rig = rig_in(state)
            rig.machine.cuts.settled, rig.machine.cuts.unconfirmed = True, False
            rig.machine.cuts.open = None
            stop(rig)
            return rig

        return run

    def open_and_called(state: QueryState) -> Callable[[], Rig]:
        def run() -> Rig:
            rig = rig_in(state)
            rig.machine.cuts.open = OLD
            stop(rig)
            return rig

        return run

    found: dict[tuple[QueryState, QueryMove], Callable[[], Rig]] = {
        (S.NEW, M.BEGUN): do(S.NEW, lambda rig: rig.step(q.BeginQuery(OLD, True))),
        (S.STARTING, M.ARRIVED): do(S.STARTING, lambda rig: rig.found(3)),
        (S.STARTING, M.ANSWERED): do(S.STARTING, give_up),
        (S.SERVING, M.FIXED_BEFORE): do(S.SERVING, lambda rig: rig.ask(OLD)),
        (S.SERVING, M.WANTED): do(S.NEW, Rig.begin_anew, Rig.ask),
        (S.FINISHING, M.CONFIRMED): do(S.FINISHING, lambda rig: rig.finished(4)),
        (S.FINISHING, M.BEHIND): do(S.FINISHING, lambda rig: rig.finished(6)),
        (S.OVERTAKEN, M.WRITTEN_LATER): do(S.OVERTAKEN, late),
        (S.FOLLOWING, M.WANTED): do(S.FOLLOWING, lambda rig: rig.resumed(5)),
        (S.LOOKING, M.PROPOSED): do(S.LOOKING, lambda rig: rig.grant(A).ends(5, A)),
        (S.ASKING, M.BEHIND): do(S.ASKING, lambda rig: rig.fix(finished=6)),
        (S.ASKING, M.PASSED_OVER): do(S.CHECKING),
        (S.SERVING, M.UNFINISHED): do(S.SERVING, lambda rig: rig.step(q.ReadAgain(OLD))),
        (S.RESUMING, M.FEWER): do(S.RESUMING, lambda rig: rig.resumed(4)),
        (S.FINISHING, M.NONE_LEFT): do(S.REGAINING),
        (S.FINISHING, M.TAKEN_OVER): do(S.LOSING),
        (S.REGAINING, M.PROPOSED): do(
            S.REGAINING,
            lambda rig: rig.grant(A, B, lease_epoch=2, pinned=5, follows=1),
        ),
        (S.REGAINING, M.TAKEN_OVER): do(S.REGAINING, lambda rig: rig.wait(resuming.REGRANT_SECONDS)),
        (S.ASKING, M.TAKEN_OVER): do(
            S.REGAINING,
            lambda rig: rig.grant(A, B, lease_epoch=2, pinned=5, follows=1),
            lambda rig: rig.fix(part(A, 0, 5, 2)),
        ),
        (S.LOSING, M.AGAIN): do(S.LOSING, lambda rig: lose_for_good(rig, term=TERM + 1)),
        **{(state, M.ANSWERED): do(state, give_up) for state in CALLED},
        **{(state, M.STOPPED): unconfirmed_and_called(state) for state in (S.SERVING, *CALLED)},
        **{(state, M.SETTLED): settled_and_called(state) for state in (S.SERVING, *CALLED)},
        (S.CONFIRMING, M.SETTLED): do(S.CONFIRMING, lambda rig: rig.finished(1)),
        **{(state, M.SILENCED): do(state, stop) for state in (S.NEW, S.STARTING, S.FAILED)},
        **{(state, M.SILENCED): open_and_called(state) for state in (S.SERVING, *CALLED)},
        (S.CONFIRMING, M.SILENCED): do(S.CONFIRMING, lambda rig: rig.wait(query_machine.LEAVE_SECONDS)),
        (S.LEAVING, M.SILENCED): do(S.LEAVING, lambda rig: rig.step(q.SessionOver())),
        **{(state, M.OVER): do(state, over) for state in (S.STARTING, S.SERVING, *CALLED)},
    }
    return found


WAYS = ways()


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
    WAYS[state, move]()
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
