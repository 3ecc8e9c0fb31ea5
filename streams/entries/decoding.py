"""Entries into Arrow record batches. Pure."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterable, Sequence
from itertools import chain, repeat
from typing import NamedTuple

import pyarrow as pa

from streamlease.protocol.epochs.order import Epoch
from streamlease.protocol.errors import SchemaMismatch
from streamlease.protocol.ids import StreamId
from streamlease.protocol.offsets import OffsetRange, entry_id, parse_entry_id
from streamlease.streams.entries import kernels as pc
from streamlease.streams.entries.arrays import blobs, integer, integers, repeated, texts
from streamlease.streams.entries.columnar import (
    BatchEntries,
    BatchEntry,
    View,
    decode_neighbours,
    fixed_columns,
    shown,
    stored_columns,
    topics_of,
)
from streamlease.streams.entries.epoch_fields import epoch_column, epoch_of
from streamlease.streams.entries.layout import DIFF_FIELD, Encoded, diff_of
from streamlease.streams.entries.message_rows import MESSAGE_SCHEMA, TIMESTAMP, Headers, header_lists
from streamlease.streams.entries.schemas import Schema, Versions

DAMAGE = (
    ValueError,
    KeyError,
    TypeError,
    IndexError,
    EOFError,
    OSError,
    OverflowError,
    MemoryError,
    RecursionError,
    pa.ArrowException,
)
"""The errors that decoding may raise for bytes that no publisher wrote."""

Entry = tuple[bytes, Sequence[bytes]]
"""Id and flat fields, as XRANGE replies them."""


class DamagedEntry(SchemaMismatch):
    """Messages ``start <= offset < end`` of one entry cannot be read, now or later: the entry is damaged."""

    def __init__(self, stream: str, id: str, start: int, end: int, cause: str) -> None:
        which = f"offset {start}" if end == start + 1 else f"offsets {start} to {end - 1}"
        super().__init__(
            f"the entry {id} of stream {stream} is damaged or of an unknown form ({cause}), and {which} "
            f"cannot be read: read it with the version that wrote it, or go on at offset {end}"
        )
        self.stream = stream
        self.id = id
        self.start = start
        self.end = end
        self.cause = cause

    def behind(self, offset: int) -> DamagedEntry:
        """The same of what is left of the entry from `offset` on."""
        return DamagedEntry(self.stream, self.id, offset, self.end, self.cause)

    def __reduce__(self) -> tuple[type[DamagedEntry], tuple[str, str, int, int, str]]:
        return (DamagedEntry, (self.stream, self.id, self.start, self.end, self.cause))


def prepare() -> None:
    """Let pyarrow import pandas now, if it is installed, and not with the first array of Python values.

    That is most of a second of computing, for which no loop of a process that has leases must stand still.
    Who only reads makes no such array (``streams.entries.arrays``), and never imports it.
    """
    pa.array([], pa.null())


def decode_entry(
    stream: StreamId, id: bytes, fields: Sequence[bytes], start: int | None = None, end: int | None = None
) -> pa.RecordBatch:
    """The messages of one entry whose offsets lie in ``start <= offset < end``, as ``MESSAGE_SCHEMA``.

    Raises:
        DamagedEntry: the entry has an unknown form or is damaged; the message names stream and offset.
    """
    batches = decode_entries(stream, [(id, fields)], start, end)
    return batches[0] if batches else MESSAGE_SCHEMA.empty_table().to_batches()[0]


def decode_entries(
    stream: StreamId,
    entries: Iterable[Entry],
    start: int | None = None,
    end: int | None = None,
    *,
    versions: Versions | None = None,
    wanted: Schema | None = None,
    columns: frozenset[str] | None = None,
) -> list[pa.RecordBatch]:
    """The messages of `entries` with offsets in ``start <= offset < end``.

    A run of single messages becomes one batch, and so do small entries of one form (``columnar``).

    Args:
        versions: all versions of the schema that the stream's space has; None if it has none.
        wanted: the typed columns to give; None for those of the newest version.
        columns: which columns of ``MESSAGE_SCHEMA`` to give, and always the topic, as a dictionary; None for
            all as they are there. What is not asked for is not made. ``diff`` is given to who asks for it.

    Raises:
        DamagedEntry: the entry there has an unknown form, is damaged, or, in a space with a schema, is not
            of it. All before it can be read, unless another one there is damaged too.
        SchemaMismatch: the reader wants other columns than there are.
    """
    target = wanted if wanted is not None or versions is None else versions.newest
    decoder = _Decoder(View(stream, versions, target, columns), 0 if start is None else start, end)
    for id, flat in entries:
        try:
            decoder.add(id, flat)
        except SchemaMismatch:
            decoder.finish()  # what is wrong before it comes first
            raise
    decoder.finish()
    return decoder.batches


class _Decoder:
    """Takes entries in order. BatchEntries that can be decoded together wait for each other."""

    def __init__(self, view: View, low: int, end: int | None) -> None:
        self.batches: list[pa.RecordBatch] = []
        self._view = view
        self._has_schema = view.versions is not None or view.target is not None
        self._low = low
        self._end = end
        self._singles: list[Single] = []
        self._neighbours: BatchEntries | None = None

    def add(self, id: bytes, flat: Sequence[bytes]) -> None:
        """The next entry.

        Raises:
            DamagedEntry, SchemaMismatch: see ``decode_entries``.
        """
        low = self._low
        try:
            offsets = parse_entry_id(id)
        except DAMAGE as error:
            raise self._damaged(id, OffsetRange(low, low + 1), error) from None
        start, end = offsets
        try:
            if start >= end or len(flat) % 2:
                raise ValueError("its id is not that of an entry")
            if max(start, low) >= (end if self._end is None else min(end, self._end)):
                return
            if start < 0:
                raise ValueError("its id is not that of an entry")
            fields = dict(zip(flat[::2], flat[1::2], strict=True))
            if self._has_schema and (b"s" not in fields or b"b" not in fields):
                _check_untyped(self._view, offsets)
            if b"b" in fields:
                self._add_neighbour(BatchEntry.of(id, offsets, fields))
            else:
                if self._neighbours is not None:
                    self._finish_neighbours()
                self._singles.append(single_of(offsets, fields))
        except SchemaMismatch:
            raise
        except DAMAGE as error:
            raise self._damaged(id, offsets, error) from None

    def finish(self) -> None:
        """Decode what waits.

        Raises:
            DamagedEntry, SchemaMismatch: see ``decode_entries``.
        """
        self._finish_singles()
        self._finish_neighbours()

    def _add_neighbour(self, one: BatchEntry) -> None:
        self._finish_singles()
        if self._neighbours is not None and self._neighbours.fits(one):
            self._neighbours.add(one)
            return
        self._finish_neighbours()
        self._neighbours = BatchEntries(one)

    def _finish_singles(self) -> None:
        run, self._singles = self._singles, []
        if run:
            self.batches.append(_run(self._view, run))

    def _finish_neighbours(self) -> None:
        if self._neighbours is None:
            return
        neighbours, self._neighbours = self._neighbours.taken, None
        try:
            self._keep(neighbours, decode_neighbours(self._view, neighbours))
        except SchemaMismatch:
            raise
        except DAMAGE as error:
            if len(neighbours) == 1:
                raise self._damaged(neighbours[0].id, neighbours[0].offsets, error) from None
            for one in neighbours:  # one of them is damaged, or they are too large together
                self._neighbours = BatchEntries(one)
                self._finish_neighbours()

    def _keep(self, neighbours: Sequence[BatchEntry], batch: pa.RecordBatch) -> None:
        start, end = neighbours[0].offsets.start, neighbours[-1].offsets.end
        skip = max(0, self._low - start)
        keep = (end if self._end is None else min(self._end, end)) - start - skip
        self.batches.append(batch if keep == batch.num_rows else batch.slice(skip, keep))

    def _damaged(self, id: bytes, offsets: OffsetRange, error: BaseException) -> DamagedEntry:
        start = max(offsets.start, self._low)
        return DamagedEntry(str(self._view.stream), shown(id), start, offsets.end, _line(error))


def _check_untyped(view: View, offsets: OffsetRange) -> None:
    """Whether an entry without a schema may be there.

    Raises:
        ValueError: its space has a schema.
        SchemaMismatch: the reader wants typed columns.
    """
    if view.versions is not None:
        raise ValueError("it has no schema, and its space has one")
    if view.target is not None:
        raise SchemaMismatch(
            f"offset {offsets.start} of stream {view.stream} has no schema, and the reader wants typed "
            f"columns: leave schema out, or read another space"
        )


class Single(NamedTuple):
    """One message that is an entry of its own."""

    topic: str
    key: bytes | None
    payload: bytes
    headers: Headers | None
    offset: int
    timestamp: int
    appended: int
    epoch: Epoch | None = None
    diff: int = 1


def single_of(offsets: OffsetRange, fields: dict[bytes, bytes]) -> Single:
    """The message of an entry with these fields.

    Raises:
        ValueError, and all of `DAMAGE`: it is damaged.
    """
    if offsets.end - offsets.start != 1:
        raise ValueError("one message under an id of several")
    appended = int(fields[b"a"])
    event = fields.get(b"e")
    return Single(
        fields[b"t"].decode(),
        fields.get(b"k"),
        fields[b"p"],
        _headers(fields.get(b"h")),
        offsets.start,
        appended if event is None else int(event),
        appended,
        epoch_of(fields),
        diff_of(fields),
    )


def _headers(packed: bytes | None) -> Headers | None:
    if packed is None:
        return None
    try:
        return tuple(
            (str(name), base64.b64decode(value, validate=True)) for name, value in json.loads(packed)
        )
    except binascii.Error as error:
        raise ValueError(f"headers: {error}") from None


def _run(view: View, run: list[Single]) -> pa.RecordBatch:
    """The messages of `run` as one batch.

    Raises:
        DamagedEntry: the first of them that has a value which no column takes.
    """
    try:
        return decode_singles(view.columns, [view.stream], [run])
    except DAMAGE:
        for one in run:
            try:
                decode_singles(view.columns, [view.stream], [[one]])
            except DAMAGE as error:
                id, end = entry_id(one.offset, 1), one.offset + 1
                raise DamagedEntry(str(view.stream), id, one.offset, end, _line(error)) from None
        raise


def decode_singles(
    columns: frozenset[str] | None, streams: Sequence[StreamId], runs: Sequence[Sequence[Single]]
) -> pa.RecordBatch:
    """The messages of `runs`, one of each of `streams`, one behind the other.

    Raises:
        ValueError, and all of `DAMAGE`: a message has a value which no column takes.
    """
    lengths = [*map(len, runs)]
    topics, keys, payloads, headers, offsets, times, appended, epochs, diffs = zip(
        *chain.from_iterable(runs), strict=True
    )
    make: dict[str, Callable[[], pa.Array]] = {
        "topic": lambda: texts(topics),
        "key": lambda: blobs(keys),
        "payload": lambda: blobs(payloads),
        "headers": lambda: header_lists(headers),
        "stream": lambda: repeated([*map(str, streams)], lengths),
        "offset": lambda: integers(offsets, pa.int64()),
        "timestamp": lambda: integers(times, TIMESTAMP),
        "append_timestamp": lambda: integers(appended, TIMESTAMP),
        "epoch": lambda: epoch_column(epochs, repeat(1, len(epochs))),
        "diff": lambda: integers(diffs, pa.int64()),
    }
    fixed = fixed_columns(columns)
    arrays = [make[name]() for name in fixed.names]
    if columns is not None:
        arrays[0] = arrays[0].dictionary_encode()
    return pa.RecordBatch.from_arrays(arrays, schema=fixed)


def topics_in(entry: Encoded) -> set[str]:
    """The topics of the messages of `entry`."""
    place = entry.fields.index(b"t", 0, 4)
    return {*entry.fields[place + 1].decode().split("\0")}


def reopened(entry: Encoded, version: Schema | None) -> pa.RecordBatch:
    """The messages of an entry that is not stored yet, as the columns from which it was encoded.

    Args:
        version: the schema under which it was encoded, None if it has none.
    """
    fields = dict(zip(entry.fields[::2], entry.fields[1::2], strict=True))
    rows = entry.rows
    if b"b" not in fields:
        event = fields.get(b"e")
        column = {
            "payload": blobs([fields[b"p"]]),
            "key": blobs([fields.get(b"k")]),
            "headers": header_lists([_headers(fields.get(b"h"))]),
            "timestamp": pa.nulls(1, pa.int64()) if event is None else integers([int(event)], pa.int64()),
        }
        if DIFF_FIELD in fields:
            column["diff"] = integers([diff_of(fields)], pa.int64())
    else:
        column = stored_columns([BatchEntry.of(b"", OffsetRange(0, rows), fields)], version)
        if "timestamp" in column:
            column["timestamp"] = pc.add(
                column["timestamp"].cast(pa.int64()), integer(int(fields[b"e"]), pa.int64())
            )
    topics = topics_of([fields], column.get("topic"), [rows])
    return pa.RecordBatch.from_pydict({**column, "topic": topics.cast(pa.string())})


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:200]
