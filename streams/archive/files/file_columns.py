"""Columns of the files: those of messages in the types that Iceberg has, and back. Pure.

Iceberg has no integers below 32 bits, so these are stored with 32. Files carry the field ids of the table,
so a column that is renamed there is still found by engines that go by ids. Here a column goes by its name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

import pyarrow as pa

from streamlease.protocol.errors import SchemaMismatch
from streamlease.streams.entries.arrays import integer, texts
from streamlease.streams.entries.columnar import TOPIC_INDEXED, fixed_columns
from streamlease.streams.entries.layout import DIFF_COLUMN
from streamlease.streams.entries.message_rows import ALL_COLUMNS, MESSAGE_SCHEMA
from streamlease.streams.entries.schemas import Schema

FIELD_ID = b"PARQUET:field_id"

_FIRST = integer(0, pa.int32())

_SAMPLE_ROWS = 1024
_SAMPLE_BYTES = 16_384
"""Of one payload."""
_MOST_SAMPLE_BYTES = 262_144
_SAVING = 0.9


def stored_type(type: pa.DataType) -> pa.DataType:
    """The type in which values of `type` stand in a file."""
    if pa.types.is_integer(type):
        return pa.int64() if type.bit_width == 64 else pa.int32()
    if pa.types.is_list(type):
        return pa.list_(pa.field("element", stored_type(type.value_type)))
    if pa.types.is_struct(type):
        return pa.struct([pa.field(one.name, stored_type(one.type)) for one in type])
    return type


def table_columns(schema: Schema | None, collection: bool) -> pa.Schema:
    """The columns of the table of a space, without ids."""
    diff = [DIFF_COLUMN] if collection else []
    typed = [] if schema is None else [*schema.arrow]
    return pa.schema([pa.field(one.name, stored_type(one.type)) for one in (*MESSAGE_SCHEMA, *diff, *typed)])


def read_columns(collection: bool) -> frozenset[str]:
    """What is read of messages that are to be archived; their stream is known."""
    columns = ALL_COLUMNS - {"stream"}
    return columns | {DIFF_COLUMN.name} if collection else columns


def with_ids(own: pa.Field, theirs: pa.Field) -> pa.Field:
    """A column with the field ids that the same column has in `theirs`."""
    found: dict[bytes, Any] = theirs.metadata or {}
    metadata = {FIELD_ID: found[FIELD_ID]} if FIELD_ID in found else None
    type = own.type
    if pa.types.is_list(type):
        type = pa.list_(with_ids(type.value_field, theirs.type.value_field))
    elif pa.types.is_struct(type):
        type = pa.struct([with_ids(one, theirs.type.field(one.name)) for one in type])
    return pa.field(own.name, type, own.nullable, metadata)


def handed_columns(schema: pa.Schema) -> pa.Schema:
    """The columns of files as their writer is handed them: texts that repeat, as places in a list of them.

    In the file they are texts, of which it has such a list of its own. The writer takes over the one that is
    there, and does not look for each text in it.
    """
    return pa.schema(
        [one.with_type(TOPIC_INDEXED) if one.name in ("topic", "stream") else one for one in schema]
    )


def to_store(batch: pa.RecordBatch, stream: str, handed: pa.Schema) -> pa.RecordBatch:
    """`batch`, of `stream`, with the columns `handed`; one that it lacks is null."""
    columns, rows = [], batch.num_rows
    for field in handed:
        place = batch.schema.get_field_index(field.name)
        if field.name == "stream":
            column = pa.DictionaryArray.from_arrays(pa.repeat(_FIRST, rows), texts([stream]))
        elif place < 0:
            column = pa.nulls(rows, field.type)
        else:
            column = batch.column(place)
        columns.append(column if column.type == field.type else column.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=handed)


def leaves(fields: Iterable[pa.Field], parents: str = "") -> Iterator[str]:
    """The columns of a file by their paths, as Parquet names them."""
    for field in fields:
        path = parents + field.name
        if pa.types.is_list(field.type):
            yield from leaves([field.type.value_field.with_name("element")], f"{path}.list.")
        elif pa.types.is_struct(field.type):
            yield from leaves(field.type, f"{path}.")
        else:
            yield path


def is_worth_zstd(payloads: pa.ChunkedArray, level: int) -> bool:
    """Whether `payloads` get smaller by a tenth, with the lengths that a file has before each of them.

    The first ones are looked at.
    """
    sample = bytearray()
    for payload in payloads.slice(0, _SAMPLE_ROWS):
        if payload.is_valid:
            plain = payload.as_buffer()
            sample += plain.size.to_bytes(4, "little")
            sample += memoryview(plain)[:_SAMPLE_BYTES]
            if len(sample) >= _MOST_SAMPLE_BYTES:
                break
    if not sample:
        return True
    small = pa.Codec("zstd", compression_level=level).compress(bytes(sample), asbytes=True)
    return len(small) < _SAVING * len(sample)


@lru_cache(maxsize=256)
def wanted_columns(columns: frozenset[str] | None, schema: Schema | None) -> pa.Schema:
    """What a reader is handed; see ``decode_entries``."""
    fixed = fixed_columns(columns)
    return fixed if schema is None else pa.schema([*fixed, *schema.arrow])


def from_store(stored: pa.Table, target: pa.Schema, stream: str, path: str) -> pa.RecordBatch:
    """Rows of a file as a reader wants them.

    Raises:
        SchemaMismatch: a column has another type there, or is missing and must not be.
    """
    rows, columns = stored.num_rows, []
    for field in target:
        if field.name == "stream":
            columns.append(pa.repeat(pa.scalar(stream), rows))
            continue
        place = stored.schema.get_field_index(field.name)
        if place < 0:
            if not field.nullable:
                raise SchemaMismatch(f"the file {path} has no column {field.name}, and the reader wants it")
            columns.append(pa.nulls(rows, field.type))
            continue
        columns.append(_as_wanted(_whole(stored.column(place)), field, path))
    return pa.RecordBatch.from_arrays(columns, schema=target)


def _whole(column: pa.ChunkedArray) -> pa.Array:
    if column.num_chunks == 1:
        return column.chunk(0)
    if pa.types.is_dictionary(column.type):
        column = column.unify_dictionaries()
    whole = column.combine_chunks()
    return whole.combine_chunks() if isinstance(whole, pa.ChunkedArray) else whole


def _as_wanted(column: pa.Array, field: pa.Field, path: str) -> pa.Array:
    type = field.type
    if column.type == type:
        return column
    if pa.types.is_dictionary(column.type):
        return column.dictionary.take(column.indices) if type != TOPIC_INDEXED else column.cast(type)
    try:
        return column.cast(type)
    except pa.ArrowException:
        raise SchemaMismatch(
            f"column {field.name} of the file {path} is {column.type}, and the reader wants {type}"
        ) from None
