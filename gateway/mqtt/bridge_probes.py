"""Probes and metrics of a bridge, answered on its own event loop::

    GET /healthz   200: the event loop turns
    GET /readyz    200 while the broker has the connection with its subscriptions and Redis takes what comes;
                   503 otherwise, and while the bridge ends; its ``state`` says in words what is missing
    GET /metrics   what Prometheus reads

A bridge that waits for its broker or for Redis is alive and not ready: to start it again would mend nothing.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

from streamlease.protocol.addresses import check_listen_host, shown_address
from streamlease.protocol.errors import InvalidOption
from streamlease.streams.server_sockets import server_socket

REQUEST_SECONDS = 10.0
READY_SECONDS = 2.0
MOST_HEAD = 16 * 1024
REASONS = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}
WORKING = "bridging"

State = Callable[[], Awaitable[str]]
"""What the bridge does now: `WORKING`, or why it does not."""

log = logging.getLogger(__name__)


class BridgeProbes:
    """Answers probes.

    Attributes:
        state: how to ask the bridge, as soon as there is one.
    """

    def __init__(self) -> None:
        self.state: State = _starting

    @classmethod
    @asynccontextmanager
    async def listening(
        cls, host: str, port: int | None, told: Callable[[int], None]
    ) -> AsyncIterator[BridgeProbes]:
        """Probes that are answered until the end of the block.

        Args:
            port: 0 takes a free one; None: nobody wants probes.
            told: gets the port once it is open.

        Raises:
            InvalidOption: the port is out of range, or taken; or `host` is no address.
        """
        probes = cls()
        if port is None:
            yield probes
            return
        check_listen_host(host)
        if not 0 <= port <= 65535:
            raise InvalidOption(f"the port of the metrics is {port}: it must be from 0 to 65535")
        try:
            listener = server_socket(host, port)
        except OSError as error:
            raise InvalidOption(
                f"cannot serve metrics on {shown_address(host, port)} ({error.strerror or error}): "
                f"choose another port, or 0 for a free one"
            ) from None
        server = await asyncio.start_server(probes.serve, sock=listener, limit=MOST_HEAD)
        told(listener.getsockname()[1])
        try:
            yield probes
        finally:
            server.close()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection: one request."""
        try:
            with suppress(OSError, TimeoutError, ValueError, asyncio.IncompleteReadError):
                async with asyncio.timeout(REQUEST_SECONDS):
                    head = await reader.readuntil(b"\r\n\r\n")
                    method, path, _ = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
                    status, kind, body = await self._answer(method, path.partition("?")[0])
                    lines = (
                        f"HTTP/1.1 {status} {REASONS[status]}",
                        f"content-type: {kind}",
                        f"content-length: {len(body)}",
                        "connection: close",
                    )
                    writer.write("".join(f"{line}\r\n" for line in lines).encode() + b"\r\n")
                    writer.write(body if method != "HEAD" else b"")
                    await writer.drain()
        except asyncio.LimitOverrunError:
            log.debug("a request to the probes has a head of more than %d bytes", MOST_HEAD)
        finally:
            writer.close()

    async def _answer(self, method: str, path: str) -> tuple[int, str, bytes]:
        if path not in ("/healthz", "/readyz", "/metrics"):
            return _document(404, {"error": "use /healthz, /readyz or /metrics"})
        if method not in ("GET", "HEAD"):
            return _document(405, {"error": "use GET"})
        if path == "/metrics":
            return 200, CONTENT_TYPE_PLAIN_0_0_4, generate_latest()
        if path == "/healthz":
            return _document(200, {"live": True})
        try:
            async with asyncio.timeout(READY_SECONDS):
                state = await self.state()
        except TimeoutError:
            state = f"Redis gives no answer within {READY_SECONDS:g} s"
        ready = state == WORKING
        return _document(200 if ready else 503, {"live": True, "ready": ready, "state": state})


async def _starting() -> str:
    return "starting"


def _document(status: int, body: dict[str, object]) -> tuple[int, str, bytes]:
    return status, "application/json", json.dumps(body).encode()
