"""Poison messages: counting failures, and what becomes of a message that failed too often.

A borrower reports a failure with an identity of its own, so that it counts once however often the report
arrives. Counts are journalled, so they survive crashes of either side. Only the message at which a stream
stands can have failed, since everything before it is done and nothing after it was; so there is at most one
count per stream.

::

    failed < max_failures            retry: the same message is delivered again, after a while
    failed = max_failures, and       dead-letter: DeadLetter --> DeadLetterWritten --> passed
                                     stop: the stream is revoked, and nobody's until an operator decides

The order holds: the answer `passed`, which lets a borrower go on, follows the record that the dead letter is
written. Until then the stream is nobody else's. A leader that dies in between leaves the decision in the
journal, and its successor writes the dead letter again, under the same identity, which adds nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from streamlease.leader.core.events import DeadLetter, DeadLetterRefused, DeadLetterWritten
from streamlease.leader.core.happenings import DeadLetterStands, FailureStops, SituationChanged
from streamlease.leader.core.parts.ledger import Ledger
from streamlease.leader.core.peer import Peer
from streamlease.leader.core.state.records import DeadLettered, Failed, Fate
from streamlease.protocol.group_options import GroupOptions
from streamlease.protocol.messages import FailureTaken, MessageFailed, Verdict

VERDICTS: dict[Fate, Verdict | None] = {"retry": "retry", "stop": "stopped", "dead_letter": None}
"""What a borrower is told; nothing before its dead letter is written."""


@dataclass(slots=True)
class Failures:
    """What the leader does about messages that cannot be processed."""

    ledger: Ledger
    options: GroupOptions
    retry_at: dict[str, int] = field(default_factory=dict)
    """Stream -> when the message that failed may be tried again. How often it failed is durable and this is
    not: a new leader lets it wait anew."""
    unwritten: dict[str, str] = field(default_factory=dict)
    """Stream -> why its dead letter could not be written so far."""

    def recovered(self, now: int) -> None:
        """Let what is to be tried again wait anew; write dead letters that the former leader decided on."""
        for stream, progress in self.ledger.durable.streams.items():
            if progress.failure is not None:
                self._put_off(stream, now)
                if progress.failure.fate == "dead_letter":
                    self._write_dead_letter(stream)

    def failed(self, peer: Peer, message: MessageFailed, now: int) -> None:
        """Count a failure of the message at which the stream stands; what came before is committed."""
        progress = self.ledger.durable.streams[message.stream]
        if message.offset < progress.committed:
            self._answer(peer, message, "passed")
            return
        failure = progress.failure
        if failure is None or not (progress.blocked or message.failure in failure.failures):
            fate = self._fate(len(failure.failures) + 1 if failure is not None else 1)
            self.ledger.record(
                Failed(
                    stream=message.stream,
                    offset=message.offset,
                    lease_epoch=message.lease_epoch,
                    failure=message.failure,
                    borrower=peer.borrower,
                    cause=message.cause,
                    fate=fate,
                )
            )
            self._put_off(message.stream, now)
            if fate == "dead_letter":
                self._write_dead_letter(message.stream)
        assert progress.failure is not None
        verdict = VERDICTS[progress.failure.fate]
        if verdict is not None:
            self._answer(peer, message, verdict, self.retry_after(message.stream, now))
        if verdict == "stopped":
            self.ledger.happened(FailureStops(message.stream))

    def _fate(self, failures: int) -> Fate:
        if failures < self.options.max_failures:
            return "retry"
        return "stop" if self.options.on_poison == "stop" else "dead_letter"

    def _answer(self, peer: Peer, message: MessageFailed, verdict: Verdict, retry_after_ms: int = 0) -> None:
        self._tell(
            peer,
            message.stream,
            message.lease_epoch,
            message.offset,
            message.failure,
            verdict,
            retry_after_ms,
        )

    def tell_passed(self, peer: Peer, lease_epoch: int, letter: DeadLetterStands) -> None:
        """Tell the owner that the next message may be processed."""
        if peer.connected:
            self._tell(peer, letter.stream, lease_epoch, letter.offset, letter.failure, "passed")

    def _tell(
        self,
        peer: Peer,
        stream: str,
        lease_epoch: int,
        offset: int,
        failure: str,
        verdict: Verdict,
        retry_after_ms: int = 0,
    ) -> None:
        taken = FailureTaken(
            group=self.ledger.group,
            borrower=peer.borrower,
            term=self.ledger.term,
            stream=stream,
            lease_epoch=lease_epoch,
            offset=offset,
            failure=failure,
            verdict=verdict,
            retry_after_ms=retry_after_ms,
        )
        self.ledger.send(peer.mailbox, taken)

    # ------------------------------------------------------------ trying again

    def _put_off(self, stream: str, now: int) -> None:
        """If a message of the stream failed and is to be tried again, let it wait from now on."""
        failure = self.ledger.durable.streams[stream].failure
        if failure is not None and failure.fate == "retry":
            self.retry_at[stream] = now + self.options.retry_delay(len(failure.failures))
        else:
            self.retry_at.pop(stream, None)

    def retry_after(self, stream: str, now: int) -> int:
        """How long (ms) what is next in the stream is not to be processed, because it failed before."""
        failure = self.ledger.durable.streams[stream].failure
        waits = failure is not None and failure.fate == "retry"
        return max(0, self.retry_at.get(stream, now) - now) if waits else 0

    # ------------------------------------------------------------ dead letters

    def _write_dead_letter(self, stream: str) -> None:
        failure = self.ledger.durable.streams[stream].failure
        assert failure is not None
        letter = DeadLetter(
            stream,
            failure.offset,
            failure.lease_epoch,
            len(failure.failures),
            failure.borrower,
            failure.cause,
        )
        self.ledger.effect(letter)

    def written(self, event: DeadLetterWritten) -> None:
        """A dead letter stands: the message is passed."""
        progress = self.ledger.durable.streams.get(event.stream)
        failure = progress.failure if progress is not None else None
        if failure is None or failure.offset != event.offset or failure.fate != "dead_letter":
            return  # it was written again, or an operator reset the group meanwhile
        self.unwritten.pop(event.stream, None)
        record = DeadLettered(stream=event.stream, offset=event.offset, into=event.into, at=event.at)
        self.ledger.record(record)
        self.ledger.happened(DeadLetterStands(event.stream, event.offset, failure.failures[-1]))

    def not_written(self, event: DeadLetterRefused) -> None:
        """It is tried again; whoever looks at the group sees why it takes so long."""
        if event.stream in self.ledger.durable.streams:
            self.unwritten[event.stream] = event.why

    def decided(self, stream: str) -> None:
        """An operator decided about the message at which the stream stopped."""
        if self.ledger.durable.streams[stream].failure is not None:
            self._write_dead_letter(stream)
        else:
            self.ledger.happened(SituationChanged())

    def forget(self, streams: Iterable[str]) -> None:
        """These streams do not exist any more."""
        for stream in streams:
            self.retry_at.pop(stream, None)
            self.unwritten.pop(stream, None)
