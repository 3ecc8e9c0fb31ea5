"""Who a borrower is, and where its leader is."""

from __future__ import annotations

from dataclasses import dataclass

from streamlease.borrower.events import SendToLeader
from streamlease.protocol.messages import (
    Disconnect,
    LeaderWanted,
    Ping,
    Progress,
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
class Link:
    """The way from a borrower to its leader."""

    identity: Identity
    mailbox: str = ""
    """Of the leader that was found last; empty before."""
    term: int = 0
    """Of the leader that accepted the borrower; messages of an earlier one are not believed."""

    def connect(self, session_timeout: int, attested: tuple[Progress, ...]) -> SendToLeader:
        """Ask the leader that was found to accept the borrower."""
        who = self.identity
        wanted = LeaderWanted(
            group=who.group,
            borrower=who.borrower,
            session=who.session,
            name=who.name,
            arrival=who.arrival,
            attempt=who.attempt,
            host=who.host,
            attested=attested,
            session_timeout_ms=session_timeout,
        )
        return SendToLeader(self.mailbox, wanted)

    def ping(self) -> SendToLeader:
        """Say that the borrower is alive, and ask whether the leader is."""
        who = self.identity
        return SendToLeader(self.mailbox, Ping(group=who.group, borrower=who.borrower, term=self.term))

    def leave(self, progress: tuple[Progress, ...]) -> SendToLeader:
        """Say that the borrower ends, and how far all of its streams are."""
        who = self.identity
        leave = Disconnect(group=who.group, borrower=who.borrower, progress=progress)
        return SendToLeader(self.mailbox, leave)
