"""A borrower as a task embodies it: one slot's part of a cut, read once from beginning to end.

Between tasks a borrower lives beside its agent; for the time of one task its small state travels to whatever
worker runs the task. There it may only read, exactly the ranges of its cut, each range in order and without
a gap (P3Sub: the direct successor or nothing). It commits nothing: the session does, once the cut went
through the sink.

::

    waiting --> reading --> done
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from streamlease.protocol.cuts import NO_RANGES, CutRange, Ranges
from streamlease.protocol.errors import HistoryTruncated, StreamleaseError


class ReadingState(Enum):
    """Where a task is with its slot's part of a cut."""

    WAITING = "waiting"
    READING = "reading"
    DONE = "done"


class ReadingEvent(Enum):
    """What can move a reading."""

    READ = "read"
    FINISH = "finish"


READING_TRANSITIONS: dict[tuple[ReadingState, ReadingEvent], ReadingState] = {
    (ReadingState.WAITING, ReadingEvent.READ): ReadingState.READING,
    (ReadingState.WAITING, ReadingEvent.FINISH): ReadingState.DONE,
    (ReadingState.READING, ReadingEvent.READ): ReadingState.READING,
    (ReadingState.READING, ReadingEvent.FINISH): ReadingState.DONE,
}
"""All legal moves of a reading; every other pair is a defect and raises."""


class Piece(NamedTuple):
    """What one task reads of a range of a cut: all of it, unless it is divided over several tasks."""

    part: CutRange
    whole: CutRange


@dataclass(frozen=True, slots=True)
class Pieces:
    """What one task reads, in order; kept as columns, since Spark pickles those of 10,000 streams."""

    parts: Ranges = NO_RANGES
    wholes: Ranges = NO_RANGES

    @classmethod
    def of(cls, pieces: Iterable[Piece]) -> Pieces:
        """These pieces."""
        parts, wholes = [*zip(*pieces, strict=True)] or ((), ())
        return cls(Ranges.of(parts), Ranges.of(wholes))

    def __len__(self) -> int:
        return len(self.parts)

    def __iter__(self) -> Iterator[Piece]:
        return map(Piece, self.parts, self.wholes)


@dataclass(frozen=True, slots=True)
class SlotWork:
    """What a task needs in order to be the borrower of `slot` for one cut. Travels in the input partition."""

    group: str
    session: str
    agent: str
    """Mailbox of the session's agent."""
    cut: int
    slot: int
    pieces: Pieces


class Reading:
    """Checks that a task reads its pieces whole, in order and once."""

    def __init__(self, work: SlotWork) -> None:
        self.work = work
        self.state = ReadingState.WAITING
        self.messages = 0
        streams, _, starts, ends = work.pieces.parts.columns
        self._positions = dict(zip(streams, starts, strict=True))
        """The next offset to read of each stream."""
        self._ends = dict(zip(streams, ends, strict=True))

    def read(self, stream: str, first: int, last: int) -> None:
        """Offsets `first` to `last` of `stream` were read.

        Raises:
            HistoryTruncated: they do not follow directly on what was read before.
            StreamleaseError: they are not part of the work.
        """
        expected = self._positions.get(stream)
        if first != expected or not first <= last < self._ends[stream]:
            if expected is not None and first > expected:
                raise HistoryTruncated(stream, expected, first)
            raise StreamleaseError(
                f"offsets {first} to {last} of stream {stream} are not the next of cut {self.work.cut}: "
                f"expected {expected}"
            )
        self._move(ReadingEvent.READ)
        self._positions[stream] = last + 1
        self.messages += last + 1 - first

    def skip(self, stream: str, to: int) -> None:
        """What lies before offset `to` of `stream` is lost, and the reader goes on without it."""
        self._positions[stream] = min(max(to, self._positions[stream]), self._ends[stream])

    def finish(self) -> None:
        """All pieces were read.

        Raises:
            StreamleaseError: something of them was not.
        """
        for stream, position in self._positions.items():
            if position != self._ends[stream]:
                raise StreamleaseError(
                    f"cut {self.work.cut} ends in stream {stream} at offset {self._ends[stream]}, "
                    f"but only {position} was reached"
                )
        self._move(ReadingEvent.FINISH)

    def _move(self, event: ReadingEvent) -> None:
        target = READING_TRANSITIONS.get((self.state, event))
        if target is None:
            raise StreamleaseError(f"cut {self.work.cut} was finished already: {event.value} came too late")
        self.state = target
