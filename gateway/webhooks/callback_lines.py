"""Connections to callbacks: HTTP/1.1, kept open, to addresses that were checked.

A delivery is one request and one answer of which only the status counts, so the client is no more than that:
a request is one write, the answer goes through the parser that the gateway's own server uses. (httpx takes
many times the processor time: ``docs/decisions/0294-the-client-of-callbacks.md``.)

A name is resolved for each new connection, every address that it has is checked, and the connection goes to
an address that was checked: there is no second look at the name that could say something else. Redirects are
answers like any other, that is failures. Names are resolved by threads of two pools, so that names whose
servers do not answer keep only each other waiting.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httptools

from streamlease.gateway.webhooks.core.callbacks import (
    Address,
    Callback,
    RefusedAddress,
    check_address,
    parse_address,
)
from streamlease.protocol.errors import StreamleaseError

MOST_ANSWER = 64 * 1024
"""Bytes of an answer that are read; its status counts, and the connection is not used again."""

IDLE_SECONDS = 30.0
MOST_IDLE = 1000
MOST_IDLE_OF_HOST = 500
RESOLVERS = 16
"""Threads that resolve names, of each pool."""

MOST_TRIED = 4
"""Addresses of a name that are tried."""

Resolve = Callable[[str, int], Sequence[str]]


class NoAnswer(StreamleaseError):
    """The callback could not be asked, or did not answer; `kind` is the name of the trouble."""

    def __init__(self, kind: str, why: str) -> None:
        super().__init__(why)
        self.kind = kind


class NotAsked(StreamleaseError):
    """The callback was not asked, because that may not be any more."""


class _Stale(Exception):
    """The other side had closed a kept connection before it saw the request."""


class _Line(asyncio.Protocol):
    """One connection; one request at a time."""

    __slots__ = (
        "_answered",
        "_bytes",
        "_kept",
        "_parser",
        "_status",
        "_transport",
        "freed_at",
        "open",
        "usable",
    )

    def __init__(self) -> None:
        self._parser: Any = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._answered: asyncio.Future[int] | None = None
        self._status = 0
        self._bytes = 0
        self._kept = False
        self.freed_at = 0.0
        self.open = False
        self.usable = True
        """Whether it may carry another request."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self.open = True

    def ask(self, request: bytes) -> asyncio.Future[int]:
        """Send a request; the status of its answer."""
        self._answered = asyncio.get_running_loop().create_future()
        self._status = self._bytes = 0
        assert self._transport is not None
        self._transport.write(request)
        return self._answered

    def close(self) -> None:
        self.usable = False
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._bytes += len(data)
        if self._answered is None or self._answered.done():
            self.close()  # nobody asked for anything
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(
                "callback-malformed", f"it answered what is no HTTP: {' '.join(str(error).split())[:100]}"
            )
            return
        if self._bytes > MOST_ANSWER and not self._answered.done():
            if self._status:
                self._done(keep=False)
            else:
                self._fail(
                    "callback-malformed", f"its answer begins with more than {MOST_ANSWER} bytes of headers"
                )

    def connection_lost(self, error: Exception | None) -> None:
        self.open = self.usable = False
        if self._answered is None or self._answered.done():
            return
        if self._status:
            self._done(keep=False)  # an answer that ends with its connection
        elif self._bytes == 0 and self.freed_at:
            self._answered.set_exception(_Stale())
        else:
            self._fail("callback-unreachable", "it closed the connection before it answered")

    # ------------------------------------------------------------ of the parser

    def on_headers_complete(self) -> None:
        status: int = self._parser.get_status_code()
        self._status = status if status >= 200 else 0
        self._kept = self._parser.should_keep_alive()  # which only answers here

    def on_message_complete(self) -> None:
        if self._status:
            self._done(keep=self._kept)

    # ------------------------------------------------------------ inside

    def _done(self, *, keep: bool) -> None:
        self.usable = keep and self.usable
        if self._answered is not None and not self._answered.done():
            self._answered.set_result(self._status)

    def _fail(self, kind: str, why: str) -> None:
        if self._answered is not None and not self._answered.done():
            self._answered.set_exception(NoAnswer(kind, why))
        self.close()


