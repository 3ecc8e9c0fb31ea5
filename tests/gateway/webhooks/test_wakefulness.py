"""A gateway that stood still sends nothing of what another one may deliver by now, late as it notices."""

from __future__ import annotations

import asyncio

import pytest

from streamlease.gateway.webhooks.callback_lines import CallbackLines, NotAsked
from streamlease.gateway.webhooks.core.callbacks import parse_callback
from streamlease.gateway.webhooks.wakefulness import STOOD_STILL, Wakefulness
from streamlease.gateway.webhooks.webhook_slots import WebhookSlot
from tests.awake import within
from tests.gateway.conftest import Client
from tests.gateway.webhooks.conftest import publish, subscribe
from tests.gateway.webhooks.receiver import Receiver
from tests.gateway.webhooks.test_failing_callbacks import serving

REQUEST = b"POST /hook HTTP/1.1\r\nhost: here\r\ncontent-length: 0\r\n\r\n"


async def test_it_is_asked_again_right_before_the_request_is_sent() -> None:
    """To connect takes time, in which the process may stand still; the connection serves the next request."""
    requests, connections, over = list[bytes](), list[object](), asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        try:
            while True:
                requests.append(await reader.readuntil(b"\r\n\r\n"))
                writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        except (OSError, asyncio.IncompleteReadError):
            writer.close()
            over.set()

    lines = CallbackLines(allow_private=True, seconds=20.0)
    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        callback = parse_callback(f"http://127.0.0.1:{port}/hook", allow_private=True)
        for kept in range(2):
            with pytest.raises(NotAsked):
                await lines.post(callback, REQUEST, suspect=False, still_may=lambda: False)
            assert len(requests) == kept
            assert await lines.post(callback, REQUEST, suspect=False, still_may=lambda: True) == 204
        assert (len(requests), len(connections)) == (2, 1)
        lines.close()
        await over.wait()
        await asyncio.sleep(0)  # the transport ends in the next turn of the loop


async def test_what_was_not_sent_is_delivered_once_that_may_be(
    client: Client, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0
    still_may = WebhookSlot.still_may

    def refused_at_first(slot: WebhookSlot) -> bool:
        nonlocal asked
        asked += 1
        return still_may(slot) and asked > 3

    monkeypatch.setattr(WebhookSlot, "still_may", refused_at_first)
    async with serving(client) as http:
        await publish(http, 10, keys=1)
        await subscribe(http, receiver, since="earliest")
        await receiver.until(lambda: len(receiver.acknowledged["h"]) == 10)
    assert len(receiver.deliveries) == 1 and asked == 4


async def test_it_is_not_known_until_the_next_tick_of_the_agent() -> None:
    wakefulness = Wakefulness()
    wakefulness.tick(0)
    assert wakefulness.is_known()
    await wakefulness.known()
    wakefulness._ticked_at -= 2 * STOOD_STILL
    assert not wakefulness.is_known()
    waiting = asyncio.create_task(wakefulness.known())
    await asyncio.sleep(0)
    assert not waiting.done()
    wakefulness.tick(0)
    async with within(10):
        await waiting
    assert wakefulness.is_known()
