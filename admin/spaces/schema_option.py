"""The option ``--schema FILE``, and how a schema is shown."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from streamlease.admin.output import line, table
from streamlease.protocol.errors import InvalidOption

if TYPE_CHECKING:
    from streamlease.admin.facts.spaces import SchemaRow
    from streamlease.streams.entries.schemas import Schema

SchemaFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help='Typed columns: {"columns": [{"name", "type", "nullable"}]} as JSON, an Arrow IPC file, or a '
        "table whose columns they shall be (.csv, .jsonl or .parquet).",
    ),
]


def read(file: Path) -> Schema:
    """The schema in a file.

    Raises:
        InvalidOption: it cannot be read, or holds no schema.
        InvalidInput: it is a table by its name, and has none of its columns.
    """
    from streamlease.admin.spaces.inferred_schema import inferred, is_data
    from streamlease.streams.entries.schemas import Schema

    try:
        if is_data(file):
            return inferred(file)
        data = file.read_bytes()
    except OSError as error:
        raise InvalidOption(f"cannot read --schema {file}: {error.strerror}; give a file") from None
    try:
        return Schema.parse(data)
    except InvalidOption as error:
        raise InvalidOption(f"--schema {file}: {error}") from None


def show(schema: SchemaRow) -> None:
    """A schema as a table."""
    line(f"schema {schema.fingerprint}, version {schema.version}")
    rows = [(one.name, one.type, "yes" if one.nullable else "no") for one in schema.columns]
    table(("COLUMN", "TYPE", "NULLABLE"), rows, "")
