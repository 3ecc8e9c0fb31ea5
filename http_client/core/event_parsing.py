"""The text of a stream of server-sent events, as events."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from streamlease.http.core.gateway_errors import GatewayGarbled

MOST_BYTES = 64 * 1024 * 1024
"""Of one event: a message has at most a part of that."""


class ServerEvent(NamedTuple):
    """One block of fields."""

    name: str
    data: str | None
    id: str | None
    after: str | None


class EventParser:
    """Takes bytes as they come."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._looked = 0
        self._fields: dict[str, str] = {}

    def feed(self, part: bytes) -> Iterator[ServerEvent]:
        """The events that end in `part`.

        Raises:
            GatewayGarbled: one is longer than any message.
        """
        self._rest += part
        begin = 0
        while (end := self._rest.find(b"\n", max(begin, self._looked))) >= 0:
            line = self._rest[begin:end].removesuffix(b"\r").decode(errors="replace")
            begin = end + 1
            if line:
                self._field(line)
            elif self._fields:
                fields, self._fields = self._fields, {}
                yield ServerEvent(
                    fields.get("event", "message"), fields.get("data"), fields.get("id"), fields.get("after")
                )
        del self._rest[:begin]
        self._looked = len(self._rest)
        if len(self._rest) > MOST_BYTES:
            raise GatewayGarbled(f"an event has more than {MOST_BYTES} bytes")

    def _field(self, line: str) -> None:
        name, _, value = line.partition(":")
        if name:
            value = value.removeprefix(" ")
            if name == "data" and "data" in self._fields:
                value = f"{self._fields['data']}\n{value}"
            self._fields[name] = value
