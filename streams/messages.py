"""A message on its way in and as it was read, alone and as a row of an Arrow record batch. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from itertools import repeat
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from streamlease.protocol.errors import InvalidInput, MessageTooLarge
from streamlease.protocol.topics import matches

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

_STORED = {
    "topic": pa.string(),
    "payload": pa.binary(),
    "key": pa.binary(),
    "headers": HEADERS,
    "timestamp": pa.int64(),
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


@dataclass(frozen=True, slots=True)
class Message:
    """One message as it was read. The timestamps are aware datetimes in UTC."""

    topic: str
    key: bytes | None
    payload: bytes
    stream: str
    offset: int
    timestamp: datetime
    append_timestamp: datetime
    headers: Headers = ()
    epoch: tuple[int, ...] | None = None
    values: dict[str, Any] | None = None
    """The typed columns, by name, in a space with a schema; the payload is empty there."""


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


def pack_headers(headers: HeadersInput | None) -> Headers | None:
    """Headers in their one form: pairs in the order given, values as bytes; None if there are none.

    Raises:
        InvalidInput: a name is no string, or a value neither bytes nor a string.
    """
    if not headers:
        return None
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    packed = tuple((name, as_bytes(f"header {name}", value)) for name, value in pairs)
    for name, _ in packed:
        if not isinstance(name, str):
            raise InvalidInput(f"header name {name!r} is a {type(name).__name__}: pass a string")
    return packed


def as_bytes(what: str, value: bytes | str) -> bytes:
    """`value` as bytes, text as UTF-8.

    Raises:
        InvalidInput: it is neither.
    """
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    raise InvalidInput(f"{what} is a {type(value).__name__}: pass bytes or a string")


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
            f"give topic and payload, and perhaps key, headers, timestamp"
        )
    whole = normalized_fixed(batch)
    largest = pc.max(pc.binary_length(whole.column("payload"))).as_py() or 0
    if largest > MAX_MESSAGE_BYTES:
        raise too_large(largest)
    return whole


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
                column = column.cast(pa.timestamp("us", tz=column.type.tz), safe=False)  # noqa: PLW2901
            columns.append(column.cast(_STORED[name]))
        except pa.ArrowException as error:
            raise InvalidInput(
                f"column {name} of the batch has the type {column.type}, not {_STORED[name]}: "
                f"{' '.join(str(error).split())}"
            ) from None
        if column.null_count and name in ("topic", "payload"):
            raise InvalidInput(
                f"column {name} of the batch has {column.null_count} nulls: each message needs one"
            )
    return pa.RecordBatch.from_arrays(columns, names=names)


@lru_cache(maxsize=65_536)
def _selected(filter: str, topic: str) -> bool:
    return matches(filter, topic)


def filter_batch(batch: pa.RecordBatch, filter: str) -> pa.RecordBatch:
    """The rows of `batch` whose topic is matched by `filter`; `batch` itself if all are.

    The filter is evaluated once per distinct topic.
    """
    if not batch.num_rows:
        return batch
    column = batch.column("topic")
    if pa.types.is_dictionary(column.type):
        return _filter_indexed(batch, column, filter)
    first = column[0]
    if batch.num_rows == 1 or (first == column[-1] and pc.all(pc.equal(column, first)).as_py()):
        return batch if _selected(filter, first.as_py()) else batch.slice(0, 0)
    return _filter_indexed(batch, pc.dictionary_encode(column), filter)


def _filter_indexed(batch: pa.RecordBatch, topics: pa.DictionaryArray, filter: str) -> pa.RecordBatch:
    wanted = [_selected(filter, topic) for topic in topics.dictionary.to_pylist()]
    if all(wanted):
        return batch
    if not any(wanted):
        return batch.slice(0, 0)
    return batch.filter(pc.take(pa.array(wanted, pa.bool_()), topics.indices))


def to_messages(batch: pa.RecordBatch) -> list[Message]:
    """The rows of `batch`, a batch of ``MESSAGE_SCHEMA``, perhaps with typed columns behind, as messages."""
    fixed = len(MESSAGE_SCHEMA)
    if batch.num_columns > fixed:
        typed: Iterable[dict[str, Any] | None] = batch.select(range(fixed, batch.num_columns)).to_pylist()
    else:
        typed = repeat(None, batch.num_rows)
    return [
        Message(
            topic,
            key,
            b"" if payload is None else payload,
            stream,
            offset,
            timestamp,
            appended,
            tuple((header["key"], header["value"]) for header in headers or ()),
            None if epoch is None else tuple(epoch),
            values,
        )
        for topic, key, payload, headers, stream, offset, timestamp, appended, epoch, values in zip(
            *(column.to_pylist() for column in batch.columns[:fixed]), typed, strict=True
        )
    ]
