"""Callbacks that fail: pauses, suspension, and what that costs the others."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from streamlease.gateway.webhooks.core.webhook_standing import Patience
from streamlease.gateway.webhooks.webhook_service import WebhookSettings
from streamlease.streams.spaces.retention import Retention, Trim
from streamlease.streams.spaces.retention import trim as remove
from tests.awake import awake
from tests.gateway.conftest import Client, running
from tests.gateway.http_client import HttpClient
from tests.gateway.webhooks.conftest import post, publish, subscribe
from tests.gateway.webhooks.receiver import SECRET, Delivered, Receiver
from tests.gateway.webhooks.test_webhooks import check_whole

QUICKLY = Patience(first_pause_ms=20, longest_pause_ms=80, suspend_after_ms=1000)


@asynccontextmanager
async def serving(client: Client, **settings: Any) -> AsyncIterator[HttpClient]:
    await client.create_space("s", ["a/#"], streams=4, shard_by="key")
    chosen = {"allow_private": True, "patience": QUICKLY, "seconds": 5.0, **settings}
    async with running(client, webhooks=WebhookSettings(**chosen)) as http:
        yield http


async def shown(http: HttpClient, id: str = "h") -> Any:
    answer = await http.get(f"/v1/subscriptions/{id}")
    assert answer.status == 200, answer
    return answer.json()


async def until(http: HttpClient, condition: Callable[[Any], bool], id: str = "h") -> Any:
    async with asyncio.timeout(60):
        while not condition(found := await shown(http, id)):
            pass
    return found


ANSWERS: list[tuple[int | bytes | None, str, str]] = [
    (500, "callback-status", "it answered 500 Internal Server Error"),
    (404, "callback-status", "404 Not Found"),
    (b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/x\r\ncontent-length: 0\r\n\r\n", "callback-status",
     "redirects are not followed"),
    (b"HTTP/1.1 299x\r\n\r\n", "callback-malformed", "no HTTP"),
    (b"SSH-2.0-OpenSSH\r\n", "callback-malformed", "no HTTP"),
    (b"HTTP/1.1 200 OK\r\n" + b"x: " + b"y" * 70_000, "callback-malformed", "headers"),
    (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 503 X\r\ncontent-length: 0\r\n\r\n", "callback-status", "503"),
    (None, "callback-timeout", "within 0.3 s"),
]  # fmt: skip


@pytest.mark.parametrize(("answer", "error", "told"), ANSWERS)
async def test_whatever_is_no_success_is_tried_again_and_told(
    client: Client, receiver: Receiver, answer: int | bytes | None, error: str, told: str
) -> None:
    async with serving(client, seconds=0.3, patience=Patience(20, 80, 60_000)) as http:
        receiver.answer = lambda _: answer
        await publish(http, 3, keys=1)
        await subscribe(http, receiver, since="earliest")
        found = await until(http, lambda shown: shown["failures"] >= 2)
        assert found["state"] == "failing" and found["again_at"] > found["failing_since"]
        assert found["trouble"]["error"] == error and told in found["trouble"]["detail"].replace(
            "the callback", "it"
        )
        assert "oldest" not in found["trouble"] and found["delivered"] == 0
        receiver.answer = lambda _: 204
        await receiver.until(lambda: len(receiver.acknowledged["h"]) == 3)
        check_whole(receiver.acknowledged["h"], 3)
        found = await until(http, lambda shown: shown["state"] == "active" and shown["delivered"] == 3)
        assert (found["failures"], found["trouble"], found["again_at"]) == (0, None, None)


SUCCESSES = [
    b"HTTP/1.1 204 No Content\r\n\r\n", b"HTTP/1.0 200 OK\r\n\r\nclosed behind it",
    b"HTTP/1.1 202 X\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok",
    b"HTTP/1.1 200 OK\r\ncontent-length: 10000000\r\n\r\n" + b"x" * 100_000,
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
    b"HTTP/1.1 204 No Content\r\n\r\nand something that does not belong there",
]  # fmt: skip


@pytest.mark.parametrize("answer", SUCCESSES)
async def test_each_way_to_say_yes(client: Client, receiver: Receiver, answer: bytes) -> None:
    """Also with a body that never ends: no more than a little of it is read."""
    async with serving(client) as http:
        receiver.answer = lambda _: answer
        receiver.closes = b"closed" in answer
        await subscribe(http, receiver, since="earliest")
        for number in range(3):
            await publish(http, 1, start=number, keys=1)
            await until(http, lambda shown, wanted=number + 1: shown["delivered"] == wanted)
        assert receiver.payloads("h") == ["0", "1", "2"]


async def test_a_callback_that_is_dead_is_suspended_and_goes_on_when_it_is_asked_for_again(
    client: Client, receiver: Receiver
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        dead = f"http://127.0.0.1:{listener.getsockname()[1]}/"
    async with serving(client) as http:
        await publish(http, 10, keys=1)
        await subscribe(http, receiver, callback=dead, since="earliest")
        found = await until(http, lambda shown: shown["state"] == "suspended")
        assert found["trouble"]["error"] == "callback-unreachable" and found["failures"] >= 3
        assert found["again_at"] is None
        metrics = (await http.get("/metrics")).body.decode()
        assert 'streamlease_webhook_failures_total{kind="callback-unreachable"}' in metrics
        assert 'streamlease_webhooks{state="suspended"}' in metrics
        await publish(http, 10, start=10, keys=1)
        assert receiver.deliveries == []
        again = await subscribe(http, receiver, since="earliest")
        assert (again["state"], again["next"], again["trouble"]) == ("active", found["next"], None)
        await receiver.until(lambda: len(receiver.acknowledged["h"]) == 20)
        check_whole(receiver.acknowledged["h"], 20)


async def test_gone_means_that_no_more_is_wanted(client: Client, receiver: Receiver) -> None:
    async with serving(client) as http:
        receiver.answer = lambda _: 410
        await publish(http, 1)
        await subscribe(http, receiver, since="earliest")
        found = await until(http, lambda shown: shown["state"] == "suspended")
        assert "410 Gone" in found["trouble"]["detail"] and len(receiver.deliveries) == 1
        receiver.answer = lambda _: 200
        await subscribe(http, receiver, since="earliest")
        await receiver.until(lambda: len(receiver.acknowledged["h"]) == 1)


async def test_after_a_failure_one_message_is_tried_and_then_all(client: Client, receiver: Receiver) -> None:
    async with serving(client) as http:
        receiver.answer = lambda one: 500 if len(receiver.deliveries) <= 2 else 200
        await publish(http, 50, keys=1)
        await subscribe(http, receiver, since="earliest")
        await receiver.until(lambda: len(receiver.acknowledged["h"]) == 50)
        assert [len(one.body["messages"]) for one in receiver.deliveries] == [50, 1, 1, 49]


async def test_dead_callbacks_cost_the_others_nothing(client: Client, receiver: Receiver) -> None:
    """Three hundred hang until their time is over, more than there are places for such."""

    def answer(one: Delivered) -> int | None:
        return None if one.path == "/dead" else 200

    async with serving(client, seconds=5.0, patience=Patience(20, 80, 60_000)) as http:
        receiver.answer = answer
        for number in range(300):
            await subscribe(http, receiver, id=f"dead{number}", callback=receiver.url("/dead"))
        await publish(http, 1)
        await receiver.until(lambda: len(receiver.deliveries) >= 256)
        await subscribe(http, receiver)
        for number in range(1, 20):
            with awake() as clock:
                await publish(http, 1, start=number)
                await receiver.until(lambda wanted=number: len(receiver.acknowledged["h"]) == wanted)
            assert clock.seconds < 4  # none has waited for one of those, which take five seconds
        dead = await shown(http, "dead7")
        assert dead["delivered"] == 0


async def test_what_retention_took_meanwhile_is_told_and_never_passed_over(
    client: Client, receiver: Receiver
) -> None:
    async with serving(client) as http:
        receiver.answer = lambda _: 500
        await publish_hundred(http)
        wanted = {
            "filter": "a/#",
            "callback": receiver.url(),
            "secret": SECRET,
            "id": "h",
            "since": "earliest",
        }
        assert (await post(http, wanted)).status == 201
        await until(http, lambda shown: shown["state"] == "suspended")
        await trim(client, 40)
        found = await shown(http)
        assert (found["state"], found["trouble"]["error"]) == ("suspended", "history-truncated")
        receiver.answer = lambda _: 200
        refused = await post(http, wanted)
        assert (refused.status, refused.json()["oldest"]) == (410, found["trouble"]["oldest"])
        assert (await shown(http))["state"] == "suspended"
        receiver.deliveries.clear()
        assert (await post(http, {**wanted, "since": found["trouble"]["oldest"]})).status == 201
        await receiver.until(lambda: len(receiver.acknowledged["h"]) == 40)
        assert receiver.payloads("h") == [str(number) for number in range(60, 100)]


async def test_retention_that_overtakes_a_failing_one_suspends_it(client: Client, receiver: Receiver) -> None:
    async with serving(client, patience=Patience(20, 80, 600_000)) as http:
        receiver.answer = lambda _: 500
        await publish_hundred(http)
        await subscribe(http, receiver, since="earliest")
        await until(http, lambda shown: shown["failures"] > 1)
        await trim(client, 40)
        receiver.answer = lambda _: 200
        found = await until(http, lambda shown: shown["state"] == "suspended")
        assert found["trouble"]["error"] == "history-truncated" and found["trouble"]["oldest"]
        assert receiver.acknowledged["h"] == []


async def trim(client: Client, left: int) -> None:
    """What retention does."""
    space = await client.spaces.get("s")
    for stream, next in (await client.next_offsets(space.streams())).items():
        if next:
            await remove(client.redis, Trim(stream, Retention(messages=left), next))


async def publish_hundred(http: HttpClient) -> None:
    """In ten entries: retention takes whole ones."""
    for start in range(0, 100, 10):
        await publish(http, 10, start=start, keys=1)
