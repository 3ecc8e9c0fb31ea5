"""Who should hold which stream: pure functions from the present assignment to moves.

A plan is balanced (the numbers of streams of two borrowers differ by at most one) and sticky (it makes the
fewest moves that reach balance): free streams go to those that have the fewest, and only what exceeds a
borrower's fair share is revoked. Source: EIP-0028, "stream reassignment process". Order of inputs does
not matter; equal inputs give equal plans.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from streamlease.protocol.errors import InvalidOption


@dataclass(frozen=True, slots=True)
class Plan:
    """Streams to grant now, and streams to revoke so that a later plan can grant them."""

    grants: tuple[tuple[str, str], ...]
    """Pairs (stream, borrower): free streams and who gets them."""
    revokes: tuple[str, ...]
    """Streams to take from their present holders."""
    targets: Mapping[str, int]
    """How many streams each borrower holds once all is done."""


Strategy = Callable[[Mapping[str, Collection[str]], Collection[str], Collection[str], int], Plan]
"""(streams held by each borrower, free streams, held streams that cannot be revoked now, streams that
are on their way out) -> plan."""


def balanced(
    held: Mapping[str, Collection[str]],
    free: Collection[str],
    fixed: Collection[str] = frozenset(),
    leaving: int = 0,
) -> Plan:
    """Equal numbers of streams, fewest moves.

    Args:
        held: the streams of each borrower, an empty collection for one that has none, without those
            that are already on their way out.
        free: the streams that nobody holds.
        fixed: held streams that must not be revoked now.
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


STRATEGIES: dict[str, Strategy] = {"count": balanced}
"""Assignment strategies by name."""


def register(name: str, plan: Strategy) -> None:
    """Add a strategy of one's own, in the process of every leader host, before it leads.

    Raises:
        InvalidOption: the name is taken.
    """
    if STRATEGIES.setdefault(name, plan) is not plan:
        raise InvalidOption(f"strategy '{name}' exists already: choose another name")


def strategy(name: str) -> Strategy:
    """The strategy of that name.

    Raises:
        InvalidOption: no strategy has that name.
    """
    if name not in STRATEGIES:
        raise InvalidOption(f"strategy '{name}' does not exist: use one of {', '.join(sorted(STRATEGIES))}")
    return STRATEGIES[name]
