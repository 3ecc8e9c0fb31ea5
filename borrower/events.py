"""What a borrower machine is stepped with, and what it answers with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from streamlease.borrower.lease import Borrowed
from streamlease.protocol.messages import BorrowerToLeader, Hole, LeaderToBorrower, Progress, Verdict

# ---------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class Started:
    """The borrower begins its life."""


@dataclass(frozen=True, slots=True)
class LeaderFound:
    """The registry answered `FindLeader`: the leader's mailbox, and its term."""

    mailbox: str
    term: int
    attested: tuple[Progress, ...] = ()
    """What the session has seen of its streams, for the leader."""


@dataclass(frozen=True, slots=True)
class Received:
    """A message of the leader arrived."""

    message: LeaderToBorrower


class Progressed(NamedTuple):
    """The session has consumed `stream` up to `offset`; `final` answers `StreamRevoking`."""

    stream: str
    lease_epoch: int
    offset: int
    final: bool = False
    holes: tuple[Hole, ...] = ()
    """What was lost below `offset` and is not acknowledged yet."""
    durable: bool = False
    """It is committed already (`registry/commits.py`), and the leader need only learn of it."""


class ProgressedTogether(NamedTuple):
    """The session has consumed some streams so far, each at its own pace."""

    entries: tuple[Progressed, ...]


@dataclass(frozen=True, slots=True)
class Failed:
    """The session could not process the message at `offset`; everything before it is done."""

    stream: str
    lease_epoch: int
    offset: int
    failure: str
    """Identity of this failure: it may be told again, also under a later lease, and counts once."""
    cause: str


@dataclass(frozen=True, slots=True)
class Unsubscribed:
    """The session wants no more messages and will report final progress of each stream."""


@dataclass(frozen=True, slots=True)
class Disconnected:
    """The session goes away at once."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""

    since: int = 0
    """How long (ms) the process had not looked at the time before, whether something was due or not."""


Event = (
    Started
    | LeaderFound
    | Received
    | Progressed
    | ProgressedTogether
    | Failed
    | Unsubscribed
    | Disconnected
    | Tick
)

# ---------------------------------------------------------------- effects


@dataclass(frozen=True, slots=True)
class FindLeader:
    """Ask the registry for the leader; answered by `LeaderFound` or not at all."""


@dataclass(frozen=True, slots=True)
class SendToLeader:
    """Put `message` into the leader's `mailbox`."""

    mailbox: str
    message: BorrowerToLeader


@dataclass(frozen=True, slots=True)
class StreamGranted:
    """The session may consume the stream, from `progress` on (see `Grant`)."""

    stream: str
    lease_epoch: int
    progress: int
    pinned_end: int | None
    resumes: int | None
    follows: int | None = None
    retry_after_ms: int = 0
    """So long the message at `progress` is not to be processed: it failed before."""
    lease: Borrowed | None = field(default=None, compare=False, repr=False)
    """The lease itself, which the borrower moves; None in an event that no borrower made."""


@dataclass(frozen=True, slots=True)
class ProgressAcknowledged:
    """Progress of the stream up to `offset` is durable."""

    stream: str
    lease_epoch: int
    offset: int


@dataclass(frozen=True, slots=True)
class FailureAnswered:
    """A failure is counted durably, and this becomes of the message."""

    stream: str
    lease_epoch: int
    offset: int
    failure: str
    verdict: Verdict
    retry_after_ms: int = 0
    """After `retry`: so long the message is not to be processed again."""


@dataclass(frozen=True, slots=True)
class StreamRevoking:
    """The session is to finish its work on the stream and then report final progress."""

    stream: str
    lease_epoch: int


@dataclass(frozen=True, slots=True)
class StreamGone:
    """The stream is not the session's any more."""

    stream: str
    lease_epoch: int
    acknowledged: int | None = None
    """Everything below was durable under the lease; None: that is not known of anything."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The borrower's life is over; with `again`, the agent is to make a new one for the same session."""

    reason: str
    again: bool


Effect = (
    FindLeader
    | SendToLeader
    | StreamGranted
    | ProgressAcknowledged
    | FailureAnswered
    | StreamRevoking
    | StreamGone
    | Ended
)
