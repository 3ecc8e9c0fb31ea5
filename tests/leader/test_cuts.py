"""Cuts of sessions: fixed once, finished once, and never read by two sessions with other ends."""

from __future__ import annotations

import pytest

from streamlease.leader.core.state.group_cuts import SessionCuts
from streamlease.leader.core.state.group_state import GroupState
from streamlease.leader.core.state.open_ranges import OpenRanges
from streamlease.leader.core.state.records import (
    Committed,
    CutClosed,
    CutOpened,
    Leased,
    Released,
    SessionForgotten,
    StreamsAdded,
    StreamsForgotten,
)
from streamlease.protocol.cuts import CutRange, Ranges
from streamlease.protocol.messages import CutFinished, CutFixed, CutResumed, FinishCut, FixCut, Grant
from tests.leader.make import (
    GROUP,
    S0,
    S1,
    Rig,
    finish,
    finished,
    fix,
    goodbye,
    led,
    only,
    part,
    progress,
    resume,
    wanted,
)

SESSION = "s-n-b1"
BOTH = Ranges.of((part(S0, 1, 0, 10), part(S1, 1, 0, 20)))


def fixed(rig: Rig, message: FixCut) -> Ranges:
    answer = only(rig.hear(message, "driver"), CutFixed)
    assert (answer.session, answer.cut, answer.term) == (message.session, message.cut, rig.leader.term)
    assert answer.proposal == message.proposal
    return message.ranges if answer.ranges is None else answer.ranges


def resumed(rig: Rig, cut: int, session: str = SESSION) -> Ranges:
    return only(rig.hear(resume(session, cut)), CutResumed).ranges


def test_a_cut_is_durable_before_it_is_answered() -> None:
    rig = led()
    effects = rig.hear(fix(SESSION, 1, *BOTH), "driver")
    assert [type(effect).__name__ for effect in effects] == ["Persist", "Send"]
    assert only(effects, CutFixed).ranges is None  # just as asked for
    assert rig.journal[-1] == CutOpened(session=SESSION, cut=1, ranges=BOTH)


def test_a_cut_is_fixed_once_whatever_is_asked_for_later() -> None:
    rig = led()
    fixed(rig, fix(SESSION, 1, *BOTH))
    before = rig.frozen()
    assert fixed(rig, fix(SESSION, 1, part(S0, 1, 0, 99))) == BOTH
    assert fixed(rig, fix(SESSION, 1)) == BOTH
    assert rig.frozen() == before


def test_finishing_commits_the_ranges_once() -> None:
    rig = led()
    fixed(rig, fix(SESSION, 1, *BOTH))
    for _ in range(2):
        assert only(rig.hear(finish(SESSION, 1)), CutFinished).finished == 1
        assert (rig.committed(S0), rig.committed(S1)) == (10, 20)
    assert rig.journal.count(CutClosed(session=SESSION, cut=1)) == 1


@pytest.mark.parametrize("term", [1, 0, 2], ids=["its own", "an earlier one", "a later one"])
def test_only_the_leader_that_fixed_a_cut_finishes_it_without_its_ranges(term: int) -> None:
    rig = led()
    fixed(rig, fix(SESSION, 1, *BOTH))
    before, refused = rig.frozen(), rig.leader.ledger.refused
    message = FinishCut(group=GROUP, session=SESSION, arrival=1, finished=1, ranges=None, term=term)
    effects = rig.hear(message)
    if term == rig.leader.term:
        assert only(effects, CutFinished).finished == 1
        assert only(effects, CutFinished).progress == ()  # the session knows it
        assert (rig.committed(S0), rig.committed(S1)) == (10, 20)
    else:
        assert effects == []
        assert rig.frozen() == before
        assert rig.leader.ledger.refused == refused + 1


def test_a_session_that_names_the_ranges_is_told_all_that_is_committed() -> None:
    rig = led()
    fixed(rig, fix(SESSION, 1, BOTH[0]))
    answer = only(rig.hear(finish(SESSION, 1, BOTH[0])), CutFinished)
    assert {entry.stream: entry.offset for entry in answer.progress} == {S0: 10, S1: 0}


def test_who_finishes_a_cut_hears_of_a_later_one_that_is_finished() -> None:
    rig = led()
    fixed(rig, fix(SESSION, 1, *BOTH))
    fixed(rig, fix(SESSION, 2, part(S0, 1, 10, 12)))
    rig.hear(finish(SESSION, 2))
    assert only(rig.hear(finish(SESSION, 1)), CutFinished).finished == 2


