"""What is durable about one stream of a group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from pydantic import BaseModel, ConfigDict

from streamlease.leader.core.state.fields import Number
from streamlease.leader.core.state.records import Failed, Fate, Leased


class Failure(BaseModel):
    """The message at which a stream is, and how often it failed."""

    model_config = ConfigDict(extra="forbid")

    offset: Number
    failures: tuple[str, ...]
    """Identities of the failures that were counted."""
    lease_epoch: Number
    """That of the newest failure, like the fields below."""
    borrower: str
    cause: str
    fate: Fate


@dataclass(slots=True)
class StreamProgress:
    """What is durable about one stream. A group may have 100,000, so it is small."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    committed: Number
    lease_epoch: Number = 0
    """The newest lease epoch that is known."""
    lost_from: Number | None = None
    """Leases from this lease epoch up to the term of the lineage may be unknown; None: all are known."""
    reset_by: Number = 0
    """The lease epoch of its newest reset; 0: there was none."""
    owner: str | None = None
    """Name of the borrower that holds the lease."""
    session: str | None = None
    held_since: Number = 0
    """The lease epoch since which `session` has held the stream: nobody else had it in between."""
    follows: Number | None = None
    """The lease epoch before the newest one; None: not known."""
    last_session: str | None = None
    """The session of the newest lease, even after its end."""
    truncated: Number = 0
    """How many messages retention removed, or Redis lost, before they were consumed."""
    pinned_end: Number | None = None
    """A former owner's cut was open up to here; the next cut must end here, to hold the same rows."""
    waiting: bool = False
    """Streams that it follows are not finished: nobody may read it yet."""
    finished: bool = False
    """It is sealed and consumed to its end: nobody gets it again."""
    failure: Failure | None = None
    """The message at `committed` failed so far."""
    dead_letters: Number = 0
    """How many of its messages are dead letters."""
    session_timeout_ms: Number = 10_000
    """After so long a silence its owner is gone."""

    @property
    def blocked(self) -> bool:
        """Whether nobody may process what is next: it becomes a dead letter, or the stream is stopped."""
        return self.failure is not None and self.failure.fate != "retry"

    def commit(self, offset: int) -> None:
        """Everything below `offset` is consumed."""
        self.committed = max(self.committed, offset)
        if self.pinned_end is not None and self.committed >= self.pinned_end:
            self.pinned_end = None
        if self.failure is not None and self.failure.offset < self.committed:
            self.failure = None

    def truncate(self, floor: int) -> None:
        """Nothing below `floor` is there any more."""
        self.truncated += max(0, floor - self.committed)
        self.commit(floor)

    def attest(self, lease_epoch: int, offset: int) -> None:
        """Others have seen that lease epoch and that progress, which the journal has lost."""
        if lease_epoch > self.lease_epoch:
            self.lease_epoch = self.follows = lease_epoch
        self.commit(offset)

    def lease(self, record: Leased) -> None:
        """It has an owner."""
        if self.session != record.session:
            self.held_since = record.lease_epoch
        self.follows = self.lease_epoch
        self.lease_epoch = record.lease_epoch
        self.owner = record.name
        self.session = self.last_session = record.session
        self.session_timeout_ms = record.session_timeout_ms

    def free(self) -> None:
        """It has no owner."""
        self.owner = self.session = None

    def pin(self, end: int) -> None:
        """An owner lost it while a cut was open up to `end`."""
        if end > self.committed:
            self.pinned_end = end

    def begin_anew(self, offset: int, lease_epoch: int) -> None:
        """A new line of progress; `lease_epoch` is its own, so nothing said or read before counts for it."""
        self.committed, self.lease_epoch = offset, lease_epoch
        self.reset_by = lease_epoch
        self.lost_from = self.pinned_end = self.failure = None
        self.finished = False
        self.free()

    def fail(self, record: Failed) -> None:
        """The next message failed once more."""
        counted = self.failure.failures if self.failure is not None else ()
        self.failure = Failure(
            offset=record.offset,
            failures=(*counted, record.failure),
            lease_epoch=record.lease_epoch,
            borrower=record.borrower,
            cause=record.cause,
            fate=record.fate,
        )
