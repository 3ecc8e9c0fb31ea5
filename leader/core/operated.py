"""What operators have set on a group and what they did: the durable part, with its record.

One act is one record (`Acted`), answer included, so it is done wholly or not at all (invariant 9), and a
command that comes a second time, because its answer was lost, finds the first answer. The newest
`ACTS_KEPT` acts are kept in the state of the group, and with it in every snapshot, however far the journal
is trimmed.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

ACTS_KEPT = 200
"""How many acts a group remembers."""


class Acted(BaseModel):
    """An operator's act, or the refusal of one; what it changes in the group's state, it changes at once."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    type: Literal["acted"] = "acted"
    act: str
    who: str
    """``user@host`` of the command; empty for what the leader does by itself."""
    request: str = ""
    """Id of the command; the same id is never done twice."""
    at: int = 0
    """When, in milliseconds since 1970."""
    what: str = ""
    """What the act was done to, for people."""
    error: str = ""
    """Why it was refused: then nothing was changed."""
    body: str = "{}"
    """The answer, a JSON document."""
    stream: str | None = None
    borrower: str | None = None
    """A borrower's name."""
    until: int | None = None
    offsets: dict[str, int] = Field(default_factory=dict)
    """Of a reset: where each stream goes on."""
    behind: tuple[str, ...] = ()
    """Of a reset: streams that must wait again, because one that they follow is not finished any more."""


class BorrowerLeft(BaseModel):
    """A borrower is gone for good: what operators had set for it is void."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    type: Literal["borrower_left"] = "borrower_left"
    name: str


class Pause(BaseModel):
    """Since when, by whom and until when a group is paused."""

    model_config = ConfigDict(extra="forbid")

    at: int
    who: str
    until: int | None = None
    """Milliseconds since 1970; None: until it is resumed."""
    request: str = ""


class Act(BaseModel):
    """An act as the state of its group keeps it."""

    model_config = ConfigDict(extra="forbid")

    act: str
    who: str
    request: str
    at: int
    what: str
    error: str
    body: str


class Operated(BaseModel):
    """What operators have set, and what they did."""

    model_config = ConfigDict(extra="forbid")

    paused: Pause | None = None
    drained: dict[str, int] = Field(default_factory=dict)
    """Name of a borrower that gets no streams -> since when."""
    pins: dict[str, str] = Field(default_factory=dict)
    """Stream -> name of the borrower that it was moved to."""
    acts: list[Act] = Field(default_factory=list)
    """Oldest first."""

    def answered(self, request: str) -> Act | None:
        """The act that was done, or refused, for that command."""
        return next((act for act in reversed(self.acts) if act.request == request), None)

    def apply(self, record: Acted | BorrowerLeft) -> None:
        """Take over what the record says."""
        if isinstance(record, BorrowerLeft):
            self.drained.pop(record.name, None)
            self.pins = {stream: name for stream, name in self.pins.items() if name != record.name}
            return
        self.remember(record)
        if not record.error:
            self._do(record)

    def remember(self, record: Acted) -> None:
        """Keep the act."""
        self.acts.append(Act.model_validate(record.model_dump(include=set(Act.model_fields))))
        del self.acts[:-ACTS_KEPT]

    def _do(self, record: Acted) -> None:
        match record.act:
            case "pause":
                self.paused = Pause(at=record.at, who=record.who, until=record.until, request=record.request)
            case "resume":
                self.paused = None
            case "drain" if record.borrower is not None:
                self.drained[record.borrower] = record.at
            case "undrain" if record.borrower is not None:
                self.drained.pop(record.borrower, None)
            case "move" if record.stream is not None and record.borrower is not None:
                self.pins[record.stream] = record.borrower
            case "rebalance":
                self.pins.clear()
            case _:
                pass

    def forget_streams(self, streams: tuple[str, ...]) -> None:
        """Streams that do not exist any more, or are finished, belong to nobody."""
        for stream in streams:
            self.pins.pop(stream, None)