def test_the_next_cut_finishes_the_one_before() -> None:
    rig = led()
    fixed(rig, fix(SESSION, 1, *BOTH))
    assert fixed(rig, fix(SESSION, 2, part(S0, 1, 10, 15))) == (part(S0, 1, 10, 15),)
    assert rig.committed(S1) == 20
    rig.hear(finish(SESSION, 1))  # late: cut 2 stays open
    assert rig.committed(S0) == 10
    assert resumed(rig, 2) == (part(S0, 1, 10, 15),)


def test_only_the_valid_ranges_are_fixed() -> None:
    rig = led((S0, S1), ("b1", "b2"))
    mine = next(stream for stream, owner in rig.owners.items() if owner == "b1")
    other = ({S0, S1} - {mine}).pop()
    good = part(mine, 1, 0, 10)
    assert fixed(rig, fix(SESSION, 1, good, part(other, 1, 0, 10), part("s.9.9", 1, 0, 10))) == (good,)


@pytest.mark.parametrize(
    "bad",
    [
        part(S0, 2, 0, 10),
        part(S0, 0, 0, 10),
        part(S0, 1, 5, 10),
        part(S0, 1, 0, 0),
        part("s.9.9", 1, 0, 10),
    ],
    ids=["later epoch", "earlier epoch", "begins elsewhere", "empty", "unknown stream"],
)
def test_a_range_that_is_not_the_session_s_next_is_left_out(bad: CutRange) -> None:
    rig = led()
    before = rig.frozen()
    assert fixed(rig, fix(SESSION, 1, bad)) == ()
    assert rig.frozen() == before
    assert fixed(rig, fix(SESSION, 1, bad, BOTH[1])) == (BOTH[1],)


@pytest.mark.parametrize("final", [False, True], ids=["revoking", "revoked"])
def test_a_stream_on_its_way_out_is_in_no_new_cut(final: bool) -> None:
    rig = led()
    rig.join("b2")
    rig.settle()
    if final:
        rig.hear(progress("b1", S1, 1, 0, final=True))
    assert fixed(rig, fix(SESSION, 1, *BOTH)) == (BOTH[0],)


@pytest.mark.parametrize("final", [False, True], ids=["revoking", "revoked"])
def test_a_session_that_wants_all_or_nothing_gets_nothing_while_a_stream_is_on_its_way_out(
    final: bool,
) -> None:
    rig = led()
    rig.join("b2")
    rig.settle()
    if final:
        rig.hear(progress("b1", S1, 1, 0, final=True))
    whole = fix(SESSION, 1, *BOTH).model_copy(update={"whole": True})
    before = rig.frozen()
    assert fixed(rig, whole) == ()
    assert rig.frozen() == before
    assert fixed(rig, fix(SESSION, 1, BOTH[0]).model_copy(update={"whole": True})) == (BOTH[0],)
    assert fixed(rig, whole) == (BOTH[0],), "that is fixed now, whatever is asked for later"


def test_a_cut_number_does_not_go_back() -> None:
    rig = led()
    fixed(rig, fix(SESSION, 5, *BOTH))
    rig.hear(finish(SESSION, 5))
    before, refused = rig.frozen(), rig.leader.ledger.refused
    for cut in (5, 4, 1):
        assert fixed(rig, fix(SESSION, cut, part(S0, 1, 10, 15), finished=cut - 1)) == ()
    assert rig.frozen() == before
    assert rig.leader.ledger.refused == refused + 3


def test_an_open_cut_is_not_dropped_for_another_number() -> None:
    rig = led()
    fixed(rig, fix(SESSION, 5, *BOTH))
    before = rig.frozen()
    assert fixed(rig, fix(SESSION, 6, part(S0, 1, 0, 3), finished=4)) == ()
    assert fixed(rig, fix(SESSION, 4, part(S0, 1, 0, 3))) == ()
    assert rig.frozen() == before
    assert resumed(rig, 5) == BOTH


def test_a_session_without_a_borrower_fixes_nothing() -> None:
    rig = led()
    before = rig.frozen()
    assert fixed(rig, fix("stranger", 1, *BOTH)) == ()
    assert rig.frozen() == before


def test_an_earlier_incarnation_of_a_session_is_not_heard() -> None:
    rig = Rig()
    rig.join("b1", arrival=4)
    rig.streams(S0)
    rig.settle()
    rig.accept()
    before = rig.frozen()
    for message in (
        fix(SESSION, 1, part(S0, 1, 0, 9), arrival=3),
        finish(SESSION, 9, arrival=3),
        resume(SESSION, 1, arrival=3),
    ):
        assert rig.hear(message) == []
    assert rig.frozen() == before
    assert rig.leader.ledger.refused == 3
    assert fixed(rig, fix(SESSION, 1, part(S0, 1, 0, 9), arrival=4)) != ()


