"""The control messages between borrowers, sessions, leaders and operators: a closed union.

The names are those of EIP-0028, "Messages/callbacks between the Borrower and the Leader". Added are the
term (fencing token of a leadership), the lease epoch (fencing token of a lease), the cuts of a session and
the commands of operators. Every message may be lost, duplicated, delayed or reordered on its way.

::

    borrower -> leader            leader -> borrower
    LeaderWanted                  LeaderConnectResponse | NotLeader
    Ping                          PingResponse
    UpdateProgress                Grant, Revoke, Revoked, ProgressCommitted
    RevokeFinished                Invalidate
    MessageFailed                 FailureTaken
    Disconnect

    session -> leader             leader -> session
    FixCut, FinishCut             CutFixed, CutFinished
    ResumeCut                     CutResumed

    task -> session
    CutRead

    agent -> host
    SpawnWanted

    operator -> leader            leader -> operator
    Command                       CommandDone | CommandRefused

    operator -> host              host -> operator
    DrainHost                     CommandDone | CommandRefused
    Command, led elsewhere        CommandAstray
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from streamlease.protocol.acts import ActField
from streamlease.protocol.cuts import NO_RANGES, Offset, RangesField, Text
from streamlease.protocol.ids import HIGHEST_TOLD
from streamlease.protocol.topics import MAX_BYTES

Group = Annotated[str, Field(min_length=1, max_length=MAX_BYTES)]
MAX_CAUSE = 2000
"""Most characters of the cause of a failure that are kept."""

Verdict = Literal["retry", "passed", "stopped"]
"""What becomes of a message that failed: it is tried again; it stands durably among the dead letters (or is
behind the group already) and the next one may be processed; or its stream is stopped."""


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    group: Group
    """Identity of the shared subscription, ``GROUP/FILTER``."""


Hole = tuple[Offset, Offset]
"""The first offset that a stream has not, and the one where it goes on."""


class Progress(BaseModel):
    """How far a borrower has consumed one stream under one lease."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    stream: Text
    lease_epoch: Offset
    offset: Offset
    """The next offset to consume: everything below it is done."""
    final: bool = False
    """Nothing more will come under this lease; answers a Revoke."""
    holes: tuple[Hole, ...] = Field(default=(), exclude_if=lambda holes: not holes)
    """What lies below `offset` and was lost: it was passed over, and counts as truncated."""


# ---------------------------------------------------------------- borrower -> leader


class LeaderWanted(_Message):
    """A new borrower asks its leader for a connection; also the request that finds the leader."""

    type: Literal["leader_wanted"] = "leader_wanted"
    borrower: Text
    session: Text
    name: Text
    """Static name: a newcomer with the same name takes its streams over at once."""
    arrival: Offset
    """Rises with every session of the group: of two with one name, the later one is right."""
    attempt: Offset
    """Rises with every borrower that one session makes under one name."""
    host: Text
    session_timeout_ms: Annotated[int, Field(ge=100, le=86_400_000)]
    attested: tuple[Progress, ...] = ()
    """What the borrower's session has seen of each stream: its newest lease epoch, and what is committed."""


class Ping(_Message):
    """A borrower is alive and asks whether its leader is."""

    type: Literal["ping"] = "ping"
    borrower: Text
    term: Offset


class UpdateProgress(_Message):
    """Progress of some streams; also the acknowledgement of their grants."""

    type: Literal["update_progress"] = "update_progress"
    borrower: Text
    progress: tuple[Progress, ...]


class RevokeFinished(_Message):
    """The borrower has forgotten a stream after `Revoked`."""

    type: Literal["revoke_finished"] = "revoke_finished"
    borrower: Text
    stream: Text
    lease_epoch: Offset


class MessageFailed(_Message):
    """A message could not be processed; everything before it in its stream is done."""

    type: Literal["message_failed"] = "message_failed"
    borrower: Text
    stream: Text
    lease_epoch: Offset
    offset: Offset
    failure: Text
    """Identity of this failure: it counts once, however often the message arrives."""
    cause: Annotated[str, Field(max_length=MAX_CAUSE)]


class Disconnect(_Message):
    """The borrower leaves and gives all its streams back."""

    type: Literal["disconnect"] = "disconnect"
    borrower: Text
    progress: tuple[Progress, ...]


# ---------------------------------------------------------------- session -> leader


class FixCut(_Message):
    """A session wants `ranges` fixed as its cut number `cut`; all cuts up to `finished` are done."""

    type: Literal["fix_cut"] = "fix_cut"
    session: Text
    arrival: Offset
    cut: Annotated[int, Field(ge=1)]
    finished: Offset
    ranges: RangesField
    proposal: Offset = 0
    """Rises with every other wish of the session: the answer tells which one it is to."""


