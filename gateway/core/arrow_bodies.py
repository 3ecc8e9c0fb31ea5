"""Arrow streams from outside: read only if they are what they say, and no larger than they look. Pure.

Compressed buffers are refused: a body that is within its limit could become a thousand times as large.
"""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa

from streamlease.protocol.errors import InvalidInput, MessageTooLarge

RECORD_BATCH, DICTIONARY_BATCH = 3, 2
"""Kinds of a message, in the union of Arrow's ``Message.fbs``."""

TIMES = pa.timestamp("us", tz="UTC")


def read_arrow(body: bytes, now: int, most: int) -> tuple[pa.RecordBatch, int]:
    """The rows of a stream, each with a time, and the time of the last one.

    Args:
        now: the time (us) of those that have none.
        most: so many rows there may be.

    Raises:
        InvalidInput: it is no stream, or not one to be trusted. MessageTooLarge: there are more rows.
    """
    try:
        _check_plain_buffers(body)
        with pa.ipc.open_stream(body) as stream:
            batches, rows = [], 0
            for batch in stream:
                rows += batch.num_rows
                if rows > most:
                    raise MessageTooLarge(f"the body has more than {most} rows: send at most so many at once")
                batch.validate(full=True)
                batches.append(batch)
            table = pa.Table.from_batches(batches, stream.schema).combine_chunks()
    except (pa.ArrowException, OSError, ValueError, struct.error, IndexError) as error:
        if isinstance(error, InvalidInput):
            raise
        why = " ".join(str(error).split())[:200]
        raise InvalidInput(
            f"the body is no Arrow stream ({why}): write it with an IPC stream writer"
        ) from None
    if not rows:
        raise InvalidInput("the Arrow stream has no rows: send at least one")
    if "topic" in table.schema.names:
        raise InvalidInput("the Arrow stream has a column topic, and the topic is in the URL: leave one out")
    return _timed(table.to_batches()[0], now)


def _timed(rows: pa.RecordBatch, now: int) -> tuple[pa.RecordBatch, int]:
    if "timestamp" not in rows.schema.names:
        return rows.append_column("timestamp", pa.repeat(pa.scalar(now, TIMES), rows.num_rows)), now
    place = rows.schema.get_field_index("timestamp")
    if place < 0:
        raise InvalidInput("the Arrow stream has two columns timestamp: leave one out")
    try:
        times = rows.column(place).cast(TIMES).fill_null(pa.scalar(now, TIMES))
    except pa.ArrowException as error:
        raise InvalidInput(f"the column timestamp is no column of times ({error}): cast it") from None
    last: int = times.view(pa.int64())[-1].as_py()
    return rows.set_column(place, "timestamp", times), last


def _check_plain_buffers(body: bytes) -> None:
    """Look through the messages of a stream for compressed buffers.

    Raises:
        InvalidInput: there are some.
        ValueError, IndexError, struct.error: it is no stream.
    """
    at = 0
    while at + 8 <= len(body):
        (marker, length) = struct.unpack_from("<Ii", body, at)
        if marker != 0xFFFFFFFF:
            raise ValueError("a message does not begin as one")
        if length <= 0:
            return
        head = body[at + 8 : at + 8 + length]
        kind, batch, size = _message(head)
        if kind == DICTIONARY_BATCH:
            batch = _table(head, batch, 1)
        if kind in (RECORD_BATCH, DICTIONARY_BATCH) and batch and _field(head, batch, 3):
            raise InvalidInput("the Arrow stream has compressed buffers: write it without compression")
        at += 8 + length + size


def _message(head: bytes) -> tuple[int, int, int]:
    """The kind of a message, where its header table begins, and how long its body is."""
    (root,) = struct.unpack_from("<I", head, 0)
    kind_at, size_at = _field(head, root, 1), _field(head, root, 3)
    kind = head[kind_at] if kind_at else 0
    size = _number(head, size_at, "<q") if size_at else 0
    if size < 0:
        raise ValueError("a message has a negative length")
    return kind, _table(head, root, 2), size


def _table(head: bytes, table: int, field: int) -> int:
    at = _field(head, table, field) if table else 0
    return at + _number(head, at, "<I") if at else 0


def _field(head: bytes, table: int, field: int) -> int:
    """Where a field of a table of FlatBuffers stands; 0 if it is left out."""
    vtable = table - _number(head, table, "<i")
    place = 4 + 2 * field
    if vtable < 0 or place + 2 > _number(head, vtable, "<H"):
        return 0
    offset = _number(head, vtable + place, "<H")
    return table + offset if offset else 0


def _number(head: bytes, at: int, form: str) -> Any:
    if at < 0:
        raise ValueError("an offset is negative")
    return struct.unpack_from(form, head, at)[0]
