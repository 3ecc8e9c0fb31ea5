"""The records of a journal: a closed union. They alone change what is durable (`group_state`).

One group commit holds whole records only, so an act that is one record is visible wholly or not at all
(invariant 9).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from streamlease.leader.core.state.fields import Number, Stream
from streamlease.leader.core.state.operated import Acted, BorrowerLeft, DoneAct, RefusedAct
from streamlease.protocol.cuts import RangesField

Fate = Literal["retry", "dead_letter", "stop"]
"""What becomes of a failed message: it is tried again, becomes a dead letter, or stops its stream."""


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TermStarted(_Record):
    """A leader began to act."""

    type: Literal["term"] = "term"
    term: Number
    host: str
    lineage: str = ""
    """Of the data in which the term was issued (`registry/leadership.py`)."""


class StreamsAdded(_Record):
    """Streams now belong to the subscription, to be consumed from these offsets on."""

    type: Literal["streams"] = "streams"
    starts: dict[Stream, Number]
    waiting: tuple[Stream, ...] = ()
    """Those that may not be read before the streams that they follow are finished."""


class StreamsAdvanced(_Record):
    """Sealed streams are consumed to their end and nobody's; those that followed just them may be read."""

    type: Literal["advanced"] = "advanced"
    finished: tuple[Stream, ...]
    released: tuple[Stream, ...]


class StreamsForgotten(_Record):
    """Streams do not exist any more."""

    type: Literal["forgotten"] = "forgotten"
    streams: tuple[Stream, ...]


class Leased(_Record):
    """A stream is leased to the borrower name `name` of `session`."""

    type: Literal["leased"] = "leased"
    stream: Stream
    lease_epoch: Number
    name: str
    session: str
    session_timeout_ms: Number = 10_000


class Released(_Record):
    """That lease is over. An open cut of its session keeps its end for the next owner."""

    type: Literal["released"] = "released"
    stream: Stream
    lease_epoch: Number


class Committed(_Record):
    """Everything below these offsets is consumed."""

    type: Literal["committed"] = "committed"
    offsets: dict[Stream, Number]


class Attested(_Record):
    """What others have seen and the journal has lost: of each stream a lease epoch, and what is committed."""

    type: Literal["attested"] = "attested"
    streams: dict[Stream, tuple[Number, Number]]


class CutOpened(_Record):
    """A session's cut: it is the only one open, and all before it are finished."""

    type: Literal["cut_opened"] = "cut_opened"
    session: str
    cut: Number
    ranges: RangesField


class CutClosed(_Record):
    """A session's cut went through its sink: its ranges are committed."""

    type: Literal["cut_closed"] = "cut_closed"
    session: str
    cut: Number


class SessionForgotten(_Record):
    """A session is gone. Its open cut pins the ends of its ranges for the next owners."""

    type: Literal["session_forgotten"] = "session_forgotten"
    session: str


class HandedOver(_Record):
    """A stream reached its next owner. `clean`: the former one was alive and gave it up."""

    type: Literal["handed_over"] = "handed_over"
    stream: Stream
    milliseconds: Number
    """From the `Revoke`, or from the last sign of life of a lost owner, to the new owner's first word."""
    clean: bool


class Expired(_Record):
    """The group was idle for so long that retention need not wait for it any more."""

    type: Literal["expired"] = "expired"
    at: Number
    """Milliseconds of the Redis clock."""
    idle_ms: Number
    host: str

    def kept(self) -> DoneAct:
        """What the host did, as the state keeps it among the acts."""
        what = f"idle for {self.idle_ms // 1000} s"
        return DoneAct(act="expire", who=self.host, request="", at=self.at, what=what, body="{}")


class Returned(_Record):
    """An expired group is consumed again, and holds data again."""

    type: Literal["returned"] = "returned"


class Truncated(_Record):
    """Retention removed, or Redis lost, what was not consumed: these streams go on from these offsets."""

    type: Literal["truncated"] = "truncated"
    floors: dict[Stream, Number]


class Failed(_Record):
    """A message could not be processed, and this is what becomes of it."""

    type: Literal["failed"] = "failed"
    stream: Stream
    offset: Number
    lease_epoch: Number
    failure: str
    """Identity of this failure."""
    borrower: str
    cause: str
    fate: Fate


class DeadLettered(_Record):
    """A failed message stands durably among the dead letters: it is consumed."""

    type: Literal["dead_lettered"] = "dead_lettered"
    stream: Stream
    offset: Number
    into: str
    """The stream that holds the dead letter."""
    at: Number
    """Its offset there."""


Record = (
    TermStarted
    | StreamsAdded
    | StreamsAdvanced
    | StreamsForgotten
    | Leased
    | Released
    | Committed
    | Attested
    | CutOpened
    | CutClosed
    | SessionForgotten
    | HandedOver
    | Expired
    | Returned
    | Truncated
    | Failed
    | DeadLettered
    | Acted
    | RefusedAct
    | BorrowerLeft
)

_RECORDS: TypeAdapter[list[Record]] = TypeAdapter(list[Annotated[Record, Field(discriminator="type")]])


def encode_records(records: Iterable[Record]) -> bytes:
    """Records as one JSON array: the payload of one group commit."""
    return _RECORDS.dump_json([*records])


def decode_records(data: bytes) -> list[Record]:
    """The records of one group commit.

    Raises:
        pydantic.ValidationError: the data is not of this form.
    """
    return _RECORDS.validate_json(data)