class FinishCut(_Message):
    """All cuts of a session up to `finished` went through its sink."""

    type: Literal["finish_cut"] = "finish_cut"
    session: Text
    arrival: Offset
    finished: Offset
    ranges: RangesField | None = NO_RANGES
    """What cut `finished` was: the leader may have lost it. None if the leader of `term`, which alone answers
    then, has fixed it itself and surely knows it."""
    term: Offset = 0


class ResumeCut(_Message):
    """A restarted session asks which ranges of its unfinished cut are still its own."""

    type: Literal["resume_cut"] = "resume_cut"
    session: Text
    arrival: Offset
    cut: Annotated[int, Field(ge=1)]
    ranges: RangesField = NO_RANGES
    """What the cut was when it was fixed: the leader may have lost it."""


# ---------------------------------------------------------------- task -> session


class CutRead(_Message):
    """A task has read its slot's part of a cut; of two attempts the higher one counts."""

    type: Literal["cut_read"] = "cut_read"
    session: Text
    cut: Annotated[int, Field(ge=1)]
    slot: Offset
    attempt: Offset
    messages: Offset
    bytes: Offset
    milliseconds: Offset


# ---------------------------------------------------------------- agent -> host, host -> host


class SpawnWanted(_Message):
    """See to it that the group gets a leader: by a job that any host may take, or by leading it."""

    type: Literal["spawn_wanted"] = "spawn_wanted"
    above: Annotated[int, Field(ge=0, le=HIGHEST_TOLD)] = 0
    """The highest term of the group that the sender has seen; the new one must be higher."""
    placed: bool = False
    """The receiver was chosen to lead: no job is to be made any more."""


# ---------------------------------------------------------------- operator -> leader


class Command(_Message):
    """An operator's act. `who` and `at` are kept in the group's history.

    A command may be sent again, under the same `request`, until it is answered: it is done once.
    """

    type: Literal["command"] = "command"
    request: Text
    act: ActField
    who: str = ""
    at: Offset = 0
    """When it was given, in milliseconds since 1970 by the clock of Redis."""
    dry_run: bool = False
    """Only answer what it would do."""


class DrainHost(_Message):
    """A leader host is to take no leaders and step down from its own, one by one; or to take them again.

    `group` is the name of the host.
    """

    type: Literal["drain_host"] = "drain_host"
    request: Text
    who: str = ""
    at: Offset = 0
    undo: bool = False


# ---------------------------------------------------------------- leader -> borrower


class LeaderConnectResponse(_Message):
    """The leader has accepted the borrower."""

    type: Literal["leader_connect_response"] = "leader_connect_response"
    borrower: Text
    term: Offset
    leader: Text


class NotLeader(_Message):
    """The host that was asked does not lead the group: find the leader again."""

    type: Literal["not_leader"] = "not_leader"
    borrower: Text
    term: Offset = 0
    """The highest term of the group that the host has seen: a leader of a later one is not meant."""


class PingResponse(_Message):
    """The leader is alive and knows the borrower."""

    type: Literal["ping_response"] = "ping_response"
    borrower: Text
    term: Offset


class Grant(_Message):
    """A stream is leased to the borrower, to be consumed from `progress` on."""

    type: Literal["grant"] = "grant"
    borrower: Text
    term: Offset
    stream: Text
    lease_epoch: Offset
    progress: Offset
    pinned_end: Offset | None = None
    """If set, the next cut of the stream must end exactly here: an earlier owner's open cut ends here."""
    resumes: Offset | None = None
    """If set, the session has held the stream since this lease epoch; nobody else had it in between."""
    follows: Offset | None = None
    """If set, the lease epoch before this one: lease epochs have gaps after a loss."""
    retry_after_ms: Offset = 0
    """So long the message at `progress`, which failed before, is not to be tried again."""


class Revoke(_Message):
    """The borrower is to finish its work on a stream and report final progress."""

    type: Literal["revoke"] = "revoke"
    borrower: Text
    term: Offset
    stream: Text
    lease_epoch: Offset


class Revoked(_Message):
    """The final progress of a stream is durable; the borrower may forget the stream."""

    type: Literal["revoked"] = "revoked"
    borrower: Text
    term: Offset
    stream: Text
    lease_epoch: Offset
    forced: bool = False
    """An operator has ended the lease: what was not acknowledged by then is not durable."""


