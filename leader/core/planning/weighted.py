"""Plans by weight: the sums of the weights of two borrowers' streams are near each other. Pure.

::

    free streams, the heaviest first ----> the lightest borrower
    while heaviest - lightest is too much: the stream nearest to half of that moves from one to the other

A stream moves only if that makes the heavier of the two lighter. So where all that is possible is done, the
sums of any two borrowers differ by no more than the lightest stream of the heavier one: never by more than
the heaviest stream. A borrower with one stream that outweighs all else keeps it alone, the others move away.

Weights are measured, so they are never still. Hence two bounds, as parts of the average sum: nothing moves
between two borrowers before they differ by more than `BEGIN`; a borrower that gets something gets enough to
come within `END`. What moves before it has to is a cost, what stays unequal is small.

Order of inputs does not matter, and equal inputs give equal plans: weights are whole numbers.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from operator import add

from streamlease.leader.core.planning.planner import Plan, Situation

BEGIN = 0.25
"""Two borrowers must differ by more than this part of the average for a stream to move."""

END = 0.1
"""A borrower that gets streams gets them until the difference is this part of the average."""


def by_weight(situation: Situation, *, begin: float = BEGIN, end: float = END) -> Plan:
    """The strategies ``rate`` and ``lag``.

    Args:
        begin, end: the two bounds; 0: the best that single moves reach.
    """
    held = situation.held
    if not held:
        return Plan((), (), {})
    weights = situation.weights
    loads = {name: sum(map(weights.__getitem__, streams)) for name, streams in held.items()}
    counts = {name: len(streams) for name, streams in held.items()}
    grants = _place(situation, loads, counts)
    moves = _Moves(held, frozenset(situation.fixed), weights, loads, counts)
    moves.received = {name for name, streams in held.items() if not streams}
    revokes = moves.make(begin, end, situation.most)
    return Plan(grants, tuple(revokes), counts)


def _place(
    situation: Situation, loads: dict[str, int], counts: dict[str, int]
) -> tuple[tuple[str, str], ...]:
    """Give what is free, or soon will be, to the lightest; the sums and numbers that follow."""
    weights = situation.weights
    leaving = frozenset(situation.leaving)
    coming = sorted([*situation.free, *leaving])
    coming.sort(key=weights.__getitem__, reverse=True)
    order = sorted(loads)
    size = len(order)
    # One whole number for the sum and the rank of a borrower: much quicker to compare than a pair.
    packed = sorted(loads[name] * size + rank for rank, name in enumerate(order))
    taken = _pour(packed, [weights[stream] * size for stream in coming])
    takers = [order[one % size] for one in taken]
    for one in packed:
        loads[order[one % size]] = one // size
    for name, count in Counter(takers).items():
        counts[name] += count
    placed = zip(coming, takers, strict=True)
    return tuple((s, name) for s, name in placed if s not in leaving) if leaving else tuple(placed)


def _pour(sums: list[int], weights: Sequence[int]) -> list[int]:
    """Add each weight, the heaviest first, to the lightest of the sorted `sums`; what each was added to.

    As long as many sums are nearer to the lightest one than any of the next weights is heavy, each of them
    gets one before any gets two, so a whole round is one sweep. Else a heap does the same one by one.
    """
    taken: list[int] = []
    while len(taken) < len(weights):
        block = weights[len(taken) : len(taken) + len(sums)]
        near = min(bisect_left(sums, sums[0] + block[-1]), len(block))
        if near * 8 < len(block):
            taken += [heapq.heapreplace(sums, sums[0] + weight) for weight in block]
        else:
            taken += sums[:near]
            sums[:near] = map(add, sums, block[:near])
        sums.sort()
    return taken


@dataclass(slots=True)
class _Moves:
    """Streams that go from the heaviest borrower to the lightest."""

    held: Mapping[str, Collection[str]]
    fixed: frozenset[str]
    weights: Mapping[str, int]
    loads: dict[str, int]
    counts: dict[str, int]
    received: set[str] = field(default_factory=set)
    """Those that get streams, or have none."""
    sorted: dict[str, tuple[list[tuple[int, str]], list[tuple[int, str]]]] = field(default_factory=dict)
    """Of borrowers that were looked at: streams that may be revoked now and such that may not, by weight."""

    def make(self, begin: float, end: float, most: int | None) -> list[str]:
        """Move until nothing is too heavy; the streams to revoke. `loads` and `counts` follow."""
        total, size = sum(self.loads.values()), len(self.loads)
        heavy = [(-load, name) for name, load in self.loads.items()]
        light = [(load, name) for name, load in self.loads.items()]
        heapq.heapify(heavy)
        heapq.heapify(light)
        revokes: list[str] = []
        while heavy and (most is None or len(revokes) < most):
            load, giver = heavy[0]
            if -load != self.loads[giver]:
                heapq.heappop(heavy)  # of before a move
                continue
            load, taker = light[0]
            if load != self.loads[taker]:
                heapq.heappop(light)
                continue
            gap = self.loads[giver] - self.loads[taker]
            if gap * size <= (end if taker in self.received else begin) * total:
                break
            found = self._choose(giver, gap)
            if found is None:
                heapq.heappop(heavy)  # nothing of it can move: its streams are too heavy
                continue
            (weight, stream), movable = found
            if movable:
                revokes.append(stream)
            self._move(weight, giver, taker)
            for name in (giver, taker):
                heapq.heappush(heavy, (-self.loads[name], name))
                heapq.heappush(light, (self.loads[name], name))
        return revokes

    def _move(self, weight: int, giver: str, taker: str) -> None:
        self.loads[giver] -= weight
        self.loads[taker] += weight
        self.counts[giver] -= 1
        self.counts[taker] += 1
        self.received.add(taker)

    def _choose(self, giver: str, gap: int) -> tuple[tuple[int, str], bool] | None:
        """The stream to move, taken out; whether it may be revoked now: else a later plan does it."""
        if giver not in self.sorted:
            of_both: tuple[list[tuple[int, str]], list[tuple[int, str]]] = ([], [])
            for stream in self.held[giver]:
                of_both[stream in self.fixed].append((self.weights[stream], stream))
            for of_one in of_both:
                of_one.sort()
            self.sorted[giver] = of_both
        for of_one, movable in zip(self.sorted[giver], (True, False), strict=True):
            place = _nearest(of_one, gap)
            if place is not None:
                return of_one.pop(place), movable
        return None


def _nearest(streams: list[tuple[int, str]], gap: int) -> int | None:
    """Where the stream stands whose weight is nearest to half of the gap and below the gap."""
    place = bisect_left(streams, ((gap + 1) // 2,))
    above = place if place < len(streams) and streams[place][0] < gap else None
    below = place - 1 if place else None
    if above is None or below is None:
        return below if above is None else above
    return above if 2 * streams[above][0] - gap < gap - 2 * streams[below][0] else below
