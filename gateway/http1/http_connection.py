"""One connection: each request on it becomes a call of the application, in order.

::

    bytes --> RequestReader --> head --> HttpExchange --> task of the application
                                body ------>  |
    bytes <----------------------- answer ----+     the next request's task begins when the answer is complete

What a client may cost is bounded: what is kept of a body that nobody takes, and how long it sends or takes
nothing, which `sweep` looks for from time to time. A request that cannot be taken ends the connection, behind
the answers that are under way.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import unquote

from streamlease.gateway.core.refusals import TooSlow
from streamlease.gateway.http1.exchange import HIGH_WATER, HttpExchange, header_lines, whole_answer
from streamlease.gateway.http1.request_reader import NextPart, RequestHead, RequestReader
from streamlease.protocol.addresses import plain_address
from streamlease.protocol.errors import StreamleaseError

if TYPE_CHECKING:
    import uvicorn
    from starlette.types import Scope
    from uvicorn.server import ServerState

HEAD_SECONDS = 20.0
"""So long a head may take from its first byte on."""

BODY_SECONDS = 30.0
"""So long nothing may come of a body."""

STUCK_SECONDS = 60.0
"""So long a client may take nothing of an answer."""

UNREAD_SECONDS = 5.0
"""So long what is not wanted any more is read, that the client may read its answer."""

ASGI = {"version": "3.0", "spec_version": "2.3"}

_logger = logging.getLogger(__name__)


class HttpConnection(asyncio.Protocol):
    """A connection, as uvicorn makes them for an application that also has ``refused``: an error as status,
    body and headers.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._app = cast("Callable[..., Awaitable[None]]", config.loaded_app)
        self._refused = config.app.refused  # type: ignore[union-attr]
        self._idle_seconds = config.timeout_keep_alive
        self._server = server_state
        self._loop = _loop or asyncio.get_running_loop()
        self._reader = RequestReader(self._came, self._ended)
        self._transport: asyncio.Transport = cast("asyncio.Transport", None)
        self._client: tuple[str, int] | None = None
        self._own: tuple[str, int] | None = None
        self._scheme = "http"
        self._deaf = False
        """Whatever comes is ignored."""
        self._refusal: StreamleaseError | None = None
        """Why nothing more is read; to be said behind the answers that are under way."""
        self._current: HttpExchange | None = None
        """The one that is being answered."""
        self._next: deque[tuple[HttpExchange, Scope]] = deque()
        self._paused = False
        """Whether nothing is read."""
        self._drain: asyncio.Future[None] | None = None
        """Done when the client takes something of what was written."""
        self._deadline = math.inf
        """When it is too late for what is to come from the client."""
        self._stuck = math.inf
        """When it is too late for it to take something."""
        self._ending = False

    # ------------------------------------------------------------ as asyncio has it

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio."""
        self._transport = cast("asyncio.Transport", transport)
        peer = transport.get_extra_info("peername")
        own = transport.get_extra_info("sockname")
        self._client = (plain_address(str(peer[0])), int(peer[1])) if isinstance(peer, tuple) else None
        self._own = (plain_address(str(own[0])), int(own[1])) if isinstance(own, tuple) else None
        self._scheme = "https" if transport.get_extra_info("sslcontext") else "http"
        self._server.connections.add(self)  # type: ignore[arg-type]
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio."""
        self._server.connections.discard(self)
        self._deaf = True
        self.resume_writing()
        current, self._current = self._current, None
        if current is not None:
            current.leave()
        self._next.clear()
        self._reader.close()

    def pause_writing(self) -> None:
        """See asyncio."""
        if self._drain is None:
            self._drain = self._loop.create_future()
            self._stuck = self._loop.time() + STUCK_SECONDS

    def resume_writing(self) -> None:
        """See asyncio."""
        self._stuck = math.inf
        if self._drain is not None:
            drain, self._drain = self._drain, None
            if not drain.done():
                drain.set_result(None)

    def data_received(self, data: bytes) -> None:
        """See asyncio."""
        if self._deaf:
            return
        reader = self._reader
        heads = reader.heads
        try:
            reader.feed(data)
        except StreamleaseError as refusal:
            self._refuse(refusal)
            return
        if reader.reading is NextPart.HEAD:
            if reader.heads > heads:
                self._deadline = self._loop.time() + HEAD_SECONDS
        elif reader.reading is NextPart.BODY:
            if reader.receiving is not None and not reader.receiving.complete:
                self._deadline = self._loop.time() + BODY_SECONDS
            self._flow()

    # ------------------------------------------------------------ as uvicorn has it

    def shutdown(self) -> None:
        """Answer what is under way, and end."""
        self._ending = True
        if self._current is None:
            self._transport.close()
        else:
            self._current.keep = False

    def sweep(self, now: float) -> None:
        """Let go of a client that takes too long."""
        if now > self._stuck:
            self._transport.abort()
        elif now > self._deadline:
            receiving = self._reader.receiving
            if self._reader.reading is NextPart.HEAD or (receiving is not None and not receiving.complete):
                self._refuse(TooSlow("the request did not come whole in time: send it again"))
            else:
                self._transport.close()

    # ------------------------------------------------------------ requests

    def _came(self, head: RequestHead) -> HttpExchange:
        """A head has come: its request begins, or waits for those before it."""
        exchange = HttpExchange(
            self,
            head.by_name,
            bodiless=head.method == b"HEAD",
            keep=head.keeps and not self._ending,
            expects=b"expect" in head.by_name and head.by_name[b"expect"].lower() == b"100-continue",
            chunks=head.version == "1.1",
        )
        path = head.path.decode("ascii")
        scope: dict[str, Any] = {
            "type": "http",
            "asgi": ASGI,
            "http_version": head.version,
            "method": head.method.decode("ascii"),
            "path": path if "%" not in path else unquote(path),
            "raw_path": head.path,
            "query_string": head.query,
            "headers": head.headers,
            "scheme": self._scheme,
            "client": self._client,
            "server": self._own,
            "extensions": {"exchange": exchange},
        }
        if self._current is None:
            self._start(exchange, scope)
        else:
            self._next.append((exchange, scope))
            self._flow()
        return exchange

    def _ended(self, exchange: HttpExchange) -> None:
        """Its request has come whole."""
        self._deadline = math.inf
        if exchange.complete and self._current is None:  # it was answered before
            self._go_on(exchange)

    def _start(self, exchange: HttpExchange, scope: Scope) -> None:
        self._current = exchange
        self._server.tasks.add(self._loop.create_task(self._run(exchange, scope)))

    async def _run(self, exchange: HttpExchange, scope: Scope) -> None:
        try:
            await self._app(scope, exchange.part, exchange.send)
        except Exception:
            _logger.exception("gateway: an answer failed")
        finally:
            self._server.tasks.discard(cast("asyncio.Task[None]", asyncio.current_task()))
            if not exchange.complete:  # nobody can be told any more
                self._transport.abort()

    # ------------------------------------------------------------ the other half of an exchange

    @property
    def dates(self) -> bytes:
        """See ``Wire``, as all that follow."""
        return _DATES.lines(self._server.default_headers)

    def put(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)

    async def drained(self) -> None:
        if self._drain is not None:
            await asyncio.shield(self._drain)

    def may_read(self) -> None:
        self._flow()

    def answered(self, exchange: HttpExchange) -> None:
        self._server.total_requests += 1
        self._current = None
        if exchange.whole:
            self._go_on(exchange)
        else:  # closing with bytes unread would have the client lose the answer
            self._deadline = self._loop.time() + UNREAD_SECONDS
            self._flow()

    # ------------------------------------------------------------ what comes behind an answer

    def _go_on(self, exchange: HttpExchange) -> None:
        """The request was read, and is answered."""
        if not exchange.keep or self._ending:
            self._deaf = True
            self._transport.close()
        elif self._next:
            self._start(*self._next.popleft())
            self._flow()
        elif self._refusal is not None:
            self._say(self._refusal)
        elif self._reader.reading is NextPart.NOTHING:
            self._wait()

    def _wait(self) -> None:
        self._deadline = self._loop.time() + self._idle_seconds

    def _flow(self) -> None:
        """Read on, or do not, as there is enough to do."""
        receiving = self._reader.receiving
        full = bool(self._next) or (receiving is not None and receiving.held >= HIGH_WATER)
        if full is self._paused or self._transport.is_closing():
            return
        self._paused = full
        if full:
            self._deadline = math.inf
            self._transport.pause_reading()
        else:
            if self._reader.reading is not NextPart.NOTHING:
                self._deadline = self._loop.time() + BODY_SECONDS
            self._transport.resume_reading()

    def _refuse(self, refusal: StreamleaseError) -> None:
        """Read no more; say so behind what is being answered, and end the connection."""
        self._deaf = True
        self._refusal = refusal
        self._deadline = math.inf
        broken, self._reader.receiving = self._reader.receiving, None
        if self._next and self._next[-1][0] is broken:
            self._next.pop()
        elif broken is not None:
            self._current = None
            if broken.begun:  # also one that is answered: there is nothing more to say
                self._transport.close()
                return
            broken.leave()
        if self._current is None:
            self._say(refusal)

    def _say(self, refusal: StreamleaseError) -> None:
        status, body, headers = self._refused(refusal)
        self.put(whole_answer(status, body, self.dates + header_lines(headers)))
        if self._transport.can_write_eof() and not self._transport.is_closing():
            # Closing while the client still sends would have it lose the answer.
            self._transport.write_eof()
            self._deadline = self._loop.time() + UNREAD_SECONDS
        else:
            self._transport.close()


class _HeaderLines:
    """Headers as lines; uvicorn makes a new list when they change."""

    def __init__(self) -> None:
        self._of: list[tuple[bytes, bytes]] = []
        self._lines = b""

    def lines(self, headers: list[tuple[bytes, bytes]]) -> bytes:
        """Those of `headers`."""
        if headers is not self._of:
            self._of, self._lines = headers, header_lines(headers)
        return self._lines


_DATES = _HeaderLines()
