"""A proxy before a server that speaks S3, which does to chosen requests what stores and networks do.

::

    client --> proxy --> store
               REFUSED    503, and nothing is done
               CUT        the connection breaks in the middle of the request, and nothing is done
               STALLED    no answer until the client gives up; nothing is done
               LATE       the same, and then it is done all the same
               UNANSWERED it is done, and the connection breaks in place of the answer
               TRUNCATED  the store gets half of what is uploaded, and all seems well
"""

from __future__ import annotations

import http.client
import re
import select
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import NamedTuple
from urllib.parse import urlsplit


class Fault(Enum):
    """What becomes of a request."""

    REFUSED = "refused"
    CUT = "cut"
    STALLED = "stalled"
    LATE = "late"
    UNANSWERED = "unanswered"
    TRUNCATED = "truncated"


_CHANGES = re.compile(
    r"^\d{5,}-.*(?=\.(parquet|metadata))|[0-9a-f]{8,}(-[0-9a-f]+)*(?=-m)|(?<=snap-).*(?=\.)"
)


class Request(NamedTuple):
    """What a client asks for."""

    method: str
    target: str

    @property
    def kind(self) -> str:
        """Without what is different each time, such as ``PUT *.parquet?partNumber&uploadId``."""
        path, _, query = self.target.partition("?")
        name = _CHANGES.sub("*", path.rpartition("/")[2])
        asked = "&".join(sorted(part.partition("=")[0] for part in query.split("&") if part))
        return f"{self.method} {name}" + (f"?{asked}" if asked else "")


Chosen = Callable[[Request], Fault | None]


def no_fault(request: Request) -> Fault | None:
    """For a store that works."""
    return None


class FaultyStore:
    """A store behind the proxy."""

    def __init__(self, behind: str) -> None:
        self.behind = urlsplit(behind)
        self.choose: Chosen = no_fault
        self.seen: list[Request] = []
        self.met: list[tuple[Request, Fault]] = []
        self.lock = Lock()
        self.url = ""

    @contextmanager
    def failing(self, choose: Chosen) -> Iterator[None]:
        """With faults, until the end of the block."""
        self.choose = choose
        try:
            yield
        finally:
            self.choose = no_fault


@contextmanager
def faulty_store(behind: str) -> Iterator[FaultyStore]:
    """A proxy before the store at the address `behind`."""
    store = FaultyStore(behind)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"store": store}))
    server.daemon_threads = True
    store.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield store
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    store: FaultyStore
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""

    def _any(self) -> None:
        request = Request(self.command, self.path)
        store = self.store
        with store.lock:
            store.seen.append(request)
            fault = store.choose(request)
            if fault is not None:
                store.met.append((request, fault))
        if fault is Fault.CUT:
            self.rfile.read(min(1, int(self.headers.get("Content-Length") or 1)))
            self._break()
            return
        body = self._content()
        match fault:
            case Fault.REFUSED:
                self._answer(503, [("Content-Type", "application/xml")], _SLOW_DOWN)
            case Fault.STALLED:
                self._until_given_up()
            case Fault.LATE:
                self._until_given_up()
                self._asked(body)
            case Fault.UNANSWERED:
                self._asked(body)
                self._break()
            case Fault.TRUNCATED:
                self._answer(*self._asked(body, half=True))
            case _:
                self._answer(*self._asked(body))

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _any

    def _content(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        found = b""
        while size := int(self.rfile.readline(100), 16):
            found += self.rfile.read(size)
            self.rfile.readline(2)
        while self.rfile.readline(1000).strip():
            continue
        return found

    def _asked(self, body: bytes, *, half: bool = False) -> tuple[int, list[tuple[str, str]], bytes]:
        """What the store answers."""
        behind = self.store.behind
        assert behind.hostname is not None
        connection = http.client.HTTPConnection(behind.hostname, behind.port, timeout=60)
        try:
            headers = {
                name.lower(): value
                for name, value in self.headers.items()
                if name.lower() not in ("connection", "content-length", "expect", "transfer-encoding")
            }
            if half:
                # A frame: the size in hexadecimal, the content, and behind it a checksum.
                size, content = body.split(b"\r\n", 1)
                assert headers["content-encoding"] == "aws-chunked"
                content = content[: int(size, 16)]
                content = content[: len(content) // 2]
                body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(content), content)
                headers["x-amz-decoded-content-length"] = str(len(content))
                del headers["x-amz-trailer"]
            headers["content-length"] = str(len(body))
            connection.request(self.command, self.path, body, headers)
            reply = connection.getresponse()
            content = reply.read()
            own = {"connection", "transfer-encoding", "server", "date"}
            own |= set() if self.command == "HEAD" else {"content-length"}
            return reply.status, [pair for pair in reply.getheaders() if pair[0].lower() not in own], content
        finally:
            connection.close()

    def _answer(self, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        if self.command != "HEAD":
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _until_given_up(self) -> None:
        """Wait until the client closes the connection."""
        self.close_connection = True
        while True:
            readable, _, _ = select.select([self.connection], [], [], 60)
            if not readable or not self.connection.recv(1, socket.MSG_PEEK):
                return

    def _break(self) -> None:
        """Reset the connection."""
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.shutdown(socket.SHUT_RD)


_SLOW_DOWN = (
    b"<?xml version='1.0' encoding='UTF-8'?><Error><Code>SlowDown</Code>"
    b"<Message>Reduce your request rate.</Message><RequestId>1</RequestId></Error>"
)
