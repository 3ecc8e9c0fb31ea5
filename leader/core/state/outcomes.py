"""What operators' acts come to: a closed union, one type for each act.

An outcome holds all that its act changes, and all that the answer says. It is decided once
(`parts/decisions.py`), stands in the journal as part of `Acted`, and is matched by its type wherever
something follows from it.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, assert_never

from pydantic import BaseModel, ConfigDict, Field

from streamlease.leader.core.planning.planner import Plan
from streamlease.leader.core.state.fields import Number, Stream

MOVES_KEPT = 100
"""Of how many streams the answer to a reset says from where to where they moved."""


class _Outcome(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Rebalanced(_Outcome):
    """A plan is made, without what was moved by hand: this one, as far as nothing changes meanwhile."""

    act: Literal["rebalance"] = "rebalance"
    plan: Plan


class SteppedDown(_Outcome):
    """The leader resigns."""

    act: Literal["step_down"] = "step_down"
    host: str
    term: Number


class GroupPaused(_Outcome):
    """All streams are asked back, and none is granted."""

    act: Literal["pause"] = "pause"
    until: Number | None
    """When the group resumes by itself, in milliseconds since 1970; None: it does not."""


class Resumed(_Outcome):
    """A pause is over."""

    act: Literal["resume"] = "resume"
    in_time: bool = False
    """The time that it was to last until has come."""


class Drained(_Outcome):
    """A borrower's streams are asked back, and it gets none."""

    act: Literal["drain"] = "drain"
    borrower: str
    """Its name."""
    streams: tuple[str, ...]
    """What it had."""


class Undrained(_Outcome):
    """A borrower may have streams again."""

    act: Literal["undrain"] = "undrain"
    borrower: str
    """Its name."""


class Moved(_Outcome):
    """A stream goes to a borrower, and stays there."""

    act: Literal["move"] = "move"
    stream: Stream
    owner: str | None
    """Who had it."""
    borrower: str
    """The name of the one that gets it."""


class StreamTaken(_Outcome):
    """A stream was released: its owner has it no more."""

    act: Literal["release"] = "release"
    stream: Stream
    owner: str
    lease_epoch: Number
    """Of the lease that ended."""


class Retried(_Outcome):
    """The message at which a stream stopped is tried anew."""

    act: Literal["retry"] = "retry"
    stream: Stream
    offset: Number


class SentToDeadLetters(_Outcome):
    """The message at which a stream stopped becomes a dead letter."""

    act: Literal["dead_letter"] = "dead_letter"
    stream: Stream
    offset: Number


class Reset(_Outcome):
    """Streams go on from other offsets."""

    act: Literal["reset"] = "reset"
    moves: dict[Stream, tuple[Number, Number]] = Field(min_length=1)
    """Of each stream, from where to where."""
    behind: tuple[Stream, ...]
    """Streams that must wait again, because one that they follow is not finished any more."""


class HoldsNothing(_Outcome):
    """The group holds no data until it is consumed again."""

    act: Literal["expire"] = "expire"


class Deleted(_Outcome):
    """The group ends."""

    act: Literal["delete"] = "delete"


Outcome = (
    Rebalanced
    | SteppedDown
    | GroupPaused
    | Resumed
    | Drained
    | Undrained
    | Moved
    | StreamTaken
    | Retried
    | SentToDeadLetters
    | Reset
    | HoldsNothing
    | Deleted
)
OutcomeField = Annotated[Outcome, Field(discriminator="act")]


def done_to(outcome: Outcome) -> str:
    """What the act was done to, for people."""
    match outcome:
        case SteppedDown():
            return outcome.host
        case Resumed():
            return "the time that it was paused until has come" if outcome.in_time else ""
        case Drained() | Undrained():
            return outcome.borrower
        case Moved():
            return f"{outcome.stream} to {outcome.borrower}"
        case StreamTaken() | Retried() | SentToDeadLetters():
            return outcome.stream
        case Reset():
            return f"{len(outcome.moves)} streams" if len(outcome.moves) > 1 else next(iter(outcome.moves))
        case Rebalanced() | GroupPaused() | HoldsNothing() | Deleted():
            return ""
        case _:
            assert_never(outcome)


def answer(outcome: Outcome) -> dict[str, Any]:
    """What the operator is told, as a JSON document."""
    match outcome:
        case Rebalanced():
            return {"plan": outcome.plan.document()}
        case SteppedDown():
            return {"host": outcome.host, "term": outcome.term}
        case GroupPaused():
            return {"until_ms": outcome.until}
        case Drained():
            return {"borrower": outcome.borrower, "streams": list(outcome.streams)}
        case Undrained():
            return {"borrower": outcome.borrower}
        case Moved():
            return {"stream": outcome.stream, "from": outcome.owner, "to": outcome.borrower}
        case StreamTaken():
            return {"stream": outcome.stream, "from": outcome.owner, "lease_epoch": outcome.lease_epoch}
        case Retried() | SentToDeadLetters():
            return {"stream": outcome.stream, "offset": outcome.offset}
        case Reset():
            moves = sorted(outcome.moves.items())[:MOVES_KEPT]
            return {
                "streams": len(outcome.moves),
                "moves": [{"stream": stream, "from": was, "to": at} for stream, (was, at) in moves],
                "wait_again": list(outcome.behind[:MOVES_KEPT]),
            }
        case Resumed() | HoldsNothing() | Deleted():
            return {}
        case _:
            assert_never(outcome)
