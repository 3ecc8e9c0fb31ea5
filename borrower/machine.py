"""The borrower machine: events in, effects out; no clock, no randomness, no I/O.

It talks to one leader for one shared subscription, as EIP-0028 describes, with two additions: messages of
another term are not believed, and every lease has an epoch that goes into all that is said about it.

The enclosing agent carries the effects out: it finds the leader, sends messages, tells the session which
streams came and went, and makes a new borrower after `Ended(again=True)`. Times are milliseconds of any
clock that does not run backwards. Timers are due at fixed times that messages never move.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import assert_never

from streamlease.borrower.events import (
    Disconnected,
    Effect,
    Ended,
    Event,
    Failed,
    FailureAnswered,
    FindLeader,
    LeaderFound,
    ProgressAcknowledged,
    Progressed,
    Received,
    SendToLeader,
    Started,
    StreamGone,
    StreamGranted,
    StreamRevoking,
    Tick,
    Unsubscribed,
)
from streamlease.borrower.state import (
    BORROWER_TRANSITIONS,
    STREAM_TRANSITIONS,
    BorrowerEvent,
    BorrowerState,
    StreamEvent,
    StreamState,
)
from streamlease.protocol.errors import InvalidOption
from streamlease.protocol.messages import (
    BorrowerToLeader,
    Disconnect,
    FailureTaken,
    Grant,
    Hole,
    Invalidate,
    LeaderConnectResponse,
    LeaderToBorrower,
    LeaderWanted,
    MessageFailed,
    NotLeader,
    Ping,
    PingResponse,
    Progress,
    ProgressCommitted,
    Revoke,
    Revoked,
    RevokeFinished,
    UpdateProgress,
)

__all__ = [
    "Borrower",
    "BorrowerConfig",
    "Disconnected",
    "Effect",
    "Ended",
    "Event",
    "Failed",
    "FailureAnswered",
    "FindLeader",
    "HeldStream",
    "Identity",
    "LeaderFound",
    "ProgressAcknowledged",
    "Progressed",
    "Received",
    "SendToLeader",
    "Started",
    "StreamGone",
    "StreamGranted",
    "StreamRevoking",
    "Tick",
    "Unsubscribed",
]

STOOD_STILL = 500
"""A longer time (ms) between two ticks: the process stood still, and has not heard what came for it."""

CALM_STREAMS = 1000
"""For each so many streams that it holds, a borrower waits one more ``resend_interval`` before it repeats."""


@dataclass(frozen=True, slots=True)
class BorrowerConfig:
    """Timers of a borrower, in milliseconds (EIP-0028: "The Borrower has the following timers").

    Raises:
        InvalidOption: a value is not positive, or the ping timeout does not exceed the ping interval.
    """

    find_leader_interval: int = 500
    ping_interval: int = 1000
    ping_timeout: int = 3000
    resend_interval: int = 1000
    """Progress that the leader has not acknowledged for so long is reported again."""
    unsubscribe_timeout: int = 5000
    session_timeout: int = 10_000

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            if getattr(self, name) <= 0:
                raise InvalidOption(f"{name} is {getattr(self, name)} ms: it must be above 0")
        if self.ping_timeout <= self.ping_interval:
            raise InvalidOption(
                f"ping_timeout is {self.ping_timeout} ms: it must be above ping_interval "
                f"({self.ping_interval} ms)"
            )
        if self.session_timeout <= self.ping_interval:
            raise InvalidOption(
                f"session_timeout is {self.session_timeout} ms: it must be above ping_interval "
                f"({self.ping_interval} ms)"
            )


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a borrower is; see `LeaderWanted` for the fields."""

    group: str
    borrower: str
    session: str
    name: str
    arrival: int
    attempt: int
    host: str


@dataclass(slots=True)
class HeldStream:
    """One stream that the borrower holds."""

    lease_epoch: int
    progress: int
    state: StreamState = StreamState.GRANTED
    final: bool = False
    acknowledged: int = -1
    report_at: int = 0
    failed: Failed | None = None
    """A failure that the leader has not answered."""
    holes: tuple[Hole, ...] = ()


