"""How much a publisher holds in memory.

What is held is counted as content and `ROW_BYTES` for each message. While a round is on the wire, the
connection holds copies of it, so a part of the limit is set aside for them and a round is never larger than
an eighth of the limit (or one message or piece).
"""

from __future__ import annotations

import asyncio

from streamlease.streams.entries.message_rows import Row
from streamlease.streams.entries.values import value_size

ROW_BYTES = 128
"""What a buffered message costs besides its content."""

MOST_ROUND_BYTES = 16 * 1024 * 1024
WIRE_COPIES = 2


class Buffer:
    """Bytes held of at most `limit`; one message or batch alone may be larger."""

    __slots__ = ("_freed", "held", "limit", "reserve", "round_bytes")

    def __init__(self, limit: int) -> None:
        self.round_bytes = max(1, min(MOST_ROUND_BYTES, limit // 8))
        """Most bytes of one write, unless a single part is larger."""
        self.reserve = min(limit - 1, WIRE_COPIES * self.round_bytes)
        self.limit = limit - self.reserve
        self.held = 0
        self._freed = asyncio.Event()

    @property
    def bytes(self) -> int:
        """Bytes held, with an allowance for copies on the wire."""
        return self.held + min(self.reserve, WIRE_COPIES * self.held)

    def is_full_for(self, size: int) -> bool:
        """Whether `size` more bytes must wait."""
        return self.held > 0 and self.held + size > self.limit

    def release(self, size: int) -> None:
        """`size` bytes are not held any more."""
        self.held -= size
        self._freed.set()

    def wake(self) -> None:
        """Let those who wait look again."""
        self._freed.set()

    async def freed(self) -> None:
        """Wait until some bytes were released."""
        self._freed.clear()
        await self._freed.wait()


def size_of(row: Row) -> int:
    """What a message costs in the buffer, in bytes."""
    size = ROW_BYTES + len(row.payload) + (len(row.key) if row.key else 0)
    if row.headers:
        size += sum(len(title) + len(value) for title, value in row.headers)
    return size if row.values is None else size + value_size(row.values)
