"""Ranges of a few messages each, of many streams, read and decoded together.

A range that is read alone takes a question to Redis and thirty calls of Arrow, 0.6 ms of a task however few
messages it has, and its record batch takes Spark about as long. So neighbours that are small are asked for in
one write, and share record batches.

Whatever is out of the ordinary is not decided here. A range that Redis does not answer for, or not with all
of it, that is damaged or not in memory, is read alone, and that says what is wrong with it.

As with every reader, Redis is asked for 128 entries at most, for 8 before it is known how large they are, and
for about 4 MiB then (``streams.log.ranges``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from streamlease.protocol.errors import Indefinite, StoreUnavailable, StreamleaseError
from streamlease.streams.log.ranges import CHUNK_BYTES, FIRST_COUNT, MOST_COUNT, RangeReader, Taken
from streamlease.streams.log.state import Wanted
from streamlease.streams.redis.connection import BlockingRedis, exchange, good, run_blocking
from streamlease.streams.rows.together import FEW_ROWS, Shared, StreamStep, decode_shared


def read_small(redis: BlockingRedis, ranges: Sequence[Wanted]) -> Iterator[Shared | int]:
    """The messages of `ranges`, about in this order: of some neighbours together, or the place of a range
    that is to be read alone.

    Args:
        ranges: all want the same columns of every message.
    """
    pace, place = Pace(), 0
    while place < len(ranges):
        counts = pace.counts(ranges, place)
        some = range(place, place + max(1, len(counts)))
        left = set(some)
        if len(counts) > 1:
            for batch, lengths in _read_together(redis, ranges[some.start : some.stop], counts, pace):
                found = {place + number: rows for number, rows in lengths.items()}
                left -= found.keys()
                yield Shared(batch, found)
        yield from sorted(left)
        place = some.stop


class Pace:
    """How many entries Redis is asked for: as many as fit, by what those before were like. Pure."""

    def __init__(self) -> None:
        self._most = FIRST_COUNT
        """So many may be asked for at once."""
        self._entries = self._rows = 0
        """Of the last entries that came."""
        self.in_merged = False
        """Whether the last range stood in merged entries, as the next one probably does."""

    def counts(self, ranges: Sequence[Wanted], place: int) -> list[int]:
        """How many to ask for of the range at `place` and of those behind it that are asked for with it; none
        if the range has too much for that, or nothing."""
        counts: list[int] = []
        left = self._most
        for one in ranges[place : place + MOST_COUNT]:
            rows = one.end - one.start
            count = min(rows, self._entries_of(rows))
            if not 0 < rows <= FEW_ROWS or count > left or one.schema != ranges[place].schema:
                break
            counts.append(count)
            left -= count
        return counts

    def saw(self, some: Sequence[Taken]) -> None:
        """This came at once."""
        if entries := sum(len(taken.entries) for taken in some):
            self._entries = entries
            self._rows = sum(taken.end - taken.start for taken in some)
            size = sum(sum(taken.sizes) for taken in some)
            self._most = max(1, min(MOST_COUNT, CHUNK_BYTES * entries // max(1, size)))

    def _entries_of(self, rows: int) -> int:
        """In how many entries so many messages are, probably; one more, as the first may be cut."""
        if not self._entries:
            return FIRST_COUNT // 2
        return -(-rows * self._entries // self._rows) + 1


def _read_together(
    redis: BlockingRedis, ranges: Sequence[Wanted], counts: Sequence[int], pace: Pace
) -> Iterator[Shared]:
    """The messages of those ranges of which nothing is out of the ordinary."""
    readers = [
        RangeReader(
            one.stream,
            one.start,
            one.end,
            whole=True,
            schema=one.schema,
            columns=one.columns,
            count=count,
            merged=pace.in_merged,
        )
        for one, count in zip(ranges, counts, strict=True)
    ]
    commands = [reader.commands for reader in readers]
    try:
        replies = iter(run_blocking(exchange(redis, [one for some in commands for one in some])))
    except (StoreUnavailable, Indefinite):
        return  # who reads the first of them alone waits for it, or says so
    steps: dict[int, Taken] = {}
    seen: list[Taken] = []
    for place, (reader, asked) in enumerate(zip(readers, commands, strict=True)):
        mine = [next(replies) for _ in asked]
        try:
            taken = reader.take(good(redis, mine))
        except StreamleaseError:
            continue  # as above
        seen.append(taken)
        if reader.done:
            steps[place] = taken
    pace.saw(seen)
    pace.in_merged = readers[-1].in_merged
    parts = [StreamStep(ranges[place].stream, *taken[:4], sum(taken.sizes)) for place, taken in steps.items()]
    places = [*steps]
    for batch, lengths in decode_shared(parts, *readers[0].wants):
        yield Shared(batch, {places[number]: rows for number, rows in lengths.items()})
