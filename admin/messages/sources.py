"""Records to publish, read from a file or from standard input, some at a time and in bounded memory.

A record becomes one message: its payload, its key if one is wanted, and its fields if it has any, for topics
such as ``flights/{origin}/{dest}``. Lines of a pipe are handed on as soon as they come.

======== ==================== ===================================================================
format   a record is          payload
======== ==================== ===================================================================
lines    one line             the line without its end, as it is
jsonl    one line             the line, which must be a JSON object
csv      one row              a JSON object; all values are text, because CSV knows nothing else
parquet  one row              a JSON object; times as ISO-8601, binary values as base64, NaN as null
======== ==================== ===================================================================
"""

from __future__ import annotations

import asyncio
import contextlib
import csv
import json
import os
import stat
import threading
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from streamlease.protocol.errors import InvalidInput, InvalidOption, MessageTooLarge
from streamlease.protocol.plain_values import plain

CHUNK_BYTES = 256 * 1024
ROWS = 500
"""Rows of a table that are handed on at once."""

LONGEST_LINE = 16 * 1024 * 1024
"""As long as a message may be."""

AHEAD = 4
"""How many lists of records are read ahead."""

SUFFIXES = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv", ".parquet": "parquet"}


class Form(StrEnum):
    """How records stand in the input."""

    LINES = "lines"
    JSONL = "jsonl"
    CSV = "csv"
    PARQUET = "parquet"


class Record(NamedTuple):
    """One record: where it stood, for messages, its payload, and its fields; None if it has none."""

    where: str
    payload: bytes
    fields: dict[str, Any] | None
    values: dict[str, Any] | None = None
    """For spaces with a schema: the fields as they are, where JSON cannot hold them."""

    @property
    def values_by_column(self) -> dict[str, Any]:
        """What to publish in a space with a schema.

        Raises:
            InvalidInput: the record has no fields.
        """
        values = self.fields if self.values is None else self.values
        if values is None:
            raise InvalidInput(
                f"{self.where} has no fields for the schema of its space: use --format jsonl, csv or parquet"
            )
        return values


@dataclass(slots=True)
class InputMeter:
    """How much of the input was read, in bytes, or rows of a parquet table."""

    done: int = 0
    total: int | None = None


def records(path: Path | None, form: Form, meter: InputMeter | None = None) -> Iterator[list[Record]]:
    """The records of the file, or of standard input, in lists of what is there.

    Raises:
        InvalidOption: the file cannot be read, or the form needs a file.
        InvalidInput: a record is not of the form, with its line.
    """
    meter = meter or InputMeter()
    if form is Form.PARQUET:
        yield from _parquet(path, meter)
        return
    fd = 0 if path is None else _open(path)
    status = os.fstat(fd)
    meter.total = status.st_size if stat.S_ISREG(status.st_mode) else None
    try:
        match form:
            case Form.LINES:
                yield from ([Record(_line(n), text, None) for n, text in some] for some in _lines(fd, meter))
            case Form.JSONL:
                for some in _lines(fd, meter):
                    yield from _good_ones(_json_line(n, text) for n, text in some if text.strip())
            case Form.CSV:
                yield from _csv(fd, meter)
    finally:
        if path is not None:
            os.close(fd)


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY)
    except OSError as error:
        raise InvalidOption(f"cannot read {path}: {error.strerror}; give a file that is there") from None


def _line(number: int) -> str:
    return f"line {number}"


def _lines(fd: int, meter: InputMeter) -> Iterator[list[tuple[int, bytes]]]:
    """Numbered lines without their ends, as many as each read brought."""
    number = 0
    rest = b""
    while True:
        try:
            data = os.read(fd, CHUNK_BYTES)
        except OSError as error:
            raise InvalidOption(f"cannot read the input: {error.strerror}; give --file FILE") from None
        meter.done += len(data)
        whole = (rest + data).split(b"\n")
        rest = whole.pop() if data else b""
        if not data and whole == [b""]:
            return
        if len(rest) > LONGEST_LINE:
            raise MessageTooLarge(
                f"line {number + len(whole) + 1} is longer than {LONGEST_LINE} bytes: split it, "
                f"or name its --format"
            )
        if whole:
            yield [(number + n, text.removesuffix(b"\r")) for n, text in enumerate(whole, 1)]
            number += len(whole)
        if not data:
            return


def _good_ones(rows: Iterable[Record]) -> Iterator[list[Record]]:
    """The records in lists, also those before one that is refused."""
    ready: list[Record] = []
    try:
        for row in rows:
            ready.append(row)
            if len(ready) >= ROWS:
                yield ready
                ready = []
    except (InvalidInput, csv.Error):
        if ready:
            yield ready
        raise
    if ready:
        yield ready


