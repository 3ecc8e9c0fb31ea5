"""Messages on their way in, alone and as rows of a record batch; the columns of those that are read. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from functools import lru_cache
from typing import Any, NamedTuple

import pyarrow as pa

from streamlease.protocol.errors import InvalidInput, MessageTooLarge
from streamlease.protocol.topics import matches
from streamlease.streams.entries import kernels as pc
from streamlease.streams.entries.arrays import bits, blobs, flags, texts

MAX_MESSAGE_BYTES = 16 * 1024 * 1024
"""Largest payload of one message."""

TIMESTAMP = pa.timestamp("us", tz="UTC")
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
EPOCH = pa.list_(pa.int64())

MESSAGE_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("key", pa.binary()),
        ("payload", pa.binary()),
        ("headers", HEADERS),
        ("stream", pa.string()),
        ("offset", pa.int64()),
        ("timestamp", TIMESTAMP),
        ("append_timestamp", TIMESTAMP),
        ("epoch", EPOCH),
    ]
)
"""The columns of every batch that a reader hands out."""

ALL_COLUMNS = frozenset(MESSAGE_SCHEMA.names)
"""Who asks for these gets all columns, and the topic as a dictionary."""

FIRST_TIME = -62_135_596_800_000_000
LAST_TIME = 253_402_300_800_000_000
"""Event times are ``FIRST_TIME <= time < LAST_TIME``, in microseconds since 1970: the years 1 to 9999, which
are the moments that a ``datetime`` can be."""

_STORED = {
    "topic": pa.string(),
    "payload": pa.binary(),
    "key": pa.binary(),
    "headers": HEADERS,
    "timestamp": pa.int64(),
    "diff": pa.int64(),
}

Headers = tuple[tuple[str, bytes], ...]
HeadersInput = Mapping[str, bytes | str] | Sequence[tuple[str, bytes | str]]


class Row(NamedTuple):
    """A message on its way in.

    `timestamp` is microseconds since 1970 UTC, None for the append time. `values` are the typed columns in a
    space with a schema, as ``check_values`` gives them; the payload is not stored then.
    """

    topic: str
    payload: bytes
    key: bytes | None = None
    headers: Headers | None = None
    timestamp: int | None = None
    values: dict[str, Any] | None = None
    diff: int = 1
    """In a collection: how many of the item come, or, below 0, go."""


def check_payload(payload: bytes) -> None:
    """Refuse what no entry may hold.

    Raises:
        MessageTooLarge: above ``MAX_MESSAGE_BYTES``.
    """
    if len(payload) > MAX_MESSAGE_BYTES:
        raise too_large(len(payload))


def too_large(size: int) -> MessageTooLarge:
    """The error for a payload of `size` bytes."""
    return MessageTooLarge(
        f"a message of {size} bytes is larger than {MAX_MESSAGE_BYTES}: "
        f"split it, or store it elsewhere and send where it is"
    )


def check_beside(key: bytes | None, headers: Headers | None) -> None:
    """Refuse a key and headers that together are larger than a payload may be.

    Raises:
        MessageTooLarge: above ``MAX_MESSAGE_BYTES``.
    """
    size = len(key or b"") + sum(len(name) + len(value) for name, value in headers or ())
    if size > MAX_MESSAGE_BYTES:
        raise _too_large_beside(size)


def _too_large_beside(size: int) -> MessageTooLarge:
    return MessageTooLarge(
        f"the key and the headers of a message have {size} bytes, and may have {MAX_MESSAGE_BYTES}: "
        f"put that into the payload, or store it elsewhere and send where it is"
    )


def check_times(times: pa.Array) -> None:
    """Refuse event times, in microseconds since 1970, that no ``datetime`` can be.

    Raises:
        InvalidInput: one lies beyond the years 1 to 9999.
    """
    extent = pc.min_max(times)
    least, most = extent["min"].as_py(), extent["max"].as_py()
    if least is not None and least < FIRST_TIME:
        raise beyond(least)
    if most is not None and most >= LAST_TIME:
        raise beyond(most)


def beyond(time: int) -> InvalidInput:
    """The error for an event time that is no moment of the years 1 to 9999."""
    shown = str(time) if abs(time) < 10**30 else "of more than 30 digits"
    return InvalidInput(
        f"timestamp {shown} lies beyond the years 1 to 9999: "
        f"give microseconds since 1970, from {FIRST_TIME} to {LAST_TIME - 1}, or a datetime"
    )


def pack_headers(headers: HeadersInput | None) -> Headers | None:
    """Headers in their one form: pairs in the order given, values as bytes; None if there are none.

    Raises:
        InvalidInput: they are no pairs, a name is no string, or a value neither bytes nor a string.
    """
    if not headers:
        return None
    try:
        pairs = list(headers.items() if isinstance(headers, Mapping) else headers)
        named = [(name, value) for name, value in pairs]
    except (TypeError, ValueError):
        raise InvalidInput(
            f"headers are {ascii(headers)[:80]}: pass a mapping from names to values, or pairs of both"
        ) from None
    for name, _ in named:
        if not isinstance(name, str):
            raise InvalidInput(f"header name {name!r} is a {type(name).__name__}: pass a string")
        utf8("a header name", name)
    return tuple((name, as_bytes(f"header {ascii(name)[1:-1][:80]}", value)) for name, value in named)


def as_bytes(what: str, value: bytes | str) -> bytes:
    """`value` as bytes, text as UTF-8.

    Raises:
        InvalidInput: it is neither, or a text that UTF-8 has no bytes for.
    """
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return utf8(what, value)
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    raise InvalidInput(f"{what} is a {type(value).__name__}: pass bytes or a string")


def utf8(what: str, text: str) -> bytes:
    """`text` in UTF-8.

    Raises:
        InvalidInput: it has a lone surrogate, which UTF-8 has no bytes for.
    """
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidInput(
            f"{what}, {ascii(text)[:80]}, cannot be encoded as UTF-8 (lone surrogate): "
            f"remove that character, or pass bytes"
        ) from None


def normalized(batch: pa.RecordBatch) -> pa.RecordBatch:
    """`batch` with its columns in the types in which they are stored; timestamps as int64 microseconds.

    Args:
        batch: columns topic (string, plain or dictionary), payload (binary or string) and, if wanted, key
            (binary or string), headers (list of key and value) and timestamp (or int64 microseconds).

    Raises:
        InvalidInput: a column is missing, unknown or of a wrong type, or a topic or payload is null.
        MessageTooLarge: a payload is above ``MAX_MESSAGE_BYTES``.
    """
    names = batch.schema.names
    if not {"topic", "payload"} <= set(names) <= _STORED.keys() or len(set(names)) < len(names):
        raise InvalidInput(
            f"a batch with the columns {', '.join(names)} cannot be published: "
            f"give topic and payload, and perhaps key, headers, timestamp; in a collection diff"
        )
    whole = normalized_fixed(batch)
    largest = pc.max(pc.binary_length(whole.column("payload"))).as_py() or 0
    if largest > MAX_MESSAGE_BYTES:
        raise too_large(largest)
    for name in {"key", "headers"}.intersection(names):
        _check_large(whole.column(name))
    return whole


def _check_large(column: pa.Array) -> None:
    """Refuse a key or headers that are too large; looked at closely only where together they could be."""
    if column.nbytes <= MAX_MESSAGE_BYTES:
        return
    if pa.types.is_list(column.type):
        largest = max((one.values.nbytes for one in column if one.is_valid), default=0)
    else:
        largest = pc.max(pc.binary_length(column)).as_py() or 0
    if largest > MAX_MESSAGE_BYTES:
        raise _too_large_beside(largest)


def topics_of(batch: pa.RecordBatch) -> pa.Array:
    """The topics of a batch that is to be published.

    Raises:
        InvalidInput: there is no column topic, or it is no column of texts, or a topic is null.
    """
    if batch.schema.names.count("topic") != 1:
        raise InvalidInput("a batch needs one column topic, or the topic of all its rows")
    return normalized_fixed(batch.select(["topic"])).column("topic")


def normalized_fixed(batch: pa.RecordBatch) -> pa.RecordBatch:
    """`batch`, which has only columns that every message has, in the types in which they are stored.

    Raises:
        InvalidInput: a column is of a wrong type, or a topic or payload is null.
    """
    names = batch.schema.names
    columns = []
    for name, column in zip(names, batch.columns, strict=True):
        try:
            if name == "timestamp" and pa.types.is_timestamp(column.type):
                finer = column.type.unit == "ns"  # what is beyond microseconds is cut off
                column = column.cast(pa.timestamp("us", tz=column.type.tz), safe=not finer)  # noqa: PLW2901
            columns.append(column.cast(_STORED[name]))
        except pa.ArrowException as error:
            raise InvalidInput(
                f"column {name} of the batch has the type {column.type}, not {_STORED[name]}: "
                f"{' '.join(str(error).split())}"
            ) from None
        if name == "timestamp":
            check_times(columns[-1])
        if column.null_count and name in ("topic", "payload", "diff"):
            raise InvalidInput(
                f"column {name} of the batch has {column.null_count} nulls: each message needs one"
            )
        if name == "headers":
            _check_headers(columns[-1])
    return pa.RecordBatch.from_arrays(columns, names=names)


def _check_headers(column: pa.ListArray) -> None:
    headers = column.flatten()
    keys, values = headers.flatten()
    for part, lacks in (
        (headers, "that is null in row {}: leave it out"),
        (keys, "without a key in row {}: give it one, or leave it out"),
        (values, "without a value in row {}: give it one (which may be empty), or leave it out"),
    ):
        if part.null_count:
            row = pc.list_parent_indices(column)[pc.index(part.is_null(), True).as_py()].as_py()
            raise InvalidInput(f"column headers has a header {lacks.format(row)}")


def header_lists(values: Sequence[Sequence[tuple[str, bytes]] | None]) -> pa.ListArray:
    """A column of headers; None where a message has none."""
    rows, missing = len(values), values.count(None)
    if missing == rows:
        return pa.nulls(rows, HEADERS)
    names, contents = [], []
    ends = array("i", [0])
    for value in values:
        names += [name for name, _ in value or ()]
        contents += [content for _, content in value or ()]
        ends.append(len(names))
    valid = bits(value is not None for value in values) if missing else None
    structs = pa.StructArray.from_arrays([texts(names), blobs(contents)], fields=[*HEADERS.value_type])
    return pa.Array.from_buffers(HEADERS, rows, [valid, pa.py_buffer(ends)], missing, children=[structs])


def whole_headers(column: pa.ListArray) -> pa.ListArray:
    """Headers as a reader gets them, of an entry in which some are null, as no publisher writes it now.

    A header that is null is left out, and a key or value that is null is empty.
    """
    headers = column.values
    if not headers.null_count and not any(part.null_count for part in headers.flatten()):
        return column
    whole = [
        None if row is None else [(one["key"] or "", one["value"] or b"") for one in row if one is not None]
        for row in column.to_pylist()
    ]
    return header_lists(whole)


def values_of(column: pa.Array) -> list[Any]:
    """A column as Python values; a time that no ``datetime`` or ``date`` can be is the first or last one."""
    try:
        return list(column.to_pylist())
    except (ValueError, OverflowError):
        return [_value_of(scalar) for scalar in column]


def _value_of(scalar: pa.Scalar) -> Any:
    try:
        return scalar.as_py()
    except (ValueError, OverflowError):
        if pa.types.is_struct(scalar.type):
            return {name: _value_of(one) for name, one in scalar.items()}
        if pa.types.is_list(scalar.type):
            return [_value_of(one) for one in scalar.values]
        late = scalar.value > 0
        if pa.types.is_date(scalar.type):
            return date.max if late else date.min
        moment = datetime.max if late else datetime.min
        return moment if scalar.type.tz is None else moment.replace(tzinfo=UTC)


def _are_below(topics: pa.Array, filters: tuple[str, ...]) -> bool:
    """Whether all topics lie below the only filter, as in ``a/b/#``: many are compared in one call."""
    if len(filters) != 1 or not filters[0].endswith("/#") or "+" in filters[0]:
        return False
    below: bool = pc.all(pc.starts_with(topics, filters[0][:-1]), min_count=0).as_py()
    return below


