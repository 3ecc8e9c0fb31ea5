"""Where a plain subscription is in each of its streams, and which of them are read next. Pure.

Only streams of which something was heard, or that are new or were not read to their ends, are looked at: with
100,000 streams, to look at all of them for each message takes a tenth of a second.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from streamlease.agent.deadlines import growing_pause
from streamlease.protocol.ids import StreamId
from streamlease.streams.log.ranges import RangeReader

NextOf = Callable[[StreamId], int | None]
"""Where a stream ends now, as far as it is known."""


@dataclass(slots=True)
class PlainPlace:
    """How far a stream is read."""

    position: int
    """Next offset to read."""
    end: int | None = None
    """Where reading stops; None: never."""
    sliding: bool = True
    """Whether "the earliest" is still wanted: then retention only moves it."""
    delivered: int = -1
    last: int | None = None
    """Where the stream ends, if it is sealed."""
    hole: int | None = None
    """Where messages are missing: what stands before that is handed out first."""
    failures: int = 0
    """How often in a row its archive could not be read."""
    again_at: float = 0.0
    """Not read before, by the clock of the loop."""
    reader: RangeReader | None = None
    """The last one: the next one goes on among merged entries, or in the log, as it did."""

    def __post_init__(self) -> None:
        self.delivered = self.position

    def rest(self, now: float) -> None:
        """Its archive could not be read."""
        self.again_at = now + growing_pause(self.failures)
        self.failures += 1

    @property
    def until(self) -> int | None:
        """Where the next reading ends."""
        return self.end if self.hole is None or self.position >= self.hole else self.hole

    @property
    def is_finished(self) -> bool:
        """Whether all that ever comes of the stream was read, and that is known."""
        end = self.last if self.end is None else self.end
        return end is not None and self.position >= end


class PlainPlaces:
    """The places of all streams of a subscription.

    Args:
        next_of: for streams that are read for ever.
    """

    def __init__(self, next_of: NextOf) -> None:
        self._next_of = next_of
        self._places: dict[StreamId, PlainPlace] = {}
        self._news: set[StreamId] = set()
        """Streams that may have something to read; of all others it is known that they have not."""
        self._newest: dict[str, int] = {}
        self._former: dict[str, list[StreamId]] = {}
        """By space, streams of generations that were followed and may not be finished: the earliest last."""

    @property
    def by_stream(self) -> Mapping[StreamId, PlainPlace]:
        """All places."""
        return self._places

    def put(self, stream: StreamId, place: PlainPlace) -> None:
        """A stream is read from there on."""
        self._places[stream] = place
        self._news.add(stream)

    def remove(self, stream: StreamId) -> None:
        """A stream is read no longer."""
        self._news.discard(stream)
        self._places.pop(stream, None)

    def heard(self, stream: StreamId) -> None:
        """There may be something to read."""
        self._news.add(stream)

    # ------------------------------------------------------------ generations

    def set_newest(self, newest: Mapping[str, int], kept: Collection[str]) -> None:
        """The newest generation of each space; of those in `kept` it is the one that was known."""
        self._newest = {name: number for name, number in self._newest.items() if name in kept} | dict(newest)

    def is_followed(self, stream: StreamId) -> bool:
        """Whether its space has a later generation."""
        return stream.generation < self._newest.get(stream.space, 0)

    def order(self) -> None:
        """Streams came or went, or generations: find those that others may wait for."""
        self._former.clear()
        for stream in sorted(filter(self.is_followed, self._places), reverse=True):
            self._former.setdefault(stream.space, []).append(stream)

    @property
    def has_former(self) -> bool:
        """Whether a generation that was followed is not finished."""
        return any(self._unfinished(space) is not None for space in self._former)

    def _unfinished(self, space: str) -> int | None:
        """The earliest generation that was followed and is not finished: later ones wait for it.

        It is finished when all its streams are known to be sealed and are read to their ends. What the tails
        know does not suffice: it may be older than what they know of the next one.
        """
        former = self._former.get(space, [])
        while former:
            place = self._places.get(former[-1])
            if place is not None and not place.is_finished:
                return former[-1].generation
            former.pop()
        return None

    # ------------------------------------------------------------ what is next

    def ready(self, now: float) -> list[StreamId]:
        """The streams that have news; of each space only those of its earliest unfinished generation."""
        ready: list[StreamId] = []
        for stream in sorted(self._news):
            place = self._places.get(stream)
            end = None if place is None else self._next_of(stream) if place.end is None else place.end
            if place is None or end is None or place.position >= end:
                self._news.discard(stream)
            elif place.again_at <= now:
                earliest = self._unfinished(stream.space)
                if earliest is None or stream.generation <= earliest:
                    ready.append(stream)
        return ready
