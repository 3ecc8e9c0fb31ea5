"""What a program that has callbacks made to it serves: each is handed to its follower."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from streamlease import http


class CallbackServer:
    """Answers as a follower says; 503 while there is none."""

    def __init__(self) -> None:
        self.follower: http.PageFollower | None = None
        self.statuses: list[int] = []
        self._server: asyncio.Server | None = None

    @property
    def port(self) -> int:
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 24)

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A connection may bring one callback after the other."""
        try:
            while True:
                _, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                pairs = (line.split(": ", 1) for line in lines if line)
                headers = {name.lower(): value for name, value in pairs}
                status = await self._taken(headers, await reader.readexactly(int(headers["content-length"])))
                self.statuses.append(status)
                last = headers.get("connection", "").lower() == "close"
                words = b"HTTP/1.1 %d Said\r\nContent-Length: 0\r\n" % status
                writer.write(words + (b"Connection: close\r\n\r\n" if last else b"\r\n"))
                await writer.drain()
                if last:
                    break
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _taken(self, headers: dict[str, str], body: bytes) -> int:
        if self.follower is None:
            return 503
        try:
            await self.follower.receive(headers, body)
        except http.WebhookRefused as refused:
            return refused.status
        return 204


@asynccontextmanager
async def callbacks() -> AsyncIterator[CallbackServer]:
    """A server for callbacks at a free port."""
    server = CallbackServer()
    await server.start()
    try:
        yield server
    finally:
        await server.stop()
