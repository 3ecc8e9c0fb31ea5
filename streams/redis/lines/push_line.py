"""A kept connection to one server on which it pushes what is published, read without redis-py's reader.

redis-py takes a task's turn, a timer and some twenty calls for each message that is pushed, which is more
than a reader does with it. Here all messages that came with one read of the socket are handed over together.

It ends with an error reply, or when the server closes
it; whoever waits for the end learns why.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from hiredis import HiredisError, pack_command

from streamlease.streams.redis.cluster import AsyncCluster
from streamlease.streams.redis.connection import AsyncRedis
from streamlease.streams.redis.lines.taken import TakenConnection
from streamlease.streams.redis.wire import Command, connected

Heard = Callable[[list[Any]], None]
"""Told the replies that came together, in order."""


class PushLine(TakenConnection):
    """One connection; made by :func:`open_push_line`."""

    def __init__(self, pool: Any, connection: Any, heard: Heard) -> None:
        super().__init__(pool, connection)
        self._heard = heard
        self._over: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()

    def send(self, command: Command) -> None:
        """Write `command`; what comes of it is heard, unless the connection ends."""
        self._transport.write(pack_command(command))  # type: ignore[arg-type]  # of any length

    async def over(self, seconds: float) -> None:
        """Wait for its end, or so long.

        Raises:
            OSError, RedisError: why it has ended; or what was raised by who hears it.
        """
        if not self._over.done():
            await asyncio.wait([self._over], timeout=seconds)
        if self._over.done():
            raise self._over.result()

    def data_received(self, data: bytes) -> None:
        """Something was read."""
        came: list[Any] = []
        try:
            self._replies.feed(data)
            while (reply := self._replies.gets()) is not False:
                if isinstance(reply, Exception):
                    self._end(reply)
                    break
                came.append(reply)
        except HiredisError as error:
            self._end(ConnectionError(f"no reply of Redis: {error}"))
        try:
            self._heard(came)
        except Exception as error:  # whoever waits for the end learns it, not the transport
            self._end(error)

    def _end(self, why: Exception) -> None:
        if not self._over.done():
            self._over.set_result(why)
            self._transport.abort()


async def open_push_line(client: AsyncRedis, heard: Heard) -> PushLine:
    """A line to the server of `client`; of a cluster, to the node whose turn it is.

    Raises:
        StoreUnavailable, StoreRefused: no connection.
    """
    server = client.next_node() if isinstance(client, AsyncCluster) else client
    return PushLine(server.connection_pool, await connected(server), heard)
