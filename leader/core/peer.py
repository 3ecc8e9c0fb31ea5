"""A borrower, as its leader knows it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Peer:
    """A connected borrower, or the memory of one that the former leader had (`borrower` is empty then)."""

    name: str
    session: str
    borrower: str
    mailbox: str
    host: str
    arrival: int
    attempt: int
    timeout: int
    last_seen: int

    @property
    def connected(self) -> bool:
        """Whether it has spoken in this term."""
        return bool(self.borrower)
