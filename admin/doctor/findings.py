"""What ``streamlease doctor`` finds: one line each."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

SHOWN = 3
"""How many names one line shows."""


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Place(NamedTuple):
    """A stream that a finding is about, and what is wrong with it where."""

    stream: str
    offset: int
    why: str
    remedy: str


class Finding(NamedTuple):
    """One line of the report."""

    check: str
    level: Level
    message: str
    remedy: str = ""
    places: tuple[Place, ...] = ()
    """All of them, of which the message names the first."""


def some(names: Iterable[str], between: str = ", ") -> str:
    """The first names, and how many more there are."""
    listed = list(names)
    more = f" and {len(listed) - SHOWN} more" if len(listed) > SHOWN else ""
    return between.join(listed[:SHOWN]) + more
