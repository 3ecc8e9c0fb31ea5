"""What comes over a socket, byte by byte: nothing is read in two ways, and nobody holds anything for long."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from streamlease.gateway import http_server
from streamlease.gateway.core.rates import GatewayLimits
from streamlease.gateway.http1 import http_connection, request_reader
from streamlease.gateway.http1.exchange import header_lines
from tests.gateway.conftest import Client, running
from tests.gateway.http_client import HttpClient
from tests.gateway.test_publishing import everything

HOST = b"Host: localhost\r\n"
END = b"Connection: close\r\n"
HIDDEN = b"POST /v1/topics/a/hidden HTTP/1.1\r\nHost: localhost\r\nContent-Length: 6\r\n\r\nhidden"


@pytest.fixture(autouse=True)
async def space(client: Client) -> None:
    await client.create_space("s", ["a/#"])


class Socket:
    """A connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        async with asyncio.timeout(20):
            head = await self._reader.readuntil(b"\r\n\r\n")
            first, *lines = head.decode("latin-1").rstrip().split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in lines)
            body = await self._reader.readexactly(int(headers.get("content-length", "0")))
            return int(first.split()[1]), headers, body

    async def rest(self) -> bytes:
        """All up to the end, which the gateway makes."""
        async with asyncio.timeout(20):
            try:
                return await self._reader.read()
            except ConnectionResetError:
                return b""


@asynccontextmanager
async def connected(http: HttpClient) -> AsyncIterator[Socket]:
    reader, writer = await asyncio.open_connection("127.0.0.1", http.port)
    try:
        yield Socket(reader, writer)
    finally:
        writer.close()


async def exchanged(http: HttpClient, data: bytes) -> bytes:
    """All that is answered until the gateway ends the connection."""
    async with connected(http) as socket:
        socket.send(data)
        return await socket.rest()


async def payloads(client: Client) -> list[str]:
    return [message.payload.decode() for message in await everything(client)]


def post(*headers: bytes, body: bytes = b"", target: bytes = b"/v1/topics/a/1", host: bytes = HOST) -> bytes:
    lines = b"".join(line + b"\r\n" for line in headers)
    return b"POST %b HTTP/1.1\r\n%b%b\r\n%b" % (target, host, lines, body)


