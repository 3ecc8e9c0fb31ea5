"""What commands print: tables for people, JSON documents for programs, notes on standard error.

Standard output carries results only. A table is as wide as its content where the output is no terminal,
so that it can be read line by line.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

WIDE = 4000


def document(value: Any) -> None:
    """One JSON document on one line."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, default=str) + "\n")
    sys.stdout.flush()


def line(text: str) -> None:
    """One line of a result."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def note(text: str) -> None:
    """One line that is no result."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], empty: str) -> None:
    """Rows under their titles; numbers to the right; `empty` if there are none."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    cells = [[shown(cell) for cell in row] for row in rows]
    if not cells:
        line(empty)
        return
    view = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for position, title in enumerate(columns):
        numeric = all(_is_number(row[position]) for row in cells)
        view.add_column(title, justify="right" if numeric else "left", overflow="fold")
    for row in cells:
        view.add_row(*(Text(cell) for cell in row))
    console = Console(width=None if sys.stdout.isatty() else WIDE, highlight=False)
    with console.capture() as captured:
        console.print(view)
    line("\n".join(text.rstrip() for text in captured.get().splitlines()))


def shown(cell: Any) -> str:
    """A value as it stands in a table; what is unknown or absent is ``-``."""
    if cell is None:
        return "-"
    if isinstance(cell, float):
        return f"{cell:.1f}"
    return printable(str(cell))


def printable(text: str) -> str:
    """`text` without characters that would move a terminal's cursor."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def iso(time: datetime) -> str:
    """ISO-8601 in UTC with microseconds: ``2026-01-31T12:00:00.000000Z``."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def iso_microseconds(microseconds: int) -> str:
    """The same for microseconds since 1970."""
    whole, rest = divmod(microseconds, 1_000_000)
    return iso(datetime.fromtimestamp(whole, UTC).replace(microsecond=rest))


def _is_number(cell: str) -> bool:
    return cell == "-" or cell.replace(".", "", 1).isdigit()
