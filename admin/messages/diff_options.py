"""``streamlease publish --diff`` and ``--diff-column``: the diffs of records for a collection."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated

import typer

from streamlease.admin.messages.sources import Form, Record
from streamlease.protocol.errors import InvalidInput, InvalidOption

Diff = Annotated[
    int | None,
    typer.Option(metavar="N", help="In a collection: the diff of all messages, such as -1. Default: 1."),
]
DiffColumn = Annotated[
    str | None,
    typer.Option(metavar="COL", help="In a collection: field with each diff; it is no part of the payload."),
]


@dataclass(frozen=True, slots=True)
class RecordDiffs:
    """Where the diffs of records come from; one of both is given."""

    diff: int | None
    column: str | None

    @classmethod
    def of(cls, diff: int | None, column: str | None, form: Form) -> RecordDiffs | None:
        """What the options say; None: the records have no diffs.

        Raises:
            InvalidOption, InvalidInput: they cannot be had so.
        """
        from streamlease.streams.entries.layout import check_diff

        if diff is None and column is None:
            return None
        if diff is not None:
            check_diff(diff)
            if column is not None:
                raise InvalidOption("--diff and --diff-column are two ways to give diffs: leave one out")
        if column is not None and form is Form.LINES:
            raise InvalidOption(
                f"--diff-column {ascii(column)[:80]} needs fields: use --format jsonl, csv or parquet"
            )
        return cls(diff, column)

    def taken(self, record: Record) -> tuple[Record, int]:
        """The record without its diff, and that.

        Raises:
            InvalidInput: it has none, or one that no message can have.
        """
        from streamlease.streams.entries.layout import check_diff

        if self.column is None:
            assert self.diff is not None
            return record, self.diff
        name, fields = self.column, dict(record.fields or {})
        if name not in fields:
            names = ", ".join(fields)[:200] or "none"
            raise InvalidInput(f"{record.where} has no field {ascii(name)[:80]}: it has {names}")
        given = fields.pop(name)
        try:
            diff = check_diff(int(given) if isinstance(given, str) else given)
        except InvalidInput as error:
            raise InvalidInput(f"{record.where}: {error}") from None
        except ValueError:
            raise InvalidInput(
                f"field {ascii(name)[:80]} of {record.where} is {ascii(given)[:80]}: give a whole number"
            ) from None
        values = None if record.values is None else {k: v for k, v in record.values.items() if k != name}
        payload = json.dumps(fields, ensure_ascii=False).encode()
        return Record(record.where, payload, fields, values), diff
