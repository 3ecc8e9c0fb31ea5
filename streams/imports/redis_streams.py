"""Plain Redis streams, made by any client with ``XADD``, as sources of messages.

An entry id ``ms-n`` is the position of its message, so ids must rise, as Redis sees to it while a key lives.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import Any, NamedTuple

from redis.exceptions import ResponseError

from streamlease.protocol.errors import Indefinite, InvalidInput, InvalidOption, StoreUnavailable
from streamlease.streams.entries.message_rows import utf8
from streamlease.streams.imports.transfer import Item
from streamlease.streams.log.log import Position
from streamlease.streams.redis.connection import AsyncRedis, Command, ask, exchange

FIRST_COUNT = 16
MOST_COUNT = 5000
CHUNK_BYTES = 4 * 1024 * 1024
LARGEST = 2**53 - 1
"""Lua, which compares positions, holds larger numbers not exactly."""

LAST_ID: Position = (2**64 - 1, 2**64 - 1)
"""The highest id that Redis knows: there is none behind it."""

LAST_MOMENT = 253_402_300_799_999
"""Milliseconds: the end of the year 9999. Later ids are no times."""

Fields = list[tuple[bytes, bytes]]


class Entry(NamedTuple):
    """One entry of a plain stream."""

    id: bytes
    position: Position
    fields: Fields


class PlainReader:
    """Reads a plain stream in order, in chunks of a bounded size.

    Args:
        after: the position behind which to begin.
    """

    def __init__(self, redis: AsyncRedis, key: str, after: Position) -> None:
        self.key = key
        self.after = after
        self._redis = redis
        self._count = FIRST_COUNT

    async def check(self, *, may_be_missing: bool) -> None:
        """Whether the key is a stream.

        Raises:
            InvalidOption: it is of another type, or is not there.
            StoreUnavailable, StoreRefused.
        """
        kind = (await ask(self._redis, [("TYPE", self.key)]))[0]
        name = kind.decode() if isinstance(kind, bytes) else str(kind)
        if name == "none" and not may_be_missing:
            raise InvalidOption(f"there is no key {ascii(self.key)[:80]}: name a Redis stream that is there")
        if name not in ("none", "stream"):
            raise InvalidOption(f"key {ascii(self.key)[:80]} is a {name}, not a stream: name a Redis stream")

    async def newest(self) -> Position:
        """The highest id that the stream ever gave out; (0, 0) if the key is not there."""
        (reply,) = await exchange(self._redis, [("XINFO", "STREAM", self.key)])
        if isinstance(reply, ResponseError):
            return (0, 0)
        facts = dict(zip(reply[::2], reply[1::2], strict=True))
        return checked_position(position_of(facts[b"last-generated-id"]), self.key)

    async def length(self) -> int:
        """How many entries are there."""
        return int((await ask(self._redis, [("XLEN", self.key)]))[0])

    async def next(self) -> list[Entry]:
        """The next entries; none if there are no more now. Whether an id can be a position is not looked at.

        Raises:
            StoreUnavailable, StoreRefused.
        """
        if self.after >= LAST_ID:
            return []
        start = f"({self.after[0]}-{self.after[1]}" if self.after[0] >= 0 else "-"
        (reply,) = await ask(self._redis, [("XRANGE", self.key, start, "+", "COUNT", self._count)])
        entries = [entry_of(id, flat) for id, flat in reply if flat is not None]
        if entries:
            self.after = entries[-1].position
            size = sum(len(name) + len(value) for entry in entries for name, value in entry.fields)
            fit = CHUNK_BYTES * len(entries) // max(1, size)
            self._count = max(1, min(MOST_COUNT, fit, self._count * 4))
        return entries

    async def wait(self, milliseconds: int) -> None:
        """Return when something new is there, at the latest after that time."""
        after = f"{max(0, self.after[0])}-{max(0, self.after[1])}"
        try:
            question: Command = ("XREAD", "BLOCK", milliseconds, "COUNT", 1, "STREAMS", self.key, after)
            await exchange(self._redis, [question])
        except Indefinite as error:
            raise StoreUnavailable(str(error)) from None


def entry_of(id: bytes, flat: list[bytes]) -> Entry:
    """An entry as XRANGE answers it."""
    return Entry(id, position_of(id), list(zip(flat[::2], flat[1::2], strict=True)))


def position_of(id: bytes) -> Position:
    """The position that the id of an entry is."""
    first, _, second = id.partition(b"-")
    return int(first), int(second)


def fits(position: Position) -> bool:
    """Whether scripts can hold that position."""
    return max(position) <= LARGEST


def checked_position(position: Position, key: str) -> Position:
    """The position of an entry of that key.

    Raises:
        InvalidInput: scripts could not hold it.
    """
    if not fits(position):
        raise InvalidInput(
            f"entry {position[0]}-{position[1]} of {ascii(key)[:80]} has an id above {LARGEST}: "
            f"copy it under another id"
        )
    return position


@dataclass(frozen=True, slots=True)
class Mapping:
    """How an entry becomes a message.

    Args:
        topic, topic_field: the topic of all, or the field that has it.
        payload_field: the field that is the payload; None: all fields as a JSON object.
        key_field: the field that is the key, where an entry has it.
        typed: the messages have typed columns: all fields, or those of the JSON object in the payload.
        named: keep the key and the id as headers.

    Raises:
        InvalidOption: not just one of `topic` and `topic_field` is given.
        InvalidInput: the name of a field is no text.
    """

    topic: str | None = None
    topic_field: str | None = None
    payload_field: str | None = None
    key_field: str | None = None
    typed: bool = False
    named: bool = True

    def __post_init__(self) -> None:
        if (self.topic is None) == (self.topic_field is None):
            raise InvalidOption("the topic of the entries is not clear: give --topic or --topic-field")
        for field in filter(None, (self.topic_field, self.payload_field, self.key_field)):
            utf8("the name of a field", field)

    def item(self, key: str, entry: Entry) -> Item:
        """The message.

        Raises:
            InvalidInput: a field is missing, or no text where one is needed; the id is too large.
        """
        checked_position(entry.position, key)
        where = f"entry {entry.id.decode()} of {ascii(key)[:80]}"
        left = list(entry.fields)
        topic = self.topic
        if self.topic_field is not None:
            topic = _text(_taken(left, self.topic_field, where), where)
        key_value = _taken(left, self.key_field, "") if self.key_field is not None else None
        headers: list[tuple[str, bytes]] = []
        payload: bytes | dict[str, Any]
        if self.named:
            headers = [("redis-stream", key.encode()), ("redis-id", entry.id)]
        if self.payload_field is not None:
            content = _taken(left, self.payload_field, where)
            assert content is not None
            payload = _object(content, where) if self.typed else content
            headers += [(_text(name, where), value) for name, value in left]
        elif self.typed:
            payload = {_text(name, where): value for name, value in left}
        else:
            payload = _as_json(left)
        milliseconds = entry.position[0]
        return Item(
            entry.position,
            topic or "",
            payload,
            key_value,
            tuple(headers) or None,
            milliseconds * 1000 if milliseconds <= LAST_MOMENT else None,
            where,
        )


def _taken(fields: Fields, name: str, where: str) -> bytes | None:
    """The value of the first field `name`, which is removed from `fields`.

    Raises:
        InvalidInput: there is none, and `where` says where it should be.
    """
    wanted = name.encode()
    for place, (field, value) in enumerate(fields):
        if field == wanted:
            del fields[place]
            return value
    if not where:
        return None
    names = ", ".join(ascii(field.decode("utf-8", "replace")) for field, _ in fields)[:200] or "none"
    raise InvalidInput(f"{where} has no field {ascii(name)[:80]}: it has {names}")


def _text(data: bytes | None, where: str) -> str:
    try:
        return (data or b"").decode()
    except UnicodeDecodeError:
        raise InvalidInput(f"{where} has {ascii(data)[:80]} where a text in UTF-8 is needed") from None


def _object(content: bytes, where: str) -> dict[str, Any]:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{where}: the payload is no JSON ({error}), and the space has a schema") from None
    if not isinstance(value, dict):
        raise InvalidInput(f"{where}: the payload is no JSON object, and the space has a schema")
    return value


def _as_json(fields: Fields) -> bytes:
    """All fields as a JSON object; what is not UTF-8 as ``{"base64": ...}``, a repeated field as a list."""
    found: dict[str, Any] = {}
    repeated: set[str] = set()
    for name, raw in fields:
        title = name.decode("utf-8", "backslashreplace")
        try:
            value: Any = raw.decode()
        except UnicodeDecodeError:
            value = {"base64": base64.b64encode(raw).decode()}
        if title in repeated:
            found[title].append(value)
        elif title in found:
            found[title] = [found[title], value]
            repeated.add(title)
        else:
            found[title] = value
    return json.dumps(found, ensure_ascii=False).encode()
