"""What of whole epochs lies ahead in the streams of one space that a consumer of a group holds. Pure.

All messages of an epoch that a stream has stand together, for they came at one boundary. That is a *part*: it
is handed out as a whole, and its end is where the stream may go to another consumer. Boundaries tell the
parts of all streams, so a stream is read up to its last known part and no further.

Streams come at any place, so they are not all known up to the same boundary: the boundaries are read from the
one that is behind most, and each stream takes those that it has not had. One that has many parts ahead waits,
and is behind then, until it has few.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from streamlease.borrower.book import Held
from streamlease.protocol.epochs.antichains import Antichain
from streamlease.protocol.epochs.order import Epoch
from streamlease.protocol.ids import StreamId
from streamlease.streams.epochs.core.boundaries import Boundary
from streamlease.streams.epochs.core.lines import Ranges
from streamlease.streams.epochs.core.whole import stretches

if TYPE_CHECKING:
    from streamlease.streams.epochs.beginning import Before

MOST_PARTS = 1000
"""So many parts of a stream are known ahead; it gets no more until half of them are handed out."""

MOST_LOWERS = 10_000
"""So many frontiers are kept that are not told yet; then every other one is left out."""


class StreamPart(NamedTuple):
    """Messages of one epoch in one stream: the offsets ``first <= offset < to``."""

    number: int
    """The boundary at which they came."""
    epoch: Epoch | None
    """None: Redis has lost the boundary that says it."""
    first: int
    to: int
    lost: bool = False
    """Whether Redis lost some while they were staged."""
    gaps: Ranges = ()
    """Offsets among them that never had any of its messages (`Boundary.gaps`)."""


@dataclass(slots=True, eq=False)
class _Ahead:
    """One stream."""

    held: Held
    begin: int
    """What is below it is handed out, and no part of it is known any more."""
    end: int
    """Where the parts end that are known."""
    at: int | None
    """The boundary up to which they are known; None: the newest one that was read."""
    parts: list[StreamPart] = field(default_factory=list)
    ready: int = 0
    """So many of them are complete in all spaces."""

    @property
    def limit(self) -> int:
        """Up to where it may be read."""
        return self.parts[self.ready - 1].to if self.ready else self.begin

    @property
    def wants_more(self) -> bool:
        """Whether there is room for more parts."""
        return len(self.parts) <= MOST_PARTS // 2


class PartsAhead:
    """The parts of the streams of one space.

    Args:
        is_complete: whether an epoch is completed in all other spaces, too.
        grew: told of a stream of which more may be read.
    """

    def __init__(self, is_complete: Callable[[Epoch], bool], grew: Callable[[StreamId], None]) -> None:
        self._is_complete = is_complete
        self._grew = grew
        self._streams: dict[StreamId, _Ahead] = {}
        self.unknown: dict[StreamId, Held] = {}
        """Streams whose place among the boundaries is to be found."""
        self._unready: set[StreamId] = set()
        self.newest: int | None = None
        """The newest boundary that was read; None: none was."""
        self.last: Boundary | None = None
        """Its document, if it is there."""
        self._lowers: list[tuple[int, Antichain]] = []
        """Boundaries and their lower frontiers."""
        self._told = 0
        """The newest boundary whose frontier was told."""
        self._firsts: dict[int, int] = {}
        """Boundary -> in how many streams it has the first part that is not handed out."""
        self._order: list[int] = []
        """These boundaries, as a heap; some are gone."""
        self._behind: set[StreamId] = set()
        self._least: int | None = None
        """The boundary up to which the parts of all that is behind are known; None: to be found out."""

    # ------------------------------------------------------------ streams come and go

    def follow(self, stream: StreamId, held: Held) -> bool:
        """The stream is held, and goes on at its position, perhaps somewhere else than before.

        Returns:
            whether its place is to be found.
        """
        one = self._streams.get(stream)
        if one is not None and one.held is held and one.begin <= held.position <= one.end:
            return False
        self.forget(stream)
        self.unknown[stream] = held
        return True

    def forget(self, stream: StreamId) -> None:
        """The stream is not held any more."""
        self.unknown.pop(stream, None)
        self._least = None
        one = self._streams.pop(stream, None)
        if one is not None:
            self._uncount(one)
            self._unready.discard(stream)
            self._behind.discard(stream)

    @property
    def has_streams(self) -> bool:
        """Whether any is held."""
        return bool(self._streams or self.unknown)

    @property
    def lower(self) -> Antichain | None:
        """The lower frontier at the newest boundary that was read; None: not known."""
        return self._lowers[-1][1] if self._lowers else None

    def found(self, before: Before, lower: Antichain | None, places: Mapping[StreamId, int]) -> None:
        """Where streams are whose place was not known.

        Args:
            before: a boundary; what came there and before lies below their positions, or is not known.
            lower: the lower frontier at it, if that is known.
            places: their positions.
        """
        number = before.number
        if self.newest is None:
            self.newest, self.last = number, before.bound
        if lower is not None:
            self._note(number, lower)
        self._least = None
        for stream, position in places.items():
            end = before.ends.get(stream, 0)
            held = self.unknown.get(stream)
            if held is None or held.position != position:
                continue  # it went elsewhere meanwhile
            del self.unknown[stream]
            one = _Ahead(held, position, position, number if number < self.newest else None)
            self._streams[stream] = one
            if one.at is not None:
                self._behind.add(stream)
            if end > position:
                self._add(stream, one, StreamPart(number, None, position, end))

    # ------------------------------------------------------------ boundaries come

    def next_after(self) -> int | None:
        """The boundary behind which the next ones are to be read; None: `found` has to say where to begin."""
        if self.newest is None:
            return None
        return min([self.newest, *(one.at for one in self._wanting() if one.at is not None)])

    def _wanting(self) -> list[_Ahead]:
        """Those that are behind and want more."""
        behind = [self._streams[stream] for stream in self._behind]
        return [one for one in behind if one.wants_more]

    def came(self, after: int, bounds: Iterable[Boundary]) -> None:
        """The next boundaries behind number `after`, in order."""
        assert self.newest is not None
        taking = {id(one) for one in self._wanting() if one.at is not None and one.at >= after}
        number = after
        for bound in bounds:
            is_new, number = bound.number > self.newest, bound.number
            for stream, parts in _parts_of(bound).items():
                one = self._streams.get(stream)
                if one is None or (not is_new if one.at is None else bound.number <= one.at):
                    continue
                if one.at is None and len(one.parts) >= MOST_PARTS:
                    one.at = self.newest
                    self._behind.add(stream)
                elif one.at is None or id(one) in taking:
                    if len(one.parts) >= MOST_PARTS:
                        one.at = bound.number - 1
                        taking.discard(id(one))
                        continue
                    for part in parts:
                        self._add(stream, one, part)
            if is_new:
                self.newest, self.last = bound.number, bound
            self._note(bound.number, bound.lower)
        self._least = None
        forgotten = number == after < self.newest  # retention removed all that were to come
        for stream in [*self._behind]:
            one = self._streams[stream]
            if one.at is not None and id(one) in taking:
                if forgotten:
                    self.forget(stream)
                    self.unknown[stream] = one.held
                    continue
                one.at = max(one.at, number)
            if one.at is not None and one.at >= self.newest:
                one.at = None
                self._behind.discard(stream)

    def _note(self, number: int, lower: Antichain) -> None:
        """The frontier at a boundary, to be told if it is not behind what was."""
        place = bisect_right(self._lowers, number, key=_number)
        if number < self._told or (place and self._lowers[place - 1][0] == number):
            return
        self._lowers.insert(place, (number, lower))
        if len(self._lowers) > MOST_LOWERS:
            self._lowers = [*self._lowers[:-1:2], self._lowers[-1]]

    def lost(self) -> list[Held]:
        """Boundaries that were read are not there any more: all places are to be found anew. All streams."""
        held = {stream: one.held for stream, one in self._streams.items()}
        for stream in held:
            self.forget(stream)
        self.unknown |= held
        self.newest, self.last, self._lowers, self._told = None, None, [], 0
        return [*held.values()]

    def _add(self, stream: StreamId, one: _Ahead, part: StreamPart) -> None:
        """Put a part behind the others; what is not known between them is one, too."""
        if part.to <= one.end:
            return  # it lies before the stream's position, or where something else was read
        if part.first > one.end:
            self._put(stream, one, StreamPart(part.number, None, one.end, part.first))
        self._put(stream, one, part)

    def _put(self, stream: StreamId, one: _Ahead, part: StreamPart) -> None:
        if not one.parts:
            self._count(part.number)
        one.parts.append(part)
        one.end = part.to
        self._unready.add(stream)

    def look_ready(self) -> None:
        """More may be complete in all spaces."""
        for stream in [*self._unready]:
            one = self._streams[stream]
            before = one.ready
            while one.ready < len(one.parts):
                epoch = one.parts[one.ready].epoch
                if epoch is not None and not self._is_complete(epoch):
                    break
                one.ready += 1
            if one.ready == len(one.parts):
                self._unready.discard(stream)
            if one.ready > before:
                self._grew(stream)

    # ------------------------------------------------------------ reading

    def limit(self, stream: StreamId) -> int | None:
        """Up to where a stream may be read; None: that is not known."""
        one = self._streams.get(stream)
        return None if one is None else max(one.limit, one.held.position)

    def part(self, stream: StreamId, offset: int) -> StreamPart | None:
        """The part that has an offset, if it may be read."""
        one = self._streams.get(stream)
        if one is None or not one.begin <= offset < one.limit:
            return None
        return one.parts[bisect_right(one.parts, offset, key=_to)]

    def handed_out(self, stream: StreamId, to: int) -> bool:
        """All below an offset is handed out, or for nobody here; whether there is room for others now."""
        one = self._streams.get(stream)
        if one is None or to <= one.begin:
            return False
        done = bisect_right(one.parts, to, key=_to)
        if done:
            one.begin = one.parts[done - 1].to
            self._uncount(one)
            del one.parts[:done]
            one.ready = max(0, one.ready - done)
            if one.parts:
                self._count(one.parts[0].number)
        return one.at is not None and one.wants_more

    # ------------------------------------------------------------ how far all are

    def reached(self) -> tuple[int, Antichain] | None:
        """The newest boundary up to which all of all streams is handed out, and the frontier at it.

        None: that is not known.
        """
        if self.newest is None or self.unknown:
            return None
        while self._order and self._order[0] not in self._firsts:
            heapq.heappop(self._order)
        if self._least is None:
            behind = [self._streams[stream].at for stream in self._behind]
            self._least = min([self.newest, *(at for at in behind if at is not None)])
        known = self._least if self._behind else self.newest
        number = min([known, *(first - 1 for first in self._order[:1])])
        place = bisect_right(self._lowers, number, key=_number)
        return self._lowers[place - 1] if place else None

    def told(self, number: int) -> None:
        """The frontier at that boundary is told; those before it are not wanted any more."""
        self._told = max(self._told, number)
        self._lowers = [one for one in self._lowers if one[0] >= number]

    def _count(self, number: int) -> None:
        if number not in self._firsts:
            self._firsts[number] = 0
            heapq.heappush(self._order, number)
        self._firsts[number] += 1

    def _uncount(self, one: _Ahead) -> None:
        if one.parts:
            number = one.parts[0].number
            self._firsts[number] -= 1
            if not self._firsts[number]:
                del self._firsts[number]


def _to(part: StreamPart) -> int:
    return part.to


def _number(one: tuple[int, Antichain]) -> int:
    return one[0]


def _parts_of(bound: Boundary) -> dict[StreamId, list[StreamPart]]:
    """The parts that streams got at a boundary, in order; one for each epoch."""
    found: dict[StreamId, list[StreamPart]] = {}
    for moved, (stream, first, to) in stretches(bound):
        parts = found.setdefault(stream, [])
        if parts and parts[-1].epoch == moved.epoch:
            before = parts[-1]
            gaps = before.gaps if first == before.to else (*before.gaps, (before.to, first))
            parts[-1] = before._replace(to=to, lost=before.lost or moved.lost > 0, gaps=gaps)
        else:
            parts.append(StreamPart(bound.number, moved.epoch, first, to, moved.lost > 0))
    return {stream: [part for part in parts if part.first < part.to] for stream, parts in found.items()}