AMBIGUOUS = {
    "a length beside chunks": post(
        b"Content-Length: 5", b"Transfer-Encoding: chunked", body=b"0\r\n\r\n" + HIDDEN
    ),
    "chunks beside a length": post(
        b"Transfer-Encoding: chunked", b"Content-Length: 4", body=b"5c\r\n" + HIDDEN + b"\r\n0\r\n\r\n"
    ),
    "two lengths": post(b"Content-Length: 0", b"Content-Length: 6", body=HIDDEN),
    "one length twice": post(b"Content-Length: 1", b"Content-Length: 1", body=b"x" + HIDDEN),
    "a list of lengths": post(b"Content-Length: 0, 6", body=HIDDEN),
    "a length with a sign": post(b"Content-Length: +1", body=b"x" + HIDDEN),
    "a negative length": post(b"Content-Length: -1", body=b"x" + HIDDEN),
    "a length in hexadecimal": post(b"Content-Length: 0x1", body=b"x" + HIDDEN),
    "an endless length": post(b"Content-Length: 99999999999999999999999", body=b"x" + HIDDEN),
    "a space before the colon": post(b"Content-Length : 1", body=b"x" + HIDDEN),
    "a folded header": post(b"X-Folded: a", b" Content-Length: 1", body=b"x" + HIDDEN),
    "a folded coding": post(b"Transfer-Encoding:", b" chunked", body=b"0\r\n\r\n" + HIDDEN),
    "another coding": post(b"Transfer-Encoding: gzip, chunked", body=b"0\r\n\r\n" + HIDDEN),
    "chunks not last": post(b"Transfer-Encoding: chunked, identity", body=b"0\r\n\r\n" + HIDDEN),
    "a coding with a tab": post(b"Transfer-Encoding:\x0bchunked", body=b"0\r\n\r\n" + HIDDEN),
    "two codings": post(b"Transfer-Encoding: chunked", b"Transfer-Encoding: x", body=b"0\r\n\r\n" + HIDDEN),
    "a chunk with a sign": post(b"Transfer-Encoding: chunked", body=b"+1\r\nx\r\n0\r\n\r\n" + HIDDEN),
    "a chunk of no length": post(b"Transfer-Encoding: chunked", body=b"\r\nx\r\n0\r\n\r\n" + HIDDEN),
    "an endless chunk": post(b"Transfer-Encoding: chunked", body=b"f" * 40 + b"\r\nx\r\n" + HIDDEN),
    "a chunk that is longer": post(b"Transfer-Encoding: chunked", body=b"1\r\nxyz\r\n0\r\n\r\n" + HIDDEN),
    "a NUL in a header": post(b"X-A: a\0b", b"Content-Length: 0", body=HIDDEN),
    "a CR in a header": post(b"X-A: a\rContent-Length: 0", body=HIDDEN),
    "two hosts": post(b"Host: evil.example", b"Content-Length: 0", body=HIDDEN),
    "no host": post(b"Content-Length: 0", host=b"", body=HIDDEN),
    "two keys": post(b"Streamlease-Key: a", b"Streamlease-Key: b", b"Content-Length: 0", body=HIDDEN),
    "two idempotency keys": post(b"Idempotency-Key: a", b"Idempotency-Key: b", b"Content-Length: 0"),
    "a whole address": post(b"Content-Length: 0", target=b"http://localhost/v1/topics/a/1", body=HIDDEN),
    "another host's address": post(b"Content-Length: 0", target=b"http://evil.example/v1/topics/a/1"),
    "a fragment": post(b"Content-Length: 0", target=b"/v1/topics/a/1#b", body=HIDDEN),
    "a NUL in the target": post(b"Content-Length: 0", target=b"/v1/topics/a\0/1", body=HIDDEN),
    "a byte in the target": post(b"Content-Length: 0", target=b"/v1/topics/a\xff/1", body=HIDDEN),
    "a space in the target": post(b"Content-Length: 0", target=b"/v1/topics/a 1", body=HIDDEN),
    "a tunnel": b"CONNECT localhost:80 HTTP/1.1\r\n" + HOST + b"\r\n" + HIDDEN,
    "all of the server": b"OPTIONS * HTTP/1.1\r\n" + HOST + b"\r\n" + HIDDEN,
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + HIDDEN,
    "version 2": b"POST /v1/topics/a/1 HTTP/2.0\r\n" + HOST + b"\r\n" + HIDDEN,
    "no version": b"GET /healthz\r\n\r\n" + HIDDEN,
    "chunks in 1.0": b"POST /v1/topics/a/1 HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
    "a lone line feed": b"POST /v1/topics/a/1 HTTP/1.1\n" + HOST + b"Content-Length: 0\n\n" + HIDDEN,
    "no request": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + HIDDEN,
    "an unknown method": b"BREW /v1/topics/a/1 HTTP/1.1\r\n" + HOST + b"\r\n" + HIDDEN,
}  # fmt: skip


@pytest.mark.parametrize("request_bytes", AMBIGUOUS.values(), ids=AMBIGUOUS.keys())
async def test_what_could_be_read_in_two_ways_is_refused_and_nothing_behind_it_is_read(
    client: Client, gateway: HttpClient, request_bytes: bytes
) -> None:
    answered = await exchanged(gateway, request_bytes)
    assert answered[:10] in (b"HTTP/1.1 4", b"HTTP/1.1 5"), answered
    assert answered[9:12] in (b"400", b"405", b"501", b"505"), answered
    assert answered.count(b"content-type: ") == 1, answered
    assert b"application/problem+json" in answered and b"connection: close" in answered
    assert json.loads(answered.partition(b"\r\n\r\n")[2])["detail"]
    assert await payloads(client) == []
    assert (await gateway.get("/healthz")).status == 200


async def test_trailers_are_no_headers(client: Client, gateway: HttpClient) -> None:
    body = b"1\r\nx\r\n0\r\nStreamlease-Key: k\r\nIdempotency-Key: i\r\nAuthorization: Bearer x\r\n\r\n"
    answered = await exchanged(gateway, post(b"Transfer-Encoding: chunked", b"Connection: close", body=body))
    assert answered.startswith(b"HTTP/1.1 201")
    (message,) = await everything(client)
    assert (message.payload, message.key) == (b"x", None)


