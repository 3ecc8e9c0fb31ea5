"""Only what the tables allow happens, and what they refuse changes nothing (invariant 10)."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from enum import Enum
from pathlib import Path

import pytest

from streamlease.borrower.events import (
    Disconnected,
    Effect,
    Ended,
    Event,
    LeaderFound,
    Progressed,
    Received,
    Started,
    StreamGone,
    StreamGranted,
    Tick,
    Unsubscribed,
)
from streamlease.borrower.lease import STREAM_TRANSITIONS, StreamEvent, StreamState
from streamlease.borrower.life import BORROWER_TRANSITIONS, BorrowerEvent, BorrowerState
from streamlease.borrower.machine import Borrower
from streamlease.protocol.messages import LeaderToBorrower
from tests.borrower.make import (
    CONFIG,
    LEASE_EPOCH,
    STREAM,
    TERM,
    committed,
    connect_response,
    connected,
    frozen,
    grant,
    hear,
    in_state,
    invalidate,
    not_leader,
    pong,
    progressed,
    revoke,
    revoked,
)

B, E = BorrowerState, BorrowerEvent

# What brings each event about, given a borrower in some state that holds STREAM if it can.
CAUSES: dict[BorrowerEvent, Callable[[Borrower], list[Effect]]] = {
    E.ACCEPTED: lambda borrower: hear(borrower, connect_response()),
    E.UNSUBSCRIBED: lambda borrower: borrower.step(Unsubscribed(), 1),
    E.DISCONNECTED: lambda borrower: borrower.step(Disconnected(), 1),
    E.INVALIDATED: lambda borrower: hear(borrower, invalidate()),
    E.DRAINED: lambda borrower: borrower.step(progressed(11, final=True), 1),
}


@pytest.mark.parametrize(("state", "event"), list(itertools.product(B, E)), ids=lambda value: value.value)
def test_every_event_in_every_state(state: BorrowerState, event: BorrowerEvent) -> None:
    borrower = in_state(state, [grant()])
    before, refused = frozen(borrower), borrower.refused
    effects = CAUSES[event](borrower)
    target = BORROWER_TRANSITIONS.get((state, event))
    if target is not None:
        assert borrower.state is target
        assert borrower.refused == refused
    else:
        assert frozen(borrower) == before
        assert effects == []
        # A second copy of the leader's answer is welcome and not counted as wrong.
        benign = event is E.ACCEPTED and state in (B.CONNECTED, B.UNSUBSCRIBING)
        assert borrower.refused == refused + (not benign)


def test_no_state_of_a_borrower_or_stream_is_ever_entered_again() -> None:
    for moves, last in (
        ({(a.value, b.value) for (a, _), b in BORROWER_TRANSITIONS.items()}, "ended"),
        ({(a.value, b.value) for (a, _), b in STREAM_TRANSITIONS.items()}, "gone"),
    ):
        reach = set(moves)
        while True:
            more = {(a, d) for a, b in reach for c, d in reach if b == c} - reach
            if not more:
                break
            reach |= more
        assert all(a != b for a, b in reach), "a cycle"
        assert all(a != last for a, _ in reach), "a way back from the end"
        starts = {a for a, _ in moves}
        assert all((a, last) in reach for a in starts), "a state without a way to the end"


@pytest.mark.parametrize(
    ("whose", "moves", "states"),
    [
        ("borrower", BORROWER_TRANSITIONS, list(BorrowerState)),
        ("its lease", STREAM_TRANSITIONS, list(StreamState)),
    ],
)
def test_the_way_that_the_docs_draw_is_in_the_table(
    whose: str, moves: dict[tuple[Enum, Enum], Enum], states: list[Enum]
) -> None:
    text = (Path(__file__).parents[2] / "docs" / "concepts.md").read_text(encoding="utf-8")
    (line,) = [line for line in text.splitlines() if line.startswith(f"{whose}:")]
    drawn = line.partition(":")[2].strip().split(" -> ")
    assert drawn == [state.value for state in states]
    ways = {(start.value, end.value) for (start, _), end in moves.items()}
    assert set(itertools.pairwise(drawn)) <= ways


S, V = StreamState, StreamEvent

STREAM_CAUSES: dict[StreamEvent, LeaderToBorrower] = {
    V.REVOKE: revoke(),
    V.REVOKED: revoked(),
    V.REPLACED: grant(lease_epoch=LEASE_EPOCH + 1, progress=12),
    V.ENDED: invalidate(),
}


def holding(state: StreamState) -> Borrower:
    borrower = connected(grant())
    if state is not S.GRANTED:
        hear(borrower, revoke())
        borrower.step(progressed(11, final=True), 0)
    if state is S.GONE:
        hear(borrower, revoked())
    return borrower


@pytest.mark.parametrize(("state", "event"), list(itertools.product(S, V)), ids=lambda value: value.value)
def test_every_event_of_a_held_stream(state: StreamState, event: StreamEvent) -> None:
    borrower = holding(state)
    before = frozen(borrower)
    effects = hear(borrower, STREAM_CAUSES[event])
    target = STREAM_TRANSITIONS.get((state, event))
    known = 11 if (state, event) == (S.REVOKING, V.REVOKED) else None  # its final progress is durable
    gone = StreamGone(STREAM, LEASE_EPOCH, known) in effects
    granted = any(isinstance(effect, StreamGranted) for effect in effects)
    if target is S.REVOKING:
        assert borrower.streams[STREAM].state is S.REVOKING
        assert not gone
    elif target is S.GONE:
        assert gone
        assert granted is (event is V.REPLACED)
        assert (STREAM in borrower.streams) is (event is V.REPLACED)
    elif (state, event) == (S.GONE, V.REPLACED):
        assert granted  # nothing to replace: an ordinary grant
        assert not gone
    elif (state, event) == (S.GONE, V.ENDED):
        assert effects == [Ended("unknown", again=True)]  # without a word of the stream
    else:
        assert frozen(borrower) == before
        assert not gone
        assert not granted


# ---------------------------------------------------------------- messages x states

MESSAGES: dict[str, LeaderToBorrower] = {
    "connect response": connect_response(),
    "not leader": not_leader(),
    "ping response": pong(),
    "grant": grant(),
    "grant again": grant(lease_epoch=LEASE_EPOCH + 1, progress=12),
    "grant of another": grant("s.0.1", 1),
    "revoke": revoke(),
    "revoked": revoked(),
    "committed": committed(10),
    "invalidate": invalidate(),
    "replaced": invalidate("replaced"),
}

# State, or what is to come of each message: R refused, N nothing, E ends, otherwise the effects' names.
EXPECTED: dict[tuple[str, BorrowerState], str] = {
    ("connect response", B.CONNECTING): "",
    ("connect response", B.CONNECTED): "",
    ("connect response", B.UNSUBSCRIBING): "",
    ("not leader", B.CONNECTING): "",
    ("not leader", B.CONNECTED): "StreamGone Ended",
    ("not leader", B.UNSUBSCRIBING): "StreamGone Ended",
    ("ping response", B.CONNECTING): "refused",
    ("ping response", B.CONNECTED): "",
    ("ping response", B.UNSUBSCRIBING): "",
    ("grant", B.CONNECTING): "refused",
    ("grant", B.CONNECTED): "SendToLeader",
    ("grant", B.UNSUBSCRIBING): "",
    ("grant again", B.CONNECTING): "refused",
    ("grant again", B.CONNECTED): "StreamGone StreamGranted SendToLeader",
    ("grant again", B.UNSUBSCRIBING): "",
    ("grant of another", B.CONNECTING): "refused",
    ("grant of another", B.CONNECTED): "StreamGranted SendToLeader",
    ("grant of another", B.UNSUBSCRIBING): "",
    ("revoke", B.CONNECTING): "refused",
    ("revoke", B.CONNECTED): "StreamRevoking",
    ("revoke", B.UNSUBSCRIBING): "",
    ("revoked", B.CONNECTING): "refused",
    ("revoked", B.CONNECTED): "StreamGone SendToLeader",
    ("revoked", B.UNSUBSCRIBING): "",
    ("committed", B.CONNECTING): "refused",
    ("committed", B.CONNECTED): "ProgressAcknowledged",
    ("committed", B.UNSUBSCRIBING): "ProgressAcknowledged",
    ("invalidate", B.CONNECTING): "Ended",
    ("invalidate", B.CONNECTED): "StreamGone Ended",
    ("invalidate", B.UNSUBSCRIBING): "StreamGone Ended",
    ("replaced", B.CONNECTING): "Ended",
    ("replaced", B.CONNECTED): "StreamGone Ended",
    ("replaced", B.UNSUBSCRIBING): "StreamGone Ended",
    **{(name, B.ENDED): "refused" for name in MESSAGES},
}


@pytest.mark.parametrize(("name", "state"), list(itertools.product(MESSAGES, B)), ids=str)
def test_every_message_in_every_state(name: str, state: BorrowerState) -> None:
    borrower = in_state(state, [grant()])
    before, refused = frozen(borrower), borrower.refused
    effects = hear(borrower, MESSAGES[name], now=1)
    expected = EXPECTED[name, state]
    if expected == "refused":
        assert (effects, frozen(borrower), borrower.refused) == ([], before, refused + 1)
    else:
        assert " ".join(type(effect).__name__ for effect in effects) == expected
        assert borrower.refused == refused


TERMED = ["connect response", "ping response", "grant", "revoke", "revoked", "committed", "invalidate"]


@pytest.mark.parametrize("state", [B.CONNECTED, B.UNSUBSCRIBING], ids=lambda state: state.value)
@pytest.mark.parametrize("name", [*TERMED, "replaced"])
def test_a_message_of_a_former_term_changes_nothing(name: str, state: BorrowerState) -> None:
    borrower = in_state(state, [grant()])
    before, refused = frozen(borrower), borrower.refused
    late = MESSAGES[name].model_copy(update={"term": TERM - 1})
    assert hear(borrower, late, now=1) == []
    assert frozen(borrower) == before
    assert borrower.refused == refused + 1


@pytest.mark.parametrize("state", [B.CONNECTED, B.UNSUBSCRIBING], ids=lambda state: state.value)
@pytest.mark.parametrize("name", TERMED)
def test_a_message_of_a_later_term_ends_it(name: str, state: BorrowerState) -> None:
    borrower = in_state(state, [grant()])
    effects = hear(borrower, MESSAGES[name].model_copy(update={"term": TERM + 1}), now=1)
    assert borrower.state is B.ENDED
    assert effects[0] == StreamGone(STREAM, LEASE_EPOCH)
    assert getattr(effects[-1], "again", None) is True


# ---------------------------------------------------------------- after the end, and before the beginning

EVENTS: list[Event] = [
    Started(),
    LeaderFound("elsewhere", TERM + 1),
    *(Received(message) for message in MESSAGES.values()),
    Progressed(STREAM, LEASE_EPOCH, 99),
    Unsubscribed(),
    Disconnected(),
    Tick(),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_nothing_happens_after_the_end(event: Event) -> None:
    borrower = in_state(B.ENDED, [grant()])
    before, refused = frozen(borrower), borrower.refused
    assert borrower.step(event, 10**9) == []
    assert frozen(borrower) == before
    assert borrower.refused == refused + 1


@pytest.mark.parametrize("state", [B.CONNECTED, B.UNSUBSCRIBING], ids=lambda state: state.value)
@pytest.mark.parametrize("event", [Started(), LeaderFound("elsewhere", TERM + 1)], ids=["start", "found"])
def test_a_connected_borrower_neither_starts_nor_looks_again(event: Event, state: BorrowerState) -> None:
    borrower = in_state(state, [grant()])
    before, refused = frozen(borrower), borrower.refused
    assert borrower.step(event, 10 * CONFIG.find_leader_interval) == []
    assert frozen(borrower) == before
    assert borrower.refused == refused + 1
