"""What a URL of Redis means.

=============================================================== ==============================================
``redis://[USER:PASSWORD@]HOST:PORT[/DB]``                      one server
``rediss://...?ssl_ca_certs=FILE``                              the same over TLS
``unix://PATH``                                                 one server over a socket
``redis+cluster://[USER:PASSWORD@]HOST:PORT[,HOST:PORT...]``    a Redis Cluster, from any of its nodes
``redis+sentinel://[USER:PASSWORD@]HOST:PORT[,...]/SERVICE``    the present primary, as the Sentinels say
=============================================================== ==============================================

``rediss+cluster`` and ``rediss+sentinel`` are the same over TLS. Further options stand behind a ``?``, with
the names of redis-py (``url_parts.OPTIONS``): ``ssl_ca_certs``, ``ssl_certfile``, ``db`` and others.
User and password belong to the data servers; those of the Sentinels are ``sentinel_username`` and
``sentinel_password``. A ``password_file`` is read for each new connection (`password_files`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote, urlencode
from weakref import WeakKeyDictionary

import redis
import redis.asyncio
from redis.asyncio.connection import SSLConnection
from redis.asyncio.retry import Retry as AsyncRetry
from redis.asyncio.sentinel import Sentinel as AsyncSentinel
from redis.backoff import NoBackoff
from redis.connection import SSLConnection as BlockingSSLConnection
from redis.connection import parse_url
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry
from redis.sentinel import Sentinel

from streamlease.protocol.addresses import shown_address
from streamlease.protocol.errors import InvalidOption, Unsupported
from streamlease.streams.redis import local_server
from streamlease.streams.redis.cluster import AsyncCluster, BlockingCluster
from streamlease.streams.redis.cluster_slots import Address
from streamlease.streams.redis.password_files import PasswordFile
from streamlease.streams.redis.url_parts import UrlParts, take_apart
from streamlease.streams.redis.wire import AsyncServer, BlockingServer

URL_VARIABLE = "STREAMLEASE_REDIS_URL"
DEFAULT_URL = "redis://127.0.0.1:6379"

CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 10.0
"""How long one reply may take before the connection is given up."""

MOST_CONNECTIONS = 10_000
"""Of one client. Each subscription listens on one connection; redis-py stops at 100 of an asyncio client."""

HEALTH_CHECK_SECONDS = 30
READ_BYTES = 256 * 1024
GOODBYE_SECONDS = 0.5
"""How long the other side of a TLS connection may take to answer that it is closed."""

SENTINEL_SECONDS = 1.0
"""How long a Sentinel may take before the next one is asked."""


def redis_url(url: str | None = None) -> str:
    """`url`, or that of the environment variable STREAMLEASE_REDIS_URL, or the local default.

    The default is the Redis that ``streamlease redis start`` runs for this user, else `DEFAULT_URL`. A URL
    that names that Redis without a login gets its password (``local_server``).

    Raises:
        InvalidOption: `url` is no string; or empty, as where a variable is not set, and could be any Redis;
            or it has characters that are no text, and is not shown, for it may hold a password.
    """
    if url is not None and not isinstance(url, str):
        kind = type(url).__name__
        raise InvalidOption(f"the URL of Redis is a {kind}: give a string such as {DEFAULT_URL}")
    if url is not None and not url.strip():
        raise InvalidOption(
            f"the URL of Redis is empty: give one, such as {DEFAULT_URL}, or leave it out for the default"
        )
    found = url or os.environ.get(URL_VARIABLE)
    if not found:
        own = local_server.running()
        return DEFAULT_URL if own is None else own.url
    try:
        found.encode()
    except UnicodeEncodeError:
        raise InvalidOption(
            "the URL of Redis cannot be encoded as UTF-8 (lone surrogate): write such a character as %XX"
        ) from None
    return local_server.with_login(found)


def connect(url: str, *, answer_seconds: float = ANSWER_SECONDS) -> AsyncServer | AsyncCluster:
    """An asyncio client of the Redis at `url`; it connects at its first use.

    Args:
        url: see the table of this module.
        answer_seconds: how long one reply may take.

    Raises:
        InvalidOption: `url` is malformed.
    """
    made: AsyncServer | AsyncCluster = _made(url, answer_seconds, _ASYNC)
    _URLS[made] = url
    return made


_URLS: WeakKeyDictionary[Any, str] = WeakKeyDictionary()


def blocking_twin(client: AsyncServer | AsyncCluster) -> BlockingServer | BlockingCluster:
    """A blocking client of the Redis of `client`, for work in a thread; whoever gets it closes it.

    Raises:
        Unsupported: `client` was not made by :func:`connect`.
    """
    if client not in _URLS:
        raise Unsupported("this client of Redis has no URL, so that no other one can be made like it")
    return connect_blocking(_URLS[client])


def connect_blocking(url: str, *, answer_seconds: float = ANSWER_SECONDS) -> BlockingServer | BlockingCluster:
    """The blocking twin of :func:`connect`."""
    made: BlockingServer | BlockingCluster = _made(url, answer_seconds, _BLOCKING)
    return made


def _made(url: str, answer_seconds: float, kind: _Kind) -> Any:
    parts, login = _with_file(take_apart(url))
    options = {**_options(answer_seconds), **login, "retry": kind.retry(NoBackoff(), 0)}
    if parts.kind == "cluster":
        return kind.cluster(
            parts.hosts, lambda at: _over(kind, kind.server.from_url(_at(parts, at), **options)), parts.shown
        )
    if parts.kind == "sentinel":
        own = {**_sentinel_options(parts), "retry": kind.retry(NoBackoff(), 0)}
        manager = kind.sentinels(list(parts.hosts), sentinel_kwargs=own)
        manager.sentinels = _Asked([_over(kind, sentinel) for sentinel in manager.sentinels])
        return _over(
            kind,
            manager.master_for(parts.service, redis_class=kind.primary, **_plain(parts), **options),
        )
    return _over(kind, kind.server.from_url(_without_login(url) if login else url, **options))


def _with_file(parts: UrlParts) -> tuple[UrlParts, dict[str, Any]]:
    """`parts` without the login, and the option of redis-py that has it, if its password is in a file."""
    if "password_file" not in parts.query:
        return parts, {}
    user = parts.query.get("username") or unquote(parts.login.removesuffix("@").partition(":")[0])
    kept = {name: value for name, value in parts.query.items() if name not in _LOGIN}
    login = PasswordFile(parts.query["password_file"], user or None)
    return parts._replace(login="", query=kept), {"credential_provider": login}


_LOGIN = ("username", "password_file")


def _without_login(url: str) -> str:
    """The URL of one server, as redis-py takes it: it would not know what a file with a password is."""
    begin, _, query = url.partition("?")
    scheme, _, where = begin.partition("://")
    kept = [part for part in query.split("&") if part.partition("=")[0] not in _LOGIN]
    where = where if where.startswith("/") else where.rpartition("@")[2]
    return f"{scheme}://{where}{'?' if kept else ''}{'&'.join(kept)}"


def _over(kind: _Kind, client: Any) -> Any:
    """`client`, whose connections over TLS are of our own class."""
    pool = client.connection_pool
    if issubclass(pool.connection_class, kind.tls.__bases__):
        pool.connection_class = type(kind.tls.__name__, (kind.tls, pool.connection_class), {})
    return client


class _Asked(list[Any]):
    """Sentinels in the order in which they are asked: the one that answered last comes first.

    redis-py exchanges it with the first one by their places. Two tasks or threads that do so at once would
    lose one of them, with its connections; so it is moved to the front, and the other half of the exchange is
    dropped.
    """

    def __iter__(self) -> Iterator[Any]:
        return iter((*super().__iter__(),))

    def __setitem__(self, place: Any, sentinel: Any) -> None:
        if place == 0:
            super().__setitem__(slice(None), sorted(self, key=lambda one: one is not sentinel))


class _Leaving(SSLConnection):
    """A connection over TLS that does not wait for long until the other side says goodbye as well.

    redis-py waits for that as long as for a connection, and then raises an error from closing. What was asked
    was answered by then, so nobody needs to know. And where it connects once more, it does so by what the
    files of certificates hold then, as its blocking twin does.
    """

    def _connection_arguments(self) -> Mapping[str, Any]:
        self.ssl_context.context = None  # redis-py keeps what it has read first
        arguments: Mapping[str, Any] = super()._connection_arguments()
        return arguments

    async def disconnect(self, nowait: bool = False, *about: Any, **more: Any) -> None:
        """Close the connection."""
        writer = self._writer
        if nowait or writer is None or asyncio.current_task() is None:
            await super().disconnect(nowait, *about, **more)
            return
        try:
            async with asyncio.timeout(GOODBYE_SECONDS):
                await super().disconnect(nowait, *about, **more)
        except (TimeoutError, RedisTimeoutError):
            writer.transport.abort()


class _Ready(BlockingSSLConnection):
    """A blocking connection over TLS that has read what the server sends behind the handshake.

    These are session tickets (RFC 8446, section 4.6.1). redis-py gives up a new connection on which something
    can be read before anything was asked, and takes a ticket for that.
    """

    def on_connect_check_health(self, check_health: bool = True) -> None:
        """Log in, and wait for one reply, before which the tickets come."""
        super().on_connect_check_health(check_health)
        self.send_command("PING", check_health=False)  # type: ignore[no-untyped-call]
        with contextlib.suppress(ResponseError):  # who may not ask that has read the tickets all the same
            self.read_response()


class AsyncPrimary(redis.asyncio.Redis):
    """A client of the primary that Sentinels name; it closes its connections to them as well."""

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        """Close all connections."""
        await super().aclose(close_connection_pool)
        pool: Any = self.connection_pool
        for sentinel in pool.sentinel_manager.sentinels:
            await sentinel.aclose()


class BlockingPrimary(redis.Redis):
    """The blocking twin of ``AsyncPrimary``."""

    def close(self) -> None:
        """Close all connections."""
        super().close()
        pool: Any = self.connection_pool
        for sentinel in pool.sentinel_manager.sentinels:
            sentinel.close()


class _Kind(NamedTuple):
    """What redis-py has twice: for asyncio, and blocking."""

    server: Any
    primary: Any
    sentinels: Any
    retry: Any
    cluster: Any
    tls: Any


_ASYNC = _Kind(redis.asyncio.Redis, AsyncPrimary, AsyncSentinel, AsyncRetry, AsyncCluster, _Leaving)
_BLOCKING = _Kind(redis.Redis, BlockingPrimary, Sentinel, Retry, BlockingCluster, _Ready)


def _at(parts: UrlParts, address: Address) -> str:
    """The URL of one node, with login and options as in the whole one."""
    query = f"?{urlencode(parts.query)}" if parts.query else ""
    return f"{parts.scheme}://{parts.login}{shown_address(*address)}/0{query}"


def _options(answer_seconds: float) -> dict[str, Any]:
    return {
        "decode_responses": False,
        "driver_info": None,  # it would tell the server its name on each connection, which needs a right
        "protocol": 2,
        "socket_connect_timeout": CONNECT_SECONDS,
        "socket_timeout": answer_seconds,
        "socket_read_size": READ_BYTES,
        "health_check_interval": HEALTH_CHECK_SECONDS,
        "max_connections": MOST_CONNECTIONS,
    }


def _plain(parts: UrlParts, only: str = "") -> dict[str, Any]:
    """Login and options for redis-py, as it reads them from a URL; `only` keeps those names."""
    query = {name: value for name, value in parts.query.items() if not name.startswith("sentinel_")}
    text = f"{parts.scheme}://{parts.login}host:1?{urlencode(query)}"
    found: dict[str, Any] = dict(parse_url(text))  # type: ignore[no-untyped-call]
    for name in ("host", "port", "connection_class"):
        found.pop(name, None)
    if parts.scheme == "rediss":
        found["ssl"] = True
    return {name: value for name, value in found.items() if name.startswith(only)}


def _sentinel_options(parts: UrlParts) -> dict[str, Any]:
    own: dict[str, Any] = {
        name.removeprefix("sentinel_"): value
        for name, value in parts.query.items()
        if name in ("sentinel_username", "sentinel_password")
    }
    if "sentinel_password_file" in parts.query:
        user = own.pop("username", None)
        own = {"credential_provider": PasswordFile(parts.query["sentinel_password_file"], user)}
    timeouts = {"socket_connect_timeout": SENTINEL_SECONDS, "socket_timeout": SENTINEL_SECONDS}
    return {**_plain(parts, "ssl"), **timeouts, **own}