@pytest.mark.parametrize("upgrade", [b"h2c", b"websocket"])
@pytest.mark.parametrize("chunked", [False, True])
async def test_an_upgrade_is_declined_and_the_body_is_still_a_body(
    client: Client, gateway: HttpClient, upgrade: bytes, chunked: bool
) -> None:
    """As clients of Java and curl send requests that may go on in HTTP/2."""
    asking = (b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: " + upgrade, b"HTTP2-Settings: AAMAAABkAAQ")
    length = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: 6"
    body = b"6\r\nlanded\r\n0\r\n\r\n" if chunked else b"landed"
    whole = post(*asking, length, body=body)
    for place in (len(whole), len(whole) - len(body), len(whole) - 3):
        async with connected(gateway) as socket:
            socket.send(whole[:place])
            await asyncio.sleep(0.01)  # so that it comes in two reads
            socket.send(whole[place:])
            assert (await socket.answer())[0] == 201
            assert await socket.rest() == b""
    assert await payloads(client) == ["landed"] * 3


async def test_requests_behind_each_other_are_answered_in_order(client: Client, gateway: HttpClient) -> None:
    async with connected(gateway) as socket:
        socket.send(
            b"".join(post(b"Content-Length: 1", body=b"%d" % n) for n in range(9))
            + post(b"Transfer-Encoding: chunked", body=b"1\r\n9\r\n0\r\n\r\n")
            + b"GET /nowhere HTTP/1.1\r\n" + HOST + b"\r\n"
            + b"HEAD /healthz HTTP/1.1\r\n" + HOST + b"\r\n"
        )  # fmt: skip
        answers = [await socket.answer() for _ in range(11)]
        assert [json.loads(body)["offset"] for status, _, body in answers[:10]] == [*range(10)]
        assert answers[10][0] == 404
        assert (await socket._reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")  # has no body
        socket.send(post(b"Content-Length: 2", END.strip(), body=b"10") + HIDDEN)
        assert (await socket.answer())[0] == 201
        assert await socket.rest() == b""
    assert await payloads(client) == [str(n) for n in range(11)]


async def test_what_is_malformed_behind_a_request_is_told_behind_its_answer(
    client: Client, gateway: HttpClient
) -> None:
    answered = await exchanged(gateway, post(b"Content-Length: 1", body=b"x") + b"\0\0\r\n\r\n" + HIDDEN)
    first, _, second = answered.partition(b"}HTTP/1.1 ")
    assert first.startswith(b"HTTP/1.1 201") and second.startswith(b"400")
    broken = post(b"Transfer-Encoding: chunked", body=b"2\r\nab\r\nzz\r\n")
    answered = await exchanged(gateway, post(b"Content-Length: 1", body=b"y") + broken)
    first, _, second = answered.partition(b"}HTTP/1.1 ")
    assert first.startswith(b"HTTP/1.1 201") and second.startswith(b"400")
    assert await payloads(client) == ["x", "y"]


async def test_a_client_may_wait_for_a_word_before_it_sends_a_body(
    client: Client, gateway: HttpClient
) -> None:
    async with connected(gateway) as socket:
        socket.send(post(b"Content-Length: 1", b"Expect: 100-continue"))
        assert (await socket.answer())[0] == 100
        socket.send(b"x")
        assert (await socket.answer())[0] == 201
        socket.send(post(b"Content-Length: 99999999", b"Expect: 100-continue"))
        assert (await socket.answer())[0] == 413  # without a word


@pytest.mark.parametrize("size", [20_000, 3_000_000])
async def test_a_body_that_is_refused_may_be_sent_to_its_end(client: Client, size: int) -> None:
    async with running(client, limits=GatewayLimits(body_bytes=10_000)) as http, connected(http) as socket:
        socket.send(post(b"Content-Length: %d" % size))
        status, headers, _ = await socket.answer()
        assert (status, headers.get("connection")) == (413, None)
        socket.send(b"x" * size + post(b"Content-Length: 1", body=b"x"))
        assert (await socket.answer())[0] == 201
        chunk = b"%x\r\n%b\r\n" % (9_000, b"x" * 9_000)
        socket.send(post(b"Transfer-Encoding: chunked", body=chunk + chunk))
        assert (await socket.answer())[0] == 413


async def test_old_clients_are_answered_in_their_way(client: Client, gateway: HttpClient) -> None:
    answered = await exchanged(
        gateway, b"POST /v1/topics/a/1 HTTP/1.0\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nx" + HIDDEN
    )
    assert answered.startswith(b"HTTP/1.1 201") and b"connection: close" in answered
    async with connected(gateway) as socket:
        socket.send(b"GET /v1/events?filter=a/%23&since=earliest HTTP/1.0\r\nHost: localhost\r\n\r\n")
        _, headers, _ = await socket.answer()
        assert "transfer-encoding" not in headers and headers["connection"] == "close"
        async with asyncio.timeout(20):
            assert b"\ndata: {" in await socket._reader.readuntil(b"}\n\n")


async def test_head_of_what_has_no_end_ends(gateway: HttpClient) -> None:
    async with connected(gateway) as socket:
        for _ in range(2):
            socket.send(b"HEAD /v1/events?filter=a/1 HTTP/1.1\r\n" + HOST + b"\r\n")
            status, headers, _ = await socket.answer()
            assert (status, headers["content-type"]) == (200, "text/event-stream")


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET /" + b"x" * 2 * request_reader.MOST_HEAD + b" HTTP/1.1\r\n" + HOST + b"\r\n", 431),
        (b"GET / HTTP/1.1\r\n" + HOST + b"X: " + b"x" * 2 * request_reader.MOST_HEAD, 431),
        (b"GET / HTTP/1.1\r\n" + HOST + b"X: x\r\n" * 100_000, 431),
        (b"GET / HTTP/1.1\r\n" + HOST + b"".join(b"X%d: x\r\n" % n for n in range(300)) + b"\r\n", 431),
        (post(b"Transfer-Encoding: chunked", body=b"1;" + b"x" * 2 * request_reader.MOST_HEAD), 400),
        (post(b"Transfer-Encoding: chunked", body=b"1;xxxxxxxxxxxxxxxxxxxx\r\nx\r\n" * 50_000), 400),
        (post(b"Transfer-Encoding: chunked", body=b"0\r\n" + b"X: x\r\n" * 100_000), 400),
    ],
)
async def test_heads_and_what_is_around_chunks_are_bounded(
    gateway: HttpClient, data: bytes, status: int
) -> None:
    async with connected(gateway) as socket:
        for place in range(0, len(data), 60_000):
            socket.send(data[place : place + 60_000])
            await asyncio.sleep(0)
        assert (await socket.answer())[0] == status


