"""Streams are granted and taken back, and what was consumed of them, or failed, is reported."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, model_validator

from streamlease.protocol.cuts import Offset, Text
from streamlease.protocol.messages.base import GroupMessage, Progress

MAX_CAUSE = 2000
"""Most characters of the cause of a failure that are kept."""

Verdict = Literal["retry", "passed", "stopped"]
"""What becomes of a message that failed: it is tried again; it stands durably among the dead letters (or is
behind the group already) and the next one may be processed; or its stream is stopped."""


class Offer(NamedTuple):
    """One lease, as `Grant` describes it."""

    stream: str
    lease_epoch: int
    progress: int
    pinned_end: int | None = None
    resumes: int | None = None
    follows: int | None = None
    retry_after_ms: int = 0


class Grant(GroupMessage):
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

    def offers(self) -> Iterator[Offer]:
        """The lease."""
        yield Offer(
            self.stream,
            self.lease_epoch,
            self.progress,
            self.pinned_end,
            self.resumes,
            self.follows,
            self.retry_after_ms,
        )


class Grants(GroupMessage):
    """Many streams are leased to the borrower at once: columns of what a `Grant` says of each.

    What is not answered is told again by a `Grant` of its own. So a borrower that does not know this message
    gets its streams a little later.
    """

    type: Literal["grants"] = "grants"
    borrower: Text
    term: Offset
    streams: tuple[Text, ...]
    lease_epochs: tuple[Offset, ...]
    offsets: tuple[Offset, ...]
    """From where on each is to be consumed."""
    resumes: tuple[Offset | None, ...]
    follows: tuple[Offset | None, ...]

    @model_validator(mode="after")
    def _whole(self) -> Grants:
        if len({*map(len, self._columns())}) > 1:
            raise ValueError("the columns are of different lengths")
        return self

    def _columns(self) -> tuple[tuple[Any, ...], ...]:
        return self.streams, self.lease_epochs, self.offsets, self.resumes, self.follows

    def offers(self) -> Iterator[Offer]:
        """The leases."""
        for stream, lease_epoch, offset, resumes, follows in zip(*self._columns(), strict=True):
            yield Offer(stream, lease_epoch, offset, None, resumes, follows)


class UpdateProgress(GroupMessage):
    """Progress of some streams; also the acknowledgement of their grants."""

    type: Literal["update_progress"] = "update_progress"
    borrower: Text
    progress: tuple[Progress, ...]


class ProgressCommitted(GroupMessage):
    """Progress of these streams is durable; what is not acknowledged is reported again."""

    type: Literal["progress_committed"] = "progress_committed"
    borrower: Text
    term: Offset
    progress: tuple[Progress, ...]


class Revoke(GroupMessage):
    """The borrower is to finish its work on a stream and report final progress."""

    type: Literal["revoke"] = "revoke"
    borrower: Text
    term: Offset
    stream: Text
    lease_epoch: Offset


class Revoked(GroupMessage):
    """The final progress of a stream is durable; the borrower may forget the stream."""

    type: Literal["revoked"] = "revoked"
    borrower: Text
    term: Offset
    stream: Text
    lease_epoch: Offset
    forced: bool = False
    """An operator has ended the lease: what was not acknowledged by then is not durable."""


class RevokeFinished(GroupMessage):
    """The borrower has forgotten a stream after `Revoked`."""

    type: Literal["revoke_finished"] = "revoke_finished"
    borrower: Text
    stream: Text
    lease_epoch: Offset


class MessageFailed(GroupMessage):
    """A message could not be processed; everything before it in its stream is done."""

    type: Literal["message_failed"] = "message_failed"
    borrower: Text
    stream: Text
    lease_epoch: Offset
    offset: Offset
    failure: Text
    """Identity of this failure: it counts once, however often the message arrives."""
    cause: Annotated[str, Field(max_length=MAX_CAUSE)]


class FailureTaken(GroupMessage):
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
