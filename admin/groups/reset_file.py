"""Files of offsets for ``group reset --file``: JSON or CSV, and in which line each offset stands. Pure.

::

    stream,offset            {"flights.0.0": 100,          [{"stream": "flights.0.0", "offset": 100},
    flights.0.0,100           "flights.0.1": 250}           {"stream": "flights.0.1", "offset": 250}]
    flights.0.1,250

The title line of a CSV file may be left out; JSON objects may also stand one to a line.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from streamlease.protocol.errors import InvalidInput
from streamlease.protocol.quantities import MOST

_BETWEEN = re.compile(r"[\s,\[\]]*")


@dataclass(frozen=True, slots=True)
class Wish:
    """One line: where a stream shall go on."""

    line: int
    stream: str
    offset: int


def parse(name: str, text: str) -> list[Wish]:
    """The wishes of the file `name`, each stream once.

    Raises:
        InvalidInput: what is wrong in which line.
    """
    rows = list(_json(name, text) if text.lstrip()[:1] in ("{", "[") else _csv(name, text))
    wishes: dict[str, Wish] = {}
    for line, stream, value in rows:
        if not isinstance(stream, str) or not stream:
            raise wrong(name, line, f"{_shown(stream)} is no stream: write its name, such as flights.0.3")
        digits = isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 19
        offset = int(value) if digits else value
        if not isinstance(offset, int) or isinstance(offset, bool) or not 0 <= offset <= MOST:
            raise wrong(name, line, f"{_shown(offset)} is no offset: write a whole number from 0 up")
        if stream in wishes:
            raise wrong(name, line, f"stream {stream} stands in line {wishes[stream].line} already")
        wishes[stream] = Wish(line, stream, offset)
    if not wishes:
        raise wrong(name, 1, "there is no stream: write lines such as flights.0.3,100")
    return list(wishes.values())


def wrong(name: str, line: int, why: str) -> InvalidInput:
    """The error about one line."""
    return InvalidInput(f"{name}, line {line}: {why}; nothing was changed")


def _csv(name: str, text: str) -> Iterator[tuple[int, Any, Any]]:
    reader = csv.reader(io.StringIO(text))
    first = True
    for row in reader:
        cells = [cell.strip() for cell in row]
        title, first = first and [cell.lower() for cell in cells] == ["stream", "offset"], False
        if title or not any(cells):
            continue
        if len(cells) != 2:
            raise wrong(name, reader.line_num, f"{_shown(','.join(row))} is not of the form STREAM,OFFSET")
        yield reader.line_num, cells[0], cells[1]


def _json(name: str, text: str) -> Iterator[tuple[int, Any, Any]]:
    decoder = json.JSONDecoder(object_pairs_hook=list)
    place = _BETWEEN.match(text).end()  # type: ignore[union-attr]
    while place < len(text):
        line = text.count("\n", 0, place) + 1
        try:
            value, end = decoder.raw_decode(text, place)
        except (json.JSONDecodeError, RecursionError) as error:
            at = error.lineno if isinstance(error, json.JSONDecodeError) else line
            raise wrong(name, at, "this is no JSON") from None
        if not isinstance(value, list) or not all(isinstance(pair, tuple) for pair in value):
            raise wrong(
                name, line, f'{_shown(value)} is no object such as {{"stream": "s.0.1", "offset": 5}}'
            )
        keys = [key for key, _ in value]
        if sorted(keys) == ["offset", "stream"]:
            yield line, dict(value)["stream"], dict(value)["offset"]
        elif "stream" in keys or "offset" in keys:
            raise wrong(name, line, f"the keys are {', '.join(keys)}: they must be stream and offset")
        else:
            yield from _pairs(text, place, value)
        place = _BETWEEN.match(text, end).end()  # type: ignore[union-attr]


def _pairs(text: str, place: int, pairs: list[tuple[str, Any]]) -> Iterator[tuple[int, Any, Any]]:
    """``{stream: offset}``: the keys stand in the text in this order."""
    for stream, offset in pairs:
        place = max(place, text.find(json.dumps(stream, ensure_ascii=False), place) + 1)
        yield text.count("\n", 0, place) + 1, stream, offset


def _shown(value: Any) -> str:
    return ascii(value)[:60]
