"""What leaves a process: frames for others, gathered to one entry per receiver, one under way for each.

Whoever posts does not wait. What is posted in one turn of the event loop leaves at its end in one write;
what comes while that is under way leaves with the next. So a call alone leaves at once, and thousands cost
few appends. An entry of which nobody knows whether it came is sent again under its number, and the receiver
takes it once (`core/admission.py`). A receiver that is gone has no stream, and none is made for it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

from redis.exceptions import ResponseError

from streamlease.protocol.errors import Indefinite, StoreRefused, StoreUnavailable, StreamleaseError
from streamlease.streams.redis.always import ask_always
from streamlease.streams.redis.connection import AsyncRedis, Command, exchange, refusal
from streamlease.streams.redis.lines.direct_line import DirectLine
from streamlease.streams.redis.lines.direct_lines import DirectLines
from streamlease.streams.tasks import Supervisor

MOST_FRAMES = 1000
MOST_BYTES = 256 * 1024
"""What one entry holds; of payloads, unless one is larger."""

MOST_ENTRIES = 10_000
"""About how many entries a stream holds; older ones are dropped. Who reads so little has lost its lease."""

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
AGAIN_SECONDS = 0.5


class Sent(Protocol):
    """A call whose request is on its way."""

    sent: bool
    """Whether it may have come."""

    @property
    def over(self) -> bool:
        """Whether nobody waits for it any more."""

    def gone(self) -> None:
        """The receiver is gone, and has not got it."""

    def refused(self, error: StreamleaseError) -> None:
        """Redis has not taken it."""


class Outgoing(NamedTuple):
    """One frame."""

    head: bytes
    payload: bytes
    until: float
    """By the clock of the event loop: then nobody wants it."""
    call: Sent | None = None
    """Told what comes of it."""
    tries: int = 0
    """So often it is sent again to a receiver that has no stream: it makes one anew if Redis has lost it."""

    @property
    def wanted(self) -> bool:
        """Whether somebody still waits for it."""
        if self.call is not None:
            return not self.call.over
        return asyncio.get_running_loop().time() < self.until


class _Entry:
    """Frames that leave together for one stream."""

    __slots__ = ("doubtful", "frames", "key", "number", "pause")

    def __init__(self, key: str, number: int, frames: list[Outgoing]) -> None:
        self.key = key
        self.number = number
        self.frames = frames
        self.doubtful = False
        """Whether it may have come before."""
        self.pause = FIRST_PAUSE


class Outbox:
    """Sends for `sender`. Made and used on one event loop.

    Args:
        tasks: owns what is sent otherwise than on `lines`.
    """

    def __init__(self, redis: AsyncRedis, sender: str, lines: DirectLines, tasks: Supervisor) -> None:
        self._redis = redis
        self._sender = sender
        self._lines = lines
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()
        self._waiting: dict[str, deque[Outgoing]] = {}
        self._under_way: set[str] = set()
        self._due = False
        self._number = 0
        self._closed = False
        self._empty = asyncio.Event()
        self._empty.set()

    def post(self, key: str, frame: Outgoing) -> None:
        """Put a frame on its way to the stream `key`, in order, without waiting."""
        if self._closed:
            return
        waiting = self._waiting.get(key)
        if waiting is None:
            waiting = self._waiting[key] = deque()
            self._empty.clear()
        waiting.append(frame)
        if not self._due and key not in self._under_way:
            self._due = True
            self._loop.call_soon(self._send)

    def close(self) -> None:
        """Send nothing more; who still waits is told nothing."""
        self._closed = True
        self._waiting.clear()

    async def empty(self) -> None:
        """Wait until nothing waits or is under way."""
        await self._empty.wait()

    def _send(self) -> None:
        self._due = False
        by_line: dict[DirectLine | None, list[_Entry]] = {}
        for key in [key for key in self._waiting if key not in self._under_way]:
            line = self._lines.to(key)
            if line is None:
                if self._lines.is_busy(key):
                    continue  # with its answer comes the next turn
                self._lines.want(key)
            entry = self._entry(key)
            if entry is not None:
                by_line.setdefault(line, []).append(entry)
        for line, entries in by_line.items():
            if line is None:
                self._tasks.start("sending", self._exchange(entries))
            else:
                line.ask_all([self._command(entry) for entry in entries], partial(self._answered, entries))
        self._tell_empty()

    def _entry(self, key: str) -> _Entry | None:
        waiting = self._waiting[key]
        frames: list[Outgoing] = []
        size = 0
        while waiting and len(frames) < MOST_FRAMES and (size < MOST_BYTES):
            frame = waiting.popleft()
            call = frame.call
            if call is not None:
                if call.over:
                    continue
                call.sent = True
            size += len(frame.payload)
            frames.append(frame)
        if not waiting:
            del self._waiting[key]
        if not frames:
            return None
        self._under_way.add(key)
        self._number += 1
        return _Entry(key, self._number, frames)

    def _command(self, entry: _Entry) -> Command:
        words: list[bytes | str | int] = [
            "XADD", entry.key, "NOMKSTREAM", "MAXLEN", "~", MOST_ENTRIES, "*",
            "f", self._sender, "n", entry.number,
        ]  # fmt: skip
        for frame in entry.frames:
            words.append(frame.head)
            words.append(frame.payload)
        return tuple(words)

    # ------------------------------------------------------------ what came of it

    def _answered(self, entries: Sequence[_Entry], replies: list[Any] | None) -> None:
        """What a line said; None: it ended."""
        if replies is not None and not any(isinstance(reply, Exception) for reply in replies):
            for entry, reply in zip(entries, replies, strict=True):
                self._told(entry, reply)
            self._go_on()
            return
        for entry in entries if replies is None else ():
            entry.doubtful = True
        left = entries if replies is None else self._refused(entries, replies)
        if left:
            self._tasks.start("sending", self._exchange(left))
        self._go_on()

    def _refused(self, entries: Sequence[_Entry], replies: Sequence[Any]) -> list[_Entry]:
        """Entries that a line's server refused: another way may lead to the right one."""
        left = []
        for entry, reply in zip(entries, replies, strict=False):
            if isinstance(reply, Exception):
                left.append(entry)
            else:
                self._told(entry, reply)
        for entry in entries[len(replies) :]:
            entry.doubtful = True
            left.append(entry)
        return left

    async def _exchange(self, entries: Sequence[_Entry]) -> None:
        """Send them the way of all else, until Redis has answered, or nobody wants them any more."""
        while entries := self._wanted(entries):
            doubtful = False
            try:
                # What ends calls is sent also if Redis is out of memory; what begins them is not.
                requests = any(frame.call is not None for entry in entries for frame in entry.frames)
                send = exchange if requests else ask_always
                replies = await send(self._redis, [self._command(entry) for entry in entries])
            except StoreUnavailable:
                pass
            except (Indefinite, StoreRefused):
                doubtful = True
            else:
                for entry, reply in zip(entries, replies, strict=True):
                    self._settle(entry, reply)
                break
            for entry in entries:
                entry.doubtful |= doubtful
                for frame in entry.frames:
                    if frame.call is not None:
                        frame.call.sent = entry.doubtful
            await asyncio.sleep(entries[0].pause)
            for entry in entries:
                entry.pause = min(LONGEST_PAUSE, entry.pause * 2)
        self._go_on()

    def _wanted(self, entries: Sequence[_Entry]) -> list[_Entry]:
        """Entries with what is still wanted of them; those without anything are over."""
        for entry in entries:
            entry.frames = [frame for frame in entry.frames if frame.wanted]
            if not entry.frames:
                self._under_way.discard(entry.key)
        return [entry for entry in entries if entry.frames]

    def _settle(self, entry: _Entry, reply: Any) -> None:
        if isinstance(reply, StreamleaseError):
            reply = ResponseError(str(reply))
        if not isinstance(reply, ResponseError):
            self._told(entry, reply)
            return
        self._under_way.discard(entry.key)
        error = refusal(reply)
        for frame in entry.frames:
            if frame.call is not None:
                frame.call.sent = entry.doubtful
                frame.call.refused(error)

    def _told(self, entry: _Entry, reply: bytes | None) -> None:
        self._under_way.discard(entry.key)
        if reply is not None:
            return
        for frame in entry.frames:
            if frame.call is not None:
                frame.call.sent = entry.doubtful
                frame.call.gone()
            elif frame.tries:
                self._loop.call_later(
                    AGAIN_SECONDS, self.post, entry.key, frame._replace(tries=frame.tries - 1)
                )

    def _go_on(self) -> None:
        if self._waiting and not self._due:
            self._due = True
            self._loop.call_soon(self._send)
        self._tell_empty()

    def _tell_empty(self) -> None:
        if not self._waiting and not self._under_way:
            self._empty.set()
