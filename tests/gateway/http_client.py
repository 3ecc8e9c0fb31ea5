"""A small HTTP client for tests: it sends what it is told to, also what no library would."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple
from urllib.parse import urlencode


class Answer(NamedTuple):
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class HttpClient:
    """Each request has a connection of its own."""

    def __init__(self, port: int, **headers: str) -> None:
        self.port = port
        self._headers = headers

    async def get(self, path: str, headers: Mapping[str, str] | None = None, **parameters: Any) -> Answer:
        return await self.request("GET", _target(path, parameters), b"", headers)

    async def post(
        self, path: str, body: bytes | str = b"", headers: Mapping[str, str] | None = None
    ) -> Answer:
        return await self.request("POST", path, body if isinstance(body, bytes) else body.encode(), headers)

    async def request(
        self, method: str, target: str, body: bytes, headers: Mapping[str, str] | None = None
    ) -> Answer:
        async with self._sent(method, target, body, headers) as reader:
            status, found = await head_of(reader)
            if method == "HEAD":
                return Answer(status, found, b"")
            if found.get("transfer-encoding") == "chunked":
                return Answer(status, found, b"".join([part async for part in chunks(reader)]))
            return Answer(status, found, await reader.readexactly(int(found.get("content-length", "0"))))

    @asynccontextmanager
    async def streaming(
        self, path: str, headers: Mapping[str, str] | None = None, **parameters: Any
    ) -> AsyncIterator[tuple[Answer, AsyncIterator[bytes]]]:
        """The head of an answer, and the parts of its body as they come."""
        async with self._sent("GET", _target(path, parameters), b"", headers) as reader:
            status, found = await head_of(reader)
            yield Answer(status, found, b""), chunks(reader)

    @asynccontextmanager
    async def _sent(
        self, method: str, target: str, body: bytes, headers: Mapping[str, str] | None
    ) -> AsyncIterator[asyncio.StreamReader]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 26)
        try:
            lines = {
                "host": f"127.0.0.1:{self.port}",
                "connection": "close",
                **self._headers,
                **(headers or {}),
            }
            if (body or method == "POST") and "transfer-encoding" not in lines:
                lines.setdefault("content-length", str(len(body)))
            head = f"{method} {target} HTTP/1.1\r\n" + "".join(f"{n}: {v}\r\n" for n, v in lines.items())
            writer.write(head.encode("latin-1") + b"\r\n" + body)
            yield reader
        finally:
            writer.close()


def _target(path: str, parameters: Mapping[str, Any]) -> str:
    return f"{path}?{urlencode(parameters)}" if parameters else path


async def head_of(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    """Status and headers of an answer."""
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines if line)
    return int(first.split()[1]), {name.lower(): value for name, value in headers.items()}


async def chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """The body of an answer in chunks, as they come."""
    while size := int(await reader.readline(), 16):
        yield await reader.readexactly(size)
        await reader.readexactly(2)
    await reader.readexactly(2)
