"""One connection to a `MemoryServer`, from its making to its end, and the line that it runs over."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from redis._parsers.base import BaseParser
from redis.exceptions import ResponseError

from streamlease.testing.memory.memory_server import MemoryServer
from streamlease.testing.memory.stream_commands import StreamRead


class Cancellable(Protocol):
    """What is to happen, unless somebody thinks better of it."""

    def cancel(self) -> Any:
        """Let it not happen."""


class Line:
    """What lies between one process and the server. This one takes no time and never breaks."""

    def connecting(self) -> float:
        """How long (s) a connection takes to be made.

        Raises:
            redis.exceptions.ConnectionError: it cannot be.
        """
        return 0.0

    def sending(self, socket: Socket, commands: list[list[bytes]]) -> None:
        """Commands are sent; `socket.arrived` is to be called when, and if, they arrive."""
        socket.arrived(commands)

    def replying(self, socket: Socket, reply: Any) -> None:
        """A reply is sent; `socket.returned` is to be called when, and if, it arrives."""
        socket.returned(reply)

    def later(self, seconds: float, act: Callable[[], None]) -> Cancellable:
        """Do `act` at the server in `seconds`."""
        return asyncio.get_running_loop().call_later(seconds, act)


class SlowLine(Line):
    """A line on which everything takes as long, each way. A subclass may lose what it is given to send.

    Args:
        after: does something in so many seconds, such as ``Timeline.after``.
        seconds: how long each way takes.
    """

    def __init__(self, after: Callable[[float, Callable[[], None]], Cancellable], seconds: float) -> None:
        self._after = after
        self._seconds = seconds

    def connecting(self) -> float:
        """There and back."""
        return 2 * self._seconds

    def sending(self, socket: Socket, commands: list[list[bytes]]) -> None:
        """They arrive later."""
        self._after(self._seconds, lambda: socket.arrived(commands))

    def replying(self, socket: Socket, reply: Any) -> None:
        """It returns later."""
        self._after(self._seconds, lambda: socket.returned(reply))

    def later(self, seconds: float, act: Callable[[], None]) -> Cancellable:
        """By the world's clock: no process runs at the server."""
        return self._after(seconds, act)


class Socket:
    """Both ends of one connection. What arrives after its end at either side is nobody's."""

    def __init__(self, server: MemoryServer, line: Line, look: Callable[[], None]) -> None:
        """Args:
        look: called when there is a reply, or the end.
        """
        self.server = server
        self.line = line
        self.replies: deque[Any] = deque()
        self.closed = False
        """Whether the client has closed it."""
        self.lost = False
        """Whether it is broken, and the client may notice."""
        self.process = 0
        self.arrive_at = self.return_at = 0.0
        """When what was sent last arrives at the server, and at the client: for lines that take time."""
        self._look = look
        self._todo: deque[list[bytes]] = deque()
        self._blocked = False
        self._timer: Cancellable | None = None
        self._channels: dict[bytes, None] = {}
        server.enter(self)

    # ------------------------------------------------------------ the end of the client

    def send(self, commands: list[list[bytes]]) -> None:
        """Put commands on their way."""
        self.line.sending(self, commands)

    def returned(self, reply: Any) -> None:
        """A reply has come."""
        if not self.closed and not self.lost:
            self.replies.append(reply)
            self._look()

    def lose(self) -> None:
        """It breaks."""
        self.lost = True
        self._forget()
        self._look()

    def close(self) -> None:
        """The client wants no more of it. What is on its way arrives all the same."""
        self.closed = True
        self._forget()

    # ------------------------------------------------------------ the end of the server

    def arrived(self, commands: list[list[bytes]]) -> None:
        """Commands have come: do them, in order, unless the server's process is another one by now."""
        if self.server.knows(self):
            self._todo.extend(commands)
            if not self._blocked:
                self._work()

    def _work(self) -> None:
        while self._todo:
            command = self._todo.popleft()
            name = command[0].upper()
            if name in (b"SUBSCRIBE", b"UNSUBSCRIBE"):
                self._subscribe(name, command[1:])
                continue
            reply = self.server.execute(command)
            if isinstance(reply, StreamRead):
                self._block(reply)
                return
            self.answer(reply)

    def _subscribe(self, name: bytes, channels: list[bytes]) -> None:
        for channel in channels:
            if name == b"SUBSCRIBE":
                self._channels[channel] = None
                self.server.listen(self, channel)
            else:
                self._channels.pop(channel, None)
                self.server.listen_no_more(self, channel)
            self.answer([name.lower(), channel, len(self._channels)])

    def _block(self, reading: StreamRead) -> None:
        if self.closed or self.lost:
            return
        self._blocked = True
        self.server.block(self, reading, self._unblocked)
        if reading.block:
            self._timer = self.line.later(reading.block / 1000, lambda: self._unblocked(None))

    def _unblocked(self, reply: Any) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._blocked = False
        self.server.unblock(self)
        self.answer(reply)
        self._work()

    def answer(self, reply: Any) -> None:
        """Send a reply, or a published message."""
        if isinstance(reply, ResponseError):
            reply = BaseParser.parse_error(str(reply))  # type: ignore[no-untyped-call]
        self.line.replying(self, reply)

    def _forget(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.server.leave(self)