# ---------------------------------------------------------------- resuming


def test_a_restarted_session_gets_its_open_cut_back() -> None:
    rig = led()
    fixed(rig, fix(SESSION, 1, *BOTH))
    rig.hear(wanted("b1b", name="n-b1", session=SESSION, arrival=2), "new box")
    assert only(rig.hear(resume(SESSION, 1, arrival=2)), CutResumed).ranges == BOTH
    rig.hear(finish(SESSION, 1, arrival=2))
    assert (rig.committed(S0), rig.committed(S1)) == (10, 20)


def test_an_open_cut_survives_the_leader() -> None:
    rig = led()
    fixed(rig, fix(SESSION, 1, *BOTH))
    rig = rig.crash()
    rig.join("b1", attempt=2)
    assert resumed(rig, 1) == BOTH
    assert fixed(rig, fix(SESSION, 1)) == BOTH
    rig.hear(finish(SESSION, 1))
    assert rig.committed(S1) == 20


@pytest.mark.parametrize("cut", [1, 3])
def test_resuming_another_cut_than_the_open_one_returns_nothing(cut: int) -> None:
    rig = led()
    fixed(rig, fix(SESSION, 2, *BOTH))
    assert resumed(rig, cut) == ()


def evicted() -> Rig:
    """b1's session had [0, 10) of S0 in its open cut when b1 fell silent; b2 takes over."""
    rig = led((S0,))
    fixed(rig, fix(SESSION, 1, part(S0, 1, 0, 10)))
    rig.now = 9100
    rig.join("b2")
    rig.tick(1000)
    rig.settle()
    rig.accept()
    assert rig.owners == {S0: "b2"}
    return rig


def test_the_cut_of_an_evicted_session_is_void() -> None:
    rig = evicted()
    assert resumed(rig, 1) == ()
    rig.hear(finish(SESSION, 1))
    assert rig.committed(S0) == 0


def test_the_next_owner_s_cut_ends_where_the_evicted_one_ended() -> None:
    rig = evicted()
    assert rig.leader.durable.streams[S0].pinned_end == 10
    assert fixed(rig, fix("s-n-b2", 1, part(S0, 2, 0, 50))) == (part(S0, 2, 0, 10),)
    rig.hear(finish("s-n-b2", 1))
    assert rig.leader.durable.streams[S0].pinned_end is None
    assert fixed(rig, fix("s-n-b2", 2, part(S0, 2, 10, 50))) == (part(S0, 2, 10, 50),)


def test_a_smaller_wish_is_stretched_to_the_pinned_end() -> None:
    assert fixed(evicted(), fix("s-n-b2", 1, part(S0, 2, 0, 3))) == (part(S0, 2, 0, 10),)


def test_the_grant_tells_the_pinned_end() -> None:
    rig = led((S0,))
    fixed(rig, fix(SESSION, 1, part(S0, 1, 0, 10)))
    effects = rig.hear(wanted("b2", name="n-b1", session="other", arrival=2), "box-b2")
    assert only(effects, Grant).pinned_end == 10


def test_the_pin_stays_until_the_end_is_committed() -> None:
    rig = evicted()
    rig.hear(progress("b2", S0, 2, 6))
    assert rig.leader.durable.streams[S0].pinned_end == 10
    rig.hear(goodbye("b2", (S0, 2, 7)))
    assert only(rig.join("b3"), Grant).pinned_end == 10
    rig.accept()
    rig.hear(progress("b3", S0, 3, 12))
    assert rig.leader.durable.streams[S0].pinned_end is None


def test_a_stream_revoked_in_good_order_leaves_no_pin() -> None:
    rig = led((S0, S1))
    fixed(rig, fix(SESSION, 1, *BOTH))
    rig.join("b2")
    rig.settle()
    rig.hear(finish(SESSION, 1))
    rig.hear(progress("b1", S1, 1, 20, final=True))
    effects = rig.hear(finished("b1", S1, 1))
    assert (only(effects, Grant).progress, only(effects, Grant).pinned_end) == (20, None)


# ---------------------------------------------------------------- what is forgotten


def test_a_session_is_forgotten_with_its_last_borrower() -> None:
    rig = Rig()
    for n in (1, 2):
        rig.join(f"b{n}", session="twin")
    rig.streams(S0, S1)
    rig.settle()
    rig.accept()
    fixed(rig, fix("twin", 1, part(S0, 1, 0, 5)))
    rig.hear(goodbye("b1"))
    assert "twin" in rig.leader.durable.sessions
    rig.hear(goodbye("b2"))
    assert list(rig.leader.durable.sessions) == []
    assert SessionForgotten(session="twin") in rig.journal


