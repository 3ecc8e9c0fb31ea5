"""What a member was handed and has not committed: pieces of streams, in the order in which they came. Pure.

An answer to a member may be lost on its way, and whatever is between it and the gateway may repeat a GET. So
a GET does not move anything: what was handed out comes again until it is committed, or until the member says
by a cursor that it has it.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Callable, Iterator
from operator import itemgetter
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
        self._streams: dict[StreamId, list[tuple[int, P]]] = {}
        """Of each stream its pieces, in order, each with its number among all; never an empty list."""
        self._count = 0
        self.messages = self.bytes = 0

    def __iter__(self) -> Iterator[P]:
        """In the order in which they were handed out."""
        for _, piece in heapq.merge(*self._streams.values(), key=itemgetter(0)):
            yield piece

    @property
    def has_room(self) -> bool:
        """Whether the member may get more."""
        return self.messages < self._most[0] and self.bytes < self._most[1]

    def put(self, piece: P) -> None:
        """It is handed out, behind all others of its stream."""
        self._count += 1
        self._streams.setdefault(piece.stream, []).append((self._count, piece))
        self.messages += len(piece)
        self.bytes += piece.size

    def keep(self, wanted: Callable[[P], bool]) -> None:
        """Forget the others: they are committed, or come again, or are somebody else's."""
        for stream, some in [*self._streams.items()]:
            kept = [one for one in some if wanted(one[1])]
            if len(kept) == len(some):
                continue
            self.messages -= sum(len(piece) for _, piece in some) - sum(len(piece) for _, piece in kept)
            self.bytes -= sum(piece.size for _, piece in some) - sum(piece.size for _, piece in kept)
            if kept:
                self._streams[stream] = kept
            else:
                del self._streams[stream]

    def newest(self) -> Iterator[P]:
        """Of each stream the last piece."""
        return (some[-1][1] for some in self._streams.values())

    def end_of(self, stream: StreamId) -> int | None:
        """Up to where a stream is handed out; None: nothing of it is."""
        some = self._streams.get(stream)
        return some[-1][1].end if some else None

    def ending(self, stream: StreamId, next: int) -> P | None:
        """The piece with which all below `next` is done; `next` lies in it, or in a gap behind it."""
        some = self._streams.get(stream, [])
        return some[place - 1][1] if (place := bisect_left(some, next, key=_start)) else None

    def holding(self, stream: StreamId, offset: int) -> P | None:
        """The piece with that offset."""
        piece = self.ending(stream, offset + 1)
        return piece if piece is not None and offset < piece.end else None


def _start(one: tuple[int, HandedPiece]) -> int:
    return one[1].start
