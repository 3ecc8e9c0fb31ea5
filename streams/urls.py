"""What a URL of Redis means.

=============================================================== ==============================================
``redis://[USER:PASSWORD@]HOST:PORT[/DB]``                      one server
``rediss://...?ssl_ca_certs=FILE``                              the same over TLS
``unix://PATH``                                                 one server over a socket
``redis+cluster://[USER:PASSWORD@]HOST:PORT[,HOST:PORT...]``    a Redis Cluster, from any of its nodes
``redis+sentinel://[USER:PASSWORD@]HOST:PORT[,...]/SERVICE``    the present primary, as the Sentinels say
=============================================================== ==============================================

``rediss+cluster`` and ``rediss+sentinel`` are the same over TLS. Further options stand behind a ``?``, with
the names of redis-py: ``ssl_ca_certs``, ``ssl_certfile``, ``ssl_keyfile``, ``ssl_check_hostname``, ``db``.
User and password belong to the data servers; those of the Sentinels are ``sentinel_username`` and
``sentinel_password``.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import SplitResult, parse_qs, urlencode, urlsplit

import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.asyncio.sentinel import Sentinel as AsyncSentinel
from redis.backoff import NoBackoff
from redis.connection import parse_url
from redis.retry import Retry
from redis.sentinel import Sentinel

from streamlease.protocol.errors import InvalidOption
from streamlease.streams.cluster import Address, AsyncCluster, BlockingCluster
from streamlease.streams.wire import AsyncServer, BlockingServer

CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 10.0
"""How long one reply may take before the connection is given up."""

MOST_CONNECTIONS = 10_000
"""Of one client. Each subscription listens on one; redis-py by itself stops at 100 of an asyncio client."""

HEALTH_CHECK_SECONDS = 30
READ_BYTES = 256 * 1024
SENTINEL_SECONDS = 1.0
"""How long a Sentinel may take before the next one is asked."""

_KINDS = {"cluster", "sentinel"}
_SENTINEL_PORT = 26379
_PORT = 6379


def masked(url: str) -> str:
    """`url` without its password, as it may stand in a message or a log."""
    hidden = re.sub(r"(//[^/@:]*):[^/]*@", r"\1:***@", str(url))
    return re.sub(r"(password=)[^&]*", r"\1***", hidden)


def connect(url: str, *, answer_seconds: float = ANSWER_SECONDS) -> AsyncServer | AsyncCluster:
    """An asyncio client of the Redis at `url`; it connects at its first use.

    Args:
        url: see the table of this module.
        answer_seconds: how long one reply may take.

    Raises:
        InvalidOption: `url` is malformed.
    """
    options = {**_options(answer_seconds), "retry": AsyncRetry(NoBackoff(), 0)}
    parts = _parts(url)
    try:
        if parts.kind == "cluster":
            return AsyncCluster(
                parts.hosts, lambda at: redis.asyncio.Redis.from_url(parts.at(at), **options), parts.shown
            )
        if parts.kind == "sentinel":
            own = {**_sentinel_options(parts), "retry": AsyncRetry(NoBackoff(), 0)}
            manager = _AsyncSentinels(list(parts.hosts), sentinel_kwargs=own)
            client: AsyncServer = manager.master_for(
                parts.service, redis_class=AsyncPrimary, **_plain(parts), **options
            )
            return client
        return redis.asyncio.Redis.from_url(url, **options)
    except (ValueError, TypeError, AttributeError) as error:
        raise _malformed(url, error) from None


def connect_blocking(url: str, *, answer_seconds: float = ANSWER_SECONDS) -> BlockingServer | BlockingCluster:
    """The blocking twin of :func:`connect`."""
    options = {**_options(answer_seconds), "retry": Retry(NoBackoff(), 0)}
    parts = _parts(url)
    try:
        if parts.kind == "cluster":
            return BlockingCluster(
                parts.hosts, lambda at: redis.Redis.from_url(parts.at(at), **options), parts.shown
            )
        if parts.kind == "sentinel":
            own = {**_sentinel_options(parts), "retry": Retry(NoBackoff(), 0)}
            manager = _Sentinels(list(parts.hosts), sentinel_kwargs=own)
            client: BlockingServer = manager.master_for(  # type: ignore[no-untyped-call]
                parts.service, redis_class=BlockingPrimary, **_plain(parts), **options
            )
            return client
        return redis.Redis.from_url(url, **options)
    except (ValueError, TypeError, AttributeError) as error:
        raise _malformed(url, error) from None


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


class _Parts(NamedTuple):
    """A URL, taken apart."""

    kind: str
    scheme: str
    login: str
    hosts: tuple[Address, ...]
    service: str
    query: Mapping[str, str]
    shown: str

    def at(self, address: Address) -> str:
        """The URL of one node, with login and options as in the whole one."""
        host, port = address
        query = f"?{urlencode(self.query)}" if self.query else ""
        return f"{self.scheme}://{self.login}{f'[{host}]' if ':' in host else host}:{port}/0{query}"


def _parts(url: str) -> _Parts:
    try:
        split = urlsplit(url)
        scheme, _, kind = split.scheme.partition("+")
        if not kind:
            return _Parts("", scheme, "", (), "", {}, masked(url))
        if kind not in _KINDS or scheme not in ("redis", "rediss"):
            raise ValueError(f"scheme {split.scheme} is unknown")
        return _many(split, scheme, kind, masked(url))
    except (ValueError, TypeError, AttributeError) as error:
        raise _malformed(url, error) from None


def _many(split: SplitResult, scheme: str, kind: str, shown: str) -> _Parts:
    login, at, where = split.netloc.rpartition("@")
    port = _PORT if kind == "cluster" else _SENTINEL_PORT
    hosts = tuple(_host(text, port) for text in where.split(","))
    query = {name: values[-1] for name, values in parse_qs(split.query, strict_parsing=False).items()}
    service = split.path.strip("/")
    if kind == "cluster":
        if service not in ("", "0") or query.get("db", "0") != "0":
            raise ValueError("a cluster has database 0 only")
        service = ""
    elif not service or "/" in service:
        raise ValueError("the path must be the name of the service that the Sentinels watch")
    return _Parts(kind, scheme, login + at, hosts, service, query, shown)


def _host(text: str, port: int) -> Address:
    found = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\[\]:/]+))(?::(\d{1,5}))?", text)
    if found is None:
        raise ValueError(f"{text!a} is not HOST:PORT")
    return found.group(1) or found.group(2), int(found.group(3) or port)


def _options(answer_seconds: float) -> dict[str, Any]:
    return {
        "decode_responses": False,
        "protocol": 2,
        "socket_connect_timeout": CONNECT_SECONDS,
        "socket_timeout": answer_seconds,
        "socket_read_size": READ_BYTES,
        "health_check_interval": HEALTH_CHECK_SECONDS,
        "max_connections": MOST_CONNECTIONS,
    }


def _plain(parts: _Parts, only: str = "") -> dict[str, Any]:
    """Login and options for redis-py, as it reads them from a URL; `only` keeps those names."""
    query = {name: value for name, value in parts.query.items() if not name.startswith("sentinel_")}
    text = f"{parts.scheme}://{parts.login}host:1?{urlencode(query)}"
    found: dict[str, Any] = dict(parse_url(text))  # type: ignore[no-untyped-call]
    for name in ("host", "port", "connection_class"):
        found.pop(name, None)
    if parts.scheme == "rediss":
        found["ssl"] = True
    return {name: value for name, value in found.items() if name.startswith(only)}


def _sentinel_options(parts: _Parts) -> dict[str, Any]:
    own = {
        name.removeprefix("sentinel_"): value
        for name, value in parts.query.items()
        if name in ("sentinel_username", "sentinel_password")
    }
    timeouts = {"socket_connect_timeout": SENTINEL_SECONDS, "socket_timeout": SENTINEL_SECONDS}
    return {**_plain(parts, "ssl"), **timeouts, **own}


def _malformed(url: str, error: BaseException) -> InvalidOption:
    return InvalidOption(
        f"'{masked(url)}' is not the URL of a Redis ({error}): write redis://HOST:PORT/DB, "
        f"redis+cluster://HOST:PORT or redis+sentinel://HOST:PORT/SERVICE"
    )
