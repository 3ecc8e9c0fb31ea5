"""One request on a connection, and its answer.

An answer that is made at once goes out in one write, head and body, so a client wakes up once for it.
"""

from __future__ import annotations

import asyncio
import http
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from starlette.types import Message

HIGH_WATER = 256 * 1024
"""While so much of a body waits to be taken, no more of it is read."""

STATUS_LINES = {one.value: b"HTTP/1.1 %d %b\r\n" % (one, one.phrase.encode()) for one in http.HTTPStatus}
NO_CONTENT = 204
CLOSE = b"connection: close\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class ClientGone(Exception):
    """The client does not wait for the answer any more."""


class Wire(Protocol):
    """What an exchange wants of its connection."""

    @property
    def dates(self) -> bytes:
        """Header lines of every answer."""
        ...

    def put(self, data: bytes) -> None:
        """Write."""

    async def drained(self) -> None:
        """Wait while the client does not take what was written."""

    def may_read(self) -> None:
        """Some of a body was taken."""

    def answered(self, exchange: HttpExchange) -> None:
        """The answer is complete."""


class HttpExchange:
    """A request, and its answer.

    Args:
        headers: by name in lower case; of several with one name the last.
        bodiless: the answer has no body, as to HEAD.
        keep: whether the connection may be used for another request afterwards.
        expects: whether the client waits for a word before it sends the body.
        chunks: whether it knows chunked bodies, as HTTP/1.0 does not.
    """

    __slots__ = (
        "_bodiless", "_chunked", "_chunks", "_expects", "_gone", "_head", "_news", "_parts", "_wire",
        "begun", "complete", "headers", "held", "keep", "whole",
    )  # fmt: skip

    def __init__(
        self,
        wire: Wire,
        headers: Mapping[bytes, bytes],
        *,
        bodiless: bool,
        keep: bool,
        expects: bool,
        chunks: bool,
    ) -> None:
        self.headers = headers
        self.keep = keep
        self.held = 0
        """Bytes of the body that wait to be taken."""
        self.whole = False
        """The whole body has come."""
        self.begun = False
        """Some of the answer was written."""
        self.complete = False
        """All of the answer was written, or nobody waits for it any more."""
        self._wire = wire
        self._bodiless = bodiless
        self._expects = expects
        self._chunks = chunks
        self._chunked = False
        self._parts: list[bytes] = []
        self._head: Message | None = None
        self._news: asyncio.Future[None] | None = None
        self._gone: asyncio.Future[None] | None = None

    # ------------------------------------------------------------ what comes

    def take(self, part: bytes) -> None:
        """More of the body."""
        self._expects = False
        if not self.complete:
            self._parts.append(part)
            self.held += len(part)
            self._tell()

    def end(self) -> None:
        """That was the whole body."""
        self.whole = True
        self._tell()

    def leave(self) -> None:
        """The client is gone, or has what it wanted."""
        self.complete = True
        self._tell()
        if self._gone is not None and not self._gone.done():
            self._gone.set_result(None)

    def gone(self) -> asyncio.Future[None]:
        """A future that is done when nobody waits for the answer any more."""
        if self._gone is None:
            self._gone = asyncio.get_running_loop().create_future()
            if self.complete:
                self._gone.set_result(None)
        return self._gone

    async def part(self) -> tuple[bytes, bool]:
        """What has come of the body since the last part, perhaps nothing; and whether there is more.

        Raises:
            ClientGone: so it is.
        """
        while not (self._parts or self.whole):
            if self.complete:
                raise ClientGone
            if self._expects:
                self._expects = False
                self._wire.put(CONTINUE)
            self._news = asyncio.get_running_loop().create_future()
            await self._news
        if self.complete:
            raise ClientGone
        body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts.clear()
        was_full, self.held = self.held >= HIGH_WATER, 0
        if was_full:
            self._wire.may_read()
        return body, not self.whole

    def _tell(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    # ------------------------------------------------------------ what goes

    def answer(self, status: int, lines: bytes, body: bytes) -> None:
        """Write a whole answer; whether the client takes it, `drained` waits for.

        Args:
            lines: its headers, without the length.
        """
        if self.complete:
            return
        self.begun = True
        out = b"%b%b%bcontent-length: %d\r\n%b\r\n" % (
            STATUS_LINES[status], self._wire.dates, lines, len(body), b"" if self.keep else CLOSE
        )  # fmt: skip
        self._wire.put(out if self._bodiless else out + body)
        self.leave()
        self._wire.answered(self)

    async def drained(self) -> None:
        """Wait while the client does not take what was written."""
        await self._wire.drained()

    async def send(self, message: Message) -> None:
        """See ASGI; for answers that come in parts."""
        if self.complete:
            return
        if message["type"] == "http.response.start":
            self._head = message
            return
        out = b"" if self.begun else self._begin()
        body: bytes = message.get("body", b"")
        more: bool = message.get("more_body", False) and not self._bodiless
        if self._chunked:
            if body:
                out += b"%x\r\n%b\r\n" % (len(body), body)
            if not more:
                out += b"0\r\n\r\n"
        elif not self._bodiless:
            out += body
        self._wire.put(out)
        if not more:
            self.leave()
            self._wire.answered(self)
        await self._wire.drained()

    def _begin(self) -> bytes:
        assert self._head is not None
        lines = header_lines(self._head["headers"])
        self._bodiless = self._bodiless or self._head["status"] == NO_CONTENT
        if b"content-length:" not in lines and not self._bodiless:
            if self._chunks:
                self._chunked = True
                lines += b"transfer-encoding: chunked\r\n"
            else:
                self.keep = False
        self.begun = True
        end = b"\r\n" if self.keep else CLOSE + b"\r\n"
        return STATUS_LINES[self._head["status"]] + self._wire.dates + lines + end


def header_lines(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Headers as they are written.

    Raises:
        ValueError: one has a line break, and would become two.
    """
    out = []
    for pair in headers:
        line = b"%b: %b" % pair
        if b"\n" in line or b"\r" in line:
            raise ValueError("a header of an answer has a line break")
        out.append(line + b"\r\n")
    return b"".join(out)


def whole_answer(status: int, body: bytes, lines: bytes) -> bytes:
    """An answer after which the connection ends."""
    return b"%b%b%bcontent-length: %d\r\n\r\n%b" % (STATUS_LINES[status], lines, CLOSE, len(body), body)
