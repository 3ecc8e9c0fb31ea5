"""What Spark's filters say about topics, streams, offsets and times: which data need not be read. Pure.

Only what can be said for sure is taken, and Spark looks at every filter once more. So a filter that is not
understood, or half understood, costs time and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SCALARS = (str, bytes, int, bool, date)
_COMPARE = {
    EqualTo: pc.equal,
    GreaterThan: pc.greater,
    GreaterThanOrEqual: pc.greater_equal,
    LessThan: pc.less,
    LessThanOrEqual: pc.less_equal,
}


@dataclass(frozen=True)
class Wanted:
    """What may be in the answer; None: no bound. All bounds are inclusive."""

    topics: frozenset[str] | None = None
    streams: frozenset[str] | None = None
    first_offset: int = 0
    last_offset: int | None = None
    appended_from: int | None = None
    """Append time in microseconds."""
    appended_to: int | None = None
    rows: tuple[Filter, ...] = ()
    """Comparisons of columns with values, for `keep`."""

    @classmethod
    def of(cls, filters: Iterable[Filter]) -> Wanted:
        """What all of `filters` leave."""
        wanted = cls()
        for filter in filters:
            wanted = wanted._and(filter)
        return wanted

    def _and(self, filter: Filter) -> Wanted:
        name, values = _column(filter), _values(filter)
        if name is None or values is None:
            return self
        narrowed = replace(self, rows=(*self.rows, filter))
        if isinstance(filter, StringStartsWith):
            return narrowed
        if name in ("topic", "stream") and isinstance(filter, EqualTo | In):
            texts = frozenset(value for value in values if isinstance(value, str))
            before = self.topics if name == "topic" else self.streams
            both = texts if before is None else texts & before
            return replace(narrowed, topics=both) if name == "topic" else replace(narrowed, streams=both)
        if name == "offset" and all(isinstance(value, int) for value in values) and values:
            low, high = _bounds(filter, [int(value) for value in values])
            return narrowed._offsets(low, high)
        if name == "append_timestamp" and values and all(isinstance(one, datetime) for one in values):
            low, high = _bounds(filter, [_microseconds(one) for one in values])
            return narrowed._appended(low, high)
        return narrowed

    def _offsets(self, low: int | None, high: int | None) -> Wanted:
        first = self.first_offset if low is None else max(low, self.first_offset)
        return replace(self, first_offset=first, last_offset=_least(self.last_offset, high))

    def _appended(self, low: int | None, high: int | None) -> Wanted:
        starts = [one for one in (self.appended_from, low) if one is not None]
        return replace(
            self, appended_from=max(starts, default=None), appended_to=_least(self.appended_to, high)
        )

    def keep(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows of `batch` that the filters leave; more may remain than Spark wants, never fewer."""
        for filter in self.rows:
            name = _column(filter)
            if name in batch.schema.names and batch.num_rows:
                column = batch.column(name)
                if pa.types.is_dictionary(column.type):
                    column = column.dictionary_decode()
                mask = _mask(filter, column)
                if mask is not None:
                    batch = batch.filter(mask)
        return batch


def _least(one: int | None, other: int | None) -> int | None:
    return min((bound for bound in (one, other) if bound is not None), default=None)


def _column(filter: Filter) -> str | None:
    """The top-level column that a filter is about."""
    path: tuple[str, ...] = getattr(filter, "attribute", ())
    return path[0] if len(path) == 1 else None


def _values(filter: Filter) -> list[Any] | None:
    """The values that a filter compares with; None if it is not understood."""
    if isinstance(filter, In):
        values: list[Any] = list(filter.value)
    elif isinstance(
        filter, EqualTo | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual | StringStartsWith
    ):
        values = [filter.value]
    else:
        return None
    return values if all(isinstance(value, _SCALARS) for value in values) else None


def _bounds(filter: Filter, values: list[int]) -> tuple[int | None, int | None]:
    match filter:
        case EqualTo() | In():
            return min(values), max(values)
        case GreaterThan():
            return values[0] + 1, None
        case GreaterThanOrEqual():
            return values[0], None
        case LessThan():
            return None, values[0] - 1
        case LessThanOrEqual():
            return None, values[0]
        case _:
            return None, None


def _microseconds(moment: datetime) -> int:
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return (aware - EPOCH) // timedelta(microseconds=1)


def _mask(filter: Filter, column: pa.Array) -> pa.Array | None:
    """Which rows a filter leaves; None if Arrow and Spark might not agree on it."""
    type = column.type
    if pa.types.is_floating(type) or pa.types.is_decimal(type) or pa.types.is_nested(type):
        return None
    try:
        if isinstance(filter, StringStartsWith):
            return pc.starts_with(column, filter.value) if pa.types.is_string(type) else None
        values = _values(filter) or []
        if isinstance(filter, In):
            return pc.is_in(column, value_set=pa.array([_scalar(one, type) for one in values], type))
        compare = _COMPARE[filter.__class__]
        return compare(column, pa.scalar(_scalar(values[0], type), type))
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return None


def _scalar(value: Any, type: pa.DataType) -> Any:
    if isinstance(value, bool) is not pa.types.is_boolean(type):
        raise TypeError(value)
    if isinstance(value, datetime):
        if not pa.types.is_timestamp(type) or (type.tz is None) is not (value.tzinfo is None):
            raise TypeError(value)
    elif isinstance(value, str) is not pa.types.is_string(type):
        raise TypeError(value)
    return value
