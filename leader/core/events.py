"""What a leader machine is stepped with, and what it answers with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from streamlease.leader.core.state.records import Record
from streamlease.protocol.messages import FromLeader, ToLeader

# ---------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class Recovered:
    """The journal has been read and the term is held: the leader begins to act."""

    deaf: int = 0
    """For how long (ms) no leader heard anybody before."""


@dataclass(frozen=True, slots=True)
class Received:
    """A message arrived; answers go to `sender`, the mailbox that it came from."""

    sender: str
    message: ToLeader


@dataclass(frozen=True, slots=True)
class StreamsListed:
    """The streams of the filter as they are now, each with the offset to start from if it is new."""

    starts: dict[str, int]
    floors: dict[str, int] = field(default_factory=dict)
    """The lowest offset that each stream still keeps."""
    ends: dict[str, int] = field(default_factory=dict)
    """Where the sealed ones among them end."""
    predecessors: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The streams of the generation before that are to be finished before a stream may be read."""
    unread: frozenset[str] = frozenset()
    """Spaces whose definitions are damaged: their streams are not listed, and stay as they are."""
    committed: dict[str, int] = field(default_factory=dict)
    """How far streams are of which something was removed, read after `floors`: the leader may know less."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""

    wall: int | None = None
    """The time of day in milliseconds since 1970, if known: a pause may last until one."""
    heard: int | None = None
    """Up to when (ms) all that was sent to the leader has reached it; None: up to now."""


@dataclass(frozen=True, slots=True)
class StepDownWanted:
    """The host drains: give leadership up in good order."""


@dataclass(frozen=True, slots=True)
class LeasesWritten:
    """The leases that began so far are durable: nobody commits their streams under earlier ones any more."""

    committed: Mapping[str, int] = field(default_factory=dict)
    """Streams of which more was committed than the leader knew, and how far they are."""


@dataclass(frozen=True, slots=True)
class DeadLetterWritten:
    """The message stands durably among the dead letters: at offset `at` of stream `into`."""

    stream: str
    offset: int
    into: str
    at: int


@dataclass(frozen=True, slots=True)
class DeadLetterRefused:
    """It does not yet, and this is why; it is tried again."""

    stream: str
    offset: int
    why: str


@dataclass(frozen=True, slots=True)
class Measured:
    """The ends of some of the group's streams, for a strategy that weighs them."""

    ends: Mapping[str, int]
    """Stream -> the offset that its next message gets."""
    at: int
    """When (ms) they were read, by the leader's clock."""


Event = (
    Recovered
    | Received
    | StreamsListed
    | Tick
    | StepDownWanted
    | LeasesWritten
    | DeadLetterWritten
    | DeadLetterRefused
    | Measured
)

# ---------------------------------------------------------------- effects


@dataclass(frozen=True, slots=True)
class Persist:
    """Write these records into the journal, under the term."""

    records: tuple[Record, ...]


@dataclass(frozen=True, slots=True)
class Send:
    """Put `message` into `mailbox`, after all `Persist` before it."""

    mailbox: str
    message: FromLeader


@dataclass(frozen=True, slots=True)
class Stop:
    """Resign; there will be no further effect."""

    reason: str


@dataclass(frozen=True, slots=True)
class Describe:
    """Answer the operator with the machine's present view."""

    mailbox: str
    request: str


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Write a failed message among the dead letters, once, and say so by `DeadLetterWritten`."""

    stream: str
    offset: int
    lease_epoch: int
    failures: int
    borrower: str
    cause: str


Effect = Persist | Send | Stop | Describe | DeadLetter
