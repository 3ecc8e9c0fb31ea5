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
``sentinel_password``.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Any
from urllib.parse import urlencode

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

from streamlease.streams.redis.cluster import Address, AsyncCluster, BlockingCluster
from streamlease.streams.redis.url_parts import UrlParts, take_apart
from streamlease.streams.redis.wire import AsyncServer, BlockingServer

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


def connect(url: str, *, answer_seconds: float = ANSWER_SECONDS) -> AsyncServer | AsyncCluster:
    """An asyncio client of the Redis at `url`; it connects at its first use.

    Args:
        url: see the table of this module.
        answer_seconds: how long one reply may take.

    Raises:
        InvalidOption: `url` is malformed.
    """
    options = {**_options(answer_seconds), "retry": AsyncRetry(NoBackoff(), 0)}
    parts = take_apart(url)
    if parts.kind == "cluster":
        return AsyncCluster(
            parts.hosts,
            lambda at: _leaving(redis.asyncio.Redis.from_url(_at(parts, at), **options)),
            parts.shown,
        )
    if parts.kind == "sentinel":
        own = {**_sentinel_options(parts), "retry": AsyncRetry(NoBackoff(), 0)}
        manager = _AsyncSentinels(list(parts.hosts), sentinel_kwargs=own)
        client: AsyncServer = manager.master_for(
            parts.service, redis_class=AsyncPrimary, **_plain(parts), **options
        )
        for sentinel in manager.sentinels:
            _leaving(sentinel)
        return _leaving(client)
    return _leaving(redis.asyncio.Redis.from_url(url, **options))


def connect_blocking(url: str, *, answer_seconds: float = ANSWER_SECONDS) -> BlockingServer | BlockingCluster:
    """The blocking twin of :func:`connect`."""
    options = {**_options(answer_seconds), "retry": Retry(NoBackoff(), 0)}
    parts = take_apart(url)
    if parts.kind == "cluster":
        return BlockingCluster(
            parts.hosts, lambda at: _ready(redis.Redis.from_url(_at(parts, at), **options)), parts.shown
        )
    if parts.kind == "sentinel":
        own = {**_sentinel_options(parts), "retry": Retry(NoBackoff(), 0)}
        manager = _Sentinels(list(parts.hosts), sentinel_kwargs=own)
        client: BlockingServer = manager.master_for(  # type: ignore[no-untyped-call]
            parts.service, redis_class=BlockingPrimary, **_plain(parts), **options
        )
        for sentinel in manager.sentinels:
            _ready(sentinel)
        return _ready(client)
    return _ready(redis.Redis.from_url(url, **options))


class _Leaving(SSLConnection):
    """A connection over TLS that does not wait for long until the other side says goodbye as well.

    redis-py waits for that as long as for a connection, and then raises an error from closing. What was asked
    was answered by then, so nobody needs to know.
    """

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


def _leaving(client: AsyncServer) -> AsyncServer:
    """`client`, whose connections over TLS are closed in time."""
    pool: Any = client.connection_pool
    if issubclass(pool.connection_class, SSLConnection):
        pool.connection_class = type("Leaving", (_Leaving, pool.connection_class), {})
    return client


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


def _ready(client: BlockingServer) -> BlockingServer:
    """`client`, whose connections over TLS are ready once they are made."""
    pool: Any = client.connection_pool
    if issubclass(pool.connection_class, BlockingSSLConnection):
        pool.connection_class = type("Ready", (_Ready, pool.connection_class), {})
    return client


class _AsyncSentinels(AsyncSentinel):
    """Asked by one task at a time: redis-py puts the Sentinel that answered first in its list, and two tasks
    that do so at once lose one of them, with its connections."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)  # type: ignore[no-untyped-call]
        self._one = asyncio.Lock()

    async def discover_master(self, service_name: str) -> Any:
        """The address of the primary."""
        async with self._one:
            return await super().discover_master(service_name)


class _Sentinels(Sentinel):
    """The same for threads."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)  # type: ignore[no-untyped-call]
        self._one = threading.Lock()

    def discover_master(self, service_name: str) -> Any:
        """The address of the primary."""
        with self._one:
            return super().discover_master(service_name)  # type: ignore[no-untyped-call]


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


def _at(parts: UrlParts, address: Address) -> str:
    """The URL of one node, with login and options as in the whole one."""
    host, port = address
    query = f"?{urlencode(parts.query)}" if parts.query else ""
    return f"{parts.scheme}://{parts.login}{f'[{host}]' if ':' in host else host}:{port}/0{query}"


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
    own = {
        name.removeprefix("sentinel_"): value
        for name, value in parts.query.items()
        if name in ("sentinel_username", "sentinel_password")
    }
    timeouts = {"socket_connect_timeout": SENTINEL_SECONDS, "socket_timeout": SENTINEL_SECONDS}
    return {**_plain(parts, "ssl"), **timeouts, **own}
