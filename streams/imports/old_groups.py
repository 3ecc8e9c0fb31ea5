"""A plain stream from where a consumer group stands: its pending entries, and all after its last one.

What the group has delivered and acknowledged is left out; that was done. The last delivered id is a line
that is drawn once, when the import begins: what is above comes over, and below it only what is pending. So a
repeated import goes on behind the same line, and an old consumer that went on meanwhile makes no hole.
"""

from __future__ import annotations

from typing import Any

from redis.exceptions import ResponseError

from streamlease.protocol.errors import InvalidOption
from streamlease.streams.imports.redis_streams import (
    Entry,
    PlainReader,
    checked_position,
    entry_of,
    position_of,
)
from streamlease.streams.log.log import Position
from streamlease.streams.redis.connection import AsyncRedis, ask, exchange

PAGE = 500
"""Pending entries that are asked for at once."""

BUSY_MS = 60_000
"""A consumer that was there in that time is taken for one that runs."""


class GroupReader(PlainReader):
    """Reads what a group has not done, in order.

    Args:
        after: the position behind which to begin.
    """

    def __init__(self, redis: AsyncRedis, key: str, group: str, after: Position) -> None:
        super().__init__(redis, key, after)
        self.group = group
        self.line: Position = (0, 0)
        """The group's last delivered id, as it was when the import began."""
        self.gone = 0
        """How many that are pending are no longer in the stream."""

    async def check(self, *, may_be_missing: bool) -> None:
        """Whether the key is a stream, with that group. As `PlainReader.check`."""
        await super().check(may_be_missing=False)
        self.line = await self.delivered()

    async def delivered(self) -> Position:
        """The last id that the group has handed out.

        Raises:
            InvalidOption: the key has no such group.
        """
        groups = [_facts(one) for one in (await ask(self._redis, [("XINFO", "GROUPS", self.key)]))[0]]
        for facts in groups:
            if facts[b"name"] == self.group.encode():
                return checked_position(position_of(facts[b"last-delivered-id"]), self.key)
        names = (
            ", ".join(ascii(facts[b"name"].decode("utf-8", "replace")) for facts in groups)[:200] or "none"
        )
        raise InvalidOption(
            f"key {ascii(self.key)[:80]} has no group {ascii(self.group)[:80]}: its groups are {names}"
        )

    async def busy(self) -> list[str]:
        """The group's consumers that seem to run."""
        (reply,) = await exchange(self._redis, [("XINFO", "CONSUMERS", self.key, self.group)])
        if isinstance(reply, ResponseError):
            return []
        seen = [_facts(one) for one in reply]
        return [facts[b"name"].decode("utf-8", "replace") for facts in seen if facts[b"idle"] < BUSY_MS]

    async def length(self) -> int:
        """About how many entries come: those pending, and at most all others."""
        summary, entries = await ask(self._redis, [("XPENDING", self.key, self.group), ("XLEN", self.key)])
        return max(int(summary[0]), int(entries))

    async def next(self) -> list[Entry]:
        """The next entries; none if there are no more now."""
        while self.after < self.line:
            begin = f"({self.after[0]}-{self.after[1]}" if self.after[0] >= 0 else "-"
            end = f"{self.line[0]}-{self.line[1]}"
            (page,) = await ask(self._redis, [("XPENDING", self.key, self.group, begin, end, PAGE)])
            ids = [bytes(one[0]) for one in page]
            if not ids:
                self.after = self.line
                break
            found = await ask(self._redis, [("XRANGE", self.key, id, id) for id in ids])
            entries = [entry_of(id, one[0][1]) for id, one in zip(ids, found, strict=True) if one]
            self.after = position_of(ids[-1])
            self.gone += len(ids) - len(entries)
            if entries:
                return entries
        return await super().next()


def _facts(flat: list[Any]) -> dict[bytes, Any]:
    return dict(zip(flat[::2], flat[1::2], strict=True))
