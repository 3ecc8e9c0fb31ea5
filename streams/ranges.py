"""Reading a range of offsets from a stream, without I/O: which commands to send, what the replies mean.

One step asks for the stream's meta and then for a chunk of entries, in this order, so that everything
below the ``next`` of the meta is in the chunk, or is gone. The chunk's COUNT starts small and follows the
size of the entries seen. What arrives must begin with the offset asked for and go on without a hole;
anything else is ``HistoryTruncated``. So a reader never gets silently less.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

import pyarrow as pa

from streamlease.protocol.errors import HistoryTruncated, UnknownSpace
from streamlease.protocol.ids import StreamId
from streamlease.protocol.offsets import parse_entry_id, range_start
from streamlease.streams.connection import Command
from streamlease.streams.entries import Entry, decode_entries
from streamlease.streams.keys import stream_log, stream_meta
from streamlease.streams.schemas import Schema, Versions, load_versions

BATCH_ROWS = 65_536
"""Most rows of one batch that a reader hands out."""

ENOUGH_ROWS = 4096
"""So many rows are worth a batch of their own on the way to Spark: joining them to others would copy them."""

FIRST_COUNT = 8
MOST_FIRST_COUNT = 64
"""More entries are not asked for before their size is known: each may have a MiB and more."""

MOST_COUNT = 16_384
CHUNK_BYTES = 4 * 1024 * 1024
"""How many bytes of entries a step aims at, once it knows how large they are."""


class MissingOffsets(HistoryTruncated):
    """Offsets that were once given out are not there, though retention never reached them.

    So after a failover that lost acknowledged writes. `oldest` is where the stream goes on.
    """

    def __init__(self, stream: str, asked: int, oldest: int) -> None:
        super().__init__(stream, asked, oldest)
        self.args = (
            f"stream {stream} has nothing at offsets {asked} to {oldest - 1}: "
            f"acknowledged messages were lost, as in a failover of Redis; go on from offset {oldest}",
        )

    def __reduce__(self) -> tuple[type[MissingOffsets], tuple[str, int | datetime, int]]:
        return (MissingOffsets, (self.stream, self.asked, self.oldest))


class StreamState(NamedTuple):
    """What is known about a stream: `next` offset, lowest offset kept, whether `next` is its end, the time of
    the last append in microseconds, whether it waits for its predecessors to be sealed, and its size."""

    next: int
    floor: int
    sealed: bool
    last_append: int
    pending: bool = False
    bytes: int = 0
    """Of all that it keeps, as stored."""

    @property
    def mean_bytes(self) -> float:
        """Stored size of a message that it keeps; 0 if it keeps none."""
        return self.bytes / (self.next - self.floor) if self.next > self.floor else 0.0


def meta_command(stream: StreamId) -> Command:
    """Asks for what :func:`parse_meta` reads."""
    return ("HMGET", stream_meta(stream), "next", "floor", "state", "last_append", "bytes")


def parse_meta(reply: Any) -> StreamState | None:
    """The reply to :func:`meta_command`; None if there is no such stream."""
    if reply[0] is None:
        return None
    next, floor, state, last_append = reply[:4]
    return StreamState(
        int(next),
        int(floor or 0),
        state == b"sealed",
        int(last_append or 0),
        state == b"pending",
        int(reply[4] or 0) if len(reply) > 4 else 0,
    )


def no_stream(stream: StreamId) -> UnknownSpace:
    """The error for a stream without meta."""
    return UnknownSpace(
        f"there is no stream {stream}: its space was deleted or never created; "
        f"create it: streamlease space create {stream.space} --topics ..."
    )


class Taken(NamedTuple):
    """The entries of one step that are wanted, as they came: ``start <= offset < end`` of the stream."""

    entries: list[Entry]
    start: int
    end: int
    versions: Versions | None


class RangeReader:
    """Reads ``start <= offset < end`` of one stream: send :attr:`commands`, :meth:`feed` the replies.

    Whoever wants to send the commands of the next step before this one's messages are decoded uses
    :meth:`take` and :meth:`decode`.

    Args:
        end: None for what is there when the first step runs.
        max_messages, max_bytes: stop early; at least one message is read if one is there.
        whole: a range that reaches past the stream's end is an error, not an early end.
        schema: the typed columns that the reader wants; None for all that there are.
        columns: the columns of every message that the reader wants; None for all.
        count: how many entries the first step asks for; see :meth:`entries_for`.
    """

    def __init__(
        self,
        stream: StreamId,
        start: int,
        end: int | None = None,
        *,
        max_messages: int | None = None,
        max_bytes: int | None = None,
        whole: bool = False,
        schema: Schema | None = None,
        columns: frozenset[str] | None = None,
        count: int = FIRST_COUNT,
    ) -> None:
        self.stream = stream
        self.position = start
        self.state: StreamState | None = None
        self._end = end
        self._until = end
        if max_messages is not None:
            limit = start + max(1, max_messages)
            self._until = limit if end is None else min(end, limit)
        self._bytes_left = max_bytes
        self._whole = whole
        self._schema = schema
        self._columns = columns
        self._versions: Versions | None = None
        self._count = self._first_count = count
        self._seen = (0, 0, 0)
        """Entries, their messages and their bytes, of the last step that brought any."""
        self.done = end is not None and start >= end

    @property
    def commands(self) -> list[Command]:
        """The commands of the next step."""
        log = stream_log(self.stream)
        return [
            (*meta_command(self.stream), "schemas"),
            ("XRANGE", log, range_start(self.position), "+", "COUNT", self._count),
        ]

    def feed(self, replies: list[Any]) -> list[pa.RecordBatch]:
        """The messages that a step brought, in order; none if the stream has no more now.

        Raises:
            UnknownSpace, HistoryTruncated, MissingOffsets, SchemaMismatch: see `take` and `decode`.
        """
        return self.decode(self.take(replies))

    def take(self, replies: list[Any]) -> Taken:
        """What a step brought, and the reader stands behind it; nothing if the stream has no more now.

        Raises:
            UnknownSpace: there is no such stream.
            HistoryTruncated: the offset asked for was removed by retention.
            MissingOffsets: offsets are missing for another reason.
            SchemaMismatch: the space has other columns than the reader wants.
        """
        meta, found = replies
        state = parse_meta(meta)
        if state is None:
            raise no_stream(self.stream)
        self.state = state
        if self.position < state.floor:
            raise HistoryTruncated(str(self.stream), self.position, state.floor)
        self._look_at_schema(meta[-1])
        entries: list[Entry] = [(entry[0], entry[1]) for entry in found if entry[1] is not None]
        begin = self.position
        sizes = self._take(entries, state)
        if sizes:
            rows = sum(len(parse_entry_id(id)) for id, _ in entries[: len(sizes)])
            self._seen = (len(sizes), rows, sum(sizes))
            room = CHUNK_BYTES if self._bytes_left is None else min(CHUNK_BYTES, self._bytes_left)
            self._count = max(1, min(MOST_COUNT, room * len(sizes) // max(1, sum(sizes))))
        return Taken(entries[: len(sizes)], begin, self.position, self._versions)

    def decode(self, taken: Taken) -> list[pa.RecordBatch]:
        """The messages in what was taken, in order.

        Raises:
            SchemaMismatch: an entry is damaged or of an unknown form, or not what the reader wants.
        """
        return decode_entries(
            self.stream,
            taken.entries,
            taken.start,
            taken.end,
            versions=taken.versions,
            wanted=self._schema,
            columns=self._columns,
        )

    def entries_for(self, messages: int) -> int:
        """How many entries another reader of the stream should ask for at first, if it wants `messages`."""
        entries, rows, size = self._seen
        if not entries:
            return self._first_count
        wanted = -(-messages * entries // rows) + 1  # it may begin in the middle of one
        return max(1, min(MOST_FIRST_COUNT, wanted, CHUNK_BYTES * entries // max(1, size)))

    def _look_at_schema(self, text: bytes | None) -> None:
        versions = load_versions(text) if text is not None else None
        if versions is not None and versions is not self._versions and self._schema is not None:
            versions.newest.check_wanted(self._schema, f"space {self.stream.space}")
        self._versions = versions

    def _is_newer(self, offset: int, fields: Sequence[bytes], state: StreamState) -> bool:
        """Whether an entry was written, under a newer schema, after the meta was read."""
        if len(fields) < 4 or fields[2] != b"s" or offset < state.next:
            return False
        return self._versions is None or self._versions.find(fields[3]) is None

    def _take(self, entries: list[Entry], state: StreamState) -> list[int]:
        """Move the position over the entries that are wanted; their sizes in bytes."""
        asked = self._count
        sizes: list[int] = []
        for id, fields in entries:
            offsets = parse_entry_id(id)
            first = max(offsets.start, self.position) if not sizes else offsets.start
            if first != self.position:
                raise MissingOffsets(str(self.stream), self.position, offsets.start)
            if self._is_newer(offsets.start, fields, state):
                return sizes
            size = sum(map(len, fields))
            if self._bytes_left is not None and sizes and size > self._bytes_left:
                self.done = True
                return sizes
            sizes.append(size)
            self.position = offsets.end if self._until is None else min(offsets.end, self._until)
            if self._bytes_left is not None:
                self._bytes_left -= size
            if self.position == self._until or (self._bytes_left is not None and self._bytes_left <= 0):
                self.done = True
                return sizes
        if len(entries) < asked:
            self.done = True
            if self.position < state.next:
                raise MissingOffsets(str(self.stream), self.position, state.next)
            if self._whole and self._end is not None and self.position < self._end:
                raise MissingOffsets(str(self.stream), self.position, self._end)
        return sizes


def gather(
    batches: list[pa.RecordBatch], *, last: bool, enough: int = BATCH_ROWS
) -> tuple[list[pa.RecordBatch], list[pa.RecordBatch]]:
    """Join small neighbours into batches of at most ``BATCH_ROWS`` rows.

    Args:
        enough: so many rows are a batch of their own, and are not copied.

    Returns:
        what is ready to be handed out, and what waits for more; nothing waits if `last`.
    """
    ready: list[pa.RecordBatch] = []
    group: list[pa.RecordBatch] = []
    rows = 0
    for whole in batches:
        for begin in range(0, whole.num_rows, BATCH_ROWS):
            batch = whole if whole.num_rows <= BATCH_ROWS else whole.slice(begin, BATCH_ROWS)
            alone = rows >= enough or batch.num_rows >= enough
            if group and (alone or rows + batch.num_rows > BATCH_ROWS or batch.schema != group[0].schema):
                ready.append(_joined(group))
                group, rows = [], 0
            group.append(batch)
            rows += batch.num_rows
    if group and (last or rows >= enough):
        ready.append(_joined(group))
        group = []
    return ready, group


def _joined(group: list[pa.RecordBatch]) -> pa.RecordBatch:
    return group[0] if len(group) == 1 else pa.concat_batches(group)
