"""Webhooks: how many deliveries of one message a gateway makes in a second, and what each costs it.

Each subscription has a topic of its own. Its callback, in this process, publishes the next message to it when
one arrives, past the gateway: so what is measured is the way from the log to an acknowledged callback.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable

import httptools

from streamlease.agent.client import Client

SUBSCRIPTIONS = 256
SECONDS = 5.0
WARM_SECONDS = 2.0
PAYLOAD = b"x" * 100
ANSWER = b"HTTP/1.1 204 No Content\r\n\r\n"


class _Callback(asyncio.Protocol):
    """A kept connection of the gateway."""

    def __init__(self, arrived: Callable[[str], None]) -> None:
        self._arrived = arrived
        self._path = b""
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self._path = url

    def on_message_complete(self) -> None:
        assert self._transport is not None
        self._transport.write(ANSWER)
        self._arrived(self._path[1:].decode())


async def deliveries(
    client: Client, post: Callable[[str, bytes], Awaitable[object]], computed: Callable[[], float]
) -> tuple[float, float, float]:
    """Deliveries a second, the share of a processor that the gateway took, and seconds of it for each.

    Args:
        post: has the gateway take a request.
        computed: the processor time of the gateway.
    """
    loop = asyncio.get_running_loop()
    count, going_on = 0, True
    async with client.publisher() as publisher:

        def arrived(topic: str) -> None:
            nonlocal count
            count += 1
            if going_on:
                waiting.append(topic)
                some.set()

        waiting: list[str] = []
        some = asyncio.Event()

        async def publish() -> None:
            while True:
                await some.wait()
                some.clear()
                topics, waiting[:] = waiting[:], []
                for topic in topics:
                    await publisher.submit(f"bench/hook/{topic}", PAYLOAD)

        server = await loop.create_server(lambda: _Callback(arrived), "127.0.0.1", 0, backlog=1024)
        port = server.sockets[0].getsockname()[1]
        for number in range(SUBSCRIPTIONS):
            wanted = {
                "filter": f"bench/hook/{number}", "callback": f"http://127.0.0.1:{port}/{number}",
                "id": f"bench-{number}", "secret": "bench",
            }  # fmt: skip
            await post("/v1/subscriptions", json.dumps(wanted).encode())
        publishing = asyncio.ensure_future(publish())
        for number in range(SUBSCRIPTIONS):
            arrived(str(number))
        await asyncio.sleep(WARM_SECONDS)
        before, began, first = computed(), time.perf_counter(), count
        await asyncio.sleep(SECONDS)
        done, seconds, used = count - first, time.perf_counter() - began, computed() - before
        going_on = False
        publishing.cancel()
        server.close()
    return done / seconds, used / seconds, used / max(1, done)
