"""What a leader does in turns: leases that begin, are told of or asked back in very large numbers.

All at once would be one step of the leader, one write and one turn of whoever holds the streams; whatever
else runs on the same event loops, or asks the same server, waits for that, and a few seconds of silence end a
term or a borrower.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from streamlease.leader.core.lease import Lease, LeaseState
from streamlease.leader.core.parts.ledger import Ledger

GRANTING = LeaseState.GRANTING

MOST_AT_ONCE = 2500
"""So many leases begin or are asked back in one turn, or a `LEAST_TURNS`th of all, if that is more."""

LEAST_TURNS = 16

PATIENCE = 5000
"""What is not answered for so long (ms) keeps no other waiting."""


def most_at_once(ledger: Ledger) -> int:
    """How many leases begin in one turn, and how many are being asked back at once."""
    return max(MOST_AT_ONCE, len(ledger.durable.streams) // LEAST_TURNS)


@dataclass(slots=True)
class AskedBack:
    """Streams that were asked back lately, and are not given back."""

    ledger: Ledger
    left: bool = False
    """Whether there was no room for some that are to be asked back."""
    _since: OrderedDict[str, int] = field(default_factory=OrderedDict)
    """When each was asked back (ms), the oldest first."""

    def begin(self, stream: str, now: int) -> None:
        """The stream is asked back."""
        self._since[stream] = now

    def over(self, stream: str) -> None:
        """Its lease is over."""
        self._since.pop(stream, None)

    def fit(self, wanted: int, now: int) -> int:
        """How many of so many may be asked back now; the others are to be looked for again (`goes_on`)."""
        room = self._room(now)
        self.left |= wanted > room
        return min(wanted, room)

    def goes_on(self, now: int) -> bool:
        """Whether those for which there was no room are to be looked for again: much of it is free."""
        if not self.left or 2 * self._room(now) < most_at_once(self.ledger):
            return False
        self.left = False
        return True

    def _room(self, now: int) -> int:
        since = self._since
        while since and next(iter(since.values())) <= now - PATIENCE:
            since.popitem(last=False)
        return max(0, most_at_once(self.ledger) - len(since))


@dataclass(slots=True)
class BegunLeases:
    """Leases that have begun, and of which their owners are not told yet."""

    ledger: Ledger
    unwritten: dict[str, Lease] = field(default_factory=dict)
    """By stream: those that may not stand in Redis yet."""
    _standing: dict[str, deque[tuple[str, Lease]]] = field(default_factory=dict)
    """By owner, in order: those that stand there, and some that are over by now."""
    _told: dict[str, tuple[int, list[Lease]]] = field(default_factory=dict)
    """By owner: when (ms) it was told last, and of which. Only of owners who wait for more."""

    def begin(self, stream: str, lease: Lease) -> None:
        """A lease begins."""
        self.unwritten[stream] = lease

    def written(self) -> None:
        """All that began so far stand in Redis."""
        for stream, lease in self.unwritten.items():
            self._standing.setdefault(lease.name, deque()).append((stream, lease))
        self.unwritten = {}

    def next(self, leases: Mapping[str, Lease], now: int) -> list[tuple[str, list[tuple[str, Lease]]]]:
        """Who is to be told now of which; not of those that are not among the present `leases` any more.

        Nobody is told of more while it has not answered as many as may begin in one turn; in a small group
        all are told of all.
        """
        if not self._standing:
            return []
        found = []
        for name, standing in [*self._standing.items()]:
            at, told = self._told.get(name, (now, []))
            told = [one for one in told if one.state is GRANTING] if now < at + PATIENCE else []
            some: list[tuple[str, Lease]] = []
            while standing and len(told) + len(some) < most_at_once(self.ledger):
                stream, lease = standing.popleft()
                if leases.get(stream) is lease:
                    some.append((stream, lease))
            if some:
                found.append((name, some))
                self._told[name] = now, told + [lease for _, lease in some]
            if not standing:
                del self._standing[name]
                self._told.pop(name, None)
        return found
