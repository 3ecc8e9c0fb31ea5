"""Entries into Arrow record batches. Pure."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from streamlease.protocol.errors import SchemaMismatch
from streamlease.protocol.ids import StreamId
from streamlease.protocol.offsets import OffsetRange, entry_id, parse_entry_id
from streamlease.streams.entries import expanding
from streamlease.streams.entries.layout import Encoded, layout_of
from streamlease.streams.entries.message_rows import EPOCH, HEADERS, MESSAGE_SCHEMA, TIMESTAMP, whole_headers
from streamlease.streams.entries.schemas import Schema, Versions
from streamlease.streams.entries.typed import projected

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

TOPIC_INDEXED = pa.dictionary(pa.int32(), pa.string())
_ALL = pa.ipc.IpcReadOptions(use_threads=False)
_READING: dict[tuple[str, str, frozenset[str]], pa.ipc.IpcReadOptions] = {}
_MOST_READING = 1024
# From bytes, for with the first Python value that it converts pyarrow imports pandas (`prepare`).
_START = pa.Array.from_buffers(pa.int32(), 1, [None, pa.py_buffer(bytes(4))])
_FIRST = _START[0]

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

    A run of single messages becomes one batch.

    Args:
        versions: all versions of the schema that the stream's space has; None if it has none.
        wanted: the typed columns to give; None for those of the newest version.
        columns: which columns of ``MESSAGE_SCHEMA`` to give, and always the topic, as a dictionary; None for
            all as they are there. What is not asked for is not made.

    Raises:
        DamagedEntry: the entry there has an unknown form, is damaged, or, in a space with a schema, is not
            of it. All before it can be read, unless another one there is damaged too.
        SchemaMismatch: the reader wants other columns than there are.
    """
    target = wanted if wanted is not None or versions is None else versions.newest
    batches: list[pa.RecordBatch] = []
    run: list[_Single] = []
    low = 0 if start is None else start
    for id, flat in entries:
        offsets = OffsetRange(low, low + 1)
        try:
            offsets = parse_entry_id(id)
            high = offsets.end if end is None else end
            if len(offsets) < 1 or len(flat) % 2:
                raise ValueError("its id is not that of an entry")
            if max(offsets.start, low) >= min(offsets.end, high):
                continue
            if offsets.start < 0:
                raise ValueError("its id is not that of an entry")
            fields = dict(zip(flat[::2], flat[1::2], strict=True))
            if b"b" in fields:
                if run:
                    batches.append(_run(stream, run, columns))
                    run = []
                batch = _decode_batch(stream, offsets, fields, versions, target, columns)
                skip = max(0, low - offsets.start)
                keep = min(high, offsets.end) - offsets.start - skip
                batches.append(batch if keep == batch.num_rows else batch.slice(skip, keep))
            else:
                _check_untyped(stream, offsets, versions, target)
                run.append(_single(offsets, fields))
        except SchemaMismatch:
            raise
        except DAMAGE as error:
            raise DamagedEntry(
                str(stream), _shown(id), max(offsets.start, low), offsets.end, _line(error)
            ) from None
    if run:
        batches.append(_run(stream, run, columns))
    return batches


class _Single(NamedTuple):
    topic: str
    key: bytes | None
    payload: bytes
    headers: list[dict[str, Any]] | None
    offset: int
    timestamp: int
    appended: int


def _single(offsets: OffsetRange, fields: dict[bytes, bytes]) -> _Single:
    if len(offsets) != 1:
        raise ValueError("one message under an id of several")
    appended = int(fields[b"a"])
    event = fields.get(b"e")
    return _Single(
        fields[b"t"].decode(),
        fields.get(b"k"),
        fields[b"p"],
        _headers(fields.get(b"h")),
        offsets.start,
        appended if event is None else int(event),
        appended,
    )


def _headers(packed: bytes | None) -> list[dict[str, Any]] | None:
    if packed is None:
        return None
    try:
        return [
            {"key": str(name), "value": base64.b64decode(value, validate=True)}
            for name, value in json.loads(packed)
        ]
    except binascii.Error as error:
        raise ValueError(f"headers: {error}") from None


