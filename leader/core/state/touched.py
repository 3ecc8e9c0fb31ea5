"""Which streams a record concerns: for those who keep a copy of what is durable. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import assert_never

from streamlease.leader.core.state import outcomes as o
from streamlease.leader.core.state.group_state import GroupState
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

EXPIRED = "@expired"
"""In place of a stream: whether the group holds data."""

PAUSED = "@paused"
"""In place of a stream: whether the group is paused."""


def moved_by(state: GroupState, record: Record) -> Iterable[str]:
    """The streams whose progress `record` changes, or `EXPIRED`, or `PAUSED`; asked before it is applied."""
    match record:
        case Committed():
            return record.offsets
        case CutClosed():
            cuts = state.sessions.get(record.session)
            return list(cuts.ranges) if cuts is not None and cuts.cut == record.cut else ()
        case CutOpened() | Leased() | Released() | HandedOver() | SessionForgotten():
            return ()
        case StreamsAdded():
            return record.starts
        case StreamsForgotten() | Attested():
            return record.streams
        case Truncated():
            return record.floors
        case DeadLettered():
            return (record.stream,)
        case Expired() | Returned():
            return (EXPIRED,)
        case Acted():
            return _moved_by_act(record.outcome)
        case StreamsAdvanced() | Failed() | TermStarted() | RefusedAct() | BorrowerLeft():
            return ()
        case _:
            assert_never(record)


def _moved_by_act(outcome: o.Outcome) -> Iterable[str]:
    match outcome:
        case o.Reset():
            return outcome.moves
        case o.HoldsNothing():
            return (EXPIRED,)
        case o.GroupPaused() | o.Resumed():
            return (PAUSED,)
        case o.Rebalanced() | o.SteppedDown() | o.Drained() | o.Undrained() | o.Moved():
            return ()
        case o.StreamTaken() | o.Retried() | o.SentToDeadLetters() | o.Deleted():
            return ()
        case _:
            assert_never(outcome)


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
