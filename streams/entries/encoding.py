"""Messages into entries: from columns of Python objects, or from Arrow. Pure."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from streamlease.protocol.errors import InvalidInput, SchemaMismatch
from streamlease.streams.entries import kernels as pc
from streamlease.streams.entries.decoding import reopened
from streamlease.streams.entries.epoch_fields import same_epoch
from streamlease.streams.entries.few import encode_few, is_few
from streamlease.streams.entries.layout import (
    DIFF_FIELD,
    INT32_MAX,
    LETTERS,
    SMALL_BYTES,
    Codec,
    Encoded,
    Fields,
    layout_of,
    other_diffs,
    write_options,
)
from streamlease.streams.entries.message_rows import HEADERS, Headers, Row, check_payload, normalized
from streamlease.streams.entries.schemas import Schema, Versions
from streamlease.streams.entries.typed import columns_of, normalized_typed
from streamlease.streams.entries.values import Values

_SAMPLES = 4
_SAMPLE_BYTES = 4096
_WORTH_A_SAMPLE = _SAMPLES * _SAMPLE_BYTES
_SAVING = 0.9
"""What does not get smaller than so is not worth the time to expand it."""


def encode_message(row: Row) -> Encoded:
    """An entry of the one message `row`.

    Raises:
        MessageTooLarge: the payload is above ``MAX_MESSAGE_BYTES``.
    """
    check_payload(row.payload)
    fields: Fields = [b"t", row.topic.encode(), b"p", row.payload]
    if row.key is not None:
        fields += [b"k", row.key]
    if row.headers:
        pairs = [[name, base64.b64encode(value).decode("ascii")] for name, value in row.headers]
        fields += [b"h", json.dumps(pairs, separators=(",", ":"), ensure_ascii=False).encode()]
    if row.timestamp is not None:
        fields += [b"e", b"%d" % row.timestamp]
    if row.diff != 1:
        fields += [DIFF_FIELD, b"%d" % row.diff]
    return Encoded(1, fields)


def encode_rows(rows: Sequence[Row], codec: Codec = "zstd") -> Encoded:
    """One entry of all `rows`: a single message, or a record batch if there are several.

    Raises:
        MessageTooLarge: a payload is above ``MAX_MESSAGE_BYTES``.
    """
    for row in rows:
        check_payload(row.payload)
    topics, payloads, keys, headers, times, _, diffs = zip(*rows, strict=True)
    named = {place: one for place, one in enumerate(headers) if one}
    return encode_columns(topics, payloads, keys, times, named, other_diffs(diffs), codec=codec)


def encode_typed_rows(schema: Schema, rows: Sequence[Row], codec: Codec = "zstd") -> Encoded:
    """One entry of `rows`, which have typed values, under `schema`."""
    topics, _, keys, headers, times, values, diffs = zip(*rows, strict=True)
    named = {place: one for place, one in enumerate(headers) if one}
    contents = [one or {} for one in values]
    return encode_columns(
        topics, contents, keys, times, named, other_diffs(diffs), codec=codec, schema=schema
    )


def encode_columns(
    topics: Sequence[str],
    contents: Sequence[bytes] | Sequence[Values],
    keys: Sequence[bytes | None],
    times: Sequence[int | None],
    headers: Mapping[int, Headers],
    diffs: Mapping[int, int] | None = None,
    *,
    codec: Codec = "zstd",
    schema: Schema | None = None,
) -> Encoded:
    """One entry of messages that are given column by column, at least one, and checked already.

    Args:
        contents: payloads; with a `schema`, the typed values by column.
        times: event times in microseconds, None for the append time.
        headers: those of the messages that have some, by place.
        diffs: those other than +1, by place; None if there is none.
    """
    rows = len(topics)
    if schema is None and rows == 1:
        diff = diffs[0] if diffs else 1
        return encode_message(Row(topics[0], contents[0], keys[0], headers.get(0), times[0], None, diff))  # type: ignore[arg-type]
    if schema is None and not headers and not diffs and is_few(contents, keys):  # type: ignore[arg-type]
        return encode_few(topics, contents, keys, times, codec)  # type: ignore[arg-type]
    given = pa.array([_structs(headers.get(place)) for place in range(rows)], HEADERS) if headers else None
    return _encode(
        pa.array(topics, pa.string()),
        pa.array(contents, pa.binary()) if schema is None else None,
        pa.array(keys, pa.binary()),
        given,
        pa.array(times, pa.int64()),
        pa.array([diffs.get(place, 1) for place in range(rows)], pa.int64()) if diffs else None,
        codec=codec,
        typed=None if schema is None else (schema, columns_of(schema, contents)),  # type: ignore[arg-type]
    )


def _structs(headers: Headers | None) -> list[dict[str, Any]] | None:
    return [{"key": name, "value": value} for name, value in headers] if headers else None


def encode_batch(batch: pa.RecordBatch, codec: Codec = "zstd", schema: Schema | None = None) -> Encoded:
    """One entry of all rows of `batch`, which has at least one.

    Args:
        batch: has what :func:`normalized` asks for, or, with a `schema`, :func:`normalized_typed`.

    Raises:
        InvalidInput: a column is missing or of a wrong type, a topic or payload is null, or no rows.
        SchemaMismatch: the typed columns are not of the schema.
        MessageTooLarge: a message is above ``MAX_MESSAGE_BYTES``.
    """
    whole = normalized(batch) if schema is None else normalized_typed(batch, schema)
    return encode_normalized(whole, codec, schema)


def encode_normalized(whole: pa.RecordBatch, codec: Codec = "zstd", schema: Schema | None = None) -> Encoded:
    """:func:`encode_batch` of what is normalized already.

    Raises:
        InvalidInput: it has no rows.
    """
    if not whole.num_rows:
        raise InvalidInput("an empty batch cannot be stored: leave it out")
    columns = dict(zip(whole.schema.names, whole.columns, strict=True))
    return _encode(
        columns["topic"],
        columns.get("payload"),
        columns.get("key"),
        columns.get("headers"),
        columns.get("timestamp"),
        columns.get("diff") if schema is None or schema.named("diff") is None else None,
        codec=codec,
        typed=None if schema is None else (schema, [columns[one.name] for one in schema.columns]),
    )


def raised(entry: Encoded, versions: Versions, codec: Codec = "zstd") -> Encoded:
    """An entry of an older version of a schema as one of the newest; the new columns are null.

    Raises:
        SchemaMismatch: the entry has no schema, or one that is not among `versions`.
    """
    given = entry.fields[1] if entry.fields[0] == b"s" else b""
    version = versions.find(given)
    if version is None:
        shown = given.decode("ascii", "backslashreplace") or "none"
        raise SchemaMismatch(
            f"an entry has the schema {shown}, which is no version of the schema that is wanted: "
            f"publish with the present schema of its space"
        )
    if version == versions.newest:
        return entry
    return same_epoch(encode_batch(reopened(entry, version), codec, versions.newest), entry)


def _unless_null(column: pa.Array | None) -> pa.Array | None:
    return column if column is not None and column.null_count < len(column) else None


def _as_they_are(payloads: pa.Array, codec: Codec) -> bytes | None:
    """The payloads one behind the other, if a sample of them says that `codec` does not make them smaller.

    A reader takes them over without a copy then; to expand them would be most of its work.
    """
    offsets, values = payloads.buffers()[1:]
    ends = memoryview(offsets).cast("i")
    first, end = ends[payloads.offset], ends[payloads.offset + len(payloads)]
    if codec == "none" or end - first < _WORTH_A_SAMPLE:
        return None
    whole = memoryview(values)[first:end]
    step = len(whole) // _SAMPLES
    sample = b"".join(whole[at : at + _SAMPLE_BYTES] for at in range(0, step * _SAMPLES, step))
    if pa.compress(sample, codec=codec, asbytes=False).size < _SAVING * len(sample):
        return None
    return bytes(whole)


def _encode(
    topics: pa.Array,
    payloads: pa.Array | None,
    keys: pa.Array | None,
    headers: pa.Array | None,
    times: pa.Array | None,
    diffs: pa.Array | None,
    *,
    codec: Codec,
    typed: tuple[Schema, list[pa.Array]] | None = None,
) -> Encoded:
    schema = typed[0] if typed is not None else None
    fields: Fields = [b"s", schema.fingerprint.encode()] if schema is not None else []
    indexed = topics.dictionary_encode()
    names = indexed.dictionary.to_pylist()
    fields += [b"t", "\0".join(names).encode()]
    letters, columns = "", []
    if len(names) > 1:
        letters += "i" if len(names) < 2**15 else "I"
        columns.append(indexed.indices.cast(LETTERS[letters].type))
    plain = _as_they_are(payloads, codec) if payloads is not None else None
    content = ("p", payloads) if plain is None else ("l", pc.binary_length(payloads))
    for letter, column in (("k", _unless_null(keys)), content, ("h", _unless_null(headers))):
        if column is not None:
            letters += letter
            columns.append(column)
    times = _unless_null(times)
    if times is not None:
        extent = pc.min_max(times)
        least, most = extent["min"].as_py(), extent["max"].as_py()
        letter = "d" if most - least <= INT32_MAX else "D"
        letters += letter
        columns.append(pc.subtract(times, least).cast(LETTERS[letter].type))
        fields += [b"e", b"%d" % least]
    if diffs is not None and pc.any(pc.not_equal(diffs, 1)).as_py():
        letters += "n"
        columns.append(diffs)
    if typed is not None:
        columns += typed[1]
    layout = layout_of(letters, schema)
    batch = pa.RecordBatch.from_arrays(columns, schema=layout.schema)
    sink = pa.BufferOutputStream()
    options = write_options(codec if batch.nbytes > SMALL_BYTES else "none")
    with pa.ipc.new_stream(sink, layout.schema, options=options) as writer:
        writer.write_batch(batch)
    # The schema message at the front and the end mark (8 bytes) are the same every time.
    body = memoryview(sink.getvalue())[len(layout.header) : -8]
    fields += [b"c", letters.encode(), b"b", bytes(body)]
    if plain is not None:
        fields += [b"p", plain]
    return Encoded(batch.num_rows, fields)