def _run(stream: StreamId, run: list[_Single], columns: frozenset[str] | None) -> pa.RecordBatch:
    """The messages of `run` as one batch.

    Raises:
        DamagedEntry: the first of them that has a value which no column takes.
    """
    try:
        return _columns_of(stream, run, columns)
    except DAMAGE:
        for one in run:
            try:
                _columns_of(stream, [one], columns)
            except DAMAGE as error:
                id, end = entry_id(one.offset, 1), one.offset + 1
                raise DamagedEntry(str(stream), id, one.offset, end, _line(error)) from None
        raise


def _columns_of(stream: StreamId, run: list[_Single], columns: frozenset[str] | None) -> pa.RecordBatch:
    topics, keys, payloads, headers, offsets, times, appended = zip(*run, strict=True)
    rows = len(run)
    make: dict[str, Callable[[], pa.Array]] = {
        "topic": lambda: pa.array(topics, pa.string()),
        "key": lambda: _column(keys, pa.binary()),
        "payload": lambda: pa.array(payloads, pa.binary()),
        "headers": lambda: _column(headers, HEADERS),
        "stream": lambda: pa.repeat(str(stream), rows),
        "offset": lambda: pa.array(offsets, pa.int64()),
        "timestamp": lambda: pa.array(times, TIMESTAMP),
        "append_timestamp": lambda: pa.array(appended, TIMESTAMP),
        "epoch": lambda: pa.nulls(rows, EPOCH),
    }
    fixed = _fixed(columns)
    arrays = [make[name]() for name in fixed.names]
    if columns is not None:
        arrays[0] = arrays[0].dictionary_encode()
    return pa.RecordBatch.from_arrays(arrays, schema=fixed)


def _column(values: tuple[Any, ...], type: pa.DataType) -> pa.Array:
    """Values that are often all missing, which needs no look at each."""
    return pa.nulls(len(values), type) if values.count(None) == len(values) else pa.array(values, type)