class ProgressCommitted(_Message):
    """Progress of these streams is durable; what is not acknowledged is reported again."""

    type: Literal["progress_committed"] = "progress_committed"
    borrower: Text
    term: Offset
    progress: tuple[Progress, ...]


class FailureTaken(_Message):
    """A failure is counted durably, and this becomes of the message."""

    type: Literal["failure_taken"] = "failure_taken"
    borrower: Text
    term: Offset
    stream: Text
    lease_epoch: Offset
    offset: Offset
    failure: Text
    verdict: Verdict
    retry_after_ms: Offset = 0
    """After `retry`: so long the message is not to be tried again."""


class Invalidate(_Message):
    """The borrower is to end. After `replaced`, because another one has its name, and after `deleted`,
    because its group is no more, its session ends as well."""

    type: Literal["invalidate"] = "invalidate"
    borrower: Text
    term: Offset
    reason: Literal["unknown", "replaced", "stale", "revocation_timeout", "stepped_down", "deleted"]


# ---------------------------------------------------------------- leader -> session and operator


class CutFixed(_Message):
    """The cut is durable and consists of `ranges`, possibly fewer than asked for."""

    type: Literal["cut_fixed"] = "cut_fixed"
    session: Text
    term: Offset
    cut: Annotated[int, Field(ge=1)]
    ranges: RangesField | None
    """None if they are just those of the `FixCut` of this `proposal`."""
    proposal: Offset = 0
    finished: Offset = 0
    """The newest cut of the session that is finished: if not below `cut`, the session is out of date."""
    progress: tuple[Progress, ...] = ()
    """What is committed of the streams that were asked for and left out, if the session has them."""


class CutFinished(_Message):
    """Everything up to cut `finished` is committed, as far as it was still the session's."""

    type: Literal["cut_finished"] = "cut_finished"
    session: Text
    term: Offset
    finished: Offset
    progress: tuple[Progress, ...] = ()
    """What is committed of all streams that the session has, if it named the ranges of its cut."""


class CutResumed(_Message):
    """Of the session's open cut, `ranges` are still its own."""

    type: Literal["cut_resumed"] = "cut_resumed"
    session: Text
    term: Offset
    cut: Annotated[int, Field(ge=1)]
    ranges: RangesField


class CommandDone(_Message):
    """An operator's act is done, or would be; `body` is what is to be said of it, a JSON document."""

    type: Literal["command_done"] = "command_done"
    request: Text
    body: str


class CommandRefused(_Message):
    """An operator's act is not done, and this is why."""

    type: Literal["command_refused"] = "command_refused"
    request: Text
    error: str


class CommandAstray(_Message):
    """The host that was asked does not lead the group: find the leader, and ask again."""

    type: Literal["command_astray"] = "command_astray"
    request: Text


BorrowerToLeader = LeaderWanted | Ping | UpdateProgress | RevokeFinished | MessageFailed | Disconnect
SessionToLeader = FixCut | FinishCut | ResumeCut
ToLeader = BorrowerToLeader | SessionToLeader | Command
LeaderToBorrower = (
    LeaderConnectResponse
    | NotLeader
    | PingResponse
    | Grant
    | Revoke
    | Revoked
    | ProgressCommitted
    | FailureTaken
    | Invalidate
)
LeaderToSession = CutFixed | CutFinished | CutResumed
CommandReply = CommandDone | CommandRefused
FromLeader = LeaderToBorrower | LeaderToSession | CommandReply
Message = ToLeader | FromLeader | CommandAstray | CutRead | SpawnWanted | DrainHost

_ADAPTER: TypeAdapter[Message] = TypeAdapter(Annotated[Message, Field(discriminator="type")])
_ALL: TypeAdapter[list[Message]] = TypeAdapter(list[Annotated[Message, Field(discriminator="type")]])


def encode(messages: Iterable[Message]) -> bytes:
    """Messages as one JSON array, as they stand in one mailbox entry."""
    return b"[" + b",".join(message.model_dump_json().encode() for message in messages) + b"]"


def decode(data: bytes) -> tuple[list[Message], int]:
    """The messages of one mailbox entry, and how many did not parse. Never raises for bad data."""
    try:
        return _ALL.validate_json(data), 0
    except ValidationError:
        return _decode_each(data)


def _decode_each(data: bytes) -> tuple[list[Message], int]:
    """The same where some of it does not parse."""
    try:
        items = json.loads(data)
    except (ValueError, RecursionError):
        return [], 1
    if not isinstance(items, list):
        return [], 1
    messages: list[Message] = []
    bad = 0
    for item in items:
        try:
            messages.append(_ADAPTER.validate_python(item))
        except ValidationError:
            bad += 1
    return messages, bad
