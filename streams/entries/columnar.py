"""Entries that hold record batches, into columns; small neighbours of one form together. Pure.

Every call of Arrow takes some microseconds, however few rows it is for, and an entry needs twenty. So
neighbours that are small and have the same columns are decoded as if they were one entry: their record
batches are read from one stream of bytes and joined, payloads that stand as bytes are joined as bytes, and
what an entry says once, such as its times and topics, is spread over its rows. A large entry is
decoded alone, and its payloads are not copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, chain, islice
from typing import NamedTuple

import pyarrow as pa

from streamlease.protocol.errors import SchemaMismatch
from streamlease.protocol.ids import StreamId
from streamlease.protocol.offsets import OffsetRange
from streamlease.streams.entries import expanding
from streamlease.streams.entries import kernels as pc
from streamlease.streams.entries.append_times import times_of
from streamlease.streams.entries.arrays import integer, integers, repeated, spread, texts
from streamlease.streams.entries.epoch_fields import epoch_column, epoch_of
from streamlease.streams.entries.layout import DIFF_COLUMN, layout_of
from streamlease.streams.entries.message_rows import MESSAGE_SCHEMA, TIMESTAMP, whole_headers
from streamlease.streams.entries.schemas import Schema, Versions
from streamlease.streams.entries.typed import projected

ENOUGH_ROWS = 4096
"""So many rows are worth a batch of their own on the way to Spark: joining them to others would copy them."""

ENOUGH_BYTES = 1024 * 1024
"""The same in bytes."""

_MOST_JOINED_ROWS = 65_536
_MOST_JOINED_BYTES = 4 * 1024 * 1024

TOPIC_INDEXED = pa.dictionary(pa.int32(), pa.string())
_ALL = pa.ipc.IpcReadOptions(use_threads=False)
_READING: dict[tuple[str, str, frozenset[str]], pa.ipc.IpcReadOptions] = {}
_MOST_READING = 1024
_START = pa.Array.from_buffers(pa.int32(), 1, [None, pa.py_buffer(bytes(4))])
_FIRST = _START[0]
_ONE = integer(1, pa.int64())


class View(NamedTuple):
    """What a reader of a stream sees of its entries; see ``decode_entries``."""

    stream: StreamId
    versions: Versions | None
    target: Schema | None
    """The typed columns to give."""
    columns: frozenset[str] | None
    """The columns of every message to give; None for all."""


class BatchEntry(NamedTuple):
    """One entry that holds a record batch."""

    id: bytes
    offsets: OffsetRange
    fields: dict[bytes, bytes]
    size: int
    """Bytes of its columns, expanded."""

    @classmethod
    def of(cls, id: bytes, offsets: OffsetRange, fields: dict[bytes, bytes]) -> BatchEntry:
        """The entry with these fields.

        Raises:
            ValueError: it is damaged, or too large to be read.
        """
        if len(offsets) > expanding.MOST_MESSAGES:
            raise ValueError(
                f"{len(offsets)} messages in one entry, and at most {expanding.MOST_MESSAGES} may be"
            )
        expanded = expanding.expanded_bytes(fields[b"b"])
        if expanded > expanding.MOST_BYTES:
            raise ValueError(
                f"its columns expand to {expanded} bytes, and at most {expanding.MOST_BYTES} may"
            )
        return cls(id, offsets, fields, expanded + len(fields.get(b"p", b"")))

    @property
    def is_small(self) -> bool:
        """Whether it is worth joining it to others."""
        return len(self.offsets) < ENOUGH_ROWS and self.size < ENOUGH_BYTES

    @property
    def form(self) -> tuple[bytes | None, bytes | None]:
        """Entries of the same form have the same columns."""
        return self.fields.get(b"c"), self.fields.get(b"s")


class BatchEntries:
    """BatchEntries that are decoded together."""

    def __init__(self, first: BatchEntry) -> None:
        self.taken: list[BatchEntry] = []
        self._rows = self._size = 0
        self.add(first)

    def fits(self, one: BatchEntry) -> bool:
        """Whether `one` may be decoded with those that are here."""
        last = self.taken[-1]
        return (
            last.is_small
            and one.is_small
            and self._rows + len(one.offsets) <= _MOST_JOINED_ROWS
            and self._size + one.size <= _MOST_JOINED_BYTES
            and one.offsets.start == last.offsets.end
            and one.form == last.form
        )

    def add(self, one: BatchEntry) -> None:
        """Take `one` behind the others."""
        self.taken.append(one)
        self._rows += len(one.offsets)
        self._size += one.size


class EntryRun(NamedTuple):
    """Entries of one stream that follow each other."""

    stream: StreamId
    neighbours: Sequence[BatchEntry]

    @property
    def offsets(self) -> OffsetRange:
        """Those of all of them."""
        return OffsetRange(self.neighbours[0].offsets.start, self.neighbours[-1].offsets.end)


def decode_neighbours(view: View, neighbours: Sequence[BatchEntry]) -> pa.RecordBatch:
    """All messages of neighbours of one form; see `decode_runs`."""
    return decode_runs(view, [EntryRun(view.stream, neighbours)])


def decode_runs(view: View, runs: Sequence[EntryRun]) -> pa.RecordBatch:
    """All messages of runs of entries, all of one form; those of one stream behind those of another.

    Args:
        view: of any of the streams: their versions are the same.

    Raises:
        SchemaMismatch: their schema is unknown, or not what the reader wants.
        ValueError, and all of ``decoding.DAMAGE``: one is damaged, or they are too large together.
    """
    neighbours = [one for run in runs for one in run.neighbours]
    offsets = neighbours[0].offsets
    version = _version_of(view, offsets, neighbours[0].fields)
    column = stored_columns(neighbours, version, _needed(view.columns, view.target))
    fixed = fixed_columns(view.columns)
    lengths = [len(one.offsets) for one in neighbours]
    topics = topics_of([one.fields for one in neighbours], column.get("topic"), lengths)
    arrays = [
        (topics.dictionary.take(topics.indices) if view.columns is None else topics)
        if name == "topic"
        else _common(name, runs, neighbours, column, lengths)
        for name in fixed.names
    ]
    if version is None or view.target is None:
        return pa.RecordBatch.from_arrays(arrays, schema=fixed)
    where = f"offset {offsets.start} of stream {view.stream}"
    typed = projected(version, view.target, column, sum(lengths), where)
    return pa.RecordBatch.from_arrays([*arrays, *typed], schema=_whole(view.columns, view.target))


def _common(
    name: str,
    runs: Sequence[EntryRun],
    neighbours: Sequence[BatchEntry],
    column: dict[str, pa.Array],
    lengths: list[int],
) -> pa.Array:
    """The column `name` of every message."""
    if name == "stream":
        return repeated([str(run.stream) for run in runs], [len(run.offsets) for run in runs])
    if name == "offset":
        return offsets_of([run.offsets for run in runs])
    if name in ("timestamp", "append_timestamp"):
        if name == "append_timestamp" or "timestamp" not in column:
            return _appended(neighbours, lengths)
        least = [int(one.fields[b"e"]) for one in neighbours]
        base = integer(least[0], pa.int64()) if len(least) == 1 else spread(least, lengths, pa.int64())
        moments = pc.add(column["timestamp"].cast(pa.int64()), base).view(TIMESTAMP)
        return pc.coalesce(moments, _appended(neighbours, lengths)) if moments.null_count else moments
    if name == "diff":
        rows = sum(lengths)
        return column[name] if b"n" in neighbours[0].fields[b"c"] else pa.repeat(_ONE, rows)
    if name == "epoch":
        return epoch_column([epoch_of(one.fields) for one in neighbours], lengths)
    if name in column and (name != "payload" or b"s" not in neighbours[0].fields):
        return whole_headers(column[name]) if name == "headers" else column[name]
    return pa.nulls(sum(lengths), MESSAGE_SCHEMA.field(name).type)


def offsets_of(ranges: Sequence[OffsetRange]) -> pa.Array:
    """The column ``offset``, with all of these."""
    if len(ranges) == 1:
        return pa.arange(*ranges[0])
    return integers([*chain.from_iterable(range(*one) for one in ranges)], pa.int64())


def _appended(neighbours: Sequence[BatchEntry], lengths: list[int]) -> pa.Array:
    if not any(b"A" in one.fields for one in neighbours):
        return spread([int(one.fields[b"a"]) for one in neighbours], lengths, TIMESTAMP)
    return pa.concat_arrays(
        [times_of(one.fields, rows) for one, rows in zip(neighbours, lengths, strict=True)]
    )


def stored_columns(
    neighbours: Sequence[BatchEntry], version: Schema | None, needed: frozenset[str] | None = None
) -> dict[str, pa.Array]:
    """The columns of neighbours of one form by name; with `needed`, only these of those that are there.

    Raises:
        ValueError, and all of ``decoding.DAMAGE``: one is damaged, or they are too large together.
    """
    letters = neighbours[0].fields[b"c"].decode("ascii")
    layout = layout_of(letters, version)
    bodies = [one.fields[b"b"] for one in neighbours]
    # Not `read_record_batch`: it hands columns to other threads, which takes longer than to expand them.
    with pa.ipc.open_stream(
        pa.BufferReader(b"".join([layout.header, *bodies])), options=_reading(letters, version, needed)
    ) as stream:
        # What stands behind a record batch is of no entry, unless entries stand behind each other.
        found = list(islice(stream, len(neighbours) + (len(neighbours) > 1)))
    if not found:
        raise ValueError("it has no columns")
    if len(found) != len(neighbours):
        raise ValueError(f"{len(found)} record batches in {len(neighbours)} entries")
    for one, batch in zip(neighbours, found, strict=True):
        if batch.num_rows != len(one.offsets):
            raise ValueError(f"{batch.num_rows} messages under an id of {len(one.offsets)}")
        batch.validate(full=True)
    stored = found[0] if len(found) == 1 else pa.concat_batches(found)
    column = dict(zip(stored.schema.names, stored.columns, strict=True))
    if "l" in letters and "payload" in column:
        column["payload"] = _cut(neighbours, column["payload"])
    return column


def _reading(letters: str, version: Schema | None, needed: frozenset[str] | None) -> pa.ipc.IpcReadOptions:
    if needed is None:
        return _ALL
    key = (letters, version.fingerprint if version is not None else "", needed)
    options = _READING.get(key)
    if options is None:
        names = layout_of(letters, version).schema.names
        places = [place for place, name in enumerate(names) if name in needed]
        if len(_READING) >= _MOST_READING:
            _READING.clear()
        # An empty list would mean all.
        options = _READING[key] = pa.ipc.IpcReadOptions(use_threads=False, included_fields=places or [0])
    return options


def _cut(neighbours: Sequence[BatchEntry], lengths: pa.Array) -> pa.Array:
    """The payloads that stand one behind the other in the field ``p``; those of one entry are not copied."""
    if lengths.null_count or pc.min(lengths).as_py() < 0:
        raise ValueError("the length of a payload is not known")
    wholes = [one.fields[b"p"] for one in neighbours]
    ends = pc.cumulative_sum_checked(lengths)
    row = -1
    for one, there in zip(neighbours, accumulate(map(len, wholes)), strict=True):
        row += len(one.offsets)
        told = ends[row].as_py()
        if told != there:
            raise ValueError(f"the payloads have {told} bytes, and {there} are there")
    offsets = pa.concat_arrays([_START, ends])
    return pa.Array.from_buffers(
        pa.binary(), len(lengths), [None, offsets.buffers()[1], pa.py_buffer(b"".join(wholes))], null_count=0
    )


def topics_of(
    entries: Sequence[dict[bytes, bytes]], index: pa.Array | None, lengths: list[int]
) -> pa.DictionaryArray:
    """The topics of the messages of neighbours.

    Args:
        index: the place of each message's topic among those of its entry; None for the first one.
    """
    stored = [fields[b"t"] for fields in entries]
    places: dict[str, int] = {}
    """Where each topic stands among all."""
    listed: list[int] = []
    """The places of the topics of one text, then those of the next."""
    known: dict[bytes, tuple[int, int]] = {}
    """Where the topics of a text begin in `listed`, and how many they are."""
    for one in stored:
        if one not in known:
            topics = one.decode().split("\0")
            known[one] = (len(listed), len(topics))
            listed += [places.setdefault(topic, len(places)) for topic in topics]
    rows, longest = sum(lengths), max(map(len, places))
    if rows * longest > expanding.MOST_TOPIC_BYTES:
        raise ValueError(f"{rows} messages with topics of up to {longest} characters")
    names = texts([*places])
    if index is None:
        firsts = [listed[known[one][0]] for one in stored] if len(known) > 1 else []
        place = spread(firsts, lengths, pa.int32()) if firsts else pa.repeat(_FIRST, rows)
        return pa.DictionaryArray.from_arrays(place, names, safe=False)
    own = index.cast(pa.int32())
    if len(listed) == len(places) and len(known) == 1:
        return pa.DictionaryArray.from_arrays(own, names)
    begins, counts = (spread([known[one][which] for one in stored], lengths, pa.int32()) for which in (0, 1))
    inside = pc.and_(pc.greater_equal(own, _FIRST), pc.less(own, counts))
    if not pc.all(inside, min_count=0).as_py():
        raise ValueError("a message has a topic that is not among those of its entry")
    place = pc.take(integers(listed, pa.int32()), pc.add(own, begins))
    return pa.DictionaryArray.from_arrays(place, names, safe=False)


def _version_of(view: View, offsets: OffsetRange, fields: dict[bytes, bytes]) -> Schema | None:
    fingerprint = fields.get(b"s")
    if fingerprint is None:
        return None
    version = view.versions.find(fingerprint) if view.versions is not None else None
    if version is None:
        raise SchemaMismatch(
            f"offset {offsets.start} of stream {view.stream} has the schema {shown(fingerprint)[:80]}, "
            f"which its space does not know: was the definition of the space lost?"
        )
    return version


@lru_cache(maxsize=256)
def fixed_columns(columns: frozenset[str] | None) -> pa.Schema:
    """What is given of ``MESSAGE_SCHEMA``: see ``decode_entries``."""
    if columns is None:
        return MESSAGE_SCHEMA
    return pa.schema(
        [
            pa.field("topic", TOPIC_INDEXED) if field.name == "topic" else field
            for field in (*MESSAGE_SCHEMA, DIFF_COLUMN)
            if field.name == "topic" or field.name in columns
        ]
    )


@lru_cache(maxsize=256)
def _needed(columns: frozenset[str] | None, target: Schema | None) -> frozenset[str] | None:
    """The stored columns that are looked at, by name."""
    if columns is None:
        return None
    return columns | {"topic", *(target.arrow.names if target is not None else ())}


@lru_cache(maxsize=256)
def _whole(columns: frozenset[str] | None, target: Schema) -> pa.Schema:
    return pa.schema([*fixed_columns(columns), *target.arrow])


def shown(value: object) -> str:
    """What stands in an entry where a name or an id is expected, for people."""
    if isinstance(value, bytes):
        return value.decode("ascii", "backslashreplace")
    return ascii(value)
