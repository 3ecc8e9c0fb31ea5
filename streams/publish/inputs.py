"""What a user hands to a publisher, checked and brought into one form: options, values, times, columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from numbers import Real
from typing import Any, TypedDict

import pyarrow as pa

from streamlease.protocol.errors import InvalidInput, InvalidOption, SchemaMismatch
from streamlease.streams.entries.entries import (
    CODECS,
    HEADERS,
    Codec,
    HeadersInput,
    Row,
    as_bytes,
    check_payload,
    pack_headers,
)
from streamlease.streams.entries.layout import check_diff
from streamlease.streams.entries.message_rows import FIRST_TIME, LAST_TIME, beyond, check_beside, check_times
from streamlease.streams.entries.schemas import Schema
from streamlease.streams.entries.typed import check_size, columns_of
from streamlease.streams.entries.values import Values, check_values
from streamlease.streams.spaces.spaces import Space

Payload = bytes | str | Mapping[str, Any]
"""Bytes or text; in a space with a schema, values by column."""


class PublisherOptions(TypedDict, total=False):
    """How a publisher gathers and sends."""

    max_buffer_bytes: int
    """How much may wait to be sent, 64 MiB if not given; `submit` waits beyond it."""
    max_batch_messages: int
    """So many messages make one entry at most; 4096 if not given."""
    max_batch_bytes: int
    """So many bytes are gathered for one entry; 1 MiB if not given."""
    delivery_timeout: float
    """For how many seconds the space of a topic is looked up, and sending is tried; 30 if not given."""
    linger_ms: float
    """For how many milliseconds an entry that is not full waits for more messages; 0 if not given."""
    compression: Codec
    """Readers need not know it; ``zstd`` if not given."""


MAX_LINGER_MS = 10_000
MAX_BATCH_BYTES = 256 * 1024 * 1024
"""Redis takes no value above 512 MiB."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def check_positive(**options: float) -> None:
    """Whether all `options` are above 0.

    Raises:
        InvalidOption: one is not.
    """
    for name, value in options.items():
        if not _is_number(value) or not value > 0:  # as what is not a number (NaN) is not, either
            raise InvalidOption(f"{name} is {_shown(value)}: it must be above 0")


def check_batching(linger_ms: float, max_batch_bytes: int, compression: str) -> None:
    """Whether a publisher can batch so.

    Raises:
        InvalidOption: a value is out of range.
    """
    if not _is_number(linger_ms) or not 0 <= linger_ms <= MAX_LINGER_MS:
        raise InvalidOption(f"linger_ms is {_shown(linger_ms)}: give 0 to {MAX_LINGER_MS} milliseconds")
    if not 1 <= max_batch_bytes <= MAX_BATCH_BYTES:
        raise InvalidOption(f"max_batch_bytes is {max_batch_bytes}: give 1 to {MAX_BATCH_BYTES}")
    if compression not in CODECS:
        raise InvalidOption(f"compression {ascii(compression)[:40]} is unknown: use {', '.join(CODECS)}")


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _shown(value: object) -> str:
    return ascii(value)[:80]


def typed_values(space: Space, payload: Payload) -> Values:
    """The values of a message by column.

    Raises:
        SchemaMismatch: they are not of the schema of `space`, or it has none.
    """
    if space.newest_schema is None:
        raise SchemaMismatch(f"space {space.name} has no schema: send bytes or text, not a mapping")
    if not isinstance(payload, Mapping):
        raise SchemaMismatch(
            f"space {space.name} has a schema: send a mapping from column to value, "
            f"not {type(payload).__name__}"
        )
    return check_values(space.newest_schema, payload)


def row_of(
    space: Space,
    topic: str,
    payload: Payload,
    key: bytes | str | None,
    headers: HeadersInput | None,
    timestamp: datetime | int | None,
    diff: int | None = None,
) -> Row:
    """A message for `space`, checked.

    Raises:
        InvalidInput, MessageTooLarge, SchemaMismatch: it cannot be published.
    """
    values = None
    if space.newest_schema is None and (isinstance(payload, bytes | str) or not isinstance(payload, Mapping)):
        content = as_bytes("the payload", payload)
        check_payload(content)
    else:
        values, content = typed_values(space, payload), b""
        check_size(values)
    name = None if key is None else as_bytes("the key", key)
    packed = pack_headers(headers) if headers else None
    check_beside(name, packed)
    moment = None if timestamp is None else event_time(timestamp)
    return Row(topic, content, name, packed, moment, values, 1 if diff is None else change_of(space, diff))


