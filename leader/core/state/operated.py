"""What operators have set on a group and what they did: the durable part, with its records.

One act is one record (`Acted`, or `RefusedAct`), answer included, so it is done wholly or not at all
(invariant 9), and a command that comes a second time, because its answer was lost, finds the first answer.
The newest `ACTS_KEPT` acts are kept in the state of the group, and with it in every snapshot, however far the
journal is trimmed.
"""

from __future__ import annotations

import json
from typing import Annotated, Literal, assert_never

from pydantic import BaseModel, ConfigDict, Field

from streamlease.leader.core.state import outcomes as o
from streamlease.leader.core.state.fields import Number, Stream
from streamlease.protocol.acts import LastingName

ACTS_KEPT = 200
"""How many acts a group remembers."""


class Acted(BaseModel):
    """An operator's act; what it changes in the group's state, it changes at once."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    type: Literal["acted"] = "acted"
    who: str
    """``user@host`` of the command; empty for what the leader does by itself."""
    request: str
    """Id of the command; the same id is never done twice."""
    at: Number
    """When, in milliseconds since 1970; 0: not known."""
    outcome: o.OutcomeField

    def kept(self) -> DoneAct:
        """The act as the state keeps it: without what only changes the state."""
        return DoneAct(
            act=self.outcome.act,
            who=self.who,
            request=self.request,
            at=self.at,
            what=o.done_to(self.outcome),
            body=json.dumps(o.answer(self.outcome)),
        )


class RefusedAct(BaseModel):
    """An act that an operator wanted, and that was not done: nothing is changed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    type: Literal["refused"] = "refused"
    act: LastingName
    who: str
    request: str
    at: Number
    what: str
    """What it was to be done to, for people."""
    error: str
    """Why it was refused."""


class BorrowerLeft(BaseModel):
    """A borrower is gone for good: what operators had set for it is void."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    type: Literal["borrower_left"] = "borrower_left"
    name: str


class DoneAct(BaseModel):
    """An act that was done, as the state of its group keeps it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    type: Literal["done"] = "done"
    act: LastingName
    who: str
    request: str
    at: Number
    what: str
    """What it was done to, for people."""
    body: str
    """The answer, a JSON document."""


KeptAct = DoneAct | RefusedAct


class Pause(BaseModel):
    """Since when, by whom and until when a group is paused."""

    model_config = ConfigDict(extra="forbid")

    at: Number
    who: str
    until: Number | None = None
    """Milliseconds since 1970; None: until it is resumed."""
    request: str = ""


class Operated(BaseModel):
    """What operators have set, and what they did."""

    model_config = ConfigDict(extra="forbid")

    paused: Pause | None = None
    drained: dict[str, Number] = Field(default_factory=dict)
    """Name of a borrower that gets no streams -> since when."""
    pins: dict[Stream, str] = Field(default_factory=dict)
    """Stream -> name of the borrower that it was moved to."""
    acts: list[Annotated[KeptAct, Field(discriminator="type")]] = Field(default_factory=list)
    """Oldest first."""

    def answered(self, request: str) -> KeptAct | None:
        """The act that was done, or refused, for that command."""
        return next((act for act in reversed(self.acts) if act.request == request), None)

    def remember(self, act: KeptAct) -> None:
        """Keep the act."""
        self.acts.append(act)
        del self.acts[:-ACTS_KEPT]

    def set(self, record: Acted) -> None:
        """Take over what the act sets; what it does to streams is the business of `GroupState`."""
        match record.outcome:
            case o.GroupPaused(until=until):
                self.paused = Pause(at=record.at, who=record.who, until=until, request=record.request)
            case o.Resumed():
                self.paused = None
            case o.Drained(borrower=borrower):
                self.drained[borrower] = record.at
            case o.Undrained(borrower=borrower):
                self.drained.pop(borrower, None)
            case o.Moved(stream=stream, borrower=borrower):
                self.pins[stream] = borrower
            case o.Rebalanced():
                self.pins.clear()
            case o.SteppedDown() | o.Deleted() | o.HoldsNothing():
                pass
            case o.StreamTaken() | o.Retried() | o.SentToDeadLetters() | o.Reset():
                pass
            case _:
                assert_never(record.outcome)

    def forget_borrower(self, name: str) -> None:
        """What was set for a borrower that is gone is void."""
        self.drained.pop(name, None)
        self.pins = {stream: owner for stream, owner in self.pins.items() if owner != name}

    def forget_streams(self, streams: tuple[str, ...]) -> None:
        """Streams that do not exist any more, or are finished, belong to nobody."""
        for stream in streams:
            self.pins.pop(stream, None)