def _json_line(number: int, text: bytes) -> Record:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(
            f"line {number} is no JSON ({error}): correct it, or publish with --format lines"
        ) from None
    if not isinstance(value, dict):
        raise InvalidInput(
            f"line {number} is a JSON {type(value).__name__}, not an object: write {{...}}, "
            f"or publish with --format lines"
        )
    return Record(_line(number), text.strip(), value)


def _csv(fd: int, meter: InputMeter) -> Iterator[list[Record]]:
    csv.field_size_limit(LONGEST_LINE)
    reader = csv.reader(_text(fd, meter), strict=True)
    try:
        titles = next(reader, None)
        if titles is None:
            return
        if len(set(titles)) < len(titles) or "" in titles:
            raise InvalidInput(
                f"the titles of the table are {', '.join(titles)[:200]}: each column needs its own"
            )
        rows = (_csv_row(reader.line_num, titles, row) for row in reader if row)
        yield from _good_ones(rows)
    except csv.Error as error:
        raise InvalidInput(f"line {reader.line_num} is no CSV ({error}): correct it") from None


def _csv_row(number: int, titles: list[str], row: list[str]) -> Record:
    if len(row) != len(titles):
        raise InvalidInput(f"line {number} has {len(row)} values for {len(titles)} columns: correct it")
    fields = dict(zip(titles, row, strict=True))
    there = {title: value for title, value in fields.items() if value}  # an empty cell is null
    return Record(_line(number), json.dumps(fields, ensure_ascii=False).encode(), fields, there)


def _text(fd: int, meter: InputMeter) -> Iterator[str]:
    for some in _lines(fd, meter):
        for number, text in some:
            try:
                yield text.decode("utf-8-sig" if number == 1 else "utf-8") + "\n"
            except UnicodeDecodeError:
                raise InvalidInput(f"line {number} is not valid UTF-8: convert the file to UTF-8") from None


def _parquet(path: Path | None, meter: InputMeter) -> Iterator[list[Record]]:
    if path is None:
        raise InvalidOption("a parquet table cannot come through a pipe: give --file FILE")
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            number = 0
            meter.total = file.metadata.num_rows
            for batch in file.iter_batches(batch_size=ROWS):
                yield [_parquet_row(number + n, row) for n, row in enumerate(batch.to_pylist(), 1)]
                number += batch.num_rows
                meter.done = number
    except OSError as error:
        reason = error.strerror or " ".join(str(error).split())
        raise InvalidOption(f"cannot read {path}: {reason}; give a parquet file that is there") from None
    except pa.ArrowException as error:
        raise InvalidInput(f"{path} is no parquet table ({' '.join(str(error).split())})") from None


def _parquet_row(number: int, fields: dict[str, Any]) -> Record:
    shown = {name: plain(value) for name, value in fields.items()}
    return Record(f"row {number}", json.dumps(shown, ensure_ascii=False).encode(), shown, fields)


def lookup(column: str) -> Callable[[Record], str | None]:
    """How to get the text of one field; None where the record has null there.

    Raises (when called):
        InvalidInput: the record has no such field, or its value is no text or number.
    """

    def get(record: Record) -> str | None:
        fields = record.fields or {}
        if column not in fields:
            raise InvalidInput(f"{record.where} has no field {ascii(column)[:80]}: it has {_names(fields)}")
        value = fields[column]
        if value is None or isinstance(value, str):
            return value
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, int | float):
            return str(value)
        raise InvalidInput(
            f"field {ascii(column)[:80]} of {record.where} is a {type(value).__name__}: use text or a number"
        )

    return get


def _names(fields: Iterable[str]) -> str:
    return ", ".join(fields)[:200] or "none"


async def read_ahead(source: Iterator[list[Record]]) -> AsyncGenerator[list[Record]]:
    """The lists of `source`, which is read in a thread, some ahead.

    The thread is a daemon: a read of a terminal or pipe cannot be interrupted, and must not hold up an exit.
    """
    loop = asyncio.get_running_loop()
    ready: asyncio.Queue[list[Record] | BaseException | None] = asyncio.Queue()
    room = threading.Semaphore(AHEAD)
    stopped = False

    def put(item: list[Record] | BaseException | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            if not stopped:
                loop.call_soon_threadsafe(ready.put_nowait, item)

    def read() -> None:
        try:
            for some in source:
                room.acquire()
                if stopped:
                    return
                put(some)
            put(None)
        except BaseException as error:
            put(error)

    threading.Thread(target=read, name="read-input", daemon=True).start()
    try:
        while (item := await ready.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            room.release()
            yield item
    finally:
        stopped = True
        room.release()
