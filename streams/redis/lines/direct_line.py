"""A kept connection to one server, on which one quick thing at a time is asked within the caller's turn.

An exchange through a pool of redis-py has several turns of the event loop, and timers; that is most of what a
small one costs. A line writes at once, and hands the reply to a callback as soon as that is read, or the
replies to several commands together. One timer watches over all replies.

In any doubt the line ends, and what was asked on it remains open: it was done, or it was not. It also ends
with an error reply, because some servers close such a connection, and when Sentinels have named another
primary. Nothing is repeated here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

from hiredis import HiredisError, pack_command

from streamlease.streams.collecting import collector_at_rest
from streamlease.streams.redis.lines.taken import TakenConnection
from streamlease.streams.redis.wire import AsyncServer, Command, connected

_logger = logging.getLogger(__name__)

Answered = Callable[[Any], None]
"""Told the reply, an error reply as an exception, or None: no reply will come."""


class DirectLine(TakenConnection):
    """One connection; made by :func:`open_direct_line`.

    Args:
        seconds: how long a reply may take.
    """

    def __init__(self, pool: Any, connection: Any, seconds: float) -> None:
        super().__init__(pool, connection)
        self._seconds = seconds
        self._primary = primary_of(pool)
        self._has_sentinels = hasattr(pool, "master_address")
        self._loop = asyncio.get_running_loop()
        self._answered: Answered | None = None
        self._several: list[Any] | None = None
        """The replies to several commands that have come so far; None while one was asked."""
        self._wanted = 1
        """How many replies are to come."""
        self._asked_at = 0.0
        """When something was asked; of several commands, when something came of them last."""
        self._alarm: asyncio.TimerHandle | None = None
        self._ended = False

    @property
    def is_open(self) -> bool:
        """Whether it has not ended, and leads to the present primary."""
        return not (self._ended or self._transport.is_closing() or self._is_of_another_primary)

    @property
    def is_free(self) -> bool:
        """Whether something can be asked now."""
        return self._answered is None and self.is_open

    def ask(self, command: Command, answered: Answered) -> None:
        """Write `command`, while the line is free; `answered` is told later, once, what came of it."""
        self.ask_packed(pack_command(command), answered)  # type: ignore[arg-type]  # of any length

    def ask_packed(self, command: bytes, answered: Answered) -> None:
        """:meth:`ask`, of a command as it is sent."""
        self._several, self._wanted = None, 1
        self._write(command, answered)

    def ask_all(self, commands: Sequence[Command], answered: Answered) -> None:
        """:meth:`ask`, of several commands in one write; `answered` is told a list of all replies."""
        self._several, self._wanted = [], len(commands)
        self._write(b"".join(map(pack_command, commands)), answered)  # type: ignore[arg-type]

    def _write(self, command: bytes, answered: Answered) -> None:
        self._answered = answered
        self._asked_at = self._loop.time()
        if self._alarm is None:
            self._alarm = self._loop.call_later(self._seconds, self._look)
        self._transport.write(command)

    def data_received(self, data: bytes) -> None:
        """Something was read."""
        try:
            self._replies.feed(data)
            reply = self._replies.gets()
            if self._several is not None:
                reply = self._gathered(self._several, reply)
            if reply is False:
                return
            more = self._replies.has_data()
        except HiredisError as error:
            self._end(ConnectionError(f"no reply of Redis: {error}"))
            return
        answered, self._answered = self._answered, None
        replies = [reply] if self._several is None else reply
        if more or answered is None or any(isinstance(one, Exception) for one in replies):
            self._end(ConnectionError("a reply that is an error, or that nobody asked for"))
        if answered is not None:
            answered(reply)

    def _gathered(self, several: list[Any], reply: Any) -> Any:
        """All replies, with this one and those behind it; False while some are to come."""
        with collector_at_rest(self._wanted):
            while reply is not False:
                several.append(reply)
                if len(several) >= self._wanted:
                    return several
                reply = self._replies.gets()
        self._asked_at = self._loop.time()  # large replies may take long, as long as they come
        return False

    @property
    def _is_of_another_primary(self) -> bool:
        return self._has_sentinels and primary_of(self._pool) != self._primary

    def _look(self) -> None:
        """See whether a reply is overdue."""
        self._alarm = None
        if self._answered is None:
            return
        left = self._asked_at + self._seconds - self._loop.time()
        if left > 0:
            self._alarm = self._loop.call_later(left, self._look)
        else:
            self._end(TimeoutError(f"no reply for {self._seconds:g} seconds"))

    def _end(self, why: Exception) -> None:
        if not self._ended:
            _logger.debug("a line to Redis ends: %s", why)
        self._ended = True
        self._transport.abort()
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        answered, self._answered = self._answered, None
        if answered is not None:
            answered(None)


async def open_direct_line(client: AsyncServer, seconds: float) -> DirectLine:
    """A line to the server of `client`.

    Args:
        seconds: how long a reply may take, if not less than with `client`.

    Raises:
        StoreUnavailable, StoreRefused: no connection.
    """
    connection = await connected(client)
    return DirectLine(client.connection_pool, connection, min(seconds, connection.socket_timeout or seconds))


def primary_of(pool: Any) -> Any:
    """Which primary the Sentinels named last; None without Sentinels."""
    return getattr(pool, "master_address", None)