async def test_small_chunks_are_no_excess(client: Client, gateway: HttpClient) -> None:
    async with connected(gateway) as socket:
        socket.send(post(b"Transfer-Encoding: chunked", body=b"1\r\nx\r\n" * 100_000 + b"0\r\n\r\n"))
        assert (await socket.answer())[0] == 201
    assert await payloads(client) == ["x" * 100_000]


@pytest.mark.parametrize(
    "data",
    [b"GET /healthz HTTP/1.1\r\nHost: loc", post(b"Content-Length: 10", body=b"x"), b"P"],
    ids=["head", "body", "byte"],
)
async def test_who_sends_too_slowly_is_told_and_let_go(
    gateway: HttpClient, monkeypatch: pytest.MonkeyPatch, data: bytes
) -> None:
    monkeypatch.setattr(http_connection, "HEAD_SECONDS", 0.1)
    monkeypatch.setattr(http_connection, "BODY_SECONDS", 0.1)
    answered = await exchanged(gateway, data)
    assert answered.startswith(b"HTTP/1.1 408") and b"/too-slow" in answered


async def test_a_connection_without_requests_is_let_go(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "IDLE_SECONDS", 0.3)
    async with running(client) as http, connected(http) as socket:
        socket.send(b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n")
        assert (await socket.answer())[0] == 200
        assert await socket.rest() == b""


async def test_who_takes_nothing_is_let_go(
    client: Client, gateway: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_connection, "STUCK_SECONDS", 0.1)
    async with client.publisher() as publisher:
        for _ in range(20):
            await publisher.send("a/1", b"x" * 1_000_000)
    async with connected(gateway) as socket:
        socket._reader._transport.pause_reading()  # type: ignore[attr-defined]
        for _ in range(10):
            socket.send(b"GET /v1/messages?filter=a/1&since=earliest HTTP/1.1\r\n" + HOST + b"\r\n")
        async with asyncio.timeout(20):
            while not socket._writer.transport.is_closing():
                socket.send(b"GET ")
                await asyncio.sleep(0.01)


def test_a_header_of_an_answer_cannot_become_two() -> None:
    for value in (b"a\r\nx-evil: 1", b"a\nb", b"a\rb"):
        with pytest.raises(ValueError, match="line break"):
            header_lines([(b"x", value)])
