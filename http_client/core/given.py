"""What programs hand to a client of the gateway, looked at by its kind before anything is sent. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any, TypeGuard

from streamlease.protocol.errors import InvalidInput, InvalidOption


def check_text(what: str, given: object, *, or_bytes: bool = False) -> None:
    """Raises:
    InvalidInput: it is no text (or bytes), or one that UTF-8 does not have.
    """
    if isinstance(given, str):
        try:
            given.encode()
        except UnicodeEncodeError:
            raise InvalidInput(
                f"{what} is {ascii(given)[:80]}, which cannot be encoded as UTF-8: remove the lone surrogate"
            ) from None
    elif not (or_bytes and isinstance(given, bytes | bytearray)):
        raise InvalidInput(f"{what} is {ascii(given)[:80]}: give a text{' or bytes' if or_bytes else ''}")


def is_number(given: object) -> TypeGuard[int | float]:
    """Whether it is one, and no truth value."""
    return isinstance(given, int | float) and not isinstance(given, bool)


def check_seconds(what: str, given: object) -> None:
    """Raises:
    InvalidOption: it is no number of seconds above 0; for ever is one.
    """
    if not is_number(given) or not given > 0:
        raise InvalidOption(f"{what} is {ascii(given)[:80]}: give seconds, more than 0")


def check_time(what: str, given: object) -> None:
    """Raises:
    InvalidInput: it is no time with a zone.
    """
    if not isinstance(given, datetime):
        raise InvalidInput(f"{what} is {ascii(given)[:80]}: give a datetime with its zone")
    if given.tzinfo is None:
        raise InvalidInput(f"{what} {given} has no zone: give one, such as UTC")


def check_payload(payload: object) -> None:
    """Raises:
    InvalidInput: it is neither text nor bytes, nor values by column.
    """
    if not isinstance(payload, str | bytes | bytearray | memoryview | Mapping):
        raise InvalidInput(f"the payload is {ascii(payload)[:80]}: give bytes, text, or values by column")
    if isinstance(payload, str):
        check_text("the payload", payload)


def check_headers(headers: object) -> None:
    """Raises:
    InvalidInput: they are no names with values. None are none.
    """
    if headers is None:
        return
    if isinstance(headers, str | bytes) or not isinstance(headers, Collection):
        raise InvalidInput(f"headers is {ascii(headers)[:80]}: give a mapping, or pairs of name and value")
    pairs: list[Any] = [*(headers.items() if isinstance(headers, Mapping) else headers)]
    for pair in pairs:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise InvalidInput(f"the header {ascii(pair)[:80]} is no pair: give a name and a value")
        check_text("the name of a header", pair[0])
        check_text(f"header {pair[0]}", pair[1], or_bytes=True)
