"""One exchange of commands with one Redis server.

redis-py cannot tell whether a failed command had been sent. Here the border is exact::

    get a connection  -- fails -->  StoreUnavailable   nothing was done
    send and receive  -- fails -->  Indefinite         it was done, or it was not

An error *reply* is no failure of the exchange: it is handed back in its place among the replies, and
`exchange_failures` turns it into what the user sees. redis-py never retries on its own account.

The client of a server may be one of asyncio or a blocking one. The two differ only in :func:`exchange_one`;
everything built on it is written once, see :func:`run_blocking`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import redis
import redis.asyncio
from hiredis import pack_command
from redis._parsers.hiredis import NOT_ENOUGH_DATA
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from streamlease.protocol.addresses import shown_address
from streamlease.protocol.errors import InvalidInput
from streamlease.streams.collecting import collector_at_rest
from streamlease.streams.redis.command_keys import name_keys
from streamlease.streams.redis.exchange_failures import not_answered, not_connected, unavailable

AsyncServer = redis.asyncio.Redis
BlockingServer = redis.Redis
Server = AsyncServer | BlockingServer
Argument = bytes | str | int | float
Command = tuple[Argument, ...]

T = TypeVar("T")

MANY = 64
"""A command of more arguments is always packed by hiredis."""

LEAST_SHARE = 15 / 16
"""What the second and later replies of an exchange have of their timeout at least."""

LARGE = 6000
"""Bytes of an argument that is not to be copied."""

LATE_SECONDS = 0.05
"""A timer that is later than this shows that the event loop stood still."""

AT_ONCE = 16
"""So many exchanges of one client with one server are under way at once. More would make each of them slower,
and thousands would be more connections than a server takes; the others wait, in order."""

WAITING = frozenset({"XREAD", "XREADGROUP", "BLPOP", "WAIT", "WAITAOF"})
"""The last command of an exchange that Redis may answer late on purpose: it takes no room from the others."""


def address(client: Server) -> str:
    """Where `client` connects to, for messages."""
    pool: Any = client.connection_pool
    service = getattr(pool, "service_name", None)
    if service is not None:
        return f"the primary of {service}"
    options: dict[str, Any] = pool.connection_kwargs
    if "path" in options:
        return str(options["path"])
    return shown_address(str(options.get("host", "localhost")), int(options.get("port", 6379)))


def _packed(connection: Any, commands: Sequence[Command]) -> list[bytes]:
    """`commands` as they are sent. The client's own way is slow, but copies nothing that is large."""
    packed: list[bytes] = []
    for command in commands:
        if len(command) <= MANY and _has_large(command):
            packed += connection.pack_command(*command)
        else:
            packed.append(pack_command(command))  # type: ignore[arg-type]  # of any length
    return packed


def _has_large(command: Command) -> bool:
    for one in command:  # noqa: SIM110 - all that is sent is looked at, and any() takes three times as long
        if type(one) is bytes and len(one) > LARGE:
            return True
    return False


async def _send(connection: Any, packed: list[bytes]) -> None:
    """Write to a connection that is made. What the system takes at once, as nearly always, needs no task.

    The client's own way makes a task for each write, to have a timeout: two turns of the event loop.
    """
    writer: asyncio.StreamWriter | None = connection._writer
    if writer is None:
        await connection.send_packed_command(packed, check_health=False)
        return
    if writer.is_closing():  # a write raises a RuntimeError, an AttributeError, or nothing, by the event loop
        await connection.disconnect(nowait=True)
        raise RedisConnectionError("the connection was closed before anything was sent")
    writer.writelines(packed)
    if writer.transport.get_write_buffer_size():
        async with asyncio.timeout(connection.socket_timeout):
            await writer.drain()


async def _each(connection: Any, commands: Sequence[Command]) -> list[Any]:
    """Send, and read each reply with a timeout of its own.

    The client's own way has a timer for each, which takes longer than to read it. Here one is set anew once a
    sixteenth of its time has passed, so that much less a reply may have. What came together is taken from the
    parser together.
    """
    await _send(connection, _packed(connection, commands))
    clock = asyncio.get_running_loop().time
    limit: float | None = connection.socket_timeout
    replies: list[Any] = []
    async with asyncio.timeout(limit) as alarm:
        while len(replies) < len(commands):
            try:
                replies.append(await connection.read_response(timeout=math.inf))
            except ResponseError as error:
                replies.append(error)
            _take_more(connection, replies, len(commands))
            until = alarm.when()
            if limit is not None and until is not None and (now := clock()) + limit * LEAST_SHARE > until:
                alarm.reschedule(now + limit)
    return replies


def _take_more(connection: Any, replies: list[Any], wanted: int) -> None:
    """Take those replies that came with the last one, until there are `wanted`.

    Raises:
        redis.exceptions.ConnectionError: the server said that the connection is over.
    """
    reader = getattr(connection._parser, "_reader", None)
    if reader is None or connection.protocol != 2:
        return  # another parser, or one that gets more than replies
    with collector_at_rest(wanted):
        while len(replies) < wanted:
            reply = reader.gets()
            if reply is NOT_ENOUGH_DATA:
                return
            if isinstance(reply, RedisConnectionError):
                raise reply
            replies.append(reply)


