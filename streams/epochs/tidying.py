"""What a keeper clears away now and then: boundaries that lead nowhere, and what was staged for nothing.

A boundary can go once retention has removed all that it, and every boundary before it, brought into the
streams, and some time has passed: whoever comes back to a position behind it misses only what is gone. The
last of those that could go stays: who begins at the earliest begins at it, and gets what is behind it.

What was staged and never named, because its publisher had no answer, counts for nothing: it is dropped as
soon as its epoch was given up, or its incarnation is over, in a line that the keeper has folded. So is what
an incarnation staged that never entered: Redis lost that, and it writes no line any more.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import NamedTuple

from streamlease.protocol.epochs.antichains import is_open
from streamlease.protocol.epochs.order import Epoch
from streamlease.protocol.ids import StreamId
from streamlease.streams.epochs import keys
from streamlease.streams.epochs.core.fold import Dropped, Fold
from streamlease.streams.epochs.stored import PAGE, Writer, bounds_command, parse_bounds, read_writers
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.redis.connection import AsyncRedis, ask

KEPT_MS = 3_600_000
"""So long a boundary stays at least."""

STREAMS_AT_ONCE = 250


class Forgettable(NamedTuple):
    """The oldest boundaries that can go."""

    first_kept: int
    """The number of the first boundary that stays."""
    ends: dict[StreamId, int]
    """Where the streams that the others changed ended before it."""


async def forgettable(redis: AsyncRedis, space: str, below: int) -> Forgettable | None:
    """Which of the boundaries below number `below` can go; None: none of them.

    Raises:
        Unsupported: one cannot be read.
        StoreUnavailable, StoreRefused.
    """
    log, last, first = AsyncLog(redis), 0, 0
    floors: dict[StreamId, int] = {}
    ends: dict[StreamId, int] = {}
    of_last: Mapping[StreamId, int] = {}
    while True:
        reply, time = await ask(redis, [bounds_command(space, last), ("TIME",)])
        now = int(time[0]) * 1000 + int(time[1]) // 1000
        bounds = parse_bounds(space, reply)
        unknown = {stream for bound in bounds for stream in bound.ends} - floors.keys()
        floors |= await log.floors(sorted(unknown)) if unknown else {}
        for bound in bounds:
            gone = all(end <= floors.get(stream, end) for stream, end in bound.ends.items())
            if bound.number >= below or not gone or now - bound.at < KEPT_MS:
                return Forgettable(last, ends) if first < last else None
            first, last = first or bound.number, bound.number
            ends |= of_last
            of_last = bound.ends
        if len(bounds) < PAGE:
            return Forgettable(last, ends) if first < last else None


async def orphans(
    redis: AsyncRedis, space: str, fold: Fold, streams: Sequence[StreamId]
) -> dict[StreamId, list[bytes]]:
    """What is staged for nothing: fields of `keys.staged_epochs`, by stream.

    Args:
        fold: right after a turn, so that nothing of it is under way.

    Raises:
        StoreUnavailable, StoreRefused.
    """
    staged: dict[StreamId, Sequence[bytes]] = {}
    for begin in range(0, len(streams), STREAMS_AT_ONCE):
        page = streams[begin : begin + STREAMS_AT_ONCE]
        found = await ask(redis, [("HKEYS", keys.staged_epochs(stream)) for stream in page])
        staged |= {stream: fields for stream, fields in zip(page, found, strict=True) if fields}
    if not staged:
        return {}
    # Asked behind what is staged: an incarnation that is over by now stages nothing more.
    judge = _Judge(fold, await read_writers(redis, space))
    judged = {stream: [one for one in fields if judge.is_orphan(one)] for stream, fields in staged.items()}
    return {stream: fields for stream, fields in judged.items() if fields}


class _Judge:
    """Says what was staged for nothing."""

    def __init__(self, fold: Fold, writers: Mapping[str, Writer]) -> None:
        self._fold = fold
        self._waiting = {(one.staged.epoch, one.name, one.inc) for one in fold.waiting}
        self._entered = {name: one.inc for name, one in writers.items()}
        """The highest incarnation of each name. Whoever stages has entered before."""
        self._over = {name: one.inc - one.is_here for name, one in writers.items() if one.line <= fold.line}
        """The highest incarnation of each name that writes no line which is not folded."""

    def is_orphan(self, field: bytes) -> bool:
        epoch, name, inc = keys.parse_staged_field(field)
        if (epoch, name, inc) in self._waiting:
            return False
        if inc <= self._over.get(name, -1) or inc > self._entered.get(name, 0):
            return True
        there = self._fold.present.get(name)
        return there is not None and there.inc == inc and not is_open(self._fold.frontier_of(name), epoch)


async def to_drop(
    redis: AsyncRedis, streams: Sequence[StreamId], gone: Dropped, waiting: Container[tuple[Epoch, str, int]]
) -> dict[StreamId, list[bytes]]:
    """What was staged of an incarnation that was given up: fields of `keys.staged_epochs`, by stream.

    Args:
        waiting: what it had given up itself: epoch, name and incarnation.

    Raises:
        StoreUnavailable, StoreRefused.
    """
    fields = await ask(redis, [("HKEYS", keys.staged_epochs(stream)) for stream in streams])
    return {
        stream: [one for one in found if _is_dropped(one, gone, waiting)]
        for stream, found in zip(streams, fields, strict=True)
    }


def _is_dropped(staged: bytes, gone: Dropped, waiting: Container[tuple[Epoch, str, int]]) -> bool:
    """Whether what is staged under a field is of that incarnation."""
    epoch, name, inc = keys.parse_staged_field(staged)
    return name == gone.name and inc <= gone.inc and (epoch, name, inc) not in waiting
