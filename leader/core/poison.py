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

from dataclasses import dataclass

from streamlease.leader.core.events import DeadLetter, DeadLetterRefused, DeadLetterWritten, Persist
from streamlease.leader.core.plans import Plans
from streamlease.leader.core.records import DeadLettered, Failed, Fate
from streamlease.leader.core.state import LeaseState, Peer
from streamlease.protocol.messages import FailureTaken, MessageFailed, Verdict

VERDICTS: dict[Fate, Verdict | None] = {"retry": "retry", "stop": "stopped", "dead_letter": None}
"""What a borrower is told; nothing before its dead letter is written."""


@dataclass(slots=True)
class Poison(Plans):
    """What the leader does about messages that cannot be processed."""

    def _failed(self, peer: Peer, message: MessageFailed, now: int) -> None:
        """Count a failure of the message at which the stream stands; what came before is committed."""
        lease = self.leases[message.stream]
        progress = self.durable.streams[message.stream]
        if message.offset < progress.committed:
            self._answer(peer, message, "passed")
            return
        failure = progress.failure
        if failure is None or not (progress.blocked or message.failure in failure.failures):
            fate = self._fate(len(failure.failures) + 1 if failure is not None else 1)
            self._record(
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
            self._answer(peer, message, verdict, self._retry_after(message.stream, now))
        if verdict == "stopped" and lease.state is LeaseState.GRANTED:
            self._revoke(message.stream, lease, now)

    def _fate(self, failures: int) -> Fate:
        if failures < self.options.max_failures:
            return "retry"
        return "stop" if self.options.on_poison == "stop" else "dead_letter"

    def _answer(self, peer: Peer, message: MessageFailed, verdict: Verdict, retry_after_ms: int = 0) -> None:
        self._send(
            peer.mailbox,
            FailureTaken(
                group=self.group,
                borrower=peer.borrower,
                term=self.term,
                stream=message.stream,
                lease_epoch=message.lease_epoch,
                offset=message.offset,
                failure=message.failure,
                verdict=verdict,
                retry_after_ms=retry_after_ms,
            ),
        )

    def _write_dead_letter(self, stream: str) -> None:
        failure = self.durable.streams[stream].failure
        assert failure is not None
        if self._records:
            self._effects.append(Persist(tuple(self._records)))
            self._records = []
        self._effects.append(
            DeadLetter(
                stream,
                failure.offset,
                failure.lease_epoch,
                len(failure.failures),
                failure.borrower,
                failure.cause,
            )
        )

    def _write_open_dead_letters(self) -> None:
        """A former leader decided so, and may not have come to it."""
        for stream, progress in self.durable.streams.items():
            if progress.failure is not None and progress.failure.fate == "dead_letter":
                self._write_dead_letter(stream)

    def _dead_letter_written(self, event: DeadLetterWritten, now: int) -> None:
        progress = self.durable.streams.get(event.stream)
        failure = progress.failure if progress is not None else None
        if failure is None or failure.offset != event.offset or failure.fate != "dead_letter":
            return  # it was written again, or an operator reset the group meanwhile
        self.poison_refused.pop(event.stream, None)
        self._record(DeadLettered(stream=event.stream, offset=event.offset, into=event.into, at=event.at))
        lease = self.leases.get(event.stream)
        peer = self.peers[lease.name] if lease is not None else None
        if lease is None:
            self._want_rebalance(now)
        elif peer is not None and peer.borrower:
            self._send(
                peer.mailbox,
                FailureTaken(
                    group=self.group,
                    borrower=peer.borrower,
                    term=self.term,
                    stream=event.stream,
                    lease_epoch=lease.lease_epoch,
                    offset=event.offset,
                    failure=failure.failures[-1],
                    verdict="passed",
                ),
            )
        self._advance((event.stream,), now)

    def _dead_letter_refused(self, event: DeadLetterRefused) -> None:
        if event.stream in self.durable.streams:
            self.poison_refused[event.stream] = event.why

    def _unblocked(self, stream: str, now: int) -> None:
        """An operator decided about the message at which the stream stopped."""
        self.given_up.pop(stream, None)
        if self.durable.streams[stream].failure is not None:
            self._write_dead_letter(stream)
        else:
            self._want_rebalance(now)
