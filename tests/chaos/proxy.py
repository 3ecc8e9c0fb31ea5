"""A TCP proxy between one process and Redis that can be told to misbehave.

========== =====================================================================================
``pass``   bytes go through both ways
``drop``   every connection is reset, new ones too
``stall``  connections stay open and nothing goes through; later it does, in order
``mute``   requests reach Redis, replies wait
``half``   the direction towards Redis is closed: Redis has seen the end, the process has not
========== =====================================================================================

`cut_replies` is for single exchanges: the request reaches Redis, Redis answers, and the connection ends
instead of the reply: done, without anybody having said so.
"""

from __future__ import annotations

import asyncio
import contextlib
from enum import StrEnum

CHUNK = 256 * 1024


class Mode(StrEnum):
    """How the proxy treats its connections."""

    PASS = "pass"
    DROP = "drop"
    STALL = "stall"
    MUTE = "mute"
    HALF = "half"


class Proxy:
    """Listens on a free port of 127.0.0.1 and forwards to `port` there."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.StreamWriter, asyncio.StreamWriter] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._forward = asyncio.Event()
        self._reply = asyncio.Event()
        self.mode = Mode.PASS
        self.to_cut = 0
        """How many of the next replies end their connection instead."""
        self.cuts = 0
        """How many did."""

    @property
    def port(self) -> int:
        assert self._server is not None, "the proxy is not started"
        number: int = self._server.sockets[0].getsockname()[1]
        return number

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    async def start(self) -> Proxy:
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        self.set(Mode.PASS)
        return self

    def set(self, mode: Mode) -> None:
        """From now on."""
        was, self.mode = self.mode, mode
        for gate, shut in ((self._forward, {Mode.STALL}), (self._reply, {Mode.STALL, Mode.MUTE})):
            gate.clear() if mode in shut else gate.set()
        if mode is Mode.DROP or was is Mode.HALF:
            self.reset()
        if mode is Mode.HALF:
            for above in self._open.values():
                with contextlib.suppress(OSError, RuntimeError):
                    above.write_eof()

    def cut_replies(self, count: int) -> None:
        """The next `count` replies end their connections."""
        self.to_cut = count

    def reset(self) -> None:
        """End every connection at once."""
        for below, above in list(self._open.items()):
            below.transport.abort()
            above.transport.abort()

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        self.reset()
        for task in list(self._tasks):
            task.cancel()
        while self._open:  # noqa: ASYNC110 - its handlers take their leave, one by one
            await asyncio.sleep(0)

    # ------------------------------------------------------------ inside

    async def _accepted(self, below: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        if self.mode is Mode.DROP:
            back.transport.abort()
            return
        try:
            above, forth = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            back.transport.abort()
            return
        self._open[back] = forth
        pumps = [
            asyncio.create_task(self._pump(below, forth, self._forward, cutting=False)),
            asyncio.create_task(self._pump(above, back, self._reply, cutting=True)),
        ]
        self._tasks.update(pumps)
        try:
            await asyncio.gather(*pumps)
        except (OSError, asyncio.IncompleteReadError):
            pass  # one end is gone, so the other one goes too
        finally:
            for pump in pumps:
                pump.cancel()
                self._tasks.discard(pump)
            self._open.pop(back, None)
            for writer in (back, forth):
                writer.transport.abort()
                await asyncio.gather(writer.wait_closed(), return_exceptions=True)

    async def _pump(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, gate: asyncio.Event, *, cutting: bool
    ) -> None:
        while data := await source.read(CHUNK):
            await gate.wait()
            if self.mode is Mode.HALF and not cutting:
                continue  # nothing gets through any more
            if cutting and self.to_cut > 0:
                self.to_cut -= 1
                self.cuts += 1
                raise ConnectionResetError
            sink.write(data)
            await sink.drain()
        if cutting and self.mode is Mode.HALF:
            await asyncio.Event().wait()  # the process does not learn it until the connections are reset
        raise ConnectionResetError
