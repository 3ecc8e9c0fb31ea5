"""What commands print: tables for people, JSON documents for programs, notes on standard error.

Standard output carries results only. A table has one line per row, as wide as its content, so it can be read
line by line; ten thousand lines are written in a moment. A character that the encoding of standard output
does not have is written as JSON would write it, ``\\u00fc``: in a document it means the same. A command
that cannot write ends (`OutputLost`): nothing is committed that was not written.
"""

from __future__ import annotations

import codecs
import contextlib
import io
import json
import logging
import os
import select
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Protocol

from streamlease.protocol.plain_values import iso
from streamlease.protocol.quantities import LATEST

EARLIEST = -30_610_224_000_000_000
"""1000-01-01T00:00:00Z: before, a year has not four digits."""

GAP = "   "
"""Between two columns of a table."""

ESCAPED = "streamlease.escaped"
"""How Python calls `_escaped` among the ways to go on where something cannot be encoded."""


class OutputLost(Exception):
    """Standard output takes nothing more: whoever read it left, or its disk is full."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(cause.strerror)
        self.by_reader = isinstance(cause, BrokenPipeError)


class _Output(io.FileIO):
    """A file that says so if it is standard output that cannot be written, and no file of the user's."""

    def write(self, data: Any, /) -> int:
        try:
            while (written := super().write(data)) is None:  # a pipe that somebody made non-blocking is full
                select.select((), (self,), ())
        except OSError as error:
            raise OutputLost(error) from error
        return written


def prepare_output() -> None:
    """Let standard output write any character, whatever the locale of the terminal or a pipe is, and raise
    `OutputLost`. Where a program began without standard streams, files that it opens do not become these."""
    while (opened := os.open(os.devnull, os.O_RDWR)) <= 2:
        name, mode = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))[opened]
        setattr(sys, name, os.fdopen(opened, mode, encoding="utf-8", closefd=False))
    os.close(opened)
    if type(sys.stdout) is io.TextIOWrapper:
        raw = _Output(sys.stdout.fileno(), "w", closefd=False)
        sys.stdout = io.TextIOWrapper(
            io.BufferedWriter(raw), encoding=sys.stdout.encoding, line_buffering=raw.isatty()
        )
    escape_what_has_no_code()


def escape_what_has_no_code() -> None:
    """Let standard output write any character, whatever the locale of the terminal or a pipe is."""
    codecs.register_error(ESCAPED, _escaped)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors=ESCAPED)


def let_go() -> None:
    """What is or will be written to standard output is dropped: there is nobody for it."""
    nobody = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nobody, sys.stdout.fileno())
    os.close(nobody)


def _escaped(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return json.dumps(error.object[error.start : error.end])[1:-1], error.end


class Document(Protocol):
    """What is printed as JSON: a row of ``admin.facts``, or an answer (``admin.answers``)."""

    def as_json(self) -> dict[str, Any]:
        """Its fields."""


def document(value: Document) -> None:
    """One JSON document on one line."""
    sys.stdout.write(json.dumps(value.as_json(), ensure_ascii=False, default=str) + "\n")
    sys.stdout.flush()


def line(text: str) -> None:
    """One line of a result."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def announce(text: str) -> None:
    """One line of a server, which serves whether or not it can be written."""
    try:
        line(text)
    except OutputLost:
        let_go()


def note(text: str) -> None:
    """One line that is no result. Where standard error cannot be written, there is nobody to tell that."""
    with contextlib.suppress(OSError):
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


class _Notes(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        note(record.getMessage())


@contextmanager
def noting(*parts: str) -> Iterator[None]:
    """Meanwhile, what these loggers warn of is noted: commands do not show logs."""
    notes = _Notes()
    before = [(logger, logger.level, logger.propagate) for logger in map(logging.getLogger, parts)]
    for logger, _, _ in before:
        logger.addHandler(notes)
        logger.setLevel(logging.WARNING)
        logger.propagate = False
    try:
        yield
    finally:
        for logger, level, propagate in before:
            logger.propagate = propagate
            logger.setLevel(level)
            logger.removeHandler(notes)


def table(titles: Sequence[str], rows: Iterable[Sequence[Any]], empty: str) -> None:
    """An answer's rows under their titles; numbers to the right; `empty` if there are none."""
    cells = [[shown(cell) for cell in row] for row in rows]
    aligned(
        titles, cells, [all(_is_number(row[place]) for row in cells) for place in range(len(titles))], empty
    )


def aligned(columns: Sequence[str], rows: Iterable[Sequence[Any]], right: Sequence[bool], empty: str) -> None:
    """The same, where it is known which columns stand at the right."""
    cells = [[shown(cell) for cell in row] for row in rows]
    if not cells:
        line(empty)
        return
    below = [[row[place] for row in cells] for place in range(len(columns))]
    widths = [max(len(title), *map(width, cells)) for title, cells in zip(columns, below, strict=True)]
    text = [_row(columns, widths, right), _rule() * (sum(widths) + len(GAP) * (len(widths) - 1))]
    text += [_row(row, widths, right) for row in cells]
    line("\n".join(text))


def _rule() -> str:
    """What the line below the titles is made of."""
    try:
        "─".encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return "-"
    return "─"


def _row(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    parts = []
    for cell, wide, at_right in zip(cells, widths, right, strict=True):
        room = " " * (wide - width(cell))
        parts.append(room + cell if at_right else cell + room)
    return GAP.join(parts).rstrip()


def width(text: str) -> int:
    """How many columns of a terminal `text` takes: wide characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(one) in "WF" for one in text)
    return len(text) + wide - sum(unicodedata.combining(one) > 0 for one in text)


def shown(cell: Any) -> str:
    """A value as it stands in a table; what is unknown or absent is ``-``."""
    if cell is None:
        return "-"
    if isinstance(cell, float):
        return f"{cell:.1f}"
    return _as_written(printable(str(cell)))


def _as_written(text: str) -> str:
    """`text` as standard output will have it, which tells how wide it is."""
    if text.isascii():
        return text
    encoding, errors = sys.stdout.encoding or "utf-8", sys.stdout.errors or "strict"
    return text.encode(encoding, errors).decode(encoding)


def printable(text: str) -> str:
    """`text` without characters that would move a terminal's cursor."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def iso_microseconds(microseconds: int) -> str:
    """The same for microseconds since 1970; what no calendar has is shown as its nearest moment."""
    microseconds = min(max(microseconds, EARLIEST), LATEST * 1000 + 999)
    whole, rest = divmod(microseconds, 1_000_000)
    return iso(datetime.fromtimestamp(whole, UTC).replace(microsecond=rest))


def _is_number(cell: str) -> bool:
    return cell == "-" or cell.replace(".", "", 1).isdigit()