@lru_cache(maxsize=65_536)
def topic_selected(filters: tuple[str, ...], topic: str) -> bool:
    """Whether one of `filters` matches `topic`."""
    if len(filters) == 1:
        return matches(filters[0], topic)
    return any(matches(filter, topic) for filter in filters)


def with_plain_topics(batch: pa.RecordBatch) -> pa.RecordBatch:
    """`batch` with texts in its column topic, which comes first, where it has a dictionary there."""
    column = batch.column(0)
    if not pa.types.is_dictionary(column.type):
        return batch
    schema = batch.schema.set(0, MESSAGE_SCHEMA.field(0))
    plain = column.dictionary.take(column.indices)
    return pa.RecordBatch.from_arrays([plain, *batch.columns[1:]], schema=schema)


def filter_batch(batch: pa.RecordBatch, *filters: str) -> pa.RecordBatch:
    """The rows of `batch` whose topic is matched by one of `filters`; `batch` itself if all are.

    The filters are evaluated once per distinct topic.
    """
    if not batch.num_rows:
        return batch
    column = batch.column("topic")
    if pa.types.is_dictionary(column.type):
        return _filter_indexed(batch, column, filters)
    first = column[0]
    if batch.num_rows == 1 or (first == column[-1] and pc.all(pc.equal(column, first)).as_py()):
        return batch if topic_selected(filters, first.as_py()) else batch.slice(0, 0)
    return _filter_indexed(batch, pc.dictionary_encode(column), filters)


def rows_matched(batch: pa.RecordBatch, *filters: str) -> list[bool] | None:
    """Of each row whether a filter matches its topic, in a batch with a dictionary of topics; None: all."""
    topics = batch.column("topic")
    if _are_below(topics.dictionary, filters):
        return None
    wanted = [topic_selected(filters, topic) for topic in topics.dictionary.to_pylist()]
    if all(wanted):
        return None
    matched: list[bool] = pc.take(flags(wanted), topics.indices).to_pylist()
    return matched


def _filter_indexed(
    batch: pa.RecordBatch, topics: pa.DictionaryArray, filters: tuple[str, ...]
) -> pa.RecordBatch:
    if _are_below(topics.dictionary, filters):
        return batch
    wanted = [topic_selected(filters, topic) for topic in topics.dictionary.to_pylist()]
    if all(wanted):
        return batch
    if not any(wanted):
        return batch.slice(0, 0)
    return batch.filter(pc.take(flags(wanted), topics.indices))
