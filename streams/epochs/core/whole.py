"""Whole epochs for an atomic reader: which stretches of which streams they are, and when they are due. Pure.

A boundary says in which order how many messages of which epoch a stream got, so what an epoch consists of is
known without a look at the messages. An epoch is due once the merged frontier of all spaces has passed it;
with one space that is at its boundary. Only the places of what waits are kept, never the messages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from streamlease.protocol.epochs.antichains import is_open
from streamlease.protocol.epochs.order import Epoch
from streamlease.protocol.ids import StreamId
from streamlease.streams.epochs.core.boundaries import Boundary, MovedPart
from streamlease.streams.epochs.core.late import MergedSpaces


class Stretch(NamedTuple):
    """Messages that stand together: the offsets ``first <= offset < to`` of a stream."""

    stream: StreamId
    first: int
    to: int


def stretches(bound: Boundary) -> Iterator[tuple[MovedPart, Stretch]]:
    """Where the messages stand that a boundary moved, in their order; a part is divided where a gap is."""
    at = begins(bound)
    for part in bound.moved:
        first, left = at[part.stream], part
        for begin, to in bound.gaps.get(part.stream, ()):
            if first <= begin < first + left.rows:
                before, left = _divided(left, begin - first)
                if before.rows:
                    yield before, Stretch(part.stream, first, begin)
                first = to
        at[part.stream] = first + left.rows
        yield left, Stretch(part.stream, first, first + left.rows)


def _divided(part: MovedPart, rows: int) -> tuple[MovedPart, MovedPart]:
    """The first so many messages of a part, and the others."""
    one, other = part._replace(rows=rows), part._replace(rows=part.rows - rows)
    if part.lost or not rows:
        return one, other  # with losses nobody knows where in the staged log either of them stood
    before: list[tuple[int, int]] = []
    behind: list[tuple[int, int]] = []
    for first, to in part.ranges:
        middle = min(to, first + rows)
        rows -= middle - first
        before += [(first, middle)] if first < middle else []
        behind += [(middle, to)] if middle < to else []
    return one._replace(ranges=(*before,)), other._replace(ranges=(*behind,))


def begins(bound: Boundary) -> dict[StreamId, int]:
    """Where the streams that a boundary changed ended before it."""
    at = dict(bound.ends)
    for part in bound.moved:
        at[part.stream] -= part.rows
    for stream, gaps in bound.gaps.items():
        at[stream] -= sum(to - first for first, to in gaps)
    return at


@dataclass(slots=True)
class _Unfinished:
    """A boundary of which not everything was handed out."""

    ends: Mapping[StreamId, int]
    waiting: set[Epoch]


class WholeEpochs:
    """What the boundaries of all spaces of a reader come to.

    Args:
        merged: the frontiers of the spaces.
        positions: where each stream ends at the boundary at which the reader begins.
    """

    def __init__(self, merged: MergedSpaces, positions: Mapping[StreamId, int]) -> None:
        self._merged = merged
        self.positions = dict(positions)
        """The ends of the streams at the newest boundary of which, and of all before, nothing is left. It is
        replaced, never changed: who keeps it keeps what it was."""
        self._waiting: dict[Epoch, list[Stretch]] = {}
        self._unfinished: dict[str, deque[_Unfinished]] = {}

    def boundary(self, space: str, bound: Boundary) -> tuple[list[Epoch], dict[Epoch, int]]:
        """The next boundary of a space.

        Returns:
            the epochs that are due now, in linear order, to be handed out one by one (`wanted`, `taken`); and
            the net changes of the merged frontier, to be told behind them.
        """
        mine: set[Epoch] = set()
        left_out: set[Epoch] = set()
        for part, stretch in stretches(bound):
            if part.epoch not in mine and part.epoch not in left_out:
                (mine if self._merged.passes(space, part.epoch) else left_out).add(part.epoch)
            if part.epoch in mine and part.rows:
                self._waiting.setdefault(part.epoch, []).append(stretch)
        waiting = {epoch for epoch in mine if epoch in self._waiting}
        self._unfinished.setdefault(space, deque()).append(_Unfinished(bound.ends, waiting))
        net = self._merged.moves_on(space, bound.lower)
        self._settle()
        return sorted(one for one in self._waiting if not is_open(self._merged.lower, one)), net

    def wanted(self, epoch: Epoch) -> list[Stretch]:
        """Where the messages of an epoch stand that is due, by stream."""
        found: list[Stretch] = []
        for one in sorted(self._waiting[epoch]):
            if found and found[-1].stream == one.stream and found[-1].to == one.first:
                found[-1] = found[-1]._replace(to=one.to)
            else:
                found.append(one)
        return found

    def taken(self, epoch: Epoch) -> None:
        """An epoch that was due is handed out now."""
        del self._waiting[epoch]
        for bounds in self._unfinished.values():
            for bound in bounds:
                bound.waiting.discard(epoch)
        self._settle()

    def _settle(self) -> None:
        """Let the positions follow what was handed out, boundary by boundary."""
        reached: dict[StreamId, int] = {}
        for bounds in self._unfinished.values():
            while bounds and not bounds[0].waiting:
                reached.update(bounds.popleft().ends)
        if reached:
            self.positions = {**self.positions, **reached}
