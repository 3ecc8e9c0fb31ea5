"""What a client asks for in the query of a URL: filter, where to begin, how many, how long. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from streamlease.gateway.core.cursors import Cursor, CursorCodec
from streamlease.protocol.errors import InvalidOption
from streamlease.protocol.topics import check_filter

Point = Cursor | datetime | Literal["earliest", "latest"]

LIMIT, MOST_LIMIT = 1000, 10_000
MOST_WAIT = 60.0
"""Seconds: longer, and something between client and gateway closes the connection."""


@dataclass(frozen=True, slots=True)
class AskedMessages:
    """What is asked about messages."""

    filter: str
    since: Point
    limit: int = LIMIT
    wait: float = 0.0


def parse_question(
    given: Mapping[str, str], cursors: CursorCodec, *, allowed: frozenset[str]
) -> AskedMessages:
    """The question in the parameters of a URL.

    Raises:
        InvalidOption, InvalidTopic, InvalidCursor: a parameter is missing, unknown or wrong.
    """
    for name in given:
        if name not in allowed:
            raise InvalidOption(
                f"there is no parameter {ascii(name)[:80]} here: use {', '.join(sorted(allowed))}"
            )
    if "filter" not in given:
        raise InvalidOption(
            "the parameter filter is missing: give a topic filter, such as filter=flights/%23"
        )
    return AskedMessages(
        filter=check_filter(given["filter"]),
        since=parse_since(given.get("since", "latest"), cursors),
        limit=_limit(given.get("limit")),
        wait=parse_seconds("wait", given.get("wait"), MOST_WAIT),
    )


def parse_since(text: str, cursors: CursorCodec) -> Point:
    """The point that a client names: a cursor, a time with its zone, ``earliest`` or ``latest``.

    Raises:
        InvalidOption: a time without a zone.
        InvalidCursor: it is none of these.
    """
    if text in ("earliest", "latest"):
        return "earliest" if text == "earliest" else "latest"
    # In a query a plus sign is a space, and people forget to write it as %2B.
    moment = parse_moment(text) or parse_moment(text.replace(" ", "+"))
    if moment is None:
        return cursors.parse(text)
    if moment.tzinfo is None:
        raise InvalidOption(f"since is {ascii(text)[:80]}, a time without a zone: append Z if it is UTC")
    return moment.astimezone(UTC)


def parse_moment(text: str) -> datetime | None:
    """The time that a text names, in UTC unless it has no zone; None if it is none."""
    if not 10 <= len(text) <= 40 or text[4] != "-":
        return None
    try:
        moment = datetime.fromisoformat(text)
        return moment if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def _limit(text: str | None) -> int:
    if text is None:
        return LIMIT
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 1 <= int(text) <= MOST_LIMIT):
        raise InvalidOption(f"limit is {ascii(text)[:80]}: give a number of messages from 1 to {MOST_LIMIT}")
    return int(text)


def parse_seconds(name: str, text: str | None, most: float) -> float:
    """So many seconds; 0 if nothing is said.

    Raises:
        InvalidOption: it is no number from 0 to `most`.
    """
    if text is None:
        return 0.0
    seconds = -1.0
    if text.isascii() and text.replace(".", "", 1).isdigit() and len(text) < 10:
        seconds = float(text)
    if not 0 <= seconds <= most:
        raise InvalidOption(f"{name} is {ascii(text)[:80]}: give seconds from 0 to {most:.0f}")
    return seconds