def test_a_session_whose_names_were_all_taken_over_is_forgotten() -> None:
    """Else each restart of a query under the same name leaves one behind (invariant 11)."""
    rig = led((S0,))
    for n in range(2, 6):
        rig.hear(wanted(f"b{n}", name="n-b1", session=f"run-{n}", arrival=n), f"box-{n}")
        rig.accept()
        start = rig.committed(S0)
        fixed(rig, fix(f"run-{n}", 1, part(S0, n, start, start + 5), arrival=n))
        rig.hear(finish(f"run-{n}", 1, arrival=n))
    assert list(rig.leader.durable.sessions) == ["run-5"]
    assert rig.replayed() == rig.leader.durable


def test_a_session_that_held_nothing_when_the_leader_fell_is_forgotten_by_the_next() -> None:
    """Nobody will be missed who could have it forgotten later (invariant 11)."""
    rig = led((S0,))
    fixed(rig, fix(SESSION, 1, part(S0, 1, 0, 5)))
    rig.hear(finish(SESSION, 1))
    rig.join("b0", name="a")
    rig.leader.durable.apply(Released(stream=S0, lease_epoch=1))
    rig.journal.append(Released(stream=S0, lease_epoch=1))
    assert SESSION in rig.replayed().sessions
    assert list(rig.crash().leader.durable.sessions) == []


def test_a_session_that_still_holds_a_stream_is_kept_by_the_next_leader() -> None:
    rig = led((S0,))
    fixed(rig, fix(SESSION, 3, part(S0, 1, 0, 5)))
    assert rig.crash().leader.durable.sessions[SESSION].cut == 3


def test_a_stream_that_is_deleted_leaves_its_open_cut() -> None:
    rig = led()
    fixed(rig, fix(SESSION, 1, *BOTH))
    rig.streams(S1)
    assert resumed(rig, 1) == (BOTH[1],)
    assert only(rig.hear(finish(SESSION, 1)), CutFinished).finished == 1
    assert rig.committed(S1) == 20
    assert rig.replayed() == rig.leader.durable


# ---------------------------------------------------------------- the records by themselves


def held(*, session: str = "s") -> GroupState:
    state = GroupState()
    state.apply(StreamsAdded(starts={S0: 3}))
    state.apply(Leased(stream=S0, lease_epoch=1, name="n", session=session))
    return state


def test_committed_offsets_do_not_go_back() -> None:
    state = held()
    state.apply(Committed(offsets={S0: 8}))
    state.apply(Committed(offsets={S0: 5}))
    assert state.streams[S0].committed == 8


def test_adding_a_stream_again_keeps_its_progress() -> None:
    state = held()
    state.apply(Committed(offsets={S0: 8}))
    state.apply(StreamsAdded(starts={S0: 0, S1: 1}))
    assert (state.streams[S0].committed, state.streams[S1].committed) == (8, 1)


def test_closing_another_cut_commits_nothing() -> None:
    state = held()
    state.apply(CutOpened(session="s", cut=4, ranges=Ranges.of((part(S0, 1, 3, 9),))))
    state.apply(CutClosed(session="s", cut=3))
    assert state.streams[S0].committed == 3
    assert state.sessions["s"].cut == 4


def test_forgetting_an_unknown_stream_or_session_is_nothing() -> None:
    state = held()
    before = state.model_copy(deep=True)
    state.apply(StreamsForgotten(streams=("s.9.9",)))
    state.apply(SessionForgotten(session="nobody"))
    assert state == before


def test_moves_are_counted_between_sessions_only() -> None:
    state = held(session="a")
    state.apply(Leased(stream=S0, lease_epoch=2, name="m", session="a"))
    assert state.moves == 0
    state.apply(Released(stream=S0, lease_epoch=2))
    state.apply(Leased(stream=S0, lease_epoch=3, name="m", session="b"))
    assert state.moves == 1


def test_a_snapshot_is_read_back() -> None:
    state = held()
    state.apply(CutOpened(session="s", cut=4, ranges=Ranges.of((part(S0, 1, 3, 9),))))
    assert GroupState.restore(state.snapshot()) == state
    assert state.sessions.root == {
        "s": SessionCuts(finished=3, cut=4, ranges=OpenRanges(Ranges.of((part(S0, 1, 3, 9),))))
    }
