"""The proxy does to connections what it says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.chaos.__main__ import parse
from tests.chaos.proxy import Mode, Proxy

Line = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Echo:
    """A server that repeats lines, and remembers them."""

    def __init__(self) -> None:
        self.callers: list[asyncio.StreamWriter] = []
        self.lines: list[bytes] = []
        self.ended = asyncio.Event()
        self.heard = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            self.lines.append(line)
            self.heard.set()
            writer.write(line)
        self.ended.set()
        writer.close()

    async def called(self, proxy: Proxy) -> Line:
        """A new connection through the proxy."""
        line = await asyncio.open_connection("127.0.0.1", proxy.port)
        self.callers.append(line[1])
        return line


@asynccontextmanager
async def proxied() -> AsyncIterator[tuple[Proxy, Echo]]:
    echo = Echo()
    server = await asyncio.start_server(echo.serve, "127.0.0.1", 0)
    proxy = await Proxy(server.sockets[0].getsockname()[1]).start()
    try:
        yield proxy, echo
    finally:
        await proxy.close()
        for caller in echo.callers:
            caller.close()
            await asyncio.gather(caller.wait_closed(), return_exceptions=True)
        server.close()
        await server.wait_closed()


async def told(line: Line, text: bytes) -> bytes:
    line[1].write(text)
    return await line[0].readline()


async def ends(line: Line) -> bool:
    try:
        return await line[0].read() == b""
    except ConnectionResetError:
        return True


async def test_it_passes_and_it_drops() -> None:
    async with proxied() as (proxy, echo):
        line = await echo.called(proxy)
        assert await told(line, b"one\n") == b"one\n"
        proxy.set(Mode.DROP)
        assert await ends(line)
        assert await ends(await echo.called(proxy))
        proxy.set(Mode.PASS)
        assert await told(await echo.called(proxy), b"two\n") == b"two\n"


@pytest.mark.parametrize("mode", [Mode.STALL, Mode.MUTE])
async def test_what_is_held_back_comes_later_in_order(mode: Mode) -> None:
    async with proxied() as (proxy, echo):
        reader, writer = await echo.called(proxy)
        proxy.set(mode)
        writer.write(b"one\n")
        if mode is Mode.MUTE:
            await echo.heard.wait()
        waiting = asyncio.create_task(reader.readline())
        await asyncio.sleep(0)
        assert not waiting.done()
        writer.write(b"two\n")
        proxy.set(Mode.PASS)
        assert await waiting == b"one\n"
        assert await reader.readline() == b"two\n"


async def test_a_half_closed_connection_ends_for_the_server_only() -> None:
    async with proxied() as (proxy, echo):
        line = await echo.called(proxy)
        assert await told(line, b"one\n") == b"one\n"
        proxy.set(Mode.HALF)
        await echo.ended.wait()
        line[1].write(b"two\n")
        proxy.set(Mode.PASS)
        assert await ends(line)
        assert echo.lines == [b"one\n"]


async def test_a_cut_reply_was_a_done_request() -> None:
    async with proxied() as (proxy, echo):
        line = await echo.called(proxy)
        proxy.cut_replies(1)
        line[1].write(b"one\n")
        assert await ends(line)
        assert (echo.lines, proxy.cuts) == ([b"one\n"], 1)
        assert await told(await echo.called(proxy), b"two\n") == b"two\n"


@pytest.mark.parametrize("words", [["--faults", "0"], ["--faults", "x"], ["--servers", "fake"]])
def test_nonsense_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(words)
    assert ended.value.code == 2
    assert words[0] in capsys.readouterr().err
