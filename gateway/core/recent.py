"""The newest messages of one space, as they came: what all who wait at its end are answered from. Pure.

::

    stream 0   |=====|=====|====|        each piece: start <= offset < end
    stream 1      |==|======|=======|
               floor               end

Pieces stand in the order in which they were read, which is that of the generations, so what is served from
here is in order, as what is read from the log. When there is too much, the oldest piece goes and the floor of
its stream rises. Who has a cursor below a floor is not served from here, and reads the log.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Generic, NamedTuple, TypeVar

from streamlease.gateway.core.cursors import Cursor
from streamlease.protocol.ids import StreamId

D = TypeVar("D")

MOST_BYTES = 16 * 1024 * 1024
MOST_PIECES = 2048


class RecentPiece(NamedTuple, Generic[D]):
    """Some messages of one stream: ``start <= offset < end``."""

    number: int
    """Of all pieces, the higher the later."""
    stream: StreamId
    start: int
    end: int
    data: D
    size: int


class Recent(Generic[D]):
    """The newest pieces.

    Args:
        most_bytes, most_pieces: so much is kept; the newest piece in any case.
    """

    def __init__(self, most_bytes: int = MOST_BYTES, most_pieces: int = MOST_PIECES) -> None:
        self._most = (most_bytes, most_pieces)
        self._pieces: deque[RecentPiece[D]] = deque()
        self._floors: dict[StreamId, int] = {}
        self._ends: dict[StreamId, int] = {}
        self._newest = 0
        """The newest generation of which something is known."""
        self.number = 0
        """That of the newest piece."""
        self.bytes = 0

    @property
    def ends(self) -> Mapping[StreamId, int]:
        """Of each stream, the offset behind what is known."""
        return self._ends

    def begin(self, positions: Mapping[StreamId, int]) -> None:
        """Forget everything; what comes begins at these offsets."""
        self._pieces.clear()
        self.bytes = 0
        self._floors, self._ends = dict(positions), dict(positions)
        self._newest = max((stream.generation for stream in positions), default=0)

    def put(self, stream: StreamId, start: int, end: int, data: D, size: int) -> None:
        """The next messages of a stream."""
        if self._ends.get(stream) != start:  # it is new; or some were passed over
            self._floors[stream] = start
            self._newest = max(self._newest, stream.generation)
        self._ends[stream] = end
        self.number += 1
        self._pieces.append(RecentPiece(self.number, stream, start, end, data, size))
        self.bytes += size
        most_bytes, most_pieces = self._most
        while len(self._pieces) > 1 and (self.bytes > most_bytes or len(self._pieces) > most_pieces):
            old = self._pieces.popleft()
            self.bytes -= old.size
            self._floors[old.stream] = max(self._floors[old.stream], old.end)

    def keep_only(self, streams: Mapping[StreamId, object]) -> None:
        """The others are gone: who has not read them to their ends must ask the log what that means."""
        for stream in self._floors.keys() - streams.keys():
            del self._floors[stream], self._ends[stream]

    def covers(self, cursor: Cursor, space: str) -> bool:
        """Whether all that comes after `cursor` in that space is here, or still to come."""
        if any(cursor.next_of(stream) < floor for stream, floor in self._floors.items()):
            return False
        if any(cursor.next_of(stream) > end for stream, end in self._ends.items()):
            return False  # more has come than is here, or Redis has lost what came: the log knows
        return all(
            ended or stream in self._floors or stream.generation > self._newest
            for stream, (_, ended) in cursor.places.items()
            if stream.space == space
        )

    def after(self, cursor: Cursor) -> list[RecentPiece[D]]:
        """The pieces, in order, that have something after `cursor`."""
        behind = {stream for stream, end in self._ends.items() if cursor.next_of(stream) < end}
        found: list[RecentPiece[D]] = []
        for piece in reversed(self._pieces):  # what somebody has not yet is the newest, a few of thousands
            if not behind:
                break
            if piece.stream in behind:
                next = cursor.next_of(piece.stream)
                if piece.end > next:
                    found.append(piece)
                if piece.start <= next:
                    behind.discard(piece.stream)
        found.reverse()
        return found

    def places(self, before: int | None = None) -> dict[StreamId, int] | None:
        """The next offset of each stream: now, or as it was before the piece of that number came.

        None: that piece is not here any more.
        """
        ends = dict(self._ends)
        if before is None:
            return ends
        if not self._pieces or self._pieces[0].number > before:
            return None
        for piece in reversed(self._pieces):
            if piece.number < before:
                break
            if piece.stream in ends:
                ends[piece.stream] = piece.start
        return ends
