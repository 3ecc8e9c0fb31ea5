"""The answers that commands print: to an act, a publication or a check, or an error. Views print facts.

Programs may rely on them: names stay, and what is unknown is null. A leader's answer to an act is read here
too (`answered`); what a leader of another version says beyond that is left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from pydantic import Field, ValidationError

from streamlease.admin.facts.groups import LeaderRow
from streamlease.admin.facts.rows import MANY, Count, FactRow, Moment, Seconds, StreamName
from streamlease.protocol.errors import Unsupported

Answer = TypeVar("Answer", bound=FactRow)


def answered(kind: type[Answer], answer: Mapping[str, Any], **own: Any) -> Answer:
    """What a leader answered, as one of the kinds below.

    Args:
        own: fields that the command knows itself.

    Raises:
        Unsupported: the answer lacks something.
    """
    names = {field.alias or name for name, field in kind.model_fields.items()}
    try:
        return kind(**{name: value for name, value in answer.items() if name in names}, **own)
    except ValidationError as error:
        lacks = ", ".join(".".join(map(str, problem["loc"])) for problem in error.errors())
        raise Unsupported(
            f"the answer of the leader lacks {lacks}: use the same version of Streamlease on both sides"
        ) from None


class ErrorText(FactRow):
    type: str
    message: str


class Error(FactRow):
    """In place of any other document: what is wrong, with which value, and what to do."""

    error: ErrorText

    @classmethod
    def of(cls, error: Exception, text: str) -> Error:
        """An error, told in the line `text`."""
        return cls(error=ErrorText(type=type(error).__name__, message=text))


class Declared(FactRow):
    subscription: str
    start: str
    created: bool


class Options(FactRow):
    strategy: str | None
    revocation_timeout_ms: Count | None
    on_poison: Literal["dead-letter", "stop"]
    max_failures: Count
    retry_delay_ms: Count
    max_retry_delay_ms: Count
    dead_letters: str | None
    expiry_ms: Count | None


class Altered(FactRow):
    subscription: str
    options: Options


class Done(FactRow):
    """Of acts that say no more than that they are done."""

    subscription: str
    act: str
    dry_run: bool


class PausedUntil(Done):
    until: Moment | None


class Drained(Done):
    borrower: str
    streams: list[StreamName]


class Undrained(Done):
    borrower: str


class DrainedHost(FactRow):
    act: Literal["drain", "undrain"]
    host: str
    drained: bool
    leaders: list[str]
    not_moved: list[str]


class Moved(Done):
    stream: StreamName
    from_: str | None = Field(alias="from")
    to: str


class Released(Done):
    stream: StreamName
    from_: str = Field(alias="from")
    lease_epoch: Count


class Grant(FactRow):
    stream: StreamName
    to: str


class Rebalanced(FactRow):
    subscription: str
    dry_run: bool
    grants: list[Grant]
    revokes: list[StreamName]
    targets: dict[str, Count]


class SteppedDown(FactRow):
    subscription: str
    former: LeaderRow | None
    leader: LeaderRow | None


class ResetStream(FactRow):
    stream: StreamName
    from_: Count = Field(alias="from")
    to: Count
    again: Count
    skipped: Count
    note: str


class Reset(FactRow):
    subscription: str
    dry_run: bool
    streams: list[ResetStream]


class Act(FactRow):
    at: Moment | None
    who: str
    act: str
    what: str
    outcome: str
    request: str
    details: dict[str, Any]


class History(FactRow):
    subscription: str
    acts: list[Act]


class Replayed(FactRow):
    at: Moment | None = None
    by: str
    stream: StreamName
    offset: Count


class DeadLetter(FactRow):
    place: str
    topic: str | None
    stream: StreamName | None
    offset: int
    lease_epoch: Count
    failures: Count
    cause: str
    borrower: str | None
    bytes: Count
    timestamp: Moment
    replayed: Replayed | None


class DeadLetters(FactRow):
    subscription: str
    dead_letters: list[DeadLetter]


class ReplayedLetters(DeadLetters):
    dry_run: bool


class Unstopped(Done):
    stream: StreamName
    offset: Count


class AbortedPublisher(FactRow):
    space: str
    publisher: str
    aborted: bool


class ClosedStreams(FactRow):
    space: str
    closed: Count


class Deleted(FactRow):
    deleted: str


class CheckPlace(FactRow):
    stream: StreamName
    offset: Count
    why: str
    remedy: str


class Check(FactRow):
    """`places`: the streams that `message` is about, where what is wrong has an offset."""

    check: str
    level: Literal["ok", "warn", "fail"]
    message: str
    remedy: str
    places: tuple[CheckPlace, ...] = ()


class Doctor(FactRow):
    ok: bool
    checks: list[Check]


class EmbeddedRedis(FactRow):
    """Only `running` and `directory` if none runs."""

    running: bool
    directory: str
    url: str | None = None
    pid: Count | None = None
    port: Count | None = None
    persistent: bool | None = None
    started: Moment | None = None
    server: str | None = None


class StoppedRedis(FactRow):
    stopped: bool
    directory: str


class Published(FactRow):
    topic: str | None
    published: Count
    there_before: Count | None = None
    bytes: Count
    seconds: Seconds


class Imported(FactRow):
    space: str
    imported: Count
    there_before: Count
    deleted: Count
    pending: Count
    gone: Count


@dataclass
class Base64:
    """Bytes that are no UTF-8."""

    __pydantic_config__ = MANY

    base64: str


Bytes = str | Base64
Epoch = list[int]

_LINES = json.JSONEncoder(ensure_ascii=False, default=vars)


@dataclass
class Message:
    """One line for each message. `payload` is null and `values` is there in a space with a schema.

    With ``--epochs eager`` it has no offset yet, and `publisher` and `incarnation` say who sent it.
    """

    __pydantic_config__ = MANY

    topic: str
    key: Bytes | None
    payload: Bytes | None
    stream: StreamName
    offset: Count | None
    timestamp: Moment
    headers: list[tuple[str, Bytes]]
    epoch: Epoch | None
    values: dict[str, Any] | None = None
    publisher: str | None = None
    incarnation: Count | None = None

    def as_line(self) -> str:
        """As ``--json`` prints it."""
        fields = vars(self)
        if self.values is None or self.publisher is None:
            fields = {name: value for name, value in fields.items() if value is not None or name in _ALWAYS}
        return _LINES.encode(fields)


_ALWAYS = {"key", "payload", "offset", "epoch"}
"""What every message has a field for, null or not."""


class CollectionItem(FactRow):
    """`payload` is null and `values` are the columns in a space with a schema."""

    topic: str
    key: Bytes | None
    payload: Bytes | None
    values: dict[str, Any] | None = None


class CountedItem(CollectionItem):
    count: int
    """Below 0 if it was taken away more often than it was added."""


class CollectionShown(FactRow):
    items: list[CountedItem]
    frontier: list[Epoch] | None
    """The lower frontier of the point; null without epochs."""


class ItemChanged(FactRow):
    """With ``--follow``: first each item with its count, behind the snapshot each change."""

    item: CollectionItem
    diff: int


class SnapshotEnded(FactRow):
    """What follows came behind the point."""

    snapshot: bool


class EpochsBegun(FactRow):
    """The first line with ``--epochs``, unless it begins at the earliest."""

    lower: list[Epoch]
    """What is not at or above one of these is completed."""
    upper: list[Epoch]
    """What is at or below one of these may have had messages."""


class FrontierMoved(FactRow):
    """Every message of an epoch that is not at or above one of these stands above this line."""

    frontier: list[Epoch]


class AbortedOpen(FactRow):
    """With ``--epochs eager``: what a publisher that is gone, or came back, had open."""

    publisher: str
    incarnation: Count
    epochs: list[Epoch]
    """Its messages at or above one of these, of this incarnation, are not valid."""


class EpochsAborted(FactRow):
    aborted: AbortedOpen
