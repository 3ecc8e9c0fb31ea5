"""Who should hold which stream: pure functions from the present assignment to moves.

A plan is balanced (the numbers of streams of two borrowers differ by at most one) and sticky (it makes the
fewest moves that reach balance): free streams go to those that have the fewest, and only what exceeds a
borrower's fair share is revoked. Source: EIP-0028, "stream reassignment process". Order of inputs does
not matter; equal inputs give equal plans. Plans by weight are in `weighted`, names in `strategies`.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Plan:
    """Streams to grant now, and streams to revoke so that a later plan can grant them."""

    grants: tuple[tuple[str, str], ...]
    """Pairs (stream, borrower): free streams and who gets them."""
    revokes: tuple[str, ...]
    """Streams to take from their present holders."""
    targets: Mapping[str, int]
    """How many streams each borrower holds once all is done."""

    def document(self) -> dict[str, Any]:
        """The plan as operators see it."""
        return {
            "grants": [{"stream": stream, "to": borrower} for stream, borrower in self.grants],
            "revokes": list(self.revokes),
            "targets": dict(sorted(self.targets.items())),
        }


@dataclass(frozen=True, slots=True)
class Situation:
    """What a plan is made from."""

    held: Mapping[str, Collection[str]]
    """The streams of each borrower, an empty collection for one that has none, without those that are
    already on their way out."""
    free: Collection[str] = ()
    """The streams that nobody holds."""
    fixed: Collection[str] = frozenset()
    """Held streams that must not be revoked now."""
    leaving: Collection[str] = ()
    """Streams that are on their way out and will soon be free."""
    weights: Mapping[str, int] = field(default_factory=dict)
    """Of each stream, above 0; empty for a strategy that measures nothing."""
    most: int | None = None
    """A plan by weight may revoke so many streams at most; None: as many as needed."""


def by_count(situation: Situation) -> Plan:
    """The strategy ``count``: equal numbers of streams, whatever their weights."""
    return balanced(situation.held, situation.free, situation.fixed, len(situation.leaving))


def balanced(
    held: Mapping[str, Collection[str]],
    free: Collection[str],
    fixed: Collection[str] = frozenset(),
    leaving: int = 0,
) -> Plan:
    """Equal numbers of streams, fewest moves.

    Args:
        held, free, fixed: as of `Situation`.
        leaving: how many streams are on their way out and will soon be free.
    """
    if not held:
        return Plan((), (), {})
    total = sum(map(len, held.values())) + len(free) + leaving
    share, extra = divmod(total, len(held))
    order = sorted(held, key=lambda borrower: (-len(held[borrower]), borrower))
    targets = {borrower: share + (rank < extra) for rank, borrower in enumerate(order)}

    revokes: list[str] = []
    for borrower in order:
        surplus = len(held[borrower]) - targets[borrower]
        if surplus > 0:
            movable = sorted(stream for stream in held[borrower] if stream not in fixed)
            revokes.extend(movable[len(movable) - min(surplus, len(movable)) :])

    room = [
        (len(held[borrower]) - targets[borrower], borrower)
        for borrower in order
        if len(held[borrower]) < targets[borrower]
    ]
    heapq.heapify(room)
    grants: list[tuple[str, str]] = []
    for stream in sorted(free):
        if not room:
            break
        lack, borrower = heapq.heappop(room)
        grants.append((stream, borrower))
        if lack + 1 < 0:
            heapq.heappush(room, (lack + 1, borrower))
    return Plan(tuple(grants), tuple(revokes), targets)
