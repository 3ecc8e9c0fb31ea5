"""Messages as they are staged: which are to be handed out, and which of a boundary's were not seen. Pure.

What is staged vanishes when it is moved into its stream or dropped, whoever has read it. A boundary says
where the messages that it moved stood in the staged logs. So what was seen is kept as offsets, until the
boundary, and what is missing is known exactly: in whatever order things vanished, and however far the reader
was.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from streamlease.protocol.epochs.antichains import is_open
from streamlease.protocol.epochs.order import Epoch
from streamlease.protocol.ids import StreamId
from streamlease.streams.epochs.core.boundaries import Boundary, DroppedOpen, MovedPart
from streamlease.streams.epochs.core.late import MergedSpaces
from streamlease.streams.epochs.core.whole import Stretch, stretches

_Key = tuple[StreamId, Epoch, str, int]


class StagedEntry(NamedTuple):
    """One entry of a staged log: the offsets ``first <= offset < to``, all of one epoch and one publisher."""

    stream: StreamId
    first: int
    to: int
    epoch: Epoch
    name: str
    inc: int


class Unseen(NamedTuple):
    """Messages that were moved, and not seen while they were staged."""

    epoch: Epoch
    name: str
    inc: int
    wanted: list[Stretch]


class EarlyTold(NamedTuple):
    """What a boundary comes to for who reads what is staged, in the order in which it is to be told."""

    unseen: list[Unseen]
    dropped: list[DroppedOpen]
    changes: dict[Epoch, int]


class EarlyEpochs:
    """What a reader of staged data has seen. Entries of one stream come in the order of their offsets.

    An entry must have been read from its staged log after the last boundary that was told here had been read.

    Args:
        merged: the frontiers of the spaces.
    """

    def __init__(self, merged: MergedSpaces) -> None:
        self._merged = merged
        self._seen: dict[_Key, list[tuple[int, int]]] = {}

    @property
    def watched(self) -> int:
        """How many parts are kept: of so many streams, epochs and publishers something was seen."""
        return len(self._seen)

    def has_open(self, space: str) -> bool:
        """Whether something of the space was handed out whose epoch is not completed yet."""
        return any(stream.space == space for stream, *_ in self._seen)

    def came(self, space: str, entry: StagedEntry) -> bool:
        """An entry of a staged log; whether it is to be handed out.

        One of a completed epoch belongs to nothing: its publisher never named it.
        """
        if not self._merged.is_open(space, entry.epoch) or not self._merged.passes(space, entry.epoch):
            return False
        seen = self._seen.setdefault((entry.stream, entry.epoch, entry.name, entry.inc), [])
        if seen and entry.to <= seen[-1][1]:
            return False
        if seen and seen[-1][1] == entry.first:
            seen[-1] = (seen[-1][0], entry.to)
        else:
            seen.append((entry.first, entry.to))
        return True

    def boundary(self, space: str, bound: Boundary) -> EarlyTold:
        """The next boundary of a space."""
        unseen = []
        of_parts: dict[_Key, list[tuple[int, int]]] = {}
        for part, stretch in stretches(bound):
            key = (part.stream, part.epoch, part.name, part.inc)
            seen = of_parts.setdefault(key, self._seen.pop(key, []))
            if self._merged.passes(space, part.epoch):
                wanted = missing(part, stretch, seen)
                if wanted:
                    unseen.append(Unseen(part.epoch, part.name, part.inc, wanted))
        net = self._merged.moves_on(space, bound.lower)
        self._forget(space, bound.dropped)
        return EarlyTold(unseen, [*bound.dropped], net)

    def _forget(self, space: str, dropped: Iterable[DroppedOpen]) -> None:
        """What was dropped is not moved any more, nor is what was never named of completed epochs."""
        gone = {(one.name, one.inc): one.frontier for one in dropped}
        for key in [*self._seen]:
            stream, epoch, name, inc = key
            if stream.space == space and (
                not self._merged.is_open(space, epoch) or is_open(gone.get((name, inc), ()), epoch)
            ):
                del self._seen[key]


def missing(part: MovedPart, stretch: Stretch, seen: list[tuple[int, int]]) -> list[Stretch]:
    """Where the messages of `part` stand in the stream that were not seen.

    If Redis lost some of them nobody knows which: then all that are left count as not seen, unless all were.

    Args:
        stretch: where those that were moved stand.
        seen: ranges of the staged log, in order.
    """
    found: list[Stretch] = []
    row = stretch.first
    for first, to in part.ranges:
        at = first
        for low, high in [*((low, high) for low, high in seen if low < to and high > first), (to, to)]:
            if at < low:
                begin = row + at - first
                if found and found[-1].to == begin:
                    found[-1] = found[-1]._replace(to=begin + low - at)
                else:
                    found.append(Stretch(stretch.stream, begin, begin + low - at))
            at = max(at, high)
        row += to - first
    if part.lost:
        return [stretch] if found and stretch.first < stretch.to else []
    return found