class CallbackLines:
    """The connections of one gateway.

    Args:
        allow_private: connect also to addresses that are not of the public internet.
        seconds: how long a callback may take to answer.
        resolve: the addresses of a host, blocking; for tests.
    """

    def __init__(self, *, allow_private: bool, seconds: float, resolve: Resolve | None = None) -> None:
        self.allow_private = allow_private
        self.seconds = seconds
        self._resolve = resolve or _addresses
        self._idle: defaultdict[tuple[bool, str, int], list[_Line]] = defaultdict(list)
        self._idle_count = 0
        self._pools: dict[bool, ThreadPoolExecutor] = {}
        self._tls: ssl.SSLContext | None = None

    async def post(
        self, callback: Callback, request: bytes, *, suspect: bool, still_may: Callable[[], bool]
    ) -> int:
        """Send a request, all of it; the status of the answer.

        Args:
            suspect: whether it failed the last time.
            still_may: whether it may be sent, at this moment: to find a connection takes time.

        Raises:
            NoAnswer: there is none.
            NotAsked: it was not sent.
        """
        try:
            async with asyncio.timeout(self.seconds):
                return await self._post(callback, request, suspect, still_may)
        except TimeoutError:
            raise NoAnswer("callback-timeout", f"it did not answer within {self.seconds:g} s") from None

    async def _post(
        self, callback: Callback, request: bytes, suspect: bool, still_may: Callable[[], bool]
    ) -> int:
        while True:
            line = self._kept(callback)
            if line is None:
                line = await self._connect(callback, suspect=suspect)
            if not still_may():
                self._keep(callback, line)
                raise NotAsked("it may not be asked any more")
            try:
                status = await line.ask(request)
            except _Stale:
                continue
            except BaseException:
                line.close()
                raise
            self._keep(callback, line)
            return status

    def sweep(self, now: float) -> None:
        """Close what was not used for long."""
        for origin, lines in [*self._idle.items()]:
            kept = [line for line in lines if line.open and now - line.freed_at < IDLE_SECONDS]
            for line in set(lines).difference(kept):
                line.close()
            self._idle_count += len(kept) - len(lines)
            if kept:
                self._idle[origin] = kept
            else:
                del self._idle[origin]

    def close(self) -> None:
        """Close all connections that nobody uses, and resolve nothing more."""
        for lines in self._idle.values():
            for line in lines:
                line.close()
        self._idle.clear()
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)

    async def check(self, callback: Callback) -> None:
        """Raises:
        RefusedAddress: the callback's host leads to an address to which nothing is sent. One that cannot be
            resolved now is not refused: it may be later.
        """
        try:
            async with asyncio.timeout(self.seconds):
                await self._resolved(callback, suspect=True)
        except (NoAnswer, TimeoutError):
            return

    # ------------------------------------------------------------ inside

    def _kept(self, callback: Callback) -> _Line | None:
        lines = self._idle.get(callback.origin)
        while lines:
            line = lines.pop()
            self._idle_count -= 1
            if line.open and line.usable:
                return line
        return None

    def _keep(self, callback: Callback, line: _Line) -> None:
        lines = self._idle[callback.origin]
        if not line.usable or self._idle_count >= MOST_IDLE or len(lines) >= MOST_IDLE_OF_HOST:
            line.close()
            return
        line.freed_at = asyncio.get_running_loop().time()
        lines.append(line)
        self._idle_count += 1

    async def _connect(self, callback: Callback, *, suspect: bool) -> _Line:
        loop = asyncio.get_running_loop()
        secured: dict[str, Any] = {}
        if callback.secure:
            if self._tls is None:
                self._tls = ssl.create_default_context()
            secured = {"ssl": self._tls, "server_hostname": callback.host}
        try:
            addresses = await self._resolved(callback, suspect=suspect)
        except RefusedAddress as error:
            raise NoAnswer("callback-refused", str(error)) from None
        why = "it has no address"
        for address in addresses[:MOST_TRIED]:
            try:
                _, line = await loop.create_connection(_Line, str(address), callback.port, **secured)
                return line
            except ssl.SSLError as error:
                why = f"TLS with {address} failed: {' '.join(str(error).split())[:200]}"
            except OSError as error:
                why = f"{address} port {callback.port} cannot be reached: {error.strerror or error}"
        raise NoAnswer("callback-unreachable", why)

    async def _resolved(self, callback: Callback, *, suspect: bool) -> list[Address]:
        """All addresses of the host, checked."""
        addresses = (
            [callback.address] if callback.address is not None else await self._look_up(callback, suspect)
        )
        if not self.allow_private:
            for address in addresses:
                check_address(address, callback.host)
        return addresses

    async def _look_up(self, callback: Callback, suspect: bool) -> list[Address]:
        pool = self._pools.get(suspect)
        if pool is None:
            pool = self._pools[suspect] = ThreadPoolExecutor(RESOLVERS, "callback-names")
        try:
            found = await asyncio.get_running_loop().run_in_executor(
                pool, self._resolve, callback.host, callback.port
            )
        except OSError as error:
            raise NoAnswer(
                "callback-unreachable",
                f"its host {ascii(callback.host)[:80]} cannot be resolved: {error.strerror or error}",
            ) from None
        return [parse_address(one) for one in dict.fromkeys(found)]


def _addresses(host: str, port: int) -> list[str]:
    return [str(found[4][0]) for found in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
