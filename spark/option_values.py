"""How the options of the Spark formats are read: names without case, values checked, refusals in one line."""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Collection, Mapping

from streamlease.protocol.errors import InvalidOption, InvalidTopic
from streamlease.protocol.quantities import parse_duration, parse_size
from streamlease.protocol.topics import check_filter
from streamlease.streams.redis import local_server

SPARK_S_OWN = frozenset({"path"})
"""Spark adds these of its own accord."""

_OF_A_TABLE = frozenset({"provider", "owner"})
"""``CREATE TABLE`` hands over a table's properties: these, others, and options also as ``option.NAME``."""


def named(options: Mapping[str, str], names: Collection[str]) -> dict[str, str]:
    """The options under their names in lower case.

    Args:
        names: as they are written.

    Raises:
        InvalidOption: one has another name, and Spark did not add it; the message says which name is nearest.
    """
    if _OF_A_TABLE.issubset(name.lower() for name in options):
        options = {
            name[len("option.") :]: value
            for name, value in options.items()
            if name.lower().startswith("option.")
        }
    known = {name.lower(): name for name in names}
    for name in options:
        if name.lower() not in known and name.lower() not in SPARK_S_OWN:
            near = difflib.get_close_matches(name.lower(), known, 1, 0.6)
            meant = f"did you mean '{known[near[0]]}'? " if near else ""
            listed = ", ".join(sorted(known.values()))
            raise InvalidOption(f"option {shown(name)} is unknown: {meant}the options are {listed}")
    return {name.lower(): value for name, value in options.items()}


def shown(text: str) -> str:
    """`text` as it may stand in a one-line error message."""
    return ascii(text if len(text) <= 80 else f"{text[:60]}...")


def redis_url(given: Mapping[str, str], *, remedy: str = "") -> str:
    """Option ``redis``, else the environment's ``STREAMLEASE_REDIS_URL``, else the Redis of this machine that
    ``streamlease redis start`` runs; where there is none of them, `remedy` is told besides.
    """
    if url := given.get("redis") or os.environ.get("STREAMLEASE_REDIS_URL"):
        return local_server.with_login(url)
    own = local_server.running()
    if own is None:
        raise InvalidOption(
            "option 'redis' is missing: give the URL of the Redis, such as redis://HOST:6379, "
            f"or set STREAMLEASE_REDIS_URL, or run 'streamlease redis start'{remedy}"
        )
    return own.url


MOST_SLOTS = 1024
"""Of one query."""

MOST = 2**63 - 1
"""Largest number that Spark takes."""


def number(name: str, text: str, least: int, most: int = MOST) -> int:
    """A whole number from `least` to `most`."""
    try:
        value = int(text)
    except ValueError:
        raise InvalidOption(f"option '{name}' is {shown(text)}: give a whole number") from None
    if not least <= value <= most:
        bounds = f"at least {least}" if most == MOST and value < least else f"from {least} to {most}"
        given = str(value) if len(text) <= 40 else shown(text)
        raise InvalidOption(f"option '{name}' is {given}: it must be {bounds}")
    return value


def optional_number(name: str, given: Mapping[str, str], least: int, most: int = MOST) -> int | None:
    """The number that stands under `name`, or None."""
    text = given.get(name.lower())
    return None if text is None else number(name, text, least, most)


MOST_MILLISECONDS = 253_402_300_799_999
"""The last millisecond of the year 9999."""


def moment(name: str, given: Mapping[str, str]) -> int | None:
    """The milliseconds since 1970 that stand under `name`, or None."""
    text = given.get(name.lower())
    if text is None:
        return None
    value = number(name, text, 0)
    if value > MOST_MILLISECONDS:
        raise InvalidOption(
            f"option '{name}' is {shown(text)}, after the year 9999: give milliseconds since 1970, "
            f"not microseconds or nanoseconds"
        )
    return value


def flag(name: str, text: str) -> bool:
    """``true`` or ``false``."""
    if text.lower() not in ("true", "false"):
        raise InvalidOption(f"option '{name}' is {shown(text)}: use 'true' or 'false'")
    return text.lower() == "true"


def words(name: str, text: str) -> tuple[str, ...]:
    """Different words with commas between them; nothing for an empty text."""
    found = tuple(part.strip() for part in text.split(",")) if text else ()
    if len(set(found)) < len(found) or "" in found:
        raise InvalidOption(
            f"option '{name}' is {shown(text)}: give different names with commas between them"
        )
    return found


def topics(name: str, text: str) -> tuple[str, ...]:
    """Different topic filters with commas between them, or as a list in JSON; nothing for an empty text."""
    found: tuple[str, ...] = ()
    if text.startswith("["):
        try:
            listed = json.loads(text)
        except (ValueError, RecursionError):
            listed = None
        if not isinstance(listed, list) or not listed or not all(isinstance(one, str) for one in listed):
            raise InvalidOption(
                f"option '{name}' is {shown(text)}: give topic filters with commas between them, "
                f'or a list in JSON, such as ["flights/+/LAX"]'
            )
        found = tuple(dict.fromkeys(listed))
    else:
        found = words(name, text)
    for filter in found:
        try:
            check_filter(filter)
        except InvalidTopic as error:
            raise InvalidOption(f"option '{name}': {error}") from None
    return found


def epoch(name: str, given: Mapping[str, str]) -> tuple[int, ...] | None:
    """The epoch that stands under `name`, an integer or a list of them, or None."""
    text = given.get(name.lower())
    if text is None:
        return None
    try:
        data = json.loads(text)
        found = tuple(data) if isinstance(data, list) else (data,)
        if not found or any(isinstance(one, bool) or not isinstance(one, int) or one < 0 for one in found):
            raise ValueError
    except (ValueError, RecursionError):
        raise InvalidOption(
            f"option '{name}' is {shown(text)}: give an epoch, such as 4, or [4, 0] where epochs are tuples"
        ) from None
    return found


def duration(name: str, text: str) -> int:
    """Milliseconds of a duration such as ``15m``."""
    return parse_duration(f"option '{name}'", text)


def size(name: str, text: str) -> int:
    """Bytes of a size such as ``64MiB``."""
    return parse_size(f"option '{name}'", text)


EARLIEST, LATEST = -2, -1
"""In the JSON of offsets these stand for the oldest message and for the end, as in Spark's Kafka source."""


def offsets(name: str, text: str) -> dict[str, int]:
    """Offsets by stream from JSON such as ``{"flights.0.3": 17, "flights.0.4": -2}``."""
    try:
        data = json.loads(text)
        if not isinstance(data, dict) or not data:
            raise ValueError
        for value in data.values():
            if isinstance(value, bool) or not isinstance(value, int) or value < EARLIEST:
                raise ValueError
    except (ValueError, RecursionError):
        raise InvalidOption(
            f"option '{name}' is {shown(text)}: use 'earliest', 'latest', or JSON with an offset for each "
            f'stream, such as {{"flights.0.3": 17}} (-2: earliest, -1: latest)'
        ) from None
    return data
