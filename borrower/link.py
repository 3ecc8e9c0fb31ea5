"""Who a borrower is, and where its leader is."""

from __future__ import annotations

from dataclasses import dataclass

from streamlease.borrower.events import SendToLeader
from streamlease.protocol.messages import BorrowerToLeader


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

    def send(self, message: BorrowerToLeader) -> SendToLeader:
        """Put `message` into the leader's mailbox."""
        return SendToLeader(self.mailbox, message)
