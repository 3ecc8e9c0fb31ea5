"""Entries of spaces with a schema: typed columns on their way in and out. Pure.

Such an entry is always a record batch, also of one message. Besides the fields of ``entries`` it has ``s``,
the fingerprint of its schema, as the first field; its columns are those of the letters, without ``p``, and
then all columns of that schema in their order.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from streamlease.protocol.errors import SchemaMismatch
from streamlease.streams.entries import kernels as pc
from streamlease.streams.entries.message_rows import MAX_MESSAGE_BYTES, normalized_fixed, too_large
from streamlease.streams.entries.schemas import Schema, type_name
from streamlease.streams.entries.values import Values, value_size

FIXED = ("topic", "key", "headers", "timestamp")


def _fixed_names(schema: Schema) -> tuple[str, ...]:
    """The columns of a batch that are not of `schema`: a collection has no typed column ``diff``."""
    return FIXED if schema.named("diff") is not None else (*FIXED, "diff")


def columns_of(schema: Schema, values: Sequence[Values]) -> list[pa.Array]:
    """The typed columns of rows that ``check_values`` gave."""
    return [pa.array([row.get(field.name) for row in values], field.type) for field in schema.arrow]


def check_size(values: Values) -> int:
    """The size of one row in bytes, about.

    Raises:
        MessageTooLarge: it is above ``MAX_MESSAGE_BYTES``.
    """
    size = value_size(values)
    if size > MAX_MESSAGE_BYTES:
        raise too_large(size)
    return size


def normalized_typed(batch: pa.RecordBatch, schema: Schema) -> pa.RecordBatch:
    """`batch` as it is stored: topic and what else of every message is there, then all columns of `schema`.

    Args:
        batch: column topic, perhaps key, headers, timestamp, and columns of the schema in any order; a
            nullable one may be left out. Types are widened, or narrowed where every value fits.

    Raises:
        SchemaMismatch: a column is unknown, missing, null without being nullable, or of a wrong type.
        InvalidInput: topic, key, headers or timestamp is not acceptable.
        MessageTooLarge: a row is above ``MAX_MESSAGE_BYTES``.
    """
    names, beside = batch.schema.names, _fixed_names(schema)
    typed = {name: batch.column(place) for place, name in enumerate(names) if name not in beside}
    unknown = [name for name in typed if schema.named(name) is None]
    if unknown or len(set(names)) < len(names):
        known = ", ".join(column.name for column in schema.columns)[:200]
        what = f"unknown column {ascii(unknown[0])[:80]}" if unknown else "two columns of one name"
        raise SchemaMismatch(f"a batch has {what}: the schema has {known}; give these, each once")
    fixed = normalized_fixed(batch.select([name for name in names if name in beside]))
    columns = [_column(typed.get(field.name), field, batch.num_rows) for field in schema.arrow]
    whole = pa.RecordBatch.from_arrays(
        [*fixed.columns, *columns], schema=pa.schema([*fixed.schema, *schema.arrow])
    )
    _check_rows(whole)
    return whole


def _column(column: pa.Array | None, field: pa.Field, rows: int) -> pa.Array:
    if column is None:
        column = pa.nulls(rows, field.type)
    elif column.type != field.type:
        if not _fits(column.type, field.type):
            raise SchemaMismatch(
                f"column {field.name} is {type_name(field.type)}, and the batch has {column.type} there: "
                f"convert it first"
            )
        try:
            column = column.cast(field.type)
        except pa.ArrowException as error:
            raise SchemaMismatch(
                f"column {field.name} is {type_name(field.type)}, and a value of the batch does not fit: "
                f"{' '.join(str(error).split())[:200]}"
            ) from None
    if column.null_count and not field.nullable:
        row = pc.index(column.is_null(), True).as_py()
        raise SchemaMismatch(f"column {field.name} is null in row {row}, and is not nullable: give a value")
    return column


def _fits(given: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether Arrow's safe cast from one type to the other keeps every value or fails."""
    t = pa.types
    if given == wanted or t.is_null(given):
        return True
    if t.is_dictionary(given):
        return _fits(given.value_type, wanted)
    if t.is_integer(wanted):
        return bool(t.is_integer(given))
    if t.is_floating(wanted):
        return bool(t.is_integer(given) or (t.is_floating(given) and given.bit_width <= wanted.bit_width))
    if t.is_string(wanted):
        return bool(t.is_large_string(given) or t.is_string_view(given))
    if t.is_binary(wanted):
        return bool(t.is_large_binary(given) or t.is_binary_view(given) or t.is_fixed_size_binary(given))
    if t.is_timestamp(wanted):
        return bool(t.is_timestamp(given) and (given.tz is None) == (wanted.tz is None))
    if t.is_decimal(wanted):
        return bool(t.is_decimal(given))
    if t.is_list(wanted):
        listed = t.is_list(given) or t.is_large_list(given) or t.is_fixed_size_list(given)
        return bool(listed) and _fits(given.value_type, wanted.value_type)
    if t.is_struct(wanted):
        names = [wanted.field(place).name for place in range(wanted.num_fields)]
        return (
            bool(t.is_struct(given))
            and [given.field(place).name for place in range(given.num_fields)] == names
            and all(_fits(given.field(name).type, wanted.field(name).type) for name in names)
        )
    return False


def _check_rows(batch: pa.RecordBatch) -> None:
    """Refuse a row that is too large; halves that are small enough are not looked into."""
    waiting = [batch]
    while waiting:
        part = waiting.pop()
        size = part.nbytes
        if size <= MAX_MESSAGE_BYTES:
            continue
        if part.num_rows == 1:
            raise too_large(size)
        half = part.num_rows // 2
        waiting += [part.slice(0, half), part.slice(half)]


def projected(
    version: Schema, wanted: Schema, stored: dict[str, pa.Array], rows: int, where: str
) -> list[pa.Array]:
    """The columns of `wanted` from those of an entry written under `version`.

    Raises:
        SchemaMismatch: the entry has another type there, or lacks a column that may not be null.
    """
    columns = []
    for column in wanted.columns:
        there = version.named(column.name)
        if there is None and column.nullable:
            columns.append(pa.nulls(rows, wanted.arrow.field(column.name).type))
            continue
        if there is None or there.type != column.type:
            found = "is not there" if there is None else f"is {there.type}"
            raise SchemaMismatch(
                f"column {column.name} {found} in {where}, and the reader wants {column.type}: "
                f"read it with the schema of its space"
            )
        columns.append(stored[column.name])
    return columns
