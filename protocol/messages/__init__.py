"""The control messages between borrowers, sessions, leaders and operators: a closed union.

The names are those of EIP-0028, "Messages/callbacks between the Borrower and the Leader". Added are the
term (fencing token of a leadership), the lease epoch (fencing token of a lease), the cuts of a session and
the commands of operators. Every message may be lost, duplicated, delayed or reordered on its way. They
stand by subject in the modules of this folder; here they become one union, and bytes.

::

    borrower -> leader            leader -> borrower
    LeaderWanted                  LeaderConnectResponse | NotLeader
    Ping                          PingResponse
    UpdateProgress                Grant, Grants, Revoke, Revoked, ProgressCommitted
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
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from streamlease.protocol.messages.base import Group, Hole, Progress
from streamlease.protocol.messages.connecting import (
    Disconnect,
    Invalidate,
    LeaderConnectResponse,
    LeaderWanted,
    NotLeader,
    Ping,
    PingResponse,
    SpawnWanted,
)
from streamlease.protocol.messages.cutting import (
    CutFinished,
    CutFixed,
    CutRead,
    CutResumed,
    FinishCut,
    FixCut,
    ResumeCut,
)
from streamlease.protocol.messages.leasing import (
    MAX_CAUSE,
    FailureTaken,
    Grant,
    Grants,
    MessageFailed,
    Offer,
    ProgressCommitted,
    Revoke,
    Revoked,
    RevokeFinished,
    UpdateProgress,
    Verdict,
)
from streamlease.protocol.messages.operating import (
    Command,
    CommandAstray,
    CommandDone,
    CommandRefused,
    DrainHost,
)

__all__ = [
    "BorrowerToLeader", "Command", "CommandAstray", "CommandDone", "CommandRefused", "CommandReply",
    "CutFinished", "CutFixed", "CutRead", "CutResumed", "Disconnect", "DrainHost", "FailureTaken",
    "FinishCut", "FixCut", "FromLeader", "Grant", "Grants", "Group", "Hole", "Invalidate",
    "LeaderConnectResponse", "LeaderToBorrower", "LeaderToSession", "LeaderWanted", "MAX_CAUSE",
    "Message", "MessageFailed", "NotLeader", "Offer", "Ping", "PingResponse", "Progress", "ProgressCommitted",
    "ResumeCut", "Revoke", "RevokeFinished", "Revoked", "SessionToLeader", "SpawnWanted", "ToLeader",
    "UpdateProgress", "Verdict", "decode", "encode",
]  # fmt: skip

BorrowerToLeader = LeaderWanted | Ping | UpdateProgress | RevokeFinished | MessageFailed | Disconnect
SessionToLeader = FixCut | FinishCut | ResumeCut
ToLeader = BorrowerToLeader | SessionToLeader | Command
LeaderToBorrower = (
    LeaderConnectResponse
    | NotLeader
    | PingResponse
    | Grant
    | Grants
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
