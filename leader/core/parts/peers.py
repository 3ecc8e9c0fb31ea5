"""Peers: who is connected, who was in the former term, and who has not been heard for too long.

A borrower comes by `LeaderWanted` under a name. Of two with one name the later arrival is right: it takes the
place of the earlier one at once, and what the earlier one says from then on is late. A new leader knows the
former one's borrowers by their names only (`Peer.connected` is false); they come back, or are lost like
others that fall silent.

All timers are due at fixed times; only a borrower's own messages show that it is alive.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from streamlease.leader.core.config import LeaderConfig
from streamlease.leader.core.happenings import BorrowerLost, Connected
from streamlease.leader.core.parts.ledger import Ledger, Table
from streamlease.leader.core.peer import Peer
from streamlease.leader.core.state.records import Returned
from streamlease.protocol.messages import (
    Invalidate,
    LeaderConnectResponse,
    LeaderWanted,
    PingResponse,
    Progress,
    ProgressCommitted,
)

DEAF_AFTER = 2000
"""A leader that has heard nothing for longer (ms), because its Redis or its own process stood still, does not
count that time against its borrowers: they had no chance to be heard."""

RETURN_TIMEOUT = 5000
"""How long (ms) the former leader's borrowers have at least, however short their session timeout is: they
miss a leader after their ping timeout (3 s), a ping interval (1 s) after it is gone at most, then look for
the next one each half second."""

LEAST_RETURN = 2500
"""So much of it (ms) they have with the new leader, however long there was none."""

SOON = 1000
"""A borrower whose time ends so soon (ms), or within a third of it, is looked at often."""

MAX_ARRIVALS = 10_000
"""How many names' arrivals are remembered; they only serve to refuse late messages."""

InvalidateReason = Literal["unknown", "replaced", "stale", "revocation_timeout", "stepped_down", "deleted"]


