"""What a client publishes: the body of a request as messages, all of them or none. Pure.

======================================== ====================================================================
Content-Type                             body
======================================== ====================================================================
``application/x-ndjson``                 a JSON object (`PublishLine`) for each message
``application/vnd.apache.arrow.stream``  columns payload (or those of the schema), key, headers, timestamp
``application/cloudevents+json``         a CloudEvent; ``...-batch+json``: a list of them
any, with ``ce-specversion``             the data of a CloudEvent whose attributes are ``ce-`` headers
any other, or none                       one payload, as it is
======================================== ====================================================================

A message without a time gets that at which the gateway took it, and the answer names it.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field, StrictInt, ValidationError
from pydantic_core import from_json, to_json

from streamlease.gateway.core.accepting import ARROW, NDJSON, media_type
from streamlease.gateway.core.arrow_bodies import read_arrow
from streamlease.protocol.errors import InvalidInput, MessageTooLarge

EVENT = "application/cloudevents+json"
EVENTS_BATCH = "application/cloudevents-batch+json"
STRUCTURED = frozenset((NDJSON, ARROW, EVENT, EVENTS_BATCH))
"""Types of bodies that say themselves what is in them; any other body is one payload."""

MOST_MESSAGES = 65_536
"""Of one body: so many are checked, and handed over, as one."""

LONGEST_KEY = 65_536
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

Pairs = list[tuple[str, bytes | str]]
Header = Callable[[bytes], str | None]


class PublishLine(BaseModel):
    """One message, as a line of a body of JSON lines."""

    model_config = ConfigDict(extra="forbid")

    payload: str | dict[str, Any] | None = None
    """Text; or an object, in a space with a schema: values by column."""
    payload_base64: str | None = None
    key: str | None = None
    key_base64: str | None = None
    headers: dict[str, str] | list[tuple[str, str | HeaderBytes]] = []
    """Values by name, or pairs where a name occurs more than once."""
    timestamp: str | StrictInt | None = None
    """The event time: ISO-8601 with a zone, or microseconds since 1970."""


class HeaderBytes(BaseModel):
    """The value of a header that is no text."""

    model_config = ConfigDict(extra="forbid")

    base64: str


class CloudEvent(BaseModel):
    """An event as of CloudEvents 1.0; more attributes may stand beside these."""

    model_config = ConfigDict(extra="allow")

    specversion: Annotated[str, Field(pattern=r"^1\.0$")]
    id: Annotated[str, Field(min_length=1)]
    source: Annotated[str, Field(min_length=1)]
    type: Annotated[str, Field(min_length=1)]
    time: str | None = None
    datacontenttype: str | None = None
    partitionkey: str | None = None
    data: Any = None
    data_base64: str | None = None


@dataclass(frozen=True, slots=True)
class SingleMessage:
    """One message."""

    payload: bytes
    key: bytes | str | None
    headers: Pairs | None
    timestamp: int


@dataclass(frozen=True, slots=True)
class MessageColumns:
    """Messages, column by column."""

    payloads: Sequence[str | bytes | Mapping[str, Any]]
    keys: Sequence[str | bytes | None] | None
    headers: Sequence[Pairs | None] | None
    timestamps: Sequence[int]


@dataclass(frozen=True, slots=True)
class MessageTable:
    """Messages as rows of a record batch."""

    rows: pa.RecordBatch
    timestamp: int
    """Of the last one."""


Parsed = SingleMessage | MessageColumns | MessageTable


def parse_body(header: Header, attributes: Mapping[str, str], body: bytes, now: int) -> Parsed:
    """The messages in a body.

    Args:
        header: gives a header of the request, by its name in lower case.
        attributes: the headers ``ce-*``, by their names without that.
        now: microseconds since 1970.

    Raises:
        InvalidInput: it is malformed. MessageTooLarge: too many messages.
    """
    kind = media_type(header(b"content-type"))
    key = _key(header(b"streamlease-key"))
    if kind in (NDJSON, ARROW, EVENTS_BATCH) and key is not None:
        raise InvalidInput(
            f"the header Streamlease-Key is for one message, not for {kind}: give keys in the body"
        )
    if kind == NDJSON:
        return _lines(body, now)
    if kind == ARROW:
        return MessageTable(*read_arrow(body, now, MOST_MESSAGES))
    if kind == EVENT:
        return _structured(_json("the event", body), "the event", key, now)
    if kind == EVENTS_BATCH:
        events = _json("the batch of events", body)
        if not isinstance(events, list) or not events:
            raise InvalidInput("a batch of events is a JSON list with at least one: write [{...}, ...]")
        _check_count(len(events))
        return _columns([_structured(one, f"event {n}", None, now) for n, one in enumerate(events, 1)])
    if "specversion" in attributes:
        return _binary_event(attributes, header(b"content-type"), body, key, now)
    return SingleMessage(body, key, None, now)


def moment_of(text: str | int, where: str) -> int:
    """A time as microseconds since 1970.

    Raises:
        InvalidInput: it is none, or has no zone.
    """
    if isinstance(text, int):
        return text
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is not None:
            return (moment - _EPOCH) // _MICROSECOND
    except (ValueError, OverflowError):
        pass
    raise InvalidInput(
        f"{where} has the time {ascii(text)[:80]}: write ISO-8601 with a zone, such as 2026-01-31T12:00:00Z"
    )


def _key(text: str | None) -> bytes | None:
    if text is None:
        return None
    key = text.encode("latin-1")
    if not 1 <= len(key) <= LONGEST_KEY:
        raise InvalidInput(f"the key has {len(key)} bytes: give 1 to {LONGEST_KEY}, or leave the header out")
    return key


# ---------------------------------------------------------------------------------------------- JSON lines


def _lines(body: bytes, now: int) -> MessageColumns:
    lines = [line for line in body.split(b"\n") if line and not line.isspace()]
    if not lines:
        raise InvalidInput('the body has no lines: write a JSON object for each message, {"payload": "..."}')
    _check_count(len(lines))
    try:
        values = from_json(b"[" + b",".join(lines) + b"]")
    except ValueError:
        values = None
    if values is None or len(values) != len(lines):
        values = [_json(f"line {number}", line) for number, line in enumerate(lines, 1)]
    payloads: list[Any] = []
    keys: list[Any] = []
    others: dict[int, SingleMessage] = {}
    for value in values:
        # As most are: a payload, perhaps a key.
        if type(value) is dict and type(payload := value.get("payload")) is str:
            if len(value) == 1:
                payloads.append(payload)
                keys.append(None)
                continue
            if len(value) == 2 and type(key := value.get("key")) is str:
                payloads.append(payload)
                keys.append(key)
                continue
        place = len(payloads)
        one = others[place] = _line(value, f"line {place + 1}", now)
        payloads.append(one.payload)
        keys.append(one.key)
    times = [now] * len(payloads)
    headers: list[Pairs | None] | None = None
    for place, one in others.items():
        times[place] = one.timestamp
        if one.headers:
            headers = headers or [None] * len(payloads)
            headers[place] = one.headers
    return MessageColumns(payloads, keys if any(key is not None for key in keys) else None, headers, times)


def _line(value: Any, where: str, now: int) -> Any:
    line = _model(PublishLine, value, where)
    if (line.payload is None) is (line.payload_base64 is None):
        raise InvalidInput(f"{where} needs a payload: give either payload or payload_base64")
    if line.key is not None and line.key_base64 is not None:
        raise InvalidInput(f"{where} has two keys: give either key or key_base64")
    payload = line.payload if line.payload is not None else _bytes(line.payload_base64 or "", where)
    key = line.key if line.key_base64 is None else _bytes(line.key_base64, where)
    pairs = line.headers.items() if isinstance(line.headers, dict) else line.headers
    headers: Pairs = [
        (name, value if isinstance(value, str) else _bytes(value.base64, where)) for name, value in pairs
    ]
    at = now if line.timestamp is None else moment_of(line.timestamp, where)
    return SingleMessage(payload, key, headers or None, at)


# -------------------------------------------------------------------------------------------- CloudEvents


def _structured(value: Any, where: str, key: bytes | None, now: int) -> SingleMessage:
    event = _model(CloudEvent, value, where)
    if event.data is not None and event.data_base64 is not None:
        raise InvalidInput(f"{where} has data and data_base64: give one of them")
    if event.data_base64 is not None:
        payload = _bytes(event.data_base64, where)
    elif isinstance(event.data, str) and not _is_json(event.datacontenttype):
        payload = event.data.encode()
    else:
        payload = b"" if event.data is None else to_json(event.data)
    attributes = {
        name: _attribute(name, one, where)
        for name, one in value.items()
        if name not in ("data", "data_base64", "datacontenttype") and one is not None
    }
    return _event(attributes, event.datacontenttype or "application/json", payload, key, where, now)


def _binary_event(
    attributes: Mapping[str, str], content_type: str | None, body: bytes, key: bytes | None, now: int
) -> SingleMessage:
    _model(CloudEvent, {**attributes}, "the event in the headers ce-*")
    return _event(attributes, content_type, body, key, "the event", now)


def _event(
    attributes: Mapping[str, str],
    content: str | None,
    payload: bytes,
    key: bytes | None,
    where: str,
    now: int,
) -> SingleMessage:
    headers: Pairs = [(f"ce-{name}", value) for name, value in attributes.items()]
    if content is not None:
        headers.append(("content-type", content))
    at = moment_of(attributes["time"], where) if "time" in attributes else now
    return SingleMessage(payload, attributes.get("partitionkey", key), headers, at)


def _attribute(name: str, value: Any, where: str) -> str:
    if not (name.isascii() and name.isalnum() and name == name.lower() and len(name) <= 64):
        raise InvalidInput(f"{where} has the attribute {ascii(name)[:80]}: use lower-case letters and digits")
    if isinstance(value, bool):
        return "true" if value else "false"
    if not isinstance(value, str | int):
        raise InvalidInput(f"{where} has no text or number as attribute {name}: put it into data")
    return str(value)


def _is_json(content_type: str | None) -> bool:
    kind = media_type(content_type)
    return kind in ("", "application/json", "text/json") or kind.endswith("+json")


# ------------------------------------------------------------------------------------------------- common


def _columns(messages: Sequence[SingleMessage]) -> MessageColumns:
    return MessageColumns(
        [one.payload for one in messages],
        [one.key for one in messages],
        [one.headers for one in messages],
        [one.timestamp for one in messages],
    )


def _check_count(count: int) -> None:
    if count > MOST_MESSAGES:
        raise MessageTooLarge(f"the body has {count} messages: send at most {MOST_MESSAGES} at once")


def _json(what: str, text: bytes) -> Any:
    try:
        return from_json(text)
    except ValueError as error:
        raise InvalidInput(f"{what} is no JSON ({error}): it begins {ascii(text[:60])[1:]}") from None


def _model(model: type[Any], value: Any, where: str) -> Any:
    try:
        return model.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        place = ".".join(str(one) for one in first["loc"])
        given = ascii(first["input"])[:80]
        raise InvalidInput(
            f"{where}: {place or 'it'} is {given}: {first['msg'][0].lower()}{first['msg'][1:]}"
        ) from None


def _bytes(text: str, where: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidInput(
            f"{where} has {ascii(text)[:60]}, which is no base64: encode the bytes so"
        ) from None
