"""Reading the streams of a group's consumer by epochs: each part of an epoch whole, and marks behind them.

Boundaries are followed in every space of the filter, and say what lies ahead (`parts_ahead`). A stream is
read up to its last part that is complete in all spaces; what a read brought is kept until a part is whole,
and is handed out then. Once all that the streams have up to a boundary is handed out, the frontier is told.

A part has no pieces, so there is nothing in between where a stream could be committed. There are two reasons
for a part that is not whole: somebody put the group into its middle, or a message in it failed.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa

from streamlease.agent.batch import OfEpoch
from streamlease.agent.dividing import ALL, ConsumerSide, Divided, stream_of
from streamlease.agent.epochs.epoch_items import Frontier
from streamlease.agent.epochs.parts_ahead import PartsAhead, StreamPart
from streamlease.borrower.book import Held
from streamlease.protocol.epochs.antichains import Antichain, changes, goes_on, is_open, minimal
from streamlease.protocol.epochs.order import Epoch, bottom
from streamlease.protocol.errors import InvalidOption
from streamlease.protocol.ids import StreamId
from streamlease.streams.entries.delivered import Message, Messages
from streamlease.streams.rows.few_messages import StreamRows

MOST_BYTES = 64 * 1024 * 1024
"""While more is kept of parts that are not whole yet, no other parts are begun."""

log = logging.getLogger(__name__)


class PartRows:
    """The messages of a part, as they were read."""

    def __init__(self, parts: Sequence[StreamRows]) -> None:
        self._parts = parts
        self.messages = Messages(len(self), partial(_made, parts))
        """The messages, one by one."""

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    @property
    def batches(self) -> list[pa.RecordBatch]:
        """The messages as record batches, with texts in the column topic."""
        return [part.plain().batch for part in self._parts]

    @property
    def batch(self) -> pa.RecordBatch:
        """The messages as one record batch."""
        table = pa.concat_tables(map(_table, self.batches), promote_options="default")
        return table.combine_chunks().to_batches()[0]

    def plain(self) -> PartRows:
        """The same."""
        return self

    def offset(self, place: int) -> int:
        """That of a message."""
        return self.messages[place].offset

    def slice(self, first: int, last: int) -> PartRows:
        """Parts are never divided."""
        raise NotImplementedError


def _made(parts: Sequence[StreamRows]) -> list[Message]:
    return [message for part in parts for message in part.messages]


@dataclass(slots=True)
class _Begun:
    """A part that is not read to its end."""

    start: int
    end: int
    turn: int
    rows: list[StreamRows] = field(default_factory=list)
    size: int = 0
    lost: bool = False


class EpochParts:
    """How the streams of one consumer are divided into parts of epochs; and what is told of the frontier.

    Args:
        dimensions: the spaces whose epochs are read; of how many dimensions these are.
        leaves_out: whether an epoch is none of the group's.
        find: told of a space of which more boundaries are wanted.
        stands: whether what was read of the boundaries of a space is still there.
    """

    def __init__(
        self,
        reader: ConsumerSide,
        dimensions: Mapping[str, int],
        filter: str,
        leaves_out: Callable[[Epoch], bool],
        find: Callable[[str], None],
        stands: Callable[[str], Awaitable[bool]],
    ) -> None:
        self.most = ALL
        self._stands = stands
        self._reader = reader
        self._filter = filter
        self._leaves_out = leaves_out
        self._find = find
        self.spaces = {
            name: PartsAhead(self._completed_beside(name), lambda stream: reader.heard(stream, None))
            for name in dimensions
        }
        self._begun: dict[Held, _Begun] = {}
        self._told: Antichain | None = None
        self._told_at: dict[str, int] = {}
        """At which boundaries that was."""
        self._again = False
        """Whether something was handed out since that lies before it."""
        self._first = bottom(next(iter(dimensions.values())))

    def _completed_beside(self, space: str) -> Callable[[Epoch], bool]:
        """Whether an epoch is completed in all spaces but this one."""

        def is_complete(epoch: Epoch) -> bool:
            for name, parts in self.spaces.items():
                if name != space and (parts.lower is None or is_open(parts.lower, epoch)):
                    return False
            return True

        return is_complete

    def look_ready(self) -> None:
        """The boundaries of a space were read: more may be complete."""
        for parts in self.spaces.values():
            parts.look_ready()
        self._reader.arrived()

    def lost(self, space: str) -> None:
        """Boundaries of a space that were read are not there any more: it is begun anew."""
        self._told_at.pop(space, None)
        for held in self.spaces[space].lost():
            self._reader.restart(held)

    # ------------------------------------------------------------ up to where

    def next_of(self, stream: StreamId) -> int | None:
        """See `Dividing`."""
        parts = self.spaces.get(stream.space)
        limit = parts.limit(stream) if parts is not None else None
        end = self._reader.ends.next_of(stream)
        return None if limit is None or end is None else min(end, limit)

    def may_begin(self, held: Held) -> bool:
        """See `Dividing`. What is begun is read to its end first, if it is much."""
        if held in self._begun:
            return True
        return sum(one.size for other, one in self._begun.items() if other.is_read) <= MOST_BYTES

    def went_to(self, held: Held) -> None:
        """See `Dividing`."""
        begun = self._begun.get(held)
        if begun is not None and (begun.end, begun.turn) != (held.position, held.turn):
            del self._begun[held]
        stream = stream_of(held.stream)
        parts = self.spaces.get(stream.space)
        if parts is None:
            self._reader.refuse(
                InvalidOption(
                    f"stream {held.stream} came to the group, and its space is none of those whose epochs "
                    f"the group reads ({', '.join(sorted(self.spaces))}): narrow the filter, and begin a "
                    f"new group"
                )
            )
        elif self._reader.book.holds(held) and not held.limbo:
            if parts.follow(stream, held):
                self._find(stream.space)
                self._begun = {
                    other: one for other, one in self._begun.items() if self._reader.book.holds(other)
                }
        else:
            self.gone(held)

    def gone(self, held: Held) -> None:
        """See `Dividing`."""
        self._begun.pop(held, None)
        stream = stream_of(held.stream)
        if (parts := self.spaces.get(stream.space)) is not None:
            parts.forget(stream)
            self._reader.arrived()

    # ------------------------------------------------------------ what is handed out

    async def strange(self, streams: Collection[StreamId]) -> Collection[StreamId]:
        """See `Dividing`: where boundaries are gone, others may have come in the place of their epochs."""
        gone = {space for space in {stream.space for stream in streams} if not await self._stands(space)}
        return [stream for stream in streams if stream.space in gone]

    def pieces(
        self, held: Held, stream: StreamId, start: int, rows: StreamRows, size: int
    ) -> Iterable[Divided]:
        """See `Dividing`."""
        chosen = rows.filtered(self._filter)
        found: list[Divided] = []
        at, end = start, start + len(rows)
        while at < end:
            part = self._part(held, stream, at)
            if part is None:
                break
            stop = min(end, part.to)
            begun = self._begun[held]
            if chosen and not self._is_left_out(part):
                some = rows if (at, stop) == (start, end) else rows.slice(at - start, stop - start)
                some = some if chosen is rows else some.filtered(self._filter)
                if some:
                    begun.rows.append(some)
                    begun.size += size * (stop - at) // len(rows)
            begun.end = at = stop
            if stop == part.to:
                found.append(self._piece(held, part))
        return found

    def hole(self, held: Held, stream: StreamId, start: int, end: int) -> Iterable[Divided]:
        """See `Dividing`."""
        found: list[Divided] = []
        while start < end:
            part = self._part(held, stream, start)
            if part is None:
                break
            begun = self._begun[held]
            stop = min(end, part.to)
            begun.lost |= (start, stop) not in part.gaps
            begun.end = start = stop
            if start == part.to:
                found.append(self._piece(held, part))
        return found

    def stopped(self, held: Held) -> Iterable[Divided]:
        """See `Dividing`. The message that stands there fails alone, so what is before it is handed out."""
        begun = self._begun.get(held)
        stream = stream_of(held.stream)
        part = self.spaces[stream.space].part(stream, begun.start) if begun is not None else None
        if begun is None or part is None or begun.end != held.position:
            return ()
        return (self._piece(held, part),)

    def _part(self, held: Held, stream: StreamId, at: int) -> StreamPart | None:
        """The part that has an offset, which is what was kept so far goes on with; `_begun` has it then.

        None: it is not known any more, and the stream is to be read again from what was handed out.
        """
        part = self.spaces[stream.space].part(stream, at)
        begun = self._begun.get(held)
        if begun is not None and (begun.end, begun.turn) != (at, held.turn):
            begun = self._begun.pop(held) and None
        if part is not None and begun is None and at == max(part.first, held.delivered):
            begun = self._begun[held] = _Begun(at, at, held.turn)
        if part is not None and begun is not None and begun.start >= held.delivered:
            return part
        self._reader.restart(held)
        return None

    def _piece(self, held: Held, part: StreamPart) -> Divided:
        """What was kept of a part is handed out."""
        begun = self._begun.pop(held)
        whole = begun.start == part.first and begun.end == part.to and not (part.lost or begun.lost)
        if part.lost:
            log.warning(
                "stream %s has not all messages of epoch %s: Redis lost some while they were staged",
                held.stream, part.epoch, extra={"stream": held.stream},
            )  # fmt: skip
        rows = PartRows(begun.rows) if begun.rows else None
        of = OfEpoch(part.epoch, whole and part.epoch is not None, part.number)
        return Divided(begun.start, begun.end, rows, begun.size, of)

    def _is_left_out(self, part: StreamPart) -> bool:
        return part.epoch is not None and self._leaves_out(part.epoch)

    def handed_out(self, held: Held, of: OfEpoch | None = None) -> None:
        """See `Dividing`; `of` is what was handed out."""
        stream = stream_of(held.stream)
        to = held.delivered
        while to in held.skips:
            to = held.skips[to]
        parts = self.spaces.get(stream.space)
        if parts is not None and parts.handed_out(stream, to):
            self._find(stream.space)
        if of is None:
            self._reader.arrived()
        elif of.number <= self._told_at.get(stream.space, -1):
            self._again = True

    # ------------------------------------------------------------ what is told

    def frontier(self) -> Frontier | None:
        """What is to be told now: how far all streams are that are held; None: nothing new."""
        reached = {name: parts.reached() for name, parts in self.spaces.items()}
        if not any(parts.has_streams for parts in self.spaces.values()):
            return None
        numbers: dict[str, int] = {}
        lowers: list[Epoch] = []
        for name, one in reached.items():
            if one is None:
                return None
            numbers[name] = one[0]
            lowers += one[1]
        if not self._again and numbers == self._told_at:
            return None
        lower = minimal(lowers)
        told = self._told
        if told is not None and (not goes_on(told, lower) or (lower == told and not self._again)):
            return None
        self._told, self._told_at, self._again = lower, numbers, False
        for name, number in numbers.items():
            self.spaces[name].told(number)
        return Frontier(lower, changes((self._first,) if told is None else told, lower))


def _table(batch: pa.RecordBatch) -> pa.Table:
    return pa.Table.from_batches([batch])
