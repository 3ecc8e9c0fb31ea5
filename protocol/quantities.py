"""Durations and sizes as people write them: ``7d``, ``1h30m``, ``1GiB``. Pure.

=========== =========================================================================================
duration    numbers with the units ``w d h m s ms``, also several: ``7d``, ``1d12h``, ``500ms``, ``1.5h``
size        a number with ``B``, ``kB MB GB TB`` (thousands) or ``KiB MiB GiB TiB`` (1,024s); none: bytes
=========== =========================================================================================

A number without a unit is a size in bytes, but never a duration: nobody knows whether ``30`` are seconds
or days.
"""

from __future__ import annotations

import re
from decimal import Decimal

from streamlease.protocol.errors import InvalidOption

MOST = 2**53 - 1
"""Largest quantity: what Lua and JSON still hold exactly."""

LATEST = 253_402_300_799_999
"""The last millisecond since 1970 that a calendar has: 9999-12-31T23:59:59.999Z."""

_UNITS_MS = {"w": 604_800_000, "d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}
_UNITS_BYTES = {
    "": 1, "b": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_NUMBER = r"[0-9]{1,16}(?:\.[0-9]{1,9})?"
_PART = re.compile(rf"({_NUMBER})(ms|[wdhms])", re.IGNORECASE | re.ASCII)
_DURATION = re.compile(rf"(?:{_NUMBER}(?:ms|[wdhms]))+\Z", re.IGNORECASE | re.ASCII)
_SIZE = re.compile(rf"({_NUMBER}) ?([kmgt]?i?b)?\Z", re.IGNORECASE | re.ASCII)


def parse_duration(what: str, text: str) -> int:
    """`text` as milliseconds, at least 1.

    Args:
        what: name of the option, for the message.

    Raises:
        InvalidOption: no duration, of 0, in fractions of a millisecond, or too long.
    """
    if not _DURATION.match(text):
        raise InvalidOption(
            f"{what} {ascii(text)[:80]} is no duration: write a number with a unit, such as 7d, 12h or 45s"
        )
    total = sum(Decimal(number) * _UNITS_MS[unit.lower()] for number, unit in _PART.findall(text))
    return _checked(what, text, total, "1ms")


def parse_size(what: str, text: str) -> int:
    """`text` as bytes, at least 1.

    Raises:
        InvalidOption: no size, of 0, in fractions of a byte, or too large.
    """
    match = _SIZE.match(text)
    unit = (match.group(2) or "").lower() if match else "?"
    if match is None or unit not in _UNITS_BYTES:
        raise InvalidOption(
            f"{what} {ascii(text)[:80]} is no size: write bytes, or a unit as well, such as 1GiB"
        )
    return _checked(what, text, Decimal(match.group(1)) * _UNITS_BYTES[unit], "1B")


def parse_count(what: str, value: object, least: int = 1) -> int:
    """`value`, if it is a whole number from `least` to `MOST`.

    Raises:
        InvalidOption: it is not.
    """
    if type(value) is not int or not least <= value <= MOST:
        raise _out_of_range(what, str(value), str(least))
    return value


def format_duration(milliseconds: int) -> str:
    """The shortest text that :func:`parse_duration` reads back: ``1d12h``."""
    parts = []
    left = milliseconds
    for unit, size in _UNITS_MS.items():
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0ms"


def format_size(size: int) -> str:
    """An exact text that :func:`parse_size` reads back, in the largest unit that divides: ``1GiB``."""
    for unit in ("TiB", "TB", "GiB", "GB", "MiB", "MB", "KiB", "kB"):
        factor = _UNITS_BYTES[unit.lower()]
        if size and size % factor == 0:
            return f"{size // factor}{unit}"
    return f"{size}B"


def _checked(what: str, text: str, value: Decimal | int, least: str) -> int:
    whole = int(value)
    if whole != value or not 1 <= whole <= MOST:
        raise _out_of_range(what, text, least)
    return whole


def _out_of_range(what: str, text: str, least: str) -> InvalidOption:
    return InvalidOption(f"{what} {ascii(text)[:80]} is out of range: give a whole number from {least} up")
