"""Whose streams a record concerns: for those who keep a copy of who has what. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

from streamlease.leader.core.state import outcomes as o
from streamlease.leader.core.state.operated import Acted, BorrowerLeft, RefusedAct
from streamlease.leader.core.state.records import (
    Attested,
    Committed,
    CutClosed,
    CutOpened,
    DeadLettered,
    Expired,
    Failed,
    HandedOver,
    Leased,
    Record,
    Released,
    Returned,
    SessionForgotten,
    StreamsAdded,
    StreamsAdvanced,
    StreamsForgotten,
    TermStarted,
    Truncated,
)


def leased_by(record: Record) -> Sequence[str]:
    """The streams whose owner, or place in the order of streams, `record` changes."""
    match record:
        case Leased() | Released():
            return (record.stream,)
        case StreamsAdvanced():
            return record.finished + record.released
        case StreamsForgotten():
            return record.streams
        case Acted():
            return _leased_by_act(record.outcome)
        case Committed() | CutOpened() | CutClosed() | SessionForgotten() | HandedOver() | Truncated():
            return ()
        case StreamsAdded() | Attested() | Failed() | DeadLettered() | TermStarted():
            return ()
        case Expired() | Returned() | RefusedAct() | BorrowerLeft():
            return ()
        case _:
            assert_never(record)


def _leased_by_act(outcome: o.Outcome) -> Sequence[str]:
    match outcome:
        case o.StreamTaken():
            return (outcome.stream,)
        case o.Reset():
            return (*outcome.moves, *outcome.behind)
        case (
            o.Rebalanced() | o.SteppedDown() | o.GroupPaused() | o.Resumed() | o.HoldsNothing() | o.Deleted()
        ):
            return ()
        case o.Drained() | o.Undrained() | o.Moved() | o.Retried() | o.SentToDeadLetters():
            return ()
        case _:
            assert_never(outcome)
