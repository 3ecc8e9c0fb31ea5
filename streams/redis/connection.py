"""Connections to Redis, alone, behind Sentinels or as a cluster, and what each failure of an exchange means.

Everything this room sends goes through :func:`exchange`: some commands in one write, their replies in order.
``wire`` does it with one server, ``cluster`` finds the server of each command, and ``urls`` tells what a URL
means. What fails before sending is ``StoreUnavailable``, what fails later is ``Indefinite``, and an error
reply is handed back in its place.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from redis.exceptions import ResponseError

from streamlease.protocol.errors import Indefinite, StoreUnavailable, StreamleaseError, Unsupported
from streamlease.streams.redis.cluster import AsyncCluster, BlockingCluster, Cluster
from streamlease.streams.redis.cluster_slots import Answer
from streamlease.streams.redis.exchange_failures import indefinite, refusal, unavailable
from streamlease.streams.redis.url_parts import masked
from streamlease.streams.redis.urls import ANSWER_SECONDS, connect, connect_blocking
from streamlease.streams.redis.wire import (
    Argument,
    AsyncServer,
    Begun,
    BlockingServer,
    Command,
    Server,
    check_loop,
    exchange_one,
    run_blocking,
)
from streamlease.streams.redis.wire import address as server_address

__all__ = [
    "ANSWER_SECONDS",
    "OLDEST_VERSION",
    "Answer",
    "Argument",
    "PendingAnswer",
    "AsyncCluster",
    "AsyncRedis",
    "BlockingCluster",
    "BlockingRedis",
    "Command",
    "Redis",
    "Server",
    "address",
    "beside",
    "ask",
    "check_loop",
    "check_server",
    "connect",
    "connect_blocking",
    "exchange",
    "exchange_behind",
    "good",
    "identity",
    "indefinite",
    "is_cluster",
    "masked",
    "refusal",
    "run_blocking",
    "servers",
    "silent",
    "unavailable",
]

AsyncRedis = AsyncServer | AsyncCluster
BlockingRedis = BlockingServer | BlockingCluster
Redis = AsyncRedis | BlockingRedis
"""Of one kind or the other: coroutines that ask a blocking one are run by :func:`run_blocking`."""

T = TypeVar("T")

OLDEST_VERSION = (6, 2)


def is_cluster(client: Redis) -> bool:
    """Whether `client` speaks to a Redis Cluster."""
    return isinstance(client, Cluster)


def address(client: Redis) -> str:
    """Where `client` connects to, for messages."""
    if isinstance(client, Cluster):
        return client.address
    return server_address(client)


def identity(client: Redis) -> object:
    """A key for the servers behind `client`, under which something can be remembered about them."""
    return client if isinstance(client, Cluster) else client.connection_pool


async def servers(client: Redis) -> Sequence[Server]:
    """The primaries: the one server, or all that own slots of a cluster.

    Raises:
        StoreUnavailable: no node of the cluster answers.
    """
    return await client.primaries() if isinstance(client, Cluster) else [client]


async def exchange(client: Redis, commands: Sequence[Command]) -> list[Any]:
    """Send `commands` in one write to each server, not as a transaction; their replies in order.

    An error reply stands in the list as a ``redis.exceptions.ResponseError``; the connection that
    brought it is not used again, because some servers close it. In a cluster, a command without a key
    goes where the first one with a key goes.

    Raises:
        StoreUnavailable: no connection; nothing was sent.
        Indefinite: a connection failed after sending began.
    """
    if isinstance(client, Cluster):
        return await client.exchange(commands)
    return await exchange_one(client, commands)


async def exchange_behind(
    client: Redis, before: Sequence[Command], commands: Sequence[Command], behind: Sequence[Command]
) -> list[Answer]:
    """:func:`exchange`, with commands without keys before and behind those of each server.

    Returns:
        for each of `commands` its reply, and the replies to `behind` on its connection. In a cluster the
        reply may be an error of that one node: ``StoreUnavailable`` or ``Indefinite``.

    Raises:
        StoreUnavailable: nothing was sent to anybody.
        Indefinite: the connection to the only server failed after sending began.
    """
    if isinstance(client, Cluster):
        return await client.exchange_behind(before, commands, behind)
    replies = await exchange_one(client, [*before, *commands, *behind])
    return _answers(replies[len(before) :], len(commands))


def _answers(replies: list[Any], commands: int) -> list[Answer]:
    waited = tuple(replies[commands:])
    return [Answer(reply, waited) for reply in replies[:commands]]


async def ask(client: Redis, commands: Sequence[Command]) -> list[Any]:
    """:func:`exchange` for commands that only read: a failure after sending is ``StoreUnavailable`` too.

    Raises:
        StoreUnavailable: Redis did not answer.
        StoreRefused: one of the replies is an error.
    """
    try:
        return good(client, await exchange(client, commands))
    except Indefinite as error:
        raise silent(client, error) from None


async def ask_each(client: Redis, commands: Sequence[Command]) -> list[Any]:
    """:func:`ask`, where each command stands for itself.

    Returns:
        for each command its reply, or a ``StreamleaseError``: its server of a cluster does not answer
        (``StoreUnavailable``), or refuses it (``StoreRefused``).

    Raises:
        StoreUnavailable: the only server does not answer, or no node of a cluster does.
    """
    try:
        answers = await exchange_behind(client, (), commands, ())
    except Indefinite as error:
        raise silent(client, error) from None
    return [_by_itself(client, answer.reply) for answer in answers]


def _by_itself(client: Redis, reply: Any) -> Any:
    if isinstance(reply, ResponseError):
        return refusal(reply)
    return silent(client, reply) if isinstance(reply, StreamleaseError) else reply


class PendingAnswer:
    """A question to a blocking client that is on its way: whoever asked does something else meanwhile.

    Args:
        commands: as of :func:`ask`; all have keys in one slot.

    Raises:
        StoreUnavailable: Redis does not answer.
    """

    def __init__(self, client: BlockingRedis, commands: Sequence[Command]) -> None:
        self._client = client
        self._commands = commands
        server = client.owner(commands[0]) if isinstance(client, BlockingCluster) else client
        self._begun: Begun | None = None
        try:
            self._begun = Begun(server, commands) if server is not None else None
        except (StoreUnavailable, Indefinite) as error:
            self._raise_unless_cluster(error)

    def replies(self) -> list[Any]:
        """The replies, in order; to be called once, unless the question was dropped.

        Raises:
            StoreUnavailable: Redis did not answer.
            StoreRefused: one of the replies is an error.
        """
        begun, self._begun = self._begun, None
        if begun is not None:
            try:
                replies = begun.replies()
            except Indefinite as error:
                self._raise_unless_cluster(error)
            else:
                if not isinstance(self._client, BlockingCluster):
                    return good(self._client, replies)
                if not any(isinstance(reply, ResponseError) for reply in replies):
                    return replies
        # No node was known to own the slot, or another one does now.
        return run_blocking(ask(self._client, self._commands))

    def drop(self) -> None:
        """The replies are not wanted any more; does nothing if they were read."""
        begun, self._begun = self._begun, None
        if begun is not None:
            begun.forget()

    def _raise_unless_cluster(self, error: StoreUnavailable | Indefinite) -> None:
        if isinstance(self._client, BlockingCluster):
            return
        raise silent(self._client, error) from None


async def beside(client: Redis, work: Callable[[], T]) -> T:
    """What `work` comes to, which reads files: in a thread, unless the program waits anyway."""
    if isinstance(client, BlockingServer | BlockingCluster):
        return work()
    return await asyncio.to_thread(work)


def silent(client: Redis, error: StreamleaseError) -> StreamleaseError:
    """The error for a failed exchange of a reader, which cannot have changed anything."""
    if not isinstance(error, Indefinite):
        return error
    cause = str(error).partition("(")[2].rpartition("):")[0]
    return StoreUnavailable(
        f"Redis at {address(client)} does not answer: {cause}; start it, or pass --redis URL"
    )


def good(client: Redis, replies: list[Any]) -> list[Any]:
    """`replies` to commands that only read, if none is an error.

    Raises:
        StoreUnavailable: a node of a cluster did not answer.
        StoreRefused: one of the replies is an error.
    """
    for reply in replies:
        if isinstance(reply, ResponseError):
            raise refusal(reply) from None
        if isinstance(reply, StreamleaseError):
            raise silent(client, reply)
    return replies


_QUESTIONS: tuple[Command, ...] = (("PING",), ("INFO", "server"), ("INFO", "memory"))


async def check_server(client: Redis) -> None:
    """Whether the server answers, is new enough, and keeps what it is given.

    Raises:
        StoreUnavailable: it does not answer.
        StoreRefused: it refuses the login.
        Unsupported: older than 6.2, or its eviction policy could drop data.
    """
    for server in await servers(client):
        try:
            replies = [(await exchange_one(server, [question]))[0] for question in _QUESTIONS]
        except Indefinite as error:
            raise silent(server, error) from None
        _judge(address(server), replies)


def _judge(where: str, replies: list[Any]) -> None:
    facts: dict[str, str] = {}
    if isinstance(replies[0], ResponseError):
        raise refusal(replies[0])
    for reply in replies[1:]:
        if isinstance(reply, ResponseError):
            if "unknown command" in str(reply).lower():
                continue  # a stand-in for Redis that has no INFO has no eviction either
            raise refusal(reply)
        for line in bytes(reply).decode("utf-8", "replace").splitlines():
            name, colon, value = line.partition(":")
            if colon:
                facts[name] = value
    version = facts.get("redis_version")
    if version is not None:
        numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
        if numbers < OLDEST_VERSION:
            raise Unsupported(f"Redis at {where} has version {version}: 6.2 or newer is needed")
    policy = facts.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        raise Unsupported(
            f"Redis at {where} has maxmemory-policy {policy}, which silently drops data: "
            f"run CONFIG SET maxmemory-policy noeviction"
        )
