"""Messages as a gateway tells them, and pages: some messages behind a cursor, and the cursor behind them."""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from streamlease.http.core.gateway_errors import GatewayGarbled

MARK_LENGTH = 16


class GatewayMessage(NamedTuple):
    """One message."""

    topic: str
    key: bytes | None
    payload: bytes | None
    """Nothing in a space with a schema: then there are `values`."""
    values: Mapping[str, Any] | None
    stream: str
    offset: int
    previous: int | None
    """The offset before it in its stream; nothing at 0."""
    timestamp: datetime
    headers: tuple[tuple[str, bytes], ...]
    epoch: Sequence[int] | None


@dataclass(frozen=True, slots=True)
class GatewayPage:
    """Messages that follow each other, in order for each stream."""

    messages: tuple[GatewayMessage, ...]
    next: str
    """The cursor behind them: keep it once they are processed, and begin with it after a restart."""


def mark(cursor: str) -> str:
    """What stands for `cursor` in the field `after` of the event that comes right behind it."""
    return hashlib.sha256(cursor.encode()).hexdigest()[:MARK_LENGTH]


def parse_page(document: Any) -> GatewayPage:
    """The page in an answer to a since-query, or in the body of a callback.

    Raises:
        GatewayGarbled: it is none.
    """
    try:
        messages = tuple(map(parse_message, document["messages"]))
        next = document["next"]
    except (KeyError, TypeError) as error:
        raise GatewayGarbled(f"the gateway's answer has no messages and cursor: {error!r}") from None
    if not isinstance(next, str) or not next:
        raise GatewayGarbled("the cursor in the gateway's answer is no text")
    return GatewayPage(messages, next)


def parse_message(shown: Any) -> GatewayMessage:
    """A message from its JSON.

    Raises:
        GatewayGarbled: it is none.
    """
    try:
        return GatewayMessage(
            shown["topic"],
            _bytes(shown, "key"),
            _bytes(shown, "payload"),
            shown.get("values"),
            shown["stream"],
            shown["offset"],
            shown["previous"],
            datetime.fromisoformat(shown["timestamp"]),
            tuple((name, _header(value)) for name, value in shown["headers"]),
            shown["epoch"],
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise GatewayGarbled(f"the gateway sent a message that is none: {error!r}") from None


def _bytes(shown: Mapping[str, Any], name: str) -> bytes | None:
    text = shown.get(name)
    if text is not None:
        return bytes(text.encode())
    coded = shown.get(f"{name}_base64")
    return None if coded is None else _decoded(coded)


def _header(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else _decoded(value["base64"])


def _decoded(coded: str) -> bytes:
    try:
        return base64.b64decode(coded, validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from None