@dataclass(slots=True)
class Borrower:
    """One borrower. All its state is in these fields; only `step` changes them."""

    identity: Identity
    config: BorrowerConfig
    state: BorrowerState = BorrowerState.CONNECTING
    term: int = 0
    mailbox: str = ""
    streams: dict[str, HeldStream] = field(default_factory=dict)
    over: dict[str, int] = field(default_factory=dict)
    """Stream -> highest lease epoch that this borrower had and has no more; late copies are refused."""
    refused: int = 0
    """Events that no transition allows, and late messages: counted, without any other effect."""
    find_at: int = 0
    ping_at: int = 0
    silent_at: int = 0
    give_up_at: int = 0
    ticked_at: int | None = None

    def step(self, event: Event, now: int) -> list[Effect]:
        """Take one event at time `now` (ms) and return what is to be done, in order."""
        if self.state is BorrowerState.ENDED:
            self.refused += 1
            return []
        match event:
            case Started():
                if self.state is not BorrowerState.CONNECTING:
                    self.refused += 1
                    return []
                self.find_at = now + self.config.find_leader_interval
                return [FindLeader()]
            case LeaderFound():
                return self._leader_found(event)
            case Received():
                return self._received(event.message, now)
            case Progressed():
                return self._progressed(event, now)
            case Failed():
                return self._failed(event, now)
            case Unsubscribed():
                return self._unsubscribed(now)
            case Disconnected():
                return self._disconnected()
            case Tick():
                return self._tick(now)
            case _:
                assert_never(event)

    # ------------------------------------------------------------ inside

    def _move(self, event: BorrowerEvent) -> bool:
        target = BORROWER_TRANSITIONS.get((self.state, event))
        if target is None:
            self.refused += 1
            return False
        self.state = target
        return True

    def _move_stream(self, stream: HeldStream, event: StreamEvent) -> bool:
        target = STREAM_TRANSITIONS.get((stream.state, event))
        if target is None:
            self.refused += 1
            return False
        stream.state = target
        return True

    def _end(self, event: BorrowerEvent, reason: str, *, again: bool) -> list[Effect]:
        if not self._move(event):
            return []
        gone: list[Effect] = [StreamGone(name, held.lease_epoch) for name, held in self.streams.items()]
        self.streams.clear()
        return [*gone, Ended(reason, again)]

    def _to_leader(self, message: BorrowerToLeader) -> SendToLeader:
        return SendToLeader(self.mailbox, message)

    def _report(self, stream: str, held: HeldStream) -> SendToLeader:
        entry = Progress(
            stream=stream,
            lease_epoch=held.lease_epoch,
            offset=held.progress,
            final=held.final,
            holes=held.holes,
        )
        return self._to_leader(
            UpdateProgress(group=self.identity.group, borrower=self.identity.borrower, progress=(entry,))
        )

    def _leader_found(self, event: LeaderFound) -> list[Effect]:
        if self.state is not BorrowerState.CONNECTING:
            self.refused += 1
            return []
        self.mailbox = event.mailbox
        who = self.identity
        return [
            self._to_leader(
                LeaderWanted(
                    group=who.group,
                    borrower=who.borrower,
                    session=who.session,
                    name=who.name,
                    arrival=who.arrival,
                    attempt=who.attempt,
                    host=who.host,
                    attested=event.attested,
                    session_timeout_ms=self.config.session_timeout,
                )
            )
        ]

    def _received(self, message: LeaderToBorrower, now: int) -> list[Effect]:
        match message:
            case LeaderConnectResponse():
                return self._accepted(message, now)
            case NotLeader():
                if self.state is BorrowerState.CONNECTING:
                    return []  # the next look is due anyway; looking at once could go on and on
                if message.term < self.term:
                    self.refused += 1  # from before its host began to lead
                    return []
                return self._end(BorrowerEvent.INVALIDATED, "the leader moved", again=True)
            case Invalidate():
                if message.term < self.term:
                    self.refused += 1
                    return []
                again = message.reason not in ("replaced", "deleted")
                return self._end(BorrowerEvent.INVALIDATED, message.reason, again=again)
            case PingResponse() | Grant() | Revoke() | Revoked() | ProgressCommitted() | FailureTaken():
                if self.state is BorrowerState.CONNECTING or message.term < self.term:
                    self.refused += 1
                    return []
                if message.term > self.term:
                    return self._end(BorrowerEvent.INVALIDATED, "a newer term", again=True)
                return self._of_my_term(message, now)
            case _:
                assert_never(message)

    def _accepted(self, message: LeaderConnectResponse, now: int) -> list[Effect]:
        if self.state is not BorrowerState.CONNECTING:
            if message.term > self.term:
                return self._end(BorrowerEvent.INVALIDATED, "another leader answered", again=True)
            self.refused += message.term < self.term
            return []
        if self._move(BorrowerEvent.ACCEPTED):
            self.term = message.term
            self.ping_at = now + self.config.ping_interval
            self.silent_at = now + self.config.ping_timeout
        return []

    def _of_my_term(
        self, message: PingResponse | Grant | Revoke | Revoked | ProgressCommitted | FailureTaken, now: int
    ) -> list[Effect]:
        match message:
            case PingResponse():
                self.silent_at = now + self.config.ping_timeout
                return []
            case Grant():
                return self._grant(message, now)
            case ProgressCommitted():
                return self._committed(message)
            case Revoke():
                return self._revoke(message)
            case Revoked():
                return self._revoked(message)
            case FailureTaken():
                return self._failure_taken(message)
            case _:
                assert_never(message)

    def _grant(self, message: Grant, now: int) -> list[Effect]:
        if self.state is BorrowerState.UNSUBSCRIBING:
            return []
        held = self.streams.get(message.stream)
        effects: list[Effect] = []
        if message.lease_epoch <= self.over.get(message.stream, -1):
            self.refused += 1
            return []
        if held is not None:
            if message.lease_epoch < held.lease_epoch:
                self.refused += 1
                return []
            if message.lease_epoch == held.lease_epoch:
                return [self._report(message.stream, held)]
            self._move_stream(held, StreamEvent.REPLACED)
            self.over[message.stream] = held.lease_epoch
            effects.append(StreamGone(message.stream, held.lease_epoch))
        held = HeldStream(message.lease_epoch, message.progress, report_at=self._resend_at(now))
        self.streams[message.stream] = held
        effects.append(
            StreamGranted(
                message.stream,
                message.lease_epoch,
                message.progress,
                message.pinned_end,
                message.resumes,
                message.follows,
                message.retry_after_ms,
            )
        )
        effects.append(self._report(message.stream, held))
        return effects

    def _committed(self, message: ProgressCommitted) -> list[Effect]:
        effects: list[Effect] = []
        for entry in message.progress:
            held = self.streams.get(entry.stream)
            if held is None or held.lease_epoch != entry.lease_epoch or entry.offset <= held.acknowledged:
                continue
            held.acknowledged = entry.offset
            effects.append(ProgressAcknowledged(entry.stream, entry.lease_epoch, entry.offset))
        return effects

    def _revoke(self, message: Revoke) -> list[Effect]:
        held = self.streams.get(message.stream)
        if held is None or held.lease_epoch != message.lease_epoch:
            self.refused += 1
            return []
        if held.state is StreamState.REVOKING:
            return [self._report(message.stream, held)]
        if self.state is BorrowerState.UNSUBSCRIBING:
            return []
        self._move_stream(held, StreamEvent.REVOKE)
        return [StreamRevoking(message.stream, message.lease_epoch)]

    def _revoked(self, message: Revoked) -> list[Effect]:
        finished = self._to_leader(
            RevokeFinished(
                group=self.identity.group,
                borrower=self.identity.borrower,
                stream=message.stream,
                lease_epoch=message.lease_epoch,
            )
        )
        held = self.streams.get(message.stream)
        if held is None or held.lease_epoch != message.lease_epoch:
            return [finished]
        if self.state is BorrowerState.UNSUBSCRIBING:
            return []
        if not self._move_stream(held, StreamEvent.REVOKED):
            return []
        del self.streams[message.stream]
        self.over[message.stream] = message.lease_epoch
        effects: list[Effect] = []
        if held.final and held.acknowledged < held.progress and not message.forced:
            effects.append(ProgressAcknowledged(message.stream, message.lease_epoch, held.progress))
        return [*effects, StreamGone(message.stream, message.lease_epoch), finished]

    def _progressed(self, event: Progressed, now: int) -> list[Effect]:
        held = self.streams.get(event.stream)
        if held is None or held.lease_epoch != event.lease_epoch or held.final:
            self.refused += 1
            return []
        if event.offset < held.progress or (event.final and not self._may_finish(held)):
            self.refused += 1
            return []
        held.progress = event.offset
        held.final = event.final
        held.holes = event.holes
        held.report_at = self._resend_at(now)
        report = self._report(event.stream, held)
        if self.state is BorrowerState.UNSUBSCRIBING and all(s.final for s in self.streams.values()):
            return self._leave("unsubscribed")
        return [report]

    def _failed(self, event: Failed, now: int) -> list[Effect]:
        held = self.streams.get(event.stream)
        if (
            held is None
            or held.lease_epoch != event.lease_epoch
            or held.final
            or event.offset < held.progress
        ):
            self.refused += 1
            return []
        held.progress = event.offset
        held.failed = event
        held.report_at = self._resend_at(now)
        return [self._report_failure(event)]

    def _report_failure(self, event: Failed) -> SendToLeader:
        return self._to_leader(
            MessageFailed(
                group=self.identity.group,
                borrower=self.identity.borrower,
                stream=event.stream,
                lease_epoch=event.lease_epoch,
                offset=event.offset,
                failure=event.failure,
                cause=event.cause,
            )
        )

    def _failure_taken(self, message: FailureTaken) -> list[Effect]:
        held = self.streams.get(message.stream)
        failed = held.failed if held is not None else None
        if (
            held is None
            or failed is None
            or (failed.lease_epoch, failed.failure)
            != (
                message.lease_epoch,
                message.failure,
            )
        ):
            self.refused += 1
            return []
        held.failed = None
        held.progress = max(held.progress, message.offset + (message.verdict == "passed"))
        held.acknowledged = max(held.acknowledged, held.progress)
        return [
            FailureAnswered(
                message.stream,
                message.lease_epoch,
                message.offset,
                message.failure,
                message.verdict,
                message.retry_after_ms,
            )
        ]

    def _may_finish(self, held: HeldStream) -> bool:
        return held.state is StreamState.REVOKING or self.state is BorrowerState.UNSUBSCRIBING

    def _unsubscribed(self, now: int) -> list[Effect]:
        if self.state is BorrowerState.CONNECTING:
            return self._disconnected()
        if not self._move(BorrowerEvent.UNSUBSCRIBED):
            return []
        self.give_up_at = now + self.config.unsubscribe_timeout
        if not self.streams:
            return self._leave("unsubscribed")
        return [StreamRevoking(name, held.lease_epoch) for name, held in self.streams.items()]

    def _leave(self, reason: str) -> list[Effect]:
        goodbye = self._goodbye()
        return [*goodbye, *self._end(BorrowerEvent.DRAINED, reason, again=False)]

    def _disconnected(self) -> list[Effect]:
        return [*self._goodbye(), *self._end(BorrowerEvent.DISCONNECTED, "disconnected", again=False)]

    def _goodbye(self) -> list[Effect]:
        if not self.mailbox:
            return []
        progress = tuple(
            Progress(
                stream=name,
                lease_epoch=held.lease_epoch,
                offset=held.progress,
                final=True,
                holes=held.holes,
            )
            for name, held in self.streams.items()
        )
        return [
            self._to_leader(
                Disconnect(group=self.identity.group, borrower=self.identity.borrower, progress=progress)
            )
        ]

    def _tick(self, now: int) -> list[Effect]:
        if self.state is BorrowerState.CONNECTING:
            if now < self.find_at:
                return []
            self.find_at = now + self.config.find_leader_interval
            return [FindLeader()]
        self._count_standstill(now)
        if now >= self.silent_at:
            return self._end(BorrowerEvent.INVALIDATED, "the leader is silent", again=True)
        effects: list[Effect] = []
        if now >= self.ping_at:
            self.ping_at = now + self.config.ping_interval
            effects.append(
                self._to_leader(
                    Ping(group=self.identity.group, borrower=self.identity.borrower, term=self.term)
                )
            )
        effects.extend(self._report_again(now))
        if self.state is BorrowerState.UNSUBSCRIBING and now >= self.give_up_at:
            effects.extend(self._leave("unsubscribe timeout"))
        return effects

    def _count_standstill(self, now: int) -> None:
        """What the process did not hear while it stood still is not its leader's silence.

        Unless the leader has given it up meanwhile: then it must hand out nothing more.
        """
        stood = now - self.ticked_at if self.ticked_at is not None else 0
        self.ticked_at = now
        if STOOD_STILL <= stood < self.config.session_timeout - self.config.ping_interval:
            self.silent_at += stood

    def _resend_at(self, now: int) -> int:
        """When what is said now is said again: later with many streams, or answers are crowded out."""
        return now + self.config.resend_interval * max(1, len(self.streams) // CALM_STREAMS)

    def _report_again(self, now: int) -> list[Effect]:
        effects: list[Effect] = []
        for stream, held in self.streams.items():
            if (held.failed is None and held.acknowledged >= held.progress) or now < held.report_at:
                continue
            held.report_at = self._resend_at(now)
            effects.append(
                self._report_failure(held.failed) if held.failed is not None else self._report(stream, held)
            )
        return effects