class _Gate:
    """Lets ``AT_ONCE`` exchanges at a time through to one server."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._room = asyncio.Semaphore(AT_ONCE)
        self._left = 0
        """How many have gone through."""

    def check_loop(self, client: AsyncServer) -> None:
        """Whether this is the event loop on which the connections are.

        Raises:
            InvalidInput: it is not.
        """
        if asyncio.get_running_loop() is not self._loop:
            raise InvalidInput(
                f"a client of Redis at {address(client)} was first used on another event loop, as by another "
                f"asyncio.run, or in a process that this one is forked from: connect again on this one"
            )

    async def enter(self, client: AsyncServer) -> None:
        """Wait for room, as long as others go through.

        Raises:
            StoreUnavailable: for as long as `client` waits for an answer, none did: nothing was sent.
        """
        if not self._room.locked():
            await self._room.acquire()  # at once: no timer is needed
            return
        pool: Any = client.connection_pool
        seconds: float | None = pool.connection_kwargs.get("socket_timeout")
        while True:
            left = self._left
            try:
                async with asyncio.timeout(seconds):
                    await self._room.acquire()
                return
            except TimeoutError as error:
                if left == self._left:
                    raise unavailable(address(client), error) from None

    def leave(self) -> None:
        """Make room for the next."""
        self._left += 1
        self._room.release()


_GATES: WeakKeyDictionary[Any, _Gate] = WeakKeyDictionary()
"""By the pool of connections to a server."""


async def _in_turn(client: AsyncServer, commands: Sequence[Command]) -> list[Any]:
    """Exchange, as a part of what a client does with its server at once."""
    pool: Any = client.connection_pool
    gate = _GATES.get(pool)
    if gate is None:
        gate = _GATES[pool] = _Gate()
    else:
        gate.check_loop(client)
    if commands and commands[-1][0] in WAITING:
        return await _exchange(client, commands)
    await gate.enter(client)
    try:
        return await _exchange(client, commands)
    finally:
        gate.leave()


def check_loop(client: object) -> None:
    """Whether a client that was used before may be used on the event loop that runs now.

    Raises:
        InvalidInput: it was used on another one.
    """
    if isinstance(client, AsyncServer) and (gate := _GATES.get(client.connection_pool)) is not None:
        gate.check_loop(client)


async def exchange_one(client: Server, commands: Sequence[Command]) -> list[Any]:
    """Send `commands` in one write, not as a transaction; their replies in order.

    An error reply stands in the list as a ``redis.exceptions.ResponseError``; the connection that
    brought it is not used again, because some servers close it.

    Raises:
        InvalidInput: an asynchronous client was used on another event loop before; nothing was sent.
        StoreUnavailable: no connection; nothing was sent.
        Indefinite: the connection failed after sending began.
    """
    if isinstance(client, BlockingServer):
        return Begun(client, commands).replies()
    return await _in_turn(client, commands)


def run_blocking(work: Coroutine[Any, Any, T]) -> T:
    """Run `work`, which asks a blocking client, and return what it returns: no event loop is needed.

    Nothing in it ever waits on a loop, because what a blocking client is asked is done at once.
    """
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    work.close()
    raise TypeError(f"{work!r} waits on an event loop: run_blocking takes what asks a blocking client")


async def connected(client: AsyncServer) -> Any:
    """A connection of `client`, to be given back to its pool.

    When the time to connect ran out while this process did not run (it was stopped, or its loop was held),
    that says nothing about the server: then it is tried once more.

    Raises:
        StoreUnavailable: there is none; nothing was sent.
        StoreRefused: the server does not let it in.
    """
    pool: Any = client.connection_pool
    loop = asyncio.get_running_loop()
    seconds: float = pool.connection_kwargs.get("socket_connect_timeout") or math.inf
    begun = loop.time()
    try:
        try:
            return await pool.get_connection()
        except RedisTimeoutError:
            if loop.time() - begun < seconds + LATE_SECONDS:
                raise
        return await pool.get_connection()
    except Exception as error:
        raise not_connected(address(client), error) from None


async def _exchange(client: AsyncServer, commands: Sequence[Command]) -> list[Any]:
    pool: Any = client.connection_pool
    connection = await connected(client)
    whole = False
    try:
        replies = await _each(connection, commands)
        whole = not any(isinstance(reply, ResponseError) for reply in replies)
        if not whole:
            name_keys(commands, replies)
        return replies
    except Exception as error:
        raise not_answered(address(client), len(commands), error) from None
    finally:
        if not whole:
            await connection.disconnect(nowait=True)
        await pool.release(connection)


class Begun:
    """Commands that are on their way to one server; their replies are read later, or never.

    Raises:
        StoreUnavailable: no connection; nothing was sent.
        Indefinite: the connection failed after sending began.
    """

    def __init__(self, client: BlockingServer, commands: Sequence[Command]) -> None:
        self._client = client
        self._commands = commands
        self._pool: Any = client.connection_pool
        try:
            connection: Any = self._pool.get_connection()
        except Exception as error:
            raise not_connected(address(client), error) from None
        self._connection = connection
        sent = False
        try:
            connection.send_packed_command(_packed(connection, commands), check_health=False)
            sent = True
        except Exception as error:
            raise not_answered(address(client), len(commands), error) from None
        finally:
            if not sent:
                self.forget()

    def replies(self) -> list[Any]:
        """The replies, in order; an error reply stands in its place. To be called once.

        Raises:
            Indefinite: the connection failed.
        """
        replies: list[Any] = []
        whole = False
        try:
            for _ in self._commands:
                try:
                    replies.append(self._connection.read_response())
                except ResponseError as error:
                    replies.append(error)
            whole = not any(isinstance(reply, ResponseError) for reply in replies)
            if not whole:
                name_keys(self._commands, replies)
            return replies
        except Exception as error:
            raise not_answered(address(self._client), len(self._commands), error) from None
        finally:
            self._give_back(whole=whole)

    def forget(self) -> None:
        """Nobody wants the replies."""
        self._give_back(whole=False)

    def _give_back(self, *, whole: bool) -> None:
        if not whole:
            self._connection.disconnect()
        self._pool.release(self._connection)