@dataclass(slots=True)
class Peers(Table[Peer]):
    """The borrowers of the group by name."""

    ledger: Ledger
    config: LeaderConfig
    names: dict[str, str] = field(default_factory=dict)
    """Borrower id -> name, of connected borrowers."""
    arrivals: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Name -> highest (arrival, attempt) seen."""
    heard: int | None = None
    """Up to when (ms) all that was sent has reached the leader; None before the first tick."""
    idle_since: int | None = None
    missed: bool = False
    """Whether some borrower is about to have been silent for too long, as of the last tick."""

    # ------------------------------------------------------------ coming and going

    def recovered(self, deaf: int, now: int) -> None:
        """Expect those whom the former leader had, whom nobody can have heard for `deaf` ms."""
        self.idle_since = now
        for progress in self.ledger.durable.streams.values():
            owner = progress.owner
            if owner is not None and owner not in self._rows and progress.session is not None:
                timeout = _left(progress.session_timeout_ms, deaf)
                self._rows[owner] = Peer(owner, progress.session, "", "", "", 0, 0, timeout, now)

    def connect(self, sender: str, message: LeaderWanted, now: int) -> None:
        """Accept a borrower, again if it is known, unless a later one has its name."""
        known = self._rows.get(message.name)
        if known is not None and known.borrower == message.borrower:
            known.last_seen = now
            self._accept(known)
            return
        highest = self.arrivals.get(message.name, (-1, -1))
        if (message.arrival, message.attempt) <= highest:
            self.ledger.refuse()
            reason: InvalidateReason = "replaced" if message.arrival < highest[0] else "stale"
            self._invalidate(sender, message.borrower, reason)
            return
        if self.ledger.durable.expired_at is not None:
            self.ledger.record(Returned())
        self.arrivals[message.name] = (message.arrival, message.attempt)
        peer = Peer(
            message.name,
            message.session,
            message.borrower,
            sender,
            message.host,
            message.arrival,
            message.attempt,
            message.session_timeout_ms,
            now,
        )
        if known is not None and known.connected:
            self.names.pop(known.borrower, None)  # another name may have come with the same id
            self._invalidate(known.mailbox, known.borrower, "replaced")
        self._rows[peer.name] = peer
        self.names[peer.borrower] = peer.name
        self._accept(peer)
        self.ledger.happened(Connected(peer, known))

    def lose(self, peer: Peer, *, clean: bool = False) -> None:
        """A borrower is gone."""
        self._rows.pop(peer.name, None)
        self.names.pop(peer.borrower, None)
        if len(self.arrivals) > MAX_ARRIVALS:
            for name in [n for n in self.arrivals if n not in self._rows][: MAX_ARRIVALS // 2]:
                del self.arrivals[name]
        self.ledger.happened(BorrowerLost(peer, clean))

    def begin_anew(self, name: str) -> None:
        """The borrower holds what does not exist any more: let it come back for what does."""
        peer = self._rows[name]
        if peer.connected:
            self.invalidate(peer, "unknown")
            self.names.pop(peer.borrower, None)  # another name may have come with the same id
            peer.borrower = ""

    # ------------------------------------------------------------ time

    def tick(self, listened: int | None, now: int) -> None:
        """Lose those that were silent for too long.

        Args:
            listened: up to when (ms) all that was sent has reached the leader; None: up to now.
        """
        heard = now
        if listened is not None:
            heard = min(listened, now)
            if self.heard is not None and heard - self.heard > DEAF_AFTER:
                self._excuse_silence(heard - self.heard - DEAF_AFTER, now)
            self.heard = heard
        for peer in [one for one in self._rows.values() if heard >= one.last_seen + one.timeout]:
            self.lose(peer)
        self.missed = any(
            now + min(SOON, one.timeout // 3) >= one.last_seen + one.timeout for one in self._rows.values()
        )

    def _excuse_silence(self, deaf: int, now: int) -> None:
        """Give borrowers back the time in which they could not be heard."""
        for peer in self._rows.values():
            peer.last_seen = min(now, peer.last_seen + deaf)

    def tick_idleness(self, now: int) -> None:
        """Stop leading a group that has had no borrowers for long."""
        if self._rows:
            self.idle_since = None
        elif self.idle_since is None:
            self.idle_since = now
        elif now >= self.idle_since + self.config.idle_timeout:
            self.ledger.stop("idle")

    # ------------------------------------------------------------ what others ask

    def takes(self, name: str) -> bool:
        """Whether a borrower of that name is connected and may get streams."""
        peer = self._rows.get(name)
        return peer is not None and peer.connected and name not in self.ledger.durable.operated.drained

    def pins(self) -> dict[str, str]:
        """Streams that operators moved to a borrower that takes them. They stand outside of the balance."""
        return {s: name for s, name in self.ledger.durable.operated.pins.items() if self.takes(name)}

    def has_session(self, session: str) -> bool:
        """Whether a borrower of the session is here or expected."""
        return any(peer.session == session for peer in self._rows.values())

    def hears_session(self, session: str) -> bool:
        """Whether some borrower of the session is connected."""
        return any(peer.session == session and peer.connected for peer in self._rows.values())

    def is_newest(self, session: str, arrival: int) -> bool:
        """Whether no later incarnation of the session is connected."""
        return not any(peer.session == session and peer.arrival > arrival for peer in self._rows.values())

    # ------------------------------------------------------------ what they say and are told

    def hear(self, sender: str, borrower: str, now: int, *, leaves: bool) -> Peer | None:
        """The connected borrower of that id, which is alive; None, and it is told, if there is none."""
        name = self.names.get(borrower)
        if name is None:
            self.ledger.refuse()
            if not leaves:
                self._invalidate(sender, borrower, "unknown")
            return None
        peer = self._rows[name]
        peer.last_seen = now
        return peer

    def _accept(self, peer: Peer) -> None:
        ledger = self.ledger
        response = LeaderConnectResponse(
            group=ledger.group, borrower=peer.borrower, term=ledger.term, leader=ledger.host
        )
        ledger.send(peer.mailbox, response)

    def answer_ping(self, peer: Peer) -> None:
        """Say that this leader is alive, and knows the borrower."""
        response = PingResponse(group=self.ledger.group, borrower=peer.borrower, term=self.ledger.term)
        self.ledger.send(peer.mailbox, response)

    def acknowledge(self, peer: Peer, taken: tuple[Progress, ...]) -> None:
        """Say which progress is durable."""
        if taken:
            committed = ProgressCommitted(
                group=self.ledger.group, borrower=peer.borrower, term=self.ledger.term, progress=taken
            )
            self.ledger.send(peer.mailbox, committed)

    def invalidate(self, peer: Peer, reason: InvalidateReason) -> None:
        """Tell a connected borrower that it is to end."""
        self._invalidate(peer.mailbox, peer.borrower, reason)

    def _invalidate(self, mailbox: str, borrower: str, reason: InvalidateReason) -> None:
        ledger = self.ledger
        ledger.send(
            mailbox, Invalidate(group=ledger.group, borrower=borrower, term=ledger.term, reason=reason)
        )

    def dismiss(self, why: InvalidateReason, reason: str) -> None:
        """Tell all borrowers that this leader ends, and end."""
        for peer in self._rows.values():
            if peer.connected:
                self.invalidate(peer, why)
        self.ledger.stop(reason)


def _left(session_timeout: int, deaf: int) -> int:
    """How long (ms) a new leader waits for a borrower of the former one, if there was none for `deaf` ms.

    Where there was none for longer than its session timeout, nothing is won by haste.
    """
    if deaf >= session_timeout:
        return RETURN_TIMEOUT
    return max(session_timeout - deaf, RETURN_TIMEOUT - deaf, LEAST_RETURN)
