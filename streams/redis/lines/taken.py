"""A connection that redis-py made, and that is read and written here from then on.

TLS, login, database and the primary of Sentinels are as with every other connection; after that, the line
takes the place of redis-py's reader behind the transport.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Any

from hiredis import Reader
from redis.exceptions import ResponseError


class TakenConnection(ABC, asyncio.Protocol):
    """What lines over such a connection have in common.

    Args:
        pool: where the connection is from, and goes back to.
    """

    def __init__(self, pool: Any, connection: Any) -> None:
        self._pool = pool
        self._connection = connection
        self._replies = Reader(replyError=ResponseError)
        # A connection without sockets has a transport of its own.
        writer = connection._writer
        self._transport: asyncio.Transport = (connection if writer is None else writer).transport
        self._behind: Any = self._transport.get_protocol()
        self._transport.set_protocol(self)

    async def close(self) -> None:
        """End it, and give the connection back."""
        self._end(ConnectionError("it is closed"))
        await self._connection.disconnect(nowait=True)
        await self._pool.release(self._connection)

    @abstractmethod
    def _end(self, why: Exception) -> None:
        """Nothing more comes, and why; also when it has ended before."""

    # ------------------------------------------------------------ what the transport calls

    @abstractmethod
    def data_received(self, data: bytes) -> None:
        """Something was read."""

    def pause_writing(self) -> None:
        """Much waits to be written; redis-py is told. How much a line writes unread is bounded by its use."""
        self._behind.pause_writing()

    def resume_writing(self) -> None:
        """It was written."""
        self._behind.resume_writing()

    def eof_received(self) -> bool | None:
        """The server closes the connection."""
        closes: bool | None = self._behind.eof_received()
        self._end(ConnectionError("the server closed it"))
        return closes

    def connection_lost(self, error: Exception | None) -> None:
        """The connection is closed; whoever waits for that in redis-py is told as well."""
        self._behind.connection_lost(error)
        self._end(error or ConnectionError("it was closed"))
