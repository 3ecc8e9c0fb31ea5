"""What a worker writes, on its way to Redis: bounded there and here; the program never waits for Redis.

The id of an entry is one more than its offset, so Redis takes each piece once. Where no reply came to some
pieces, the newest entry says which of them are there.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import NamedTuple

from streamlease.protocol.errors import Indefinite, StoreRefused, StoreUnavailable
from streamlease.queries import keys
from streamlease.queries.store import KEPT_MS
from streamlease.streams.redis.connection import AsyncRedis, Command, ask

KEPT_BYTES = 1024 * 1024
"""Of the output of a worker; the oldest goes first. As much may wait for a Redis that does not answer."""

MOST_ENTRIES = 4000
LONGEST_ENTRY = 16 * 1024
TOGETHER = 64
GATHER_SECONDS = 0.05
LINE_SECONDS = 0.5
"""How long the beginning of a line waits for its end."""

RETRY_SECONDS = 0.5


class _Piece(NamedTuple):
    stream: str
    offset: int
    text: bytes


class WorkerLog:
    """The log of one worker. Its owner runs `run`, and waits for `close` at the end."""

    def __init__(self, redis: AsyncRedis, query: str, worker: int) -> None:
        self._redis = redis
        self._key = keys.log(query, worker)
        self._pieces: deque[_Piece] = deque()
        self._waiting = 0
        """Bytes in `_pieces`."""
        self._offset = 0
        self._unsure = False
        """No reply came to the pieces that were sent last."""
        self._kept: deque[tuple[str, int]] = deque()
        """Entries in Redis, and their sizes."""
        self._kept_bytes = 0
        self._changed = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()

    async def read(self, reader: asyncio.StreamReader, stream: str) -> None:
        """Take all that comes, in lines where it comes so."""
        rest = b""
        while True:
            try:
                async with asyncio.timeout(LINE_SECONDS if rest else None):
                    heard = await reader.read(LONGEST_ENTRY)
            except TimeoutError:
                self.add(stream, rest)
                rest = b""
                continue
            rest += heard
            end = len(rest) if not heard else rest.rfind(b"\n") + 1
            if len(rest) - end >= LONGEST_ENTRY:
                end = len(rest)
            self.add(stream, rest[:end])
            rest = rest[end:]
            if not heard:
                return

    def add(self, stream: str, text: bytes) -> None:
        """Have that written."""
        for at in range(0, len(text), LONGEST_ENTRY):
            piece = text[at : at + LONGEST_ENTRY]
            self._pieces.append(_Piece(stream, self._offset, piece))
            self._offset += len(piece)
            self._waiting += len(piece)
        while self._waiting > KEPT_BYTES:
            self._waiting -= len(self._pieces.popleft().text)
        if self._pieces:
            self._empty.clear()
            self._changed.set()

    async def run(self) -> None:
        """Write, until it is stopped."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            while self._pieces:
                try:
                    await self._write()
                except (StoreUnavailable, StoreRefused, Indefinite):
                    self._unsure = True
                    await asyncio.sleep(RETRY_SECONDS)
            self._empty.set()
            await asyncio.sleep(GATHER_SECONDS)

    async def close(self, seconds: float) -> None:
        """Wait until all is written, for so long."""
        try:
            async with asyncio.timeout(seconds):
                await self._empty.wait()
        except TimeoutError:
            pass

    async def _write(self) -> None:
        if self._unsure:
            (newest,) = await ask(self._redis, [("XREVRANGE", self._key, "+", "-", "COUNT", 1)])
            written = int(newest[0][0].partition(b"-")[0]) if newest else 0
            self._are_there([one for one in self._pieces if one.offset < written])
            self._unsure = False
        pieces = [*self._pieces][:TOGETHER]
        if not pieces:
            return
        commands: list[Command] = [
            ("XADD", self._key, _id(one), "o", one.offset, "s", one.stream, "t", one.text) for one in pieces
        ]
        await ask(self._redis, [*commands, ("PEXPIRE", self._key, KEPT_MS)])
        self._are_there(pieces)
        trim = None
        while self._kept_bytes > KEPT_BYTES or len(self._kept) > MOST_ENTRIES:
            _, size = self._kept.popleft()
            self._kept_bytes -= size
            trim = self._kept[0][0] if self._kept else None
        if trim is not None:
            await ask(self._redis, [("XTRIM", self._key, "MINID", trim)])

    def _are_there(self, pieces: list[_Piece]) -> None:
        for one in pieces:
            if self._pieces and self._pieces[0] is one:  # else it was dropped meanwhile
                self._pieces.popleft()
                self._waiting -= len(one.text)
            self._kept.append((_id(one), len(one.text)))
            self._kept_bytes += len(one.text)


def _id(piece: _Piece) -> str:
    return f"{piece.offset + 1}-0"
