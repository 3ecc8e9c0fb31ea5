"""A message as a program gets it: a row of a record batch, as a cheap object.

Most programs look at one or two fields of a message. So the columns of a batch become Python values once,
all rows of a column together, and what costs more than that (a time of day) is made when it is looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import repeat
from typing import Any, NamedTuple, overload

import pyarrow as pa

from streamlease.streams.collecting import collector_at_rest
from streamlease.streams.entries.message_rows import FIRST_TIME, LAST_TIME, MESSAGE_SCHEMA, Headers, values_of

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Message(NamedTuple):
    """One message as it was read."""

    topic: str
    key: bytes | None
    payload: bytes
    stream: str
    offset: int
    timestamp_us: int
    """The event time, in microseconds since 1970 UTC; the append time if the publisher gave none."""
    append_timestamp_us: int
    """When it was appended, by the clock of Redis, in microseconds since 1970 UTC."""
    headers: Headers = ()
    epoch: tuple[int, ...] | None = None
    values: dict[str, Any] | None = None
    """The typed columns, by name, in a space with a schema; the payload is empty there."""

    @property
    def timestamp(self) -> datetime:
        """The event time, aware, in UTC.

        One beyond the years 1 to 9999, which no publisher of this package writes any more, is their first or
        last moment.
        """
        return moment(self.timestamp_us)

    @property
    def append_timestamp(self) -> datetime:
        """When it was appended, aware, in UTC."""
        return moment(self.append_timestamp_us)


def moment(microseconds: int) -> datetime:
    """So many microseconds after 1970, in UTC; beyond the years 1 to 9999 their first or last moment."""
    return _EPOCH + _MICROSECOND * max(FIRST_TIME, min(LAST_TIME - 1, microseconds))


class Messages(Sequence[Message]):
    """The messages of a batch, in order. They are made once, when the first of them is looked at.

    Args:
        rows: how many they are.
        make: makes them. A batch keeps its messages, so this must not hold the batch: only Python's garbage
            collector would free the two.
    """

    __slots__ = ("_made", "_make", "_rows")

    def __init__(self, rows: int, make: Callable[[], list[Message]]) -> None:
        self._rows = rows
        self._make: Callable[[], list[Message]] | None = make
        self._made: list[Message] = []

    @property
    def _list(self) -> list[Message]:
        make = self._make
        if make is not None:
            self._made = make()
            self._make = None
        return self._made

    def __len__(self) -> int:
        return self._rows

    @overload
    def __getitem__(self, place: int) -> Message: ...
    @overload
    def __getitem__(self, place: slice) -> list[Message]: ...
    def __getitem__(self, place: int | slice) -> Message | list[Message]:
        return self._list[place]

    def __iter__(self) -> Iterator[Message]:
        return iter(self._list)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Messages | list):
            return self._list == list(other)
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]  # equal to a list, which has none

    def __repr__(self) -> str:
        return repr(self._list)


_message: Callable[[tuple[Any, ...]], Message] = partial(tuple.__new__, Message)
"""As `Message._make`, which counts the fields of each once more and is called from Python."""


def to_messages(batch: pa.RecordBatch) -> list[Message]:
    """The rows of `batch` as messages.

    Args:
        batch: of ``MESSAGE_SCHEMA``, perhaps with a dictionary of topics, perhaps with typed columns behind.
    """
    rows, fixed = batch.num_rows, len(MESSAGE_SCHEMA)
    topic, key, payload, headers, stream, offset, timestamp, appended, epoch = batch.columns[:fixed]
    columns: list[Iterable[Any]] = [
        _shared(topic),
        _or(key, None),
        [value or b"" for value in payload.to_pylist()] if payload.null_count else payload.to_pylist(),
        _shared(stream),
        offset.to_pylist(),
        timestamp.view(pa.int64()).to_pylist(),
        appended.view(pa.int64()).to_pylist(),
        repeat((), rows) if headers.null_count == rows else map(_headers, headers.to_pylist()),
        repeat(None, rows) if epoch.null_count == rows else map(_epoch, epoch.to_pylist()),
        _typed(batch),
    ]
    with collector_at_rest(rows):
        return list(map(_message, zip(*columns, strict=True)))


def _shared(column: pa.Array) -> Iterable[str]:
    """Texts of which there are few; rows with the same one share it."""
    indexed = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    names = indexed.dictionary.to_pylist()
    if len(names) == 1:
        return repeat(names[0], len(column))
    return map(names.__getitem__, indexed.indices.to_pylist())


def _or(column: pa.Array, missing: Any) -> Iterable[Any]:
    return repeat(missing, len(column)) if column.null_count == len(column) else column.to_pylist()


def _headers(headers: list[dict[str, Any]] | None) -> Headers:
    return tuple((header["key"], header["value"]) for header in headers or ())


def _epoch(epoch: list[int] | None) -> tuple[int, ...] | None:
    return None if epoch is None else tuple(epoch)


def _typed(batch: pa.RecordBatch) -> Iterable[dict[str, Any] | None]:
    names = batch.schema.names[len(MESSAGE_SCHEMA) :]
    if not names:
        return repeat(None, batch.num_rows)
    columns = [values_of(column) for column in batch.columns[len(MESSAGE_SCHEMA) :]]
    return (dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True))
