"""Entries into Arrow record batches. Pure."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from streamlease.protocol.errors import SchemaMismatch
from streamlease.protocol.ids import StreamId
from streamlease.protocol.offsets import OffsetRange, parse_entry_id
from streamlease.streams.layout import Encoded, layout_of
from streamlease.streams.messages import EPOCH, HEADERS, MESSAGE_SCHEMA, TIMESTAMP
from streamlease.streams.schemas import Schema, Versions
from streamlease.streams.typed import projected

Entry = tuple[bytes, Sequence[bytes]]
"""Id and flat fields, as XRANGE replies them."""


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
        SchemaMismatch: the entry has an unknown form or is damaged; the message names stream and offset.
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
) -> list[pa.RecordBatch]:
    """The messages of `entries` with offsets in ``start <= offset < end``.

    A run of single messages becomes one batch.

    Args:
        versions: all versions of the schema that the stream's space has; None if it has none.
        wanted: the typed columns to give; None for those of the newest version.

    Raises:
        SchemaMismatch: an entry has an unknown form, is damaged, or is not of the schema.
    """
    target = wanted if wanted is not None or versions is None else versions.newest
    batches: list[pa.RecordBatch] = []
    run: list[_Single] = []
    low = 0 if start is None else start
    for id, flat in entries:
        try:
            offsets = parse_entry_id(id)
            high = offsets.end if end is None else end
            if offsets.start < 0 or len(offsets) < 1 or len(flat) % 2:
                raise ValueError("its id is not that of an entry")
            if max(offsets.start, low) >= min(offsets.end, high):
                continue
            fields = dict(zip(flat[::2], flat[1::2], strict=True))
            if b"b" in fields:
                if run:
                    batches.append(_run(stream, run))
                    run = []
                batch = _decode_batch(stream, offsets, fields, versions, target)
                skip = max(0, low - offsets.start)
                keep = min(high, offsets.end) - offsets.start - skip
                batches.append(batch if keep == batch.num_rows else batch.slice(skip, keep))
            else:
                _check_untyped(stream, offsets, target)
                run.append(_single(offsets, fields))
        except (ValueError, KeyError, TypeError, IndexError, EOFError, OSError, pa.ArrowException) as error:
            raise SchemaMismatch(
                f"the entry {_shown(id)} of stream {stream} is damaged or of an unknown form "
                f"({_line(error)}): read it with the version that wrote it, or go on after it"
            ) from None
    if run:
        batches.append(_run(stream, run))
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


def _run(stream: StreamId, run: list[_Single]) -> pa.RecordBatch:
    topics, keys, payloads, headers, offsets, times, appended = zip(*run, strict=True)
    rows = len(run)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(topics, pa.string()),
            pa.array(keys, pa.binary()),
            pa.array(payloads, pa.binary()),
            pa.array(headers, HEADERS),
            pa.repeat(str(stream), rows),
            pa.array(offsets, pa.int64()),
            pa.array(times, TIMESTAMP),
            pa.array(appended, TIMESTAMP),
            pa.nulls(rows, EPOCH),
        ],
        schema=MESSAGE_SCHEMA,
    )


def _check_untyped(stream: StreamId, offsets: OffsetRange, target: Schema | None) -> None:
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
            f"offset {offsets.start} of stream {stream} has the schema {_shown(fingerprint)}, "
            f"which its space does not know: was the definition of the space lost?"
        )
    return version


def _stored(fields: dict[bytes, bytes], version: Schema | None, rows: int) -> dict[str, pa.Array]:
    letters = fields[b"c"].decode("ascii")
    stored = pa.ipc.read_record_batch(pa.py_buffer(fields[b"b"]), layout_of(letters, version).schema)
    if stored.num_rows != rows:
        raise ValueError(f"{stored.num_rows} messages under an id of {rows}")
    stored.validate(full=True)
    return dict(zip(stored.schema.names, stored.columns, strict=True))


def _topics(fields: dict[bytes, bytes], column: dict[str, pa.Array], rows: int) -> pa.Array:
    names = fields[b"t"].decode().split("\0")
    if "topic" not in column:
        return pa.repeat(names[0], rows)
    return pa.DictionaryArray.from_arrays(column["topic"], pa.array(names, pa.string())).cast(pa.string())


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
    return pa.RecordBatch.from_pydict({**column, "topic": _topics(fields, column, rows)})


def _decode_batch(
    stream: StreamId,
    offsets: OffsetRange,
    fields: dict[bytes, bytes],
    versions: Versions | None,
    target: Schema | None,
) -> pa.RecordBatch:
    version = _version_of(stream, offsets, fields, versions)
    if version is None:
        _check_untyped(stream, offsets, target)
    rows = len(offsets)
    column = _stored(fields, version, rows)
    topics = _topics(fields, column, rows)
    appended = pa.repeat(pa.scalar(int(fields[b"a"]), pa.int64()), rows).cast(TIMESTAMP)
    times = appended
    if "timestamp" in column:
        moments = pc.add(column["timestamp"].cast(pa.int64()), int(fields[b"e"])).cast(TIMESTAMP)
        times = pc.coalesce(moments, appended) if moments.null_count else moments
    fixed = [
        topics,
        column["key"] if "key" in column else pa.nulls(rows, pa.binary()),
        column["payload"] if version is None else pa.nulls(rows, pa.binary()),
        column["headers"] if "headers" in column else pa.nulls(rows, HEADERS),
        pa.repeat(str(stream), rows),
        pa.arange(offsets.start, offsets.end),
        times,
        appended,
        pa.nulls(rows, EPOCH),
    ]
    if version is None or target is None:
        return pa.RecordBatch.from_arrays(fixed, schema=MESSAGE_SCHEMA)
    where = f"offset {offsets.start} of stream {stream}"
    typed = projected(version, target, column, rows, where)
    return pa.RecordBatch.from_arrays([*fixed, *typed], schema=target.message_schema)


def _shown(id: object) -> str:
    return id.decode("ascii", "backslashreplace") if isinstance(id, bytes) else ascii(id)


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
