"""What a member was handed and has not committed: pieces of streams, in the order in which they came. Pure.

An answer to a member may be lost on its way, and whatever is between it and the gateway may repeat a GET. So
a GET does not move anything: what was handed out comes again until it is committed, or until the member says
by a cursor that it has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

from streamlease.protocol.ids import StreamId


class HandedPiece(Protocol):
    """Messages of one stream: some of the offsets ``start <= offset < end``."""

    stream: StreamId
    start: int
    end: int
    size: int
    """In bytes."""

    def __len__(self) -> int: ...


P = TypeVar("P", bound=HandedPiece)


class HandedOut(Generic[P]):
    """Pieces that a member has.

    Args:
        most_messages, most_bytes: so much it may have; the last piece may exceed it.
    """

    def __init__(self, most_messages: int, most_bytes: int) -> None:
        self._most = most_messages, most_bytes
        self._pieces: list[P] = []
        self.messages = self.bytes = 0

    def __iter__(self) -> Iterator[P]:
        return iter(self._pieces)

    @property
    def has_room(self) -> bool:
        """Whether the member may get more."""
        return self.messages < self._most[0] and self.bytes < self._most[1]

    def put(self, piece: P) -> None:
        """It is handed out, behind all others of its stream."""
        self._pieces.append(piece)
        self.messages += len(piece)
        self.bytes += piece.size

    def keep(self, wanted: Callable[[P], bool]) -> None:
        """Forget the others: they are committed, or come again, or are somebody else's."""
        kept = [piece for piece in self._pieces if wanted(piece)]
        if len(kept) < len(self._pieces):
            self._pieces = kept
            self.messages = sum(map(len, kept))
            self.bytes = sum(piece.size for piece in kept)

    def end_of(self, stream: StreamId) -> int | None:
        """Up to where a stream is handed out; None: nothing of it is."""
        return max((piece.end for piece in self._pieces if piece.stream == stream), default=None)

    def ending(self, stream: StreamId, next: int) -> P | None:
        """The piece with which all below `next` is done; `next` lies in it, or in a gap behind it."""
        found = [piece for piece in self._pieces if piece.stream == stream and piece.start < next]
        return max(found, key=lambda piece: piece.start, default=None)

    def holding(self, stream: StreamId, offset: int) -> P | None:
        """The piece with that offset."""
        return next((p for p in self._pieces if p.stream == stream and p.start <= offset < p.end), None)
