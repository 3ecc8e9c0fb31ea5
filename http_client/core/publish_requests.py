"""Requests to publish, and when to repeat one. Pure."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from streamlease.http.core.gateway_errors import GatewayGarbled, GatewayRefused
from streamlease.http.core.given import check_headers, check_payload, check_text, check_time
from streamlease.protocol.errors import (
    Indefinite,
    InvalidInput,
    NotDurable,
    StreamleaseError,
)

LINES = "application/x-ndjson"
FIRST_PAUSE, MOST_PAUSE = 0.05, 5.0

Text = str | bytes


@dataclass(frozen=True, slots=True)
class MessageToPublish:
    """A message to publish."""

    payload: Text | Mapping[str, Any]
    """Bytes, text, or, in a space with a schema, values by column."""
    key: Text | None = None
    headers: Mapping[str, Text] | Sequence[tuple[str, Text]] = ()
    timestamp: datetime | None = None
    """The event time, with its zone; without one it is when the gateway takes the message."""


@dataclass(frozen=True, slots=True)
class PublishResult:
    """Where published messages stand."""

    messages: int
    stream: str
    """Of the last one."""
    offset: int
    timestamp: datetime


def single(message: MessageToPublish) -> tuple[dict[str, str], bytes]:
    """Headers and body of a request with one message: as it is, if that can say all there is.

    Raises:
        InvalidInput: a field of it is of another kind, or a timestamp has no zone.
    """
    _check(message)
    key = message.key
    as_it_is = not isinstance(message.payload, Mapping) and not message.headers and message.timestamp is None
    if not as_it_is or not (key is None or (isinstance(key, str) and _fits_a_header(key))):
        return many([message])
    headers = {"Content-Type": "application/octet-stream"}
    if key is not None:
        headers["Streamlease-Key"] = str(key)
    payload = message.payload
    return headers, payload.encode() if isinstance(payload, str) else bytes(payload)  # type: ignore[arg-type]


def many(messages: Iterable[MessageToPublish]) -> tuple[dict[str, str], bytes]:
    """Headers and body of a request with these messages.

    Raises:
        InvalidInput: there are none, a field is of another kind, or a timestamp has no zone.
    """
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Iterable):
        raise InvalidInput(f"messages is {ascii(messages)[:80]}: give a list of MessageToPublish")
    messages = [*messages]
    for message in messages:
        _check(message)
    body = b"".join(_encoded(message) + b"\n" for message in messages)
    if not body:
        raise InvalidInput("there are no messages to publish: give one at least")
    return {"Content-Type": LINES}, body


def _check(message: MessageToPublish) -> None:
    if not isinstance(message, MessageToPublish):
        raise InvalidInput(f"{ascii(message)[:80]} is no message: give MessageToPublish(payload, ...)")
    check_payload(message.payload)
    if message.key is not None:
        check_text("the key", message.key, or_bytes=True)
    check_headers(message.headers)
    if message.timestamp is not None:
        check_time("the timestamp", message.timestamp)


def _fits_a_header(key: str) -> bool:
    return key.isascii() and key.isprintable() and key == key.strip() and key != ""


def _encoded(message: MessageToPublish) -> bytes:
    try:
        return json.dumps(_line(message)).encode()
    except (TypeError, ValueError) as error:
        shown = ascii(message.payload)[:80]
        raise InvalidInput(f"the payload {shown} cannot be written as JSON: {error}") from None


def _line(message: MessageToPublish) -> dict[str, Any]:
    payload = message.payload
    line: dict[str, Any] = {"payload": payload} if isinstance(payload, Mapping) else _text("payload", payload)
    if message.key is not None:
        line.update(_text("key", message.key))
    if message.headers:
        headers = message.headers
        pairs = headers.items() if isinstance(headers, Mapping) else headers
        line["headers"] = [[name, _header(value)] for name, value in pairs]
    if message.timestamp is not None:
        line["timestamp"] = message.timestamp.isoformat()
    return line


def _text(name: str, value: Text) -> dict[str, str]:
    if isinstance(value, str):
        return {name: value}
    value = bytes(value)
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}


def _header(value: Text) -> str | dict[str, str]:
    if isinstance(value, str):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def parse_published(document: Any) -> PublishResult:
    """Where the messages of a request stand, from the answer.

    Raises:
        GatewayGarbled: it says nothing of that.
    """
    try:
        last = document.get("last", document)
        return PublishResult(
            document.get("messages", 1),
            last["stream"],
            last["offset"],
            datetime.fromisoformat(last["timestamp"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise GatewayGarbled(f"the gateway's answer does not say where the messages are: {error!r}") from None


class PublishAttempts:
    """Whether, and when, a request is sent once more.

    Args:
        keyed: it has an Idempotency-Key, so that it may be repeated whatever became of it.
        deadline: not after this.
        spread: from 0 to 1, other for each request.
    """

    def __init__(self, keyed: bool, deadline: float, spread: float) -> None:
        self._keyed = keyed
        self._deadline = deadline
        self._spread = spread
        self._failures = 0
        self._in_doubt: StreamleaseError | None = None

    def after(self, error: StreamleaseError, now: float) -> float:
        """Seconds to wait before the next attempt.

        Raises:
            StreamleaseError: there is none: what the attempts came to.
        """
        doubtful = isinstance(error, (Indefinite, NotDurable))
        if doubtful:
            self._in_doubt = error
        again = self._keyed if doubtful else error.retriable
        self._failures += 1
        pause = min(FIRST_PAUSE * 2.0 ** min(self._failures - 1, 20), MOST_PAUSE) * (0.5 + self._spread)
        if isinstance(error, GatewayRefused) and error.pause is not None:
            pause = max(pause, error.pause)
        if again and now + pause < self._deadline:
            return pause
        raise self._in_doubt if self._in_doubt is not None and (again or doubtful) else error
