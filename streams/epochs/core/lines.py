"""The lines of a space: what its publishers and keepers have said, in one order, each a JSON document.

`Line` is a closed union. The order of lines in Redis is the truth; whoever folds the same lines comes to the
same state (`core/fold.py`). Pure.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, assert_never

from streamlease.protocol.epochs.antichains import Antichain
from streamlease.protocol.epochs.order import Epoch
from streamlease.protocol.errors import InvalidInput, Unsupported
from streamlease.protocol.ids import StreamId

Ranges = tuple[tuple[int, int], ...]
"""Offsets ``first <= offset < to`` of a staged log, in order, neighbours joined."""


class StagedPart(NamedTuple):
    """What one publisher staged of one epoch in one stream."""

    epoch: Epoch
    stream: StreamId
    ranges: Ranges

    @property
    def rows(self) -> int:
        """How many messages."""
        return sum(to - first for first, to in self.ranges)


@dataclass(frozen=True, slots=True)
class EnterLine:
    """A publisher comes, or comes back: it holds what is not completed, or what it held."""

    name: str
    inc: int
    host: str = ""


@dataclass(frozen=True, slots=True)
class AdvanceLine:
    """A publisher holds `to` from now on; `parts` is all it staged of the epochs that it gave up."""

    name: str
    inc: int
    to: Antichain
    parts: tuple[StagedPart, ...] = ()


@dataclass(frozen=True, slots=True)
class LeaveLine:
    """A publisher ends well; `parts` is all it staged and had not named; `upper` its maximal epochs."""

    name: str
    inc: int
    upper: Antichain
    parts: tuple[StagedPart, ...] = ()


@dataclass(frozen=True, slots=True)
class LoseLine:
    """A publisher is given up: what it staged and did not name is dropped."""

    name: str
    inc: int
    why: Literal["silent", "operator"] = "silent"


@dataclass(frozen=True, slots=True)
class SealLine:
    """The space takes no more."""


Line = EnterLine | AdvanceLine | LeaveLine | LoseLine | SealLine


def dump_line(line: Line) -> str:
    """The document of a line."""
    return json.dumps(_document(line), separators=(",", ":"))


def _document(line: Line) -> dict[str, Any]:
    match line:
        case EnterLine(name, inc, host):
            return {"k": "enter", "name": name, "inc": inc, "host": host}
        case AdvanceLine(name, inc, to, parts):
            return {"k": "advance", "name": name, "inc": inc, "to": to, "parts": _dump_parts(parts)}
        case LeaveLine(name, inc, upper, parts):
            return {"k": "leave", "name": name, "inc": inc, "upper": upper, "parts": _dump_parts(parts)}
        case LoseLine(name, inc, why):
            return {"k": "lose", "name": name, "inc": inc, "why": why}
        case SealLine():
            return {"k": "seal"}
        case _:
            assert_never(line)


def _dump_parts(parts: Iterable[StagedPart]) -> list[Any]:
    return [[part.epoch, str(part.stream), part.ranges] for part in parts]


def load_staged(document: Any) -> StagedPart:
    """What `_dump_parts` wrote of one.

    Raises:
        KeyError, TypeError, ValueError: it is none.
    """
    epoch, stream, ranges = document
    return StagedPart(
        epoch_of(epoch), StreamId.parse(stream), tuple((int(first), int(to)) for first, to in ranges)
    )


def epoch_of(document: Any) -> Epoch:
    """An epoch from JSON."""
    return tuple(int(one) for one in document)


def frontier_of(document: Any) -> Antichain:
    """A frontier from JSON."""
    return tuple(epoch_of(one) for one in document)


def _load_parts(document: Mapping[str, Any]) -> tuple[StagedPart, ...]:
    return tuple(map(load_staged, document["parts"]))


_LOADERS: Mapping[str, Callable[[Mapping[str, Any]], Line]] = {
    "enter": lambda it: EnterLine(str(it["name"]), int(it["inc"]), str(it["host"])),
    "advance": lambda it: AdvanceLine(
        str(it["name"]), int(it["inc"]), frontier_of(it["to"]), _load_parts(it)
    ),
    "leave": lambda it: LeaveLine(str(it["name"]), int(it["inc"]), frontier_of(it["upper"]), _load_parts(it)),
    "lose": lambda it: LoseLine(
        str(it["name"]), int(it["inc"]), "operator" if it["why"] == "operator" else "silent"
    ),
    "seal": lambda it: SealLine(),
}


def parse_line(text: bytes | str) -> Line:
    """The line that a document says.

    Raises:
        Unsupported: it is damaged, or of another version.
    """
    try:
        document = json.loads(text)
        return _LOADERS[document["k"]](document)
    except (KeyError, TypeError, ValueError, InvalidInput) as error:
        raise Unsupported(
            f"a line of epochs cannot be read: {ascii(text)[:120]} ({type(error).__name__}); "
            f"all processes must run the same version"
        ) from None
