"""What a client sends, read by httptools: heads, and the bodies behind them.

A request that two servers could read in two ways is refused: two lengths, a length beside chunks, malformed
headers, two hosts. An upgrade to another protocol is declined by going on as if it had not been asked for.
What a head may cost is bounded, and so is what surrounds the parts of a chunked body.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import NamedTuple

import httptools

from streamlease.gateway.core.refusals import HeadTooLarge, MalformedRequest, OtherCoding, OtherVersion
from streamlease.gateway.http1.exchange import HttpExchange
from streamlease.protocol.errors import StreamleaseError

MOST_HEAD = 160 * 1024
"""Bytes of request line and headers: a cursor and a key may have 64 KiB each."""

MOST_HEADERS = 200
PART_WORTH = 8
"""A byte of a body makes up for so many bytes around chunks: one in a chunk of its own has five."""

SINGLE = {
    b"authorization",
    b"content-length",
    b"content-type",
    b"host",
    b"idempotency-key",
    b"last-event-id",
    b"origin",
    b"streamlease-key",
    b"transfer-encoding",
}
"""Headers that mean one thing, and may stand in a request once."""


class NextPart(Enum):
    """What comes next from a client."""

    NOTHING = auto()
    """A request, at some time."""
    HEAD = auto()
    BODY = auto()


class RequestHead(NamedTuple):
    """Request line and headers."""

    method: bytes
    path: bytes
    """As it was written, escapes included."""
    query: bytes
    version: str
    headers: list[tuple[bytes, bytes]]
    by_name: dict[bytes, bytes]
    """Of several with one name the last."""
    keeps: bool
    """Whether another request may follow."""


class RequestReader:
    """Reads what comes on one connection.

    Args:
        came: called with each head; it gives the exchange that takes the body.
        ended: called with an exchange whose request has come whole.
    """

    def __init__(
        self, came: Callable[[RequestHead], HttpExchange], ended: Callable[[HttpExchange], None]
    ) -> None:
        self._came = came
        self._ended = ended
        self._parser = httptools.HttpRequestParser(self)
        self.reading = NextPart.NOTHING
        self.receiving: HttpExchange | None = None
        """The one whose body comes now."""
        self.heads = 0
        """How many heads have begun."""
        self._method = b""
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._around = 0
        """Bytes that came since the head began, or, in a body, that are no part of it; about."""
        self._upgrading = False
        self._refusal: StreamleaseError | None = None

    def close(self) -> None:
        """Nothing comes any more."""
        self.receiving = None
        del self._parser  # they hold each other

    def feed(self, data: bytes) -> None:
        """More came.

        Raises:
            MalformedRequest, HeadTooLarge, OtherVersion, OtherCoding: it cannot be taken, nor what follows.
        """
        try:
            self._feed(data)
        except httptools.HttpParserError as error:
            why = " ".join(str(error).split())[:200]
            raise self._refusal or MalformedRequest(f"the request is no HTTP/1.1 ({why}): mend it") from None

    def _feed(self, data: bytes) -> None:
        self._around += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._feed(self._plain_head() + data[upgrade.args[0] :])
            return
        if self._around > MOST_HEAD:
            if self.reading is NextPart.HEAD:
                raise _head_too_large()
            if self.reading is NextPart.BODY:
                raise MalformedRequest("the body has more around its chunks than in them: send larger chunks")

    def _plain_head(self) -> bytes:
        """The head that was read, without its wish to go on in another protocol."""
        lines = [b"%b %b HTTP/%b\r\n" % (self._method, self._url, self._parser.get_http_version().encode())]
        for name, value in self._headers:
            if name not in (b"connection", b"upgrade"):
                lines.append(b"%b: %b\r\n" % (name, value))
        self._parser = httptools.HttpRequestParser(self)
        self._upgrading = False
        return b"".join([*lines, b"connection: close\r\n\r\n"])

    # ------------------------------------------------------------ called by httptools

    def on_message_begin(self) -> None:
        """See httptools, as all that follow."""
        self.reading = NextPart.HEAD
        self.heads += 1
        self._url = b""
        self._headers = []
        self._around = 0

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.reading is NextPart.HEAD:  # what comes behind a body is no header
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self._method = self._parser.get_method()
        if self._parser.should_upgrade() and self._method != b"CONNECT":
            self._upgrading = True
            return
        try:
            head = self._head()
        except StreamleaseError as refusal:
            self._refusal = refusal
            raise
        self.reading = NextPart.BODY
        self._around = 0
        self.receiving = self._came(head)

    def on_body(self, body: bytes) -> None:
        self._around = max(0, self._around - PART_WORTH * len(body))
        if self.receiving is not None:
            self.receiving.take(body)

    def on_message_complete(self) -> None:
        if self._upgrading:
            return
        self.reading = NextPart.NOTHING
        receiving, self.receiving = self.receiving, None
        if receiving is not None:
            receiving.end()
            self._ended(receiving)

    # ------------------------------------------------------------ heads

    def _head(self) -> RequestHead:
        by_name, version = dict(self._headers), self._parser.get_http_version()
        path, _, query = self._url.partition(b"?")
        if path[:1] != b"/" or b"#" in self._url or not self._url.isascii():
            shown = ascii(self._url[:80])[1:]
            raise MalformedRequest(f"the target {shown} is no path: begin it with a slash")
        if len(self._headers) > MOST_HEADERS or (
            self._around > MOST_HEAD  # of which some may be of the body
            and len(self._url) + sum(len(name) + len(value) for name, value in self._headers) > MOST_HEAD
        ):
            raise _head_too_large()
        if len(by_name) != len(self._headers):
            self._check_single(by_name)
        if version not in ("1.1", "1.0"):
            raise OtherVersion(f"the request is of HTTP/{version}: use HTTP/1.1")
        if b"host" not in by_name and version == "1.1":
            raise MalformedRequest("the request has no header Host: send one")
        coding = by_name.get(b"transfer-encoding")
        if coding is not None and (coding.lower() != b"chunked" or version != "1.1"):
            raise OtherCoding(f"the body is coded as {ascii(coding[:80])[1:]}: send it chunked, or plain")
        keeps = self._parser.should_keep_alive()
        return RequestHead(self._method, path, query, version, self._headers, by_name, keeps)

    def _check_single(self, by_name: dict[bytes, bytes]) -> None:
        """Some headers occur twice: none may of those of which another server might take the other one."""
        names = [name for name, _ in self._headers]
        for name in by_name.keys() & SINGLE:
            if names.count(name) > 1:
                raise MalformedRequest(f"the request has several headers {name.decode()}: send one")


def _head_too_large() -> HeadTooLarge:
    return HeadTooLarge(
        f"the request's head has more than {MOST_HEAD} bytes or {MOST_HEADERS} headers: send less"
    )
