"""A callback: an HTTP server that checks and keeps what is delivered to it."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

SECRET = "top secret: \u00e9\U0001f984"


class Delivered(NamedTuple):
    """One request."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    connection: int

    @property
    def payloads(self) -> list[str]:
        return [message["payload"] for message in self.body["messages"]]


class Receiver:
    """Answers what `answer` says: a status, or bytes to send as they are; None: nothing, ever."""

    def __init__(self) -> None:
        self.port = 0
        self.deliveries: list[Delivered] = []
        self.acknowledged: defaultdict[str, list[Any]] = defaultdict(list)
        """By subscription, the messages that were answered with 2xx."""
        self.answer: Callable[[Delivered], int | bytes | None] = lambda _: 200
        self.secret = SECRET
        self.connections = 0
        self.closes = False
        """Whether it closes each connection behind its answer."""
        self._changed = asyncio.Event()

    def url(self, path: str = "/hook", host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"

    def payloads(self, id: str) -> list[str]:
        """All that came for a subscription, as often as it came."""
        return [p for one in self.deliveries if one.body["subscription"] == id for p in one.payloads]

    async def until(self, condition: Callable[[], bool], seconds: float = 60.0) -> None:
        async with asyncio.timeout(seconds):
            while not condition():
                self._changed.clear()
                await self._changed.wait()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        number = self.connections
        try:
            while True:
                first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                headers = {n.lower(): v for n, v in (line.split(": ", 1) for line in lines if line)}
                raw = await reader.readexactly(int(headers["content-length"]))
                path = first.split()[1]
                signature = hmac.new(self.secret.encode(), raw, hashlib.sha256).hexdigest()
                assert headers["streamlease-signature"] == f"sha256={signature}", headers
                one = Delivered(path, headers, json.loads(raw), number)
                assert headers["streamlease-subscription"] == one.body["subscription"]
                self.deliveries.append(one)
                answer = self.answer(one)
                if isinstance(answer, int):
                    if 200 <= answer < 300:
                        self.acknowledged[one.body["subscription"]] += one.body["messages"]
                    answer = f"HTTP/1.1 {answer} X\r\ncontent-length: 2\r\n\r\nok".encode()
                self._changed.set()
                if answer is None:
                    await asyncio.Event().wait()
                else:
                    writer.write(answer)
                if self.closes:
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def receiving() -> AsyncIterator[Receiver]:
    """A receiver on a port of its own."""
    receiver = Receiver()
    failed: list[BaseException] = []
    tasks: set[asyncio.Task[None]] = set()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(receiver.serve(reader, writer))
        tasks.add(task)

        def done(task: asyncio.Task[None]) -> None:
            tasks.discard(task)
            if not task.cancelled() and task.exception() is not None:
                failed.append(task.exception())  # type: ignore[arg-type]

        task.add_done_callback(done)

    server = await asyncio.start_server(connected, "127.0.0.1", 0, backlog=2048, limit=1 << 24)
    receiver.port = server.sockets[0].getsockname()[1]
    try:
        yield receiver
    finally:
        server.close()
        for task in [*tasks]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert failed == []