@lru_cache(maxsize=256)
def _fixed(columns: frozenset[str] | None) -> pa.Schema:
    """What is given of ``MESSAGE_SCHEMA``: see `decode_entries`."""
    if columns is None:
        return MESSAGE_SCHEMA
    return pa.schema(
        [
            pa.field("topic", TOPIC_INDEXED) if field.name == "topic" else field
            for field in MESSAGE_SCHEMA
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
    return pa.schema([*_fixed(columns), *target.arrow])


def _check_untyped(
    stream: StreamId, offsets: OffsetRange, versions: Versions | None, target: Schema | None
) -> None:
    if versions is not None:
        raise ValueError("it has no schema, and its space has one")
    if target is not None:
        raise SchemaMismatch(
            f"offset {offsets.start} of stream {stream} has no schema, and the reader wants typed columns: "
            f"leave schema out, or read another space"
        )


def _version_of(
    stream: StreamId, offsets: OffsetRange, fields: dict[bytes, bytes], versions: Versions | None
) -> Schema | None:
    fingerprint = fields.get(b"s")
    if fingerprint is None:
        return None
    version = versions.find(fingerprint) if versions is not None else None
    if version is None:
        raise SchemaMismatch(
            f"offset {offsets.start} of stream {stream} has the schema {_shown(fingerprint)[:80]}, "
            f"which its space does not know: was the definition of the space lost?"
        )
    return version


def _stored(
    fields: dict[bytes, bytes], version: Schema | None, rows: int, needed: frozenset[str] | None = None
) -> dict[str, pa.Array]:
    """The columns of an entry by name; if `needed` is given, of those that are there only these."""
    letters = fields[b"c"].decode("ascii")
    layout = layout_of(letters, version)
    expanded = expanding.expanded_bytes(fields[b"b"])
    if expanded > expanding.MOST_BYTES:
        raise ValueError(f"its columns expand to {expanded} bytes, and at most {expanding.MOST_BYTES} may")
    # Not `read_record_batch`: it hands columns to other threads, which takes longer than to expand them.
    with pa.ipc.open_stream(
        pa.BufferReader(layout.header + fields[b"b"]), options=_reading(letters, version, needed)
    ) as stream:
        stored = next(iter(stream), None)
    if stored is None:
        raise ValueError("it has no columns")
    if stored.num_rows != rows:
        raise ValueError(f"{stored.num_rows} messages under an id of {rows}")
    stored.validate(full=True)
    column = dict(zip(stored.schema.names, stored.columns, strict=True))
    if "l" in letters and "payload" in column:
        column["payload"] = _cut(fields[b"p"], column["payload"])
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


def _cut(whole: bytes, lengths: pa.Array) -> pa.Array:
    """The payloads that stand one behind the other in `whole`; not copied."""
    if lengths.null_count or pc.min(lengths).as_py() < 0:
        raise ValueError("the length of a payload is not known")
    ends = pc.cumulative_sum_checked(lengths)
    if ends[-1].as_py() != len(whole):
        raise ValueError(f"the payloads have {ends[-1].as_py()} bytes, and {len(whole)} are there")
    offsets = pa.concat_arrays([_START, ends])
    return pa.Array.from_buffers(
        pa.binary(), len(lengths), [None, offsets.buffers()[1], pa.py_buffer(whole)], null_count=0
    )


def _topics(fields: dict[bytes, bytes], column: dict[str, pa.Array], rows: int) -> pa.DictionaryArray:
    listed = fields[b"t"].decode().split("\0")
    longest = max(map(len, listed))
    if rows * longest > expanding.MOST_TOPIC_BYTES:
        raise ValueError(f"{rows} messages with topics of up to {longest} characters")
    names = pa.array(listed, pa.string())
    if "topic" not in column:
        return pa.DictionaryArray.from_arrays(pa.repeat(_FIRST, rows), names, safe=False)
    return pa.DictionaryArray.from_arrays(column["topic"].cast(pa.int32()), names)


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
            "payload": pa.array([fields[b"p"]], pa.binary()),
            "key": pa.array([fields.get(b"k")], pa.binary()),
            "headers": pa.array([_headers(fields.get(b"h"))], HEADERS),
            "timestamp": pa.array([event if event is None else int(event)], pa.int64()),
        }
    else:
        column = _stored(fields, version, rows)
        if "timestamp" in column:
            column["timestamp"] = pc.add(column["timestamp"].cast(pa.int64()), int(fields[b"e"]))
    return pa.RecordBatch.from_pydict({**column, "topic": _topics(fields, column, rows).cast(pa.string())})


def _decode_batch(
    stream: StreamId,
    offsets: OffsetRange,
    fields: dict[bytes, bytes],
    versions: Versions | None,
    target: Schema | None,
    columns: frozenset[str] | None,
) -> pa.RecordBatch:
    version = _version_of(stream, offsets, fields, versions)
    if version is None:
        _check_untyped(stream, offsets, versions, target)
    rows = len(offsets)
    if rows > expanding.MOST_MESSAGES:
        raise ValueError(f"{rows} messages in one entry, and at most {expanding.MOST_MESSAGES} may be")
    column = _stored(fields, version, rows, _needed(columns, target))
    fixed = _fixed(columns)
    topics = _topics(fields, column, rows)
    arrays = [
        (topics.cast(pa.string()) if columns is None else topics)
        if name == "topic"
        else _common(name, stream, offsets, fields, column, rows)
        for name in fixed.names
    ]
    if version is None or target is None:
        return pa.RecordBatch.from_arrays(arrays, schema=fixed)
    where = f"offset {offsets.start} of stream {stream}"
    typed = projected(version, target, column, rows, where)
    return pa.RecordBatch.from_arrays([*arrays, *typed], schema=_whole(columns, target))


def _common(
    name: str,
    stream: StreamId,
    offsets: OffsetRange,
    fields: dict[bytes, bytes],
    column: dict[str, pa.Array],
    rows: int,
) -> pa.Array:
    """The column `name` of every message, for a batch."""
    if name == "stream":
        return pa.repeat(str(stream), rows)
    if name == "offset":
        return pa.arange(offsets.start, offsets.end)
    if name in ("timestamp", "append_timestamp"):
        appended = pa.scalar(int(fields[b"a"]), TIMESTAMP)
        if name == "append_timestamp" or "timestamp" not in column:
            return pa.repeat(appended, rows)
        moments = pc.add(column["timestamp"].cast(pa.int64()), int(fields[b"e"])).cast(TIMESTAMP)
        return pc.coalesce(moments, appended) if moments.null_count else moments
    if name in column and (name != "payload" or b"s" not in fields):
        return whole_headers(column[name]) if name == "headers" else column[name]
    return pa.nulls(rows, MESSAGE_SCHEMA.field(name).type)


def _shown(id: object) -> str:
    return id.decode("ascii", "backslashreplace") if isinstance(id, bytes) else ascii(id)


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:200]
