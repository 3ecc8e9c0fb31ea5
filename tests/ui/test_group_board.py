"""What the console keeps of one group: lag over time, and who consumes it. No server is needed."""

from __future__ import annotations

from dataclasses import replace

from streamlease.admin.ui.group_board import HEAT_MS, PAUSE_MS, GroupBoard
from streamlease.leader.core.state.group_state import GroupState
from streamlease.leader.core.state.operated import Acted
from streamlease.leader.core.state.outcomes import SentToDeadLetters
from streamlease.leader.core.state.records import Failed, Leased, StreamsAdded
from streamlease.leader.journals import JournalNews
from streamlease.protocol.topics import SharedSubscription
from streamlease.registry.leadership import LeaderRecord

LED = LeaderRecord(term=4905, host="box", mailbox="box", renewed_at=0, ttl=10_000, read_at=0)
LEFT = replace(LED, host="")


def board_of(state: GroupState) -> GroupBoard:
    board = GroupBoard(SharedSubscription("g", "a/#"))
    state.apply(StreamsAdded(starts={"a.0.0": 0, "a.0.1": 0}))
    return board


def test_an_unknown_lag_is_never_0_and_comes_first_in_the_heat_map() -> None:
    state, begin = GroupState(), 1_000_000
    board = board_of(state)
    for step, ends in enumerate(({"a.0.0": 7, "a.0.1": 0}, {"a.0.0": 9}, {"a.0.0": 3, "a.0.1": 0})):
        board.take(JournalNews(), state, ends, begin + step * HEAT_MS, None)
    found = board.heat_map()
    assert found["streams"] == [["a.0.1", [0, None, 0]], ["a.0.0", [7, 9, 3]]]
    assert (found["gaps"], found["others"]) == ([], 0)


def test_while_nobody_looked_the_heat_map_has_a_gap() -> None:
    state, begin = GroupState(), 1_000_000
    board = board_of(state)
    for at in (begin, begin + PAUSE_MS + 1):
        board.take(JournalNews(), state, {"a.0.0": 5, "a.0.1": 0}, at, None)
    found = board.heat_map()
    assert found["streams"] == [["a.0.0", [5, None, 5]]]
    assert found["gaps"] == [1]
    assert found["times"] == [begin, begin + PAUSE_MS, begin + PAUSE_MS + 1]


def test_owners_that_a_dead_leader_left_are_no_consumers() -> None:
    state = GroupState()
    board = board_of(state)
    state.apply(Leased(stream="a.0.0", name="ana", session="s", lease_epoch=1))
    board.take(JournalNews(), state, {"a.0.0": 5, "a.0.1": 0}, 0, None)

    def summary(leader: LeaderRecord, borrowers: int | None) -> tuple[int, int | None, str]:
        board.summarize(state, leader, ["a"], None, None, borrowers)
        assert board.summary is not None
        return board.summary.held, board.summary.borrowers, board.summary.state

    assert summary(LED, 0) == (1, 1, "consuming"), "the catalog comes later"
    assert summary(LED, 2) == (1, 2, "consuming")
    assert summary(LEFT, 0) == (0, 0, "no leader")
    assert summary(LEFT, 1) == (0, 1, "no leader")
    assert summary(LEFT, None) == (0, None, "no leader"), "who cannot be counted is not none"


def test_what_happened_before_an_act_is_shown_too() -> None:
    """At the first look, the state keeps the act, and the journal has what went before and came after."""
    act = Acted(who="ana", request="r", at=2000, outcome=SentToDeadLetters(stream="a.0.0", offset=3))
    failed = Failed(
        stream="a.0.0", offset=3, lease_epoch=1, failure="f", borrower="b", cause="ValueError", fate="stop"
    )
    leased = Leased(stream="a.0.0", name="ana", session="s", lease_epoch=2)
    state = GroupState()
    board = board_of(state)
    state.operated.acts.append(act.kept())
    news = JournalNews(((1000, failed), (2000, act), (3000, leased)), anew=True)
    board.take(news, state, {"a.0.0": 5, "a.0.1": 0}, 4000, None)
    assert [(one["at"], one["what"]) for one in board.events] == [
        (1000, "failure"), (2000, "act"), (3000, "lease")
    ]  # fmt: skip
    board.take(news, state, {"a.0.0": 5, "a.0.1": 0}, 5000, None)
    assert len(board.events) == 3, "it was read from its beginning again"


def test_an_act_that_is_the_newest_event_is_told_once() -> None:
    """Its record is written a moment after it, and is read again when the journal is read anew."""
    act = Acted(who="ana", request="r", at=2000, outcome=SentToDeadLetters(stream="a.0.0", offset=3))
    again = act.model_copy(update={"request": "s", "at": 2500})
    state = GroupState()
    board = board_of(state)
    state.operated.acts.append(act.kept())
    ends = {"a.0.0": 5, "a.0.1": 0}
    board.take(JournalNews(((2003, act),), anew=True), state, ends, 4000, None)
    board.take(JournalNews(((2003, act),), anew=True), state, ends, 5000, None)
    assert [one["at"] for one in board.events] == [2000]
    state.operated.acts.append(again.kept())
    board.take(JournalNews(((2003, act), (2504, again)), anew=True), state, ends, 6000, None)
    assert [one["at"] for one in board.events] == [2000, 2504], "the same act again is another one"
