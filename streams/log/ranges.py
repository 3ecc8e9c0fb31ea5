"""Reading a range of offsets from a stream, without I/O: which commands to send, what the replies mean.

One step asks for the stream's meta and then for a chunk of entries, in this order, so that everything
below the ``next`` of the meta is in the chunk, or is gone. The chunk's COUNT starts small and follows the
size that the entries seen have when they are expanded. What arrives must begin with the offset asked for and
go on without a hole; anything else is ``HistoryTruncated``. So a reader never gets silently less.

Entries that were merged stand in another key than the log (``compacting``). The meta says which offsets
they are, so a step that asked the wrong one of the two is repeated with the other. Between the meta and the
entries of a step, entries may be merged, or trimmed: a hole is asked for once more before it is one.

Sizes are those of expanded messages, however small the codec made them (``expanding``). However much waits in
the stream, the memory of a reader is bounded by the sum of

* the entries of a step as stored: 4 MiB; if they are suddenly larger than those before them, 128 entries;
* 4 MiB of expanded entries, or one entry, which has at most 256 MiB;
* a batch that is handed out, 32 MiB, and the rows that wait to become the next one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from streamlease.protocol.errors import StreamleaseError
from streamlease.protocol.ids import StreamId
from streamlease.protocol.offsets import parse_entry_id, range_start
from streamlease.streams.entries.decoding import DamagedEntry
from streamlease.streams.entries.entries import Entry, decode_entries
from streamlease.streams.entries.expanding import expanded_entry_bytes
from streamlease.streams.entries.message_rows import ALL_COLUMNS
from streamlease.streams.entries.schemas import Schema, Versions, load_versions
from streamlease.streams.log.keys import stream_log, stream_merged
from streamlease.streams.log.state import (
    LogState,
    MissingOffsets,
    Wanted,
    damaged_stream,
    meta_command,
    no_stream,
    parse_meta,
)
from streamlease.streams.redis.connection import Command
from streamlease.streams.rows.few_messages import FewMessages
from streamlease.streams.rows.few_reading import FewEntry, are_few, few_entry, read_few

ROW_BYTES = 40
"""Bytes that a message takes beside its own values: its offset, its times, and where its values begin."""

FIRST_COUNT = 8
MOST_FIRST_COUNT = 64
"""More entries are not asked for before their size is known: each may have a MiB and more."""

MOST_COUNT = 128
"""Most entries of a step. More would not be read faster, and the next ones may each be much larger."""

CHUNK_BYTES = 4 * 1024 * 1024
"""How many bytes of expanded entries a step aims at, once it knows how large they are."""


_Few = list[FewEntry | None] | None
"""Gets the entries that may be read without Arrow; None: nobody wants them."""


class Taken(NamedTuple):
    """The entries of one step that are wanted, as they came: ``start <= offset < end`` of the stream."""

    entries: list[Entry]
    start: int
    end: int
    versions: Versions | None
    sizes: list[int]
    """The size of each entry, expanded."""
    few: Sequence[FewEntry | None] = ()
    """Those that may be read without Arrow, if the reader wants what stands in them; see `few_reading`."""


class RangeReader:
    """Reads ``start <= offset < end`` of one stream: send :attr:`commands`, :meth:`feed` the replies.

    Who wants to send the next commands before the messages are decoded uses :meth:`take` and :meth:`decode`.

    Args:
        end: None for what is there when the first step runs.
        enough: stop with the entry that brings so many messages: an entry is read and decoded once, however
            few of its messages are handed out at a time.
        max_bytes: stop early; at least one entry is read if one is there. Counted are the bytes that an
            entry has once it is expanded.
        whole: a range that reaches past the stream's end is an error, not an early end.
        schema: the typed columns that the reader wants; None for all that there are.
        columns: the columns of every message that the reader wants; None for all.
        count: how many entries the first step asks for; see :meth:`entries_for`.
        merged: the first step asks for merged entries; see :attr:`in_merged`.
    """

    def __init__(
        self,
        stream: StreamId,
        start: int,
        end: int | None = None,
        *,
        enough: int | None = None,
        max_bytes: int | None = None,
        whole: bool = False,
        schema: Schema | None = None,
        columns: frozenset[str] | None = None,
        count: int = FIRST_COUNT,
        merged: bool = False,
    ) -> None:
        self.stream = stream
        self.position = self._start = start
        self.state: LogState | None = None
        self._end = end
        self._enough_at = None if enough is None else start + max(1, enough)
        self._bytes_left = max_bytes
        self.bytes = 0
        """As expanded."""
        self.entries = 0
        """How many were read."""
        self.whole = whole
        self._schema = schema
        self._columns = columns
        self._versions: Versions | None = None
        self.in_merged = merged
        """Whether it reads merged entries, as another reader that goes on behind it probably will."""
        self._saw_hole = False
        """Whether the last step did not find what was asked for."""
        self._count = self._first_count = count
        self._seen = (0, 0, 0)
        """Entries, their messages and their bytes, of the last step that brought any."""
        self.done = end is not None and start >= end
        self._plain = schema is None and columns == ALL_COLUMNS

    @property
    def commands(self) -> list[Command]:
        """The commands of the next step."""
        log = stream_merged(self.stream) if self.in_merged else stream_log(self.stream)
        return [
            (*meta_command(self.stream), "schemas"),
            ("XRANGE", log, range_start(self.position), "+", "COUNT", self._count),
        ]

    def feed(self, replies: list[Any]) -> list[pa.RecordBatch]:
        """The messages that a step brought, in order; none if the stream has no more now.

        Unless the `whole` range is wanted, a damaged entry ends it: what is before it is handed out, and
        the next reader, which begins with it, raises.

        Raises:
            UnknownSpace, HistoryTruncated, MissingOffsets, SchemaMismatch: see `take` and `decode`.
        """
        return self.finish(self.take(replies))

    def finish(self, taken: Taken) -> list[pa.RecordBatch]:
        """The second half of `feed`."""
        while True:
            try:
                return self.decode(taken)
            except DamagedEntry as damaged:
                if self.whole or damaged.start == self._start:
                    raise
                taken = taken._replace(end=damaged.start)
                self.position, self.done = damaged.start, True

    def take(self, replies: list[Any], *, few: bool = False) -> Taken:
        """What a step brought; the reader goes on behind it. Nothing if the stream has no more now, or has to
        be asked once more.

        Args:
            few: it may be for `read_few`.

        Raises:
            UnknownSpace: there is no such stream.
            HistoryTruncated: the offset asked for is below what is in memory.
            MissingOffsets: offsets are missing for another reason.
            SchemaMismatch: the space has other columns than the reader wants.
        """
        meta, found = replies
        state = parse_meta(self.stream, meta)
        if state is None:
            raise no_stream(self.stream)
        self.state = state
        self._look_at_schema(meta[-1])
        state.check_in_memory(self.stream, self.position)
        begin = self.position
        if (begin < state.merged) is not self.in_merged:
            self.in_merged = not self.in_merged
            return Taken([], begin, begin, self._versions, [])
        entries: list[Entry] = [entry for entry in found if entry[1] is not None]
        unschemed = self._plain and self._versions is None
        found_few: _Few = [] if few and unschemed and are_few(entries) else None
        sizes = self._take(entries, state, found_few)
        if sizes:
            first, last = parse_entry_id(entries[0][0]), parse_entry_id(entries[len(sizes) - 1][0])
            rows = last.end - first.start
            self._seen = (len(sizes), rows, sum(sizes))
            self.entries += len(sizes)
            room = CHUNK_BYTES if self._bytes_left is None else min(CHUNK_BYTES, self._bytes_left)
            fitting = room * len(sizes) // max(1, sum(sizes))
            self._count = max(1, min(MOST_COUNT, fitting, self._still_wanted(len(sizes), rows)))
        return Taken(entries[: len(sizes)], begin, self.position, self._versions, sizes, found_few or ())

    def take_few(self, replies: list[Any]) -> list[FewMessages] | None:
        """All that the stream has, read without Arrow, if the first step brought it and nothing is unusual.

        Returns:
            None if that cannot be, and nothing is changed: `take` says what there is, or what is wrong.
        """
        meta, found = replies
        begin, end, enough = self.position, self._end, self._enough_at
        if not self._plain or self.whole or begin != self._start or self.in_merged or type(found) is not list:
            return None
        if type(meta) is not list or meta[-1] is not None or len(found) >= self._count:
            return None  # an error, a space with a schema, or there may be more
        try:
            state = parse_meta(self.stream, meta)
        except StreamleaseError:
            return None
        if state is None or begin < max(state.memory.first, state.merged):
            return None
        if not are_few(found):
            return None
        position, size, few = begin, 0, list[FewEntry]()
        for id, fields in found:
            offsets = parse_entry_id(id)
            one = few_entry(fields, offsets) if fields is not None and offsets.start == position else None
            if one is None:
                return None
            few.append(one)
            position = offsets.end
            size += one.size
        size += ROW_BYTES * (position - begin)
        too_far = position < state.next or (end is not None and position > end)
        too_large = self._bytes_left is not None and size > self._bytes_left
        if too_far or too_large or (enough is not None and position > enough):
            return None
        messages = read_few(self.stream, few, begin, position) if few else None
        if few and messages is None:
            return None
        self.state, self.position, self.bytes, self.done = state, position, size, True
        if self._bytes_left is not None:
            self._bytes_left -= size
        self._seen = len(few), position - begin, size
        self.entries = len(few)
        return [] if messages is None else [messages]

    def read_few(self, taken: Taken) -> FewMessages | None:
        """The messages in what was taken, if they are few and need no Arrow; see `few_reading`."""
        return read_few(self.stream, taken.few, taken.start, taken.end)

    def decode(self, taken: Taken) -> list[pa.RecordBatch]:
        """The messages in what was taken, in order.

        Raises:
            SchemaMismatch: an entry is damaged or of an unknown form, or not what the reader wants.
        """
        return [batch for part in self.decode_parts(taken) for batch in part]

    def decode_parts(self, taken: Taken) -> Iterator[list[pa.RecordBatch]]:
        """The same, bit by bit: of ``CHUNK_BYTES`` each, or of one entry."""
        begin = size = 0
        for place, expanded in enumerate(taken.sizes):
            if size and size + expanded > CHUNK_BYTES:
                yield self._decoded(taken, begin, place)
                begin, size = place, 0
            size += expanded
        yield self._decoded(taken, begin, len(taken.sizes))

    def _decoded(self, taken: Taken, begin: int, end: int) -> list[pa.RecordBatch]:
        return decode_entries(
            self.stream,
            taken.entries[begin:end],
            taken.start,
            taken.end,
            versions=taken.versions,
            wanted=self._schema,
            columns=self._columns,
        )

    @property
    def wants(self) -> tuple[Schema | None, frozenset[str] | None]:
        """See ``decode_entries``."""
        return self._schema, self._columns

    def entries_for(self, messages: int) -> int:
        """How many entries another reader of the stream should ask for at first, if it wants `messages`."""
        entries, rows, size = self._seen
        if not entries:
            return self._first_count
        wanted = -(-messages * entries // rows)
        return max(1, min(MOST_FIRST_COUNT, wanted, CHUNK_BYTES * entries // max(1, size)))

    def has_brought(self, messages: int, size: int) -> bool:
        """Whether so many messages, or bytes, were read."""
        return self.position - self._start >= messages or self.bytes >= size

    def wanted_below(self, memory: int) -> Wanted:
        """What this reader wants of what lies below the offset `memory`, and so in another segment."""
        end = memory if self._end is None else min(self._end, memory)
        return Wanted(self.stream, self.position, end, self._schema, self._columns)

    @property
    def is_archived(self) -> bool:
        """Whether what is below the memory is in the archive, as far as it exists; the archive says so."""
        return self.state is not None and self.state.exists is not None

    def pass_over(self, batch: pa.RecordBatch, enough: int | None = None) -> None:
        """Go on behind a batch that another segment had; who may stop early does so after `enough` bytes."""
        self.position += batch.num_rows
        self.bytes += batch.nbytes
        if self._bytes_left is not None:
            self._bytes_left -= batch.nbytes
            if enough is not None and self.bytes >= enough:
                self._bytes_left = 0
        self.done = self._has_enough()

    def _still_wanted(self, entries: int, rows: int) -> int:
        """How many entries it takes until there is enough, if `entries` have `rows` messages."""
        if self._enough_at is None:
            return MOST_COUNT
        return -(-(self._enough_at - self.position) * entries // max(1, rows))

    def _has_enough(self) -> bool:
        if self.position == self._end:
            return True
        full = self._bytes_left is not None and self._bytes_left <= 0
        return full or (self._enough_at is not None and self.position >= self._enough_at)

    def _look_at_schema(self, text: bytes | None) -> None:
        try:
            versions = load_versions(text) if text is not None else None
        except (ValueError, TypeError, RecursionError):
            raise damaged_stream(self.stream) from None
        if versions is not None and versions is not self._versions and self._schema is not None:
            versions.newest.check_wanted(self._schema, f"space {self.stream.space}")
        self._versions = versions

    def _is_newer(self, fields: Sequence[bytes]) -> bool:
        """Whether an entry that was written after the meta was read is of a newer schema."""
        if len(fields) < 4 or fields[2] != b"s":
            return False
        return self._versions is None or self._versions.find(fields[3]) is None

    def _take(self, entries: list[Entry], state: LogState, few: _Few) -> list[int]:
        """Move the position over the entries that are wanted; their sizes in bytes, when expanded. `few` gets
        those that may be read without Arrow, if it is there."""
        asked, end, next = self._count, self._end, state.next
        sizes: list[int] = []
        for id, fields in entries:
            offsets = parse_entry_id(id)
            start, behind = offsets
            first = start if sizes else max(start, self.position)
            if first != self.position:
                if sizes or self._looks_again():
                    return sizes  # what is before the hole is there
                raise MissingOffsets(str(self.stream), self.position, start)
            self._saw_hole = False
            if start >= next and self._is_newer(fields):
                return sizes
            one = None if few is None else few_entry(fields, offsets)
            size = expanded_entry_bytes(fields) if one is None else one.size
            size += ROW_BYTES * (behind - start)
            if self._bytes_left is not None:
                if sizes and size > self._bytes_left:
                    self.done = True
                    return sizes
                self._bytes_left -= size
            sizes.append(size)
            if few is not None:
                few.append(one)
            self.bytes += size
            self.position = behind if end is None else min(behind, end)
            if self._has_enough():
                self.done = True
                return sizes
        if len(entries) < asked:
            if self.in_merged and self.position >= state.merged:
                self.in_merged = False
                return sizes
            if self.position < state.next and self._looks_again():
                return sizes
            self.done = True
            if self.position < state.next:
                end = state.merged if self.in_merged else state.next
                raise MissingOffsets(str(self.stream), self.position, end)
            if self.whole and self._end is not None and self.position < self._end:
                raise MissingOffsets(str(self.stream), self.position, self._end)
        return sizes

    def _looks_again(self) -> bool:
        """Whether offsets that are not there are asked for once more; then they are missing."""
        self._saw_hole = not self._saw_hole
        return self._saw_hole
