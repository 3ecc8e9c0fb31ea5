"""The typed columns of a table that is there: a parquet file's own, or what the rows of a CSV or JSONL file
look like.

Rows tell only so much: the first megabyte of them is looked at, and every column may be empty. A column
without any value is text, as is a time of day in a CSV file.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

from streamlease.admin.messages.sources import SUFFIXES, Form
from streamlease.protocol.errors import InvalidInput, InvalidOption

if TYPE_CHECKING:
    import pyarrow as pa

    from streamlease.streams.entries.schemas import Schema

LOOKED_AT = 1024 * 1024


def is_data(file: Path) -> bool:
    """Whether its name is that of a table rather than of a schema."""
    return file.suffix.lower() in SUFFIXES


def inferred(file: Path) -> Schema:
    """The schema of the table in that file.

    Raises:
        InvalidOption: a column has a name or a type that no schema has.
        InvalidInput: the file holds no such table.
        OSError.
    """
    import pyarrow as pa

    from streamlease.streams.entries.schemas import Schema

    try:
        form = Form(SUFFIXES[file.suffix.lower()])
        found = _found(file, form)
    except pa.ArrowException as error:
        raise InvalidInput(f"{file} has no columns to go by: {' '.join(str(error).split())[:200]}") from None
    if not found.names:
        raise InvalidInput(f"{file} has no columns to go by: it needs a first row")
    try:
        return Schema.of(
            pa.schema([pa.field(one.name, _storable(one.type, form is Form.CSV)) for one in found])
        )
    except InvalidOption as error:
        raise InvalidOption(f"{file}: {error}") from None


def _found(file: Path, form: Form) -> pa.Schema:
    if form is Form.PARQUET:
        import pyarrow.parquet as pq

        return pq.read_schema(file)
    with file.open("rb") as opened:
        head = opened.read(LOOKED_AT)
        if len(head) == LOOKED_AT:
            head = head[: head.rfind(b"\n") + 1]
    if form is Form.CSV:
        import pyarrow.csv

        return pyarrow.csv.read_csv(io.BytesIO(head)).schema
    import pyarrow.json

    return pyarrow.json.read_json(io.BytesIO(head)).schema


def _storable(type: pa.DataType, from_text: bool) -> pa.DataType:
    import pyarrow as pa

    if pa.types.is_null(type) or (from_text and pa.types.is_time(type)):
        return pa.string()
    if pa.types.is_unsigned_integer(type):
        return pa.int64()
    if pa.types.is_timestamp(type):
        return pa.timestamp("us", tz=None if type.tz is None else "UTC")
    if pa.types.is_date(type):
        return pa.date32()
    return type
