"""The leases of one borrower: what the leader granted, and what it is told of each until it has answered.

Each method takes one event and returns what is to be done, or `None` if the event is refused: it speaks of a
lease that the borrower does not have, or comes too late. A refused event changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from streamlease.borrower.events import (
    Effect,
    Failed,
    FailureAnswered,
    ProgressAcknowledged,
    Progressed,
    SendToLeader,
    StreamGone,
    StreamGranted,
    StreamRevoking,
)
from streamlease.borrower.lease import Borrowed, StreamEvent, StreamState
from streamlease.borrower.link import Link
from streamlease.protocol.messages import (
    BorrowerToLeader,
    FailureTaken,
    Grant,
    Grants,
    MessageFailed,
    Offer,
    Progress,
    ProgressCommitted,
    Revoke,
    Revoked,
    RevokeFinished,
    UpdateProgress,
)

TELL_INTERVAL = 250
"""What is committed already is told the leader so often (ms) at most: no one waits for it to know."""

MOST_TOLD = 1000
"""Streams in one message."""

CALM_STREAMS = 1000
"""For each so many streams that it holds, a borrower waits one more ``resend_interval`` before it repeats."""


@dataclass(slots=True)
class BorrowedStreams:
    """What one borrower holds.

    Args:
        link: the way to the leader.
        resend_interval: what the leader has not answered for so long (ms) is told again.
    """

    link: Link
    resend_interval: int
    held: dict[str, Borrowed] = field(default_factory=dict)
    unfinished: set[str] = field(default_factory=set)
    """Those of which the leader was not told the final progress."""
    over: dict[str, int] = field(default_factory=dict)
    """Stream -> highest lease epoch that this borrower had and has no more; late copies are refused."""
    unanswered: dict[str, None] = field(default_factory=dict)
    """All streams of which the leader has not answered all, and some of which it has."""
    told_at: int | None = None
    """When (ms) the leader was last told of what is committed already."""

    # ------------------------------------------------------------ from the leader

    def grant(self, message: Grant | Grants, now: int) -> list[Effect] | None:
        """Hold the streams, from now on under these epochs; a second copy is answered as the first was."""
        effects: list[Effect] = []
        told: list[Borrowed] = []
        for offer in message.offers():
            lease = self._granted(offer, now, effects)
            if lease is not None:
                told.append(lease)
        return effects + self._reports(told) if told else None

    def _granted(self, offer: Offer, now: int, effects: list[Effect]) -> Borrowed | None:
        """Hold a stream; its lease, or None for an old one. What is to be done is added to `effects`."""
        stream, lease_epoch = offer.stream, offer.lease_epoch
        lease = self.held.get(stream)
        if lease_epoch <= self.over.get(stream, -1):
            return None
        if lease is not None:
            if lease_epoch <= lease.lease_epoch:
                return lease if lease_epoch == lease.lease_epoch else None
            effects.append(self._drop(stream, lease, StreamEvent.REPLACED))
        lease = self.held[stream] = Borrowed(stream, lease_epoch, offer.progress)
        self.unfinished.add(stream)
        self._expect(lease, now)
        effects.append(StreamGranted(*offer, lease))
        return lease

    def revoke(self, message: Revoke, *, leaving: bool) -> list[Effect] | None:
        """The leader wants the stream back; of a session that leaves it gets it anyway."""
        lease = self._lease(message.stream, message.lease_epoch)
        if lease is None:
            return None
        if leaving:
            return []
        if not lease.move(StreamEvent.REVOKE):
            return [self._report(lease)]
        return [StreamRevoking(message.stream, message.lease_epoch)]

    def revoke_all(self) -> list[Effect]:
        """The session leaves: it is asked for final progress of every stream."""
        for lease in self.held.values():
            lease.move(StreamEvent.REVOKE)
        return [StreamRevoking(stream, lease.lease_epoch) for stream, lease in self.held.items()]

    def revoked(self, message: Revoked, *, leaving: bool) -> list[Effect]:
        """The leader has the stream back. Each copy is answered: the first answer may be lost."""
        stream, lease_epoch = message.stream, message.lease_epoch
        who = self.link.identity
        finished = self._send(
            RevokeFinished(group=who.group, borrower=who.borrower, stream=stream, lease_epoch=lease_epoch)
        )
        lease = self._lease(stream, lease_epoch)
        if lease is None:
            return [finished]
        if leaving:
            return []
        effects: list[Effect] = []
        if lease.final and lease.acknowledged < lease.offset and not message.forced:
            lease.acknowledged = lease.heard = lease.offset
            effects.append(ProgressAcknowledged(stream, lease_epoch, lease.offset))
        return [*effects, self._drop(stream, lease, StreamEvent.REVOKED), finished]

    def committed(self, message: ProgressCommitted) -> list[Effect]:
        """What the leader was told is durable."""
        effects: list[Effect] = []
        for entry in message.progress:
            stream, lease_epoch, offset = entry.stream, entry.lease_epoch, entry.offset
            lease = self._lease(stream, lease_epoch)
            if lease is None:
                continue
            lease.heard = max(lease.heard, offset)
            if offset > lease.acknowledged:
                lease.acknowledged = offset
                effects.append(ProgressAcknowledged(stream, lease_epoch, offset))
        return effects

    def failure_taken(self, message: FailureTaken) -> list[Effect] | None:
        """A failure is counted durably, and the leader says what becomes of the message."""
        lease = self._lease(message.stream, message.lease_epoch)
        if lease is None or lease.failed is None or lease.failed.failure != message.failure:
            return None
        lease.failed = None
        done = message.offset + (message.verdict == "passed")
        lease.offset = max(lease.offset, done)
        lease.acknowledged = max(lease.acknowledged, lease.offset)
        lease.heard = max(lease.heard, lease.offset)
        answer = FailureAnswered(
            message.stream,
            message.lease_epoch,
            message.offset,
            message.failure,
            message.verdict,
            message.retry_after_ms,
        )
        return [answer]

    # ------------------------------------------------------------ from the session

    def progressed(self, event: Progressed, now: int, *, leaving: bool) -> list[Effect] | None:
        """The session has consumed further. Only of a stream that was asked back it is final.

        Args:
            leaving: the session gives all its streams back, and says with the last one how far each is.
        """
        lease = self._open(event.stream, event.lease_epoch, event.offset)
        if lease is None or (event.final and lease.state is not StreamState.REVOKING):
            return None
        lease.offset, lease.final, lease.holes = event.offset, event.final, event.holes
        if event.final:
            self.unfinished.discard(event.stream)
        if event.durable:
            lease.acknowledged = max(lease.acknowledged, event.offset)
            if not event.final or leaving:
                return self._tell_in_time(lease, now)
        self._expect(lease, now)
        return [self._report(lease)]

    def failed(self, event: Failed, now: int) -> list[Effect] | None:
        """The session could not process a message; all before it is done."""
        lease = self._open(event.stream, event.lease_epoch, event.offset)
        if lease is None:
            return None
        lease.offset = max(lease.offset, event.offset)
        self._expect(lease, now)
        who = self.link.identity
        lease.failed = MessageFailed(
            group=who.group,
            borrower=who.borrower,
            stream=event.stream,
            lease_epoch=event.lease_epoch,
            offset=event.offset,
            failure=event.failure,
            cause=event.cause,
        )
        return [self._send(lease.failed)]

    # ------------------------------------------------------------ of all streams

    @property
    def are_final(self) -> bool:
        """Whether the leader was told the final progress of every stream."""
        return not self.unfinished

    def final(self) -> tuple[Progress, ...]:
        """How far each stream is, for a leader that hears no more of it."""
        return tuple(lease.last_word for lease in self.held.values())

    def end(self) -> list[Effect]:
        """The borrower's life is over."""
        return [self._drop(stream, lease, StreamEvent.ENDED) for stream, lease in list(self.held.items())]

    def repeat(self, now: int) -> list[Effect]:
        """Tell again what is due and not answered."""
        effects: list[Effect] = []
        told: list[Borrowed] = []
        for stream in list(self.unanswered):
            lease = self.held.get(stream)
            if lease is None or lease.is_answered:
                del self.unanswered[stream]
            elif now >= lease.report_at:
                lease.report_at = self._resend_at(now)
                if lease.failed is None:
                    told.append(lease)
                else:
                    effects.append(self._send(lease.failed))
        if told:
            self.told_at = now
            effects += self._reports(told)
        return effects

    # ------------------------------------------------------------ inside

    def _tell_in_time(self, lease: Borrowed, now: int) -> list[Effect]:
        """Tell what is committed already: now, or with what else comes until the leader is told next."""
        if lease.is_answered:
            return []
        self.unanswered[lease.stream] = None
        lease.report_at = now if self.told_at is None else max(now, self.told_at + TELL_INTERVAL)
        return self.repeat(now) if lease.report_at == now else []

    def _reports(self, told: Sequence[Borrowed]) -> list[Effect]:
        """Say how far many streams are."""
        return [self._report(*told[i : i + MOST_TOLD]) for i in range(0, len(told), MOST_TOLD)]

    def _report(self, *some: Borrowed) -> SendToLeader:
        """Say how far streams are."""
        who = self.link.identity
        told = tuple(lease.told for lease in some)
        return self._send(UpdateProgress(group=who.group, borrower=who.borrower, progress=told))

    def _send(self, message: BorrowerToLeader) -> SendToLeader:
        return SendToLeader(self.link.mailbox, message)

    def _lease(self, stream: str, lease_epoch: int) -> Borrowed | None:
        lease = self.held.get(stream)
        return lease if lease is not None and lease.lease_epoch == lease_epoch else None

    def _open(self, stream: str, lease_epoch: int, offset: int) -> Borrowed | None:
        """The lease, if progress up to `offset` may still be told."""
        lease = self.held.get(stream)
        if lease is None:
            return None
        may_be_told = lease.lease_epoch == lease_epoch and not lease.final and offset >= lease.offset
        return lease if may_be_told else None

    def _drop(self, stream: str, lease: Borrowed, event: StreamEvent) -> StreamGone:
        lease.move(event)
        del self.held[stream]
        self.unfinished.discard(stream)
        self.over[stream] = lease.lease_epoch
        known = lease.acknowledged if lease.acknowledged >= 0 else None
        return StreamGone(stream, lease.lease_epoch, known)

    def _expect(self, lease: Borrowed, now: int) -> None:
        """The leader is to answer what it is told now."""
        self.unanswered[lease.stream] = None
        lease.report_at = self._resend_at(now)

    def _resend_at(self, now: int) -> int:
        """When what is said now is said again: later with many streams, or answers are crowded out."""
        return now + self.resend_interval * max(1, len(self.held) // CALM_STREAMS)
