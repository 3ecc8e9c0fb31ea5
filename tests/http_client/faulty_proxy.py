"""A proxy between a client and a gateway that does to answers, and to pushes, what networks do, and worse.

It speaks HTTP/1.1 over TCP. Events of a stream are dropped, doubled, held back and let go behind later ones,
or the connection is cut within one. Other answers are delayed, or are cut, or never come although the gateway
has done what was asked. One seed decides it all; `heal` makes it an honest proxy.

Before a callback it lies to the gateway: what is dropped or held back is acknowledged at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import cycle


@dataclass(frozen=True, slots=True)
class Faults:
    """Shares of what is sent, from 0 to 1."""

    drop: float = 0.0
    double: float = 0.0
    hold: float = 0.0
    cut: float = 0.0
    no_answer: float = 0.0
    delay: float = 0.0
    seconds: float = 0.02
    """Of a delay, at most."""


EVERYTHING = Faults(drop=0.1, double=0.1, hold=0.1, cut=0.01, no_answer=0.1, delay=0.2)
HONEST = Faults()


class FaultyProxy:
    """Hands on to `upstream`, a port of this machine; of several, each connection to the next one."""

    def __init__(
        self, upstream: int | Sequence[int], faults: Faults, seed: int, *, callbacks: bool = False
    ) -> None:
        self._upstreams = cycle([upstream] if isinstance(upstream, int) else upstream)
        self._callbacks = callbacks
        self.faults = faults
        self.done = dict.fromkeys(("drop", "double", "hold", "cut", "no_answer", "delay"), 0)
        self._random = random.Random(seed)
        self._something_done = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def heal(self) -> None:
        """From now on it is honest."""
        self.faults = HONEST

    async def has_done(self, what: str, times: int) -> None:
        """Wait until it has."""
        while self.done[what] < times:
            self._something_done.clear()
            await self._something_done.wait()

    def cut_all(self) -> None:
        """End all connections."""
        for task in self._tasks:
            task.cancel()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0, limit=1 << 26)

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        self.cut_all()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    def _happens(self, what: str) -> bool:
        happens = self._random.random() < getattr(self.faults, what)
        self.done[what] += happens
        self._something_done.set()
        return happens

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: writer.close())  # also if it never began

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request for each connection."""
        back: asyncio.StreamWriter | None = None
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            lines = head.split(b"\r\n")
            kept = [line for line in lines if line and not line.lower().startswith(b"connection:")]
            length = next(
                (int(line[15:]) for line in lines if line.lower().startswith(b"content-length:")), 0
            )
            body = await reader.readexactly(length)
            request = b"\r\n".join(kept) + b"\r\nConnection: close\r\n\r\n" + body
            if self._callbacks and await self._lied(request, writer):
                return
            there, back = await asyncio.open_connection("127.0.0.1", next(self._upstreams), limit=1 << 26)
            back.write(request)
            head = await there.readuntil(b"\r\n\r\n")
            if b"text/event-stream" in head:
                await self._events(head, there, writer)
            else:
                await self._answer(head, there, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            ends = [one for one in (writer, back) if one is not None]
            for one in ends:
                one.close()  # all of them before the first wait, which may be cancelled
            for one in ends:
                with contextlib.suppress(OSError):
                    await one.wait_closed()

    async def _lied(self, request: bytes, writer: asyncio.StreamWriter) -> bool:
        """Whether the callback is acknowledged, and not handed on, or later."""
        if self._happens("delay"):
            await asyncio.sleep(self._random.random() * self.faults.seconds)
        if self._happens("double"):
            await self._send_later(request, 0.0)
        drop, hold = self._happens("drop"), self._happens("hold")
        if not (drop or hold):
            return False
        if not drop:
            task = asyncio.ensure_future(self._send_later(request, self.faults.seconds * 3))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        writer.write(b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()
        return True

    async def _send_later(self, request: bytes, seconds: float) -> None:
        await asyncio.sleep(seconds)
        with contextlib.suppress(OSError):
            there, back = await asyncio.open_connection("127.0.0.1", next(self._upstreams), limit=1 << 26)
            try:
                back.write(request)
                await there.read()
            finally:
                back.close()

    async def _answer(self, head: bytes, there: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        whole = head + await there.read()
        if self._happens("no_answer"):
            return
        if self._happens("delay"):
            await asyncio.sleep(self._random.random() * self.faults.seconds)
        if self._happens("cut"):
            whole = whole[: self._random.randrange(len(whole))]
        writer.write(whole)
        await writer.drain()

    async def _events(self, head: bytes, there: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """The blocks of a chunked stream, each as a chunk of its own."""
        writer.write(head)
        held: bytes | None = None
        async for block in _blocks(there):
            if self._happens("drop"):
                continue
            if held is None and self._happens("hold"):
                held = block
                continue
            if self._happens("delay"):
                await asyncio.sleep(self._random.random() * self.faults.seconds)
            if self._happens("cut"):
                writer.write(b"%x\r\n" % len(block) + block[: len(block) // 2])
                return
            for one in (block, block if self._happens("double") else None, held):
                if one is not None:
                    writer.write(b"%x\r\n%b\r\n" % (len(one), one))
            held = None
            await writer.drain()
        writer.write(b"0\r\n\r\n")


async def _blocks(there: asyncio.StreamReader) -> AsyncIterator[bytes]:
    rest = b""
    with contextlib.suppress(asyncio.IncompleteReadError):
        while size := int(await there.readline() or b"0", 16):
            rest += await there.readexactly(size)
            await there.readexactly(2)
            *whole, rest = rest.split(b"\n\n")
            for block in whole:
                yield block + b"\n\n"


@asynccontextmanager
async def between(
    upstream: int | Sequence[int], faults: Faults, seed: int, *, callbacks: bool = False
) -> AsyncIterator[FaultyProxy]:
    """A proxy before what listens at the port `upstream`: gateways, or a callback."""
    proxy = FaultyProxy(upstream, faults, seed, callbacks=callbacks)
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.stop()