def change_of(space: Space, diff: object) -> int:
    """`diff` of a message for `space`.

    Raises:
        InvalidInput: it is none, or the space has none.
    """
    check_has_diffs(space)
    return check_diff(diff)


def check_has_diffs(space: Space) -> None:
    """Whether messages for `space` have diffs.

    Raises:
        InvalidInput: it is no collection.
    """
    if not space.collection:
        raise InvalidInput(
            f"space {space.name} is no collection, so its messages have no diff: leave it out, or make a "
            f"space with --collection"
        )


def event_time(timestamp: datetime | int) -> int:
    """An event time in microseconds since 1970.

    Raises:
        InvalidInput: it has no time zone, is no time, or lies beyond the years 1 to 9999.
    """
    if isinstance(timestamp, datetime):
        if timestamp.tzinfo is None:
            raise InvalidInput(f"timestamp {timestamp} has no time zone: pass an aware datetime")
        moment = (timestamp - _EPOCH) // _MICROSECOND
    elif isinstance(timestamp, int) and not isinstance(timestamp, bool):
        moment = timestamp
    else:
        raise InvalidInput(
            f"timestamp {ascii(timestamp)[:80]} is no time: pass a datetime or microseconds since 1970"
        )
    if not FIRST_TIME <= moment < LAST_TIME:
        raise beyond(moment)
    return moment


def batch_of(
    topics: str | Sequence[str],
    payloads: Sequence[Payload],
    keys: Sequence[bytes | str | None] | None,
    headers: Sequence[HeadersInput | None] | None,
    timestamps: Sequence[datetime | int | None] | None,
    diffs: Sequence[int] | None,
    schema: Schema | None,
    spaces: Mapping[str, Space],
) -> pa.RecordBatch:
    """Messages that are given column by column, as a record batch.

    Args:
        schema: that of all `spaces`, which are those of the topics.

    Raises:
        InvalidInput: a value is of a wrong type.
        SchemaMismatch: the payloads are not of the schema.
    """
    alone = isinstance(topics, str)
    rows = len(payloads)
    arrays = {"topic": pa.repeat(topics, rows) if alone else pa.array(topics, pa.string())}
    if schema is None:
        arrays["payload"] = _binary("payload", payloads)
    else:
        names = [topics] * rows if isinstance(topics, str) else topics
        values = [typed_values(spaces[name], one) for name, one in zip(names, payloads, strict=True)]
        arrays.update(zip(schema.arrow.names, columns_of(schema, values), strict=True))
    if keys is not None:
        arrays["key"] = _binary("key", keys)
    if headers is not None:
        packed = [pack_headers(one) for one in headers]
        for one in packed:
            check_beside(None, one)
        structs = [one and [{"key": title, "value": value} for title, value in one] for one in packed]
        arrays["headers"] = pa.array(structs, HEADERS)
    if timestamps is not None:
        arrays["timestamp"] = _times(timestamps)
    if diffs is not None:
        arrays["diff"] = pa.array([check_diff(one) for one in diffs], pa.int64())
    return pa.RecordBatch.from_pydict(arrays)


def _binary(what: str, values: Sequence[Any]) -> pa.Array:
    """Bytes, texts and (for keys) None as an Arrow column.

    Raises:
        InvalidInput: a value is something else.
    """
    try:
        return pa.array(values, pa.binary())
    except (pa.ArrowException, TypeError, ValueError):
        optional = what == "key"
        return pa.array(
            [None if optional and one is None else as_bytes(f"a {what}", one) for one in values], pa.binary()
        )


def _times(timestamps: Sequence[datetime | int | None]) -> pa.Array:
    if not all(type(one) is int or one is None for one in timestamps):
        timestamps = [one if one is None else event_time(one) for one in timestamps]
    try:
        times = pa.array(timestamps, pa.int64())
    except (pa.ArrowException, OverflowError):
        wrong = next(one for one in timestamps if isinstance(one, int) and not FIRST_TIME <= one < LAST_TIME)
        raise beyond(wrong) from None
    check_times(times)
    return times


def row_again(values: dict[str, Any], schema: Schema | None) -> Row:
    """A message of a part that was encoded already, from its columns."""
    headers = values.get("headers")
    return Row(
        values["topic"],
        b"" if schema is not None else values["payload"],
        values.get("key"),
        tuple((one["key"], one["value"]) for one in headers) if headers else None,
        values.get("timestamp"),
        None if schema is None else {column.name: values[column.name] for column in schema.columns},
        1 if schema is not None and schema.named("diff") is not None else values.get("diff", 1),
    )
