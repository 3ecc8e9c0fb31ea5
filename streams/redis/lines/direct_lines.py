"""Lines to servers, one to each: for who asks one quick thing after the other (``direct_line``).

A line is opened once somebody wants it, and again if it has ended. What cannot be asked on a line now goes
the way of all else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from streamlease.protocol.errors import StreamleaseError
from streamlease.streams.redis.cluster import AsyncCluster
from streamlease.streams.redis.connection import AsyncRedis
from streamlease.streams.redis.lines.direct_line import DirectLine, open_direct_line
from streamlease.streams.redis.wire import AsyncServer, Command
from streamlease.streams.tasks import Supervisor

_logger = logging.getLogger(__name__)


class DirectLines:
    """Opens lines, and closes them.

    Args:
        seconds: how long a reply may take, if `redis` does not say less.
    """

    def __init__(self, redis: AsyncRedis, tasks: Supervisor, seconds: float) -> None:
        self._redis = redis
        self._tasks = tasks
        self._seconds = seconds
        self._by_server: dict[AsyncServer, DirectLine] = {}
        self._opening: set[AsyncServer] = set()
        self._closed = False

    def to(self, key: str) -> DirectLine | None:
        """A free line to the server of `key`, if there is one."""
        server = self._server_of(key)
        line = self._by_server.get(server) if server is not None else None
        return line if line is not None and line.is_free else None

    def is_busy(self, key: str) -> bool:
        """Whether there is a line to the server of `key`, on which something is asked just now."""
        server = self._server_of(key)
        line = self._by_server.get(server) if server is not None else None
        return line is not None and line.is_open and not line.is_free

    def want(self, key: str) -> None:
        """Have a line to the server of `key` soon, unless there is one."""
        server = self._server_of(key) if not self._closed else None
        if server is None or server in self._opening:
            return
        line = self._by_server.get(server)
        if line is None or not line.is_open:
            self._opening.add(server)
            self._tasks.start("opening a line", self._open(server))

    async def read(self, key: str, commands: Sequence[Command]) -> list[Any] | None:
        """The replies to commands that only read, all of the server of `key`.

        Returns:
            None if there is no free line, or the replies did not come, or one is an error: then they are to
            be asked otherwise. Soon there will be a line.
        """
        line = self.to(key)
        if line is None:
            self.want(key)
            return None
        heard: asyncio.Future[list[Any] | None] = asyncio.get_running_loop().create_future()
        line.ask_all(commands, lambda replies: None if heard.done() else heard.set_result(replies))
        replies = await heard
        if replies is None or any(isinstance(reply, Exception) for reply in replies):
            return None
        return replies

    async def close(self) -> None:
        """Close all lines; no other is opened. What opens one is to be stopped before."""
        self._closed = True
        lines, self._by_server = self._by_server, {}
        for line in lines.values():
            await line.close()

    async def _open(self, server: AsyncServer) -> None:
        try:
            ended = self._by_server.pop(server, None)
            if ended is not None:
                await ended.close()
            self._by_server[server] = await open_direct_line(server, self._seconds)
        except StreamleaseError as error:  # all goes on without one, and says what is wrong
            _logger.debug("no line to Redis: %s", error)
        finally:
            self._opening.discard(server)

    def _server_of(self, key: str) -> AsyncServer | None:
        redis = self._redis
        return redis.owner(("HGET", key)) if isinstance(redis, AsyncCluster) else redis
