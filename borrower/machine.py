"""The borrower machine: events in, effects out; no clock, no randomness, no I/O.

It talks to one leader for one shared subscription, as EIP-0028 describes, with two additions: messages of
another term are not believed, and every lease has a lease epoch that goes into all that is said about it.

It has three parts, each with a state of its own: its `Life` with the timers, the `Link` to its leader, and
its `BorrowedStreams`. This module says what a life does to leases, and leases to a life; nothing else does.

The enclosing agent carries the effects out: it finds the leader, sends messages, tells the session which
streams came and went, and makes a new borrower after `Ended(again=True)`. Times are milliseconds of any
clock that does not run backwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import assert_never

from streamlease.borrower.events import (
    Disconnected,
    Effect,
    Ended,
    Event,
    Failed,
    FindLeader,
    LeaderFound,
    Progressed,
    ProgressedTogether,
    Received,
    Started,
    Tick,
    Unsubscribed,
)
from streamlease.borrower.lease import Borrowed
from streamlease.borrower.leases import BorrowedStreams
from streamlease.borrower.life import BorrowerConfig, BorrowerEvent, BorrowerState, Due, Life
from streamlease.borrower.link import Identity, Link
from streamlease.protocol.messages import (
    FailureTaken,
    Grant,
    Grants,
    Invalidate,
    LeaderConnectResponse,
    LeaderToBorrower,
    NotLeader,
    PingResponse,
    ProgressCommitted,
    Revoke,
    Revoked,
)

_OfMyTerm = PingResponse | Grant | Grants | Revoke | Revoked | ProgressCommitted | FailureTaken


@dataclass(slots=True)
class Borrower:
    """One borrower; only `step` changes it."""

    identity: Identity
    config: BorrowerConfig
    life: Life = field(init=False)
    link: Link = field(init=False)
    leases: BorrowedStreams = field(init=False)
    refused: int = 0
    """Events that no transition allows, and late messages: counted, without any other effect."""

    def __post_init__(self) -> None:
        self.life = Life(self.config)
        self.link = Link(self.identity)
        self.leases = BorrowedStreams(self.link, self.config.resend_interval)

    @property
    def state(self) -> BorrowerState:
        """Where it is in its life."""
        return self.life.state

    @property
    def term(self) -> int:
        """That of the leader that accepted it."""
        return self.link.term

    @property
    def mailbox(self) -> str:
        """That of the leader that was found last."""
        return self.link.mailbox

    @property
    def streams(self) -> dict[str, Borrowed]:
        """What it holds."""
        return self.leases.held

    @property
    def due_at(self) -> int:
        """Before this time (ms) a tick changes nothing, unless the process stands still."""
        return 0 if self.leases.unanswered else self.life.due_at

    def step(self, event: Event, now: int) -> list[Effect]:
        """Take one event at time `now` (ms) and return what is to be done, in order."""
        effects = self._take(event, now) if self.life.state is not BorrowerState.ENDED else None
        if effects is None:
            self.refused += 1
            return []
        return effects

    # ------------------------------------------------------------ inside: None is "refused"

    def _take(self, event: Event, now: int) -> list[Effect] | None:
        match event:
            case Received():
                return _received(self, event.message, now)
            case Progressed():
                return self._progressed((event,), now)
            case ProgressedTogether():
                return self._progressed(event.entries, now)
            case Tick():
                return self._tick(now, event.since)
            case Started():
                if self.life.state is not BorrowerState.CONNECTING:
                    return None
                self.life.begin(now)
                return [FindLeader()]
            case LeaderFound():
                return self._leader_found(event)
            case Failed():
                return self.leases.failed(event, now)
            case Unsubscribed():
                return self._unsubscribed(now)
            case Disconnected():
                return self._disconnected()
            case _:
                assert_never(event)

    def _progressed(self, entries: Sequence[Progressed], now: int) -> list[Effect] | None:
        """Of several, those that are refused are counted here."""
        leaving = self.life.state is BorrowerState.UNSUBSCRIBING
        effects, refused = list[Effect](), 0
        for entry in entries:
            some = self.leases.progressed(entry, now, leaving=leaving)
            if some is None:
                refused += 1
            elif some:
                effects += some
        if refused == len(entries):
            self.refused += refused - 1
            return None
        self.refused += refused
        return self._leave("unsubscribed") if leaving and self.leases.are_final else effects

    def _leader_found(self, event: LeaderFound) -> list[Effect] | None:
        if self.life.state is not BorrowerState.CONNECTING:
            return None
        self.link.mailbox = event.mailbox
        return [self.link.connect(self.config.session_timeout, event.attested)]

    def _tick(self, now: int, since: int) -> list[Effect]:
        due = self.life.tick(now, since)
        if not due:
            return self.leases.repeat(now)
        if Due.FIND in due:
            return [FindLeader()]
        if Due.SILENT in due:
            return self.invalidated("the leader is silent", again=True)
        effects = [self.link.ping(), *self.leases.repeat(now)] if Due.PING in due else self.leases.repeat(now)
        return effects + self._leave("unsubscribe timeout") if Due.GIVE_UP in due else effects

    # ------------------------------------------------------------ the end of a life

    def _unsubscribed(self, now: int) -> list[Effect] | None:
        if self.life.state is BorrowerState.CONNECTING:
            return self._disconnected()
        if not self.life.unsubscribe(now):
            return None
        return self.leases.revoke_all() or self._leave("unsubscribed")

    def _leave(self, reason: str) -> list[Effect]:
        return [*self._goodbye(), *self._end(BorrowerEvent.DRAINED, reason, again=False)]

    def _disconnected(self) -> list[Effect]:
        return [*self._goodbye(), *self._end(BorrowerEvent.DISCONNECTED, "disconnected", again=False)]

    def _goodbye(self) -> list[Effect]:
        if not self.mailbox:
            return []
        return [self.link.leave(self.leases.final())]

    def invalidated(self, reason: str, *, again: bool) -> list[Effect]:
        """End: the leader disowned it, is silent, or contradicts itself."""
        return self._end(BorrowerEvent.INVALIDATED, reason, again=again)

    def _end(self, event: BorrowerEvent, reason: str, *, again: bool) -> list[Effect]:
        self.life.move(event)
        return [*self.leases.end(), Ended(reason, again)]


# ---------------------------------------------------------------- what the leader says: None is "refused"


def _received(borrower: Borrower, message: LeaderToBorrower, now: int) -> list[Effect] | None:
    connecting, mine = borrower.life.state is BorrowerState.CONNECTING, borrower.link.term
    late = message.term < mine
    match message:
        case (
            ProgressCommitted() | PingResponse() | Grant() | Grants() | Revoke() | Revoked() | FailureTaken()
        ):
            if connecting or late:
                return None
            if message.term > mine:
                return borrower.invalidated("a newer term", again=True)
            return _of_my_term(borrower, message, now)
        case LeaderConnectResponse():
            if connecting:
                borrower.link.term = message.term
                borrower.life.accept(now)
                return []
            if message.term > mine:
                return borrower.invalidated("another leader answered", again=True)
            return None if late else []
        case NotLeader():
            if connecting:
                return []  # the next look is due anyway; looking at once could go on and on
            # A late one is from before its host began to lead.
            return None if late else borrower.invalidated("the leader moved", again=True)
        case Invalidate():
            again = message.reason not in ("replaced", "deleted")
            return None if late else borrower.invalidated(message.reason, again=again)
        case _:
            assert_never(message)


def _of_my_term(borrower: Borrower, message: _OfMyTerm, now: int) -> list[Effect] | None:
    leaving = borrower.life.state is BorrowerState.UNSUBSCRIBING
    match message:
        case ProgressCommitted():
            return borrower.leases.committed(message)
        case PingResponse():
            borrower.life.hear(now)
            return []
        case Grant() | Grants():
            return [] if leaving else borrower.leases.grant(message, now)
        case Revoke():
            return borrower.leases.revoke(message, leaving=leaving)
        case Revoked():
            return borrower.leases.revoked(message, leaving=leaving)
        case FailureTaken():
            return borrower.leases.failure_taken(message)
        case _:
            assert_never(message)
