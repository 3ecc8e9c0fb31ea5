"""A client of redis-py on a `MemoryServer`: its connections, without sockets of the operating system.

Everything above them is the product's own code and redis-py's: the pool, the exchange, pub/sub, and the
meaning of each failure.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable
from typing import Any

import hiredis
import redis.asyncio
from redis.asyncio.connection import AbstractConnection, ConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from streamlease.agent.client import Client
from streamlease.protocol.errors import InvalidInput
from streamlease.streams.redis.urls import ANSWER_SECONDS, CONNECT_SECONDS, MOST_CONNECTIONS
from streamlease.streams.redis.wire import AsyncServer
from streamlease.testing.memory.memory_server import MemoryServer
from streamlease.testing.memory.memory_transport import MemoryTransport
from streamlease.testing.memory.sockets import Line, Socket

CLOSED = "Connection closed by server."


class MemoryConnection(AbstractConnection):
    """What redis-py takes for a connection."""

    def __init__(self, *, server: MemoryServer, line: Line, **options: Any) -> None:
        super().__init__(**options)
        self._server = server
        self._line = line
        self._socket: Socket | None = None
        self._requests: Any = hiredis.Reader()
        self._waiter: asyncio.Future[None] | None = None
        self._transport: MemoryTransport | None = None

    def repr_pieces(self) -> list[tuple[str, Any]]:
        """What is shown of it."""
        return [("server", "memory")]

    @property
    def transport(self) -> MemoryTransport:
        """For who reads the replies by itself from now on, until the connection is closed."""
        if self._socket is None:
            raise RedisConnectionError(CLOSED)
        if self._transport is None:
            self._transport = MemoryTransport(self._socket)
        return self._transport

    @property
    def is_connected(self) -> bool:
        """Whether it was made, and not closed here."""
        return self._socket is not None

    async def connect(self) -> None:
        """Make the connection, unless it is."""
        if self._socket is not None:
            return
        seconds = self._line.connecting()
        if seconds:
            await asyncio.sleep(seconds)
        self._socket = Socket(self._server, self._line, self._look)
        self._connect_callbacks = [ref for ref in self._connect_callbacks if ref() is not None]
        for callback in [ref() for ref in self._connect_callbacks]:
            called = callback(self) if callback is not None else None
            if asyncio.iscoroutine(called):
                await called

    async def _connect(self) -> None:
        raise NotImplementedError

    def _host_error(self) -> str:
        return "memory"

    async def disconnect(self, nowait: bool = False, *about: Any, **more: Any) -> None:
        """Close the connection."""
        socket, self._socket = self._socket, None
        if socket is not None:
            socket.close()
            self._look()
        self._transport = None

    async def can_read(self, *about: Any, **more: Any) -> bool:
        """Whether something lies there that nobody asked for."""
        if self._socket is None or self._socket.lost:
            raise RedisConnectionError(CLOSED)
        return bool(self._socket.replies)

    async def send_packed_command(
        self, command: bytes | str | Iterable[bytes], check_health: bool = True
    ) -> None:
        """Send commands, as they are written on the wire."""
        if self._socket is None:
            await self.connect()
        socket = self._socket
        if socket is None or socket.lost:
            await self.disconnect()
            raise RedisConnectionError(CLOSED)
        for part in [command] if isinstance(command, bytes | str) else command:
            self._requests.feed(part)
        commands = []
        while (one := self._requests.gets()) is not False:
            commands.append(one)
        socket.send(commands)

    async def read_response(self, *about: Any, timeout: float | None = None, **more: Any) -> Any:  # noqa: ASYNC109
        """The next reply."""
        limit = self.socket_timeout if timeout is None else timeout
        while (socket := self._socket) is None or not socket.replies:
            if socket is None or socket.lost:
                await self.disconnect()
                raise RedisConnectionError(CLOSED)
            loop = asyncio.get_running_loop()
            self._waiter = waiter = loop.create_future()
            alarm = None
            if limit is not None and limit != math.inf:
                alarm = loop.call_later(limit, _overdue, waiter)
            try:
                await waiter
            except TimeoutError:
                if timeout is not None:
                    return None
                await self.disconnect(nowait=True)
                raise RedisTimeoutError("Timeout reading from memory") from None
            finally:
                self._waiter = None
                if alarm is not None:
                    alarm.cancel()
        reply = socket.replies.popleft()
        if isinstance(reply, ResponseError):
            raise reply
        return reply

    def _look(self) -> None:
        if self._transport is not None:
            self._transport.look()
        elif self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def _overdue(waiter: asyncio.Future[None]) -> None:
    """No reply came in time."""
    if not waiter.done():
        waiter.set_exception(TimeoutError())


class MemoryPool(ConnectionPool):
    """redis-py's pool, but it counts nothing for a telemetry that nobody looks at here."""

    async def get_connection(self, *about: Any, **more: Any) -> Any:
        """A connection that is made, and of which nothing is left to read."""
        connection = self.get_available_connection()  # type: ignore[no-untyped-call]
        try:
            await self.ensure_connection(connection)
        except BaseException:
            await self.release(connection)
            raise
        return connection

    async def release(self, connection: AbstractConnection) -> None:
        """Take a connection back."""
        self._in_use_connections.remove(connection)
        if connection.should_reconnect():  # type: ignore[no-untyped-call]
            await connection.disconnect()
        self._available_connections.append(connection)


def connect(server: MemoryServer, line: Line | None = None, *, embedded: bool = True) -> Client:
    """A client of Streamlease on `server`, as of ``streamlease.connect``.

    Args:
        line: what lies between them; None: nothing that takes time or breaks.

    Raises:
        InvalidInput: `server` is none.
    """
    if not isinstance(server, MemoryServer):
        raise InvalidInput(f"{ascii(server)[:80]} is no MemoryServer: for a URL there is streamlease.connect")
    return Client(redis=connect_redis(server, line), embedded=embedded)


def connect_redis(server: MemoryServer, line: Line | None = None) -> AsyncServer:
    """A client of redis-py whose connections lead to `server`."""
    pool: Any = MemoryPool(
        connection_class=MemoryConnection,
        driver_info=None,
        max_connections=MOST_CONNECTIONS,
        server=server,
        line=line or Line(),
        decode_responses=False,
        protocol=2,
        socket_connect_timeout=CONNECT_SECONDS,
        socket_timeout=ANSWER_SECONDS,
        retry=Retry(NoBackoff(), 0),
    )
    return redis.asyncio.Redis.from_pool(pool)
