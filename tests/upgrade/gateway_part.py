"""What gateways keep in Redis, and what their clients keep of them: webhooks, cursors, the catalog's too."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from streamlease import connect
from streamlease.agent.client import Client
from streamlease.gateway.webhooks.webhook_service import WebhookSettings
from streamlease.streams.redis.connection import ask
from tests.gateway.conftest import running
from tests.gateway.http_client import HttpClient
from tests.gateway.webhooks.receiver import SECRET, Receiver, receiving

SECONDS = 60.0


class Running(NamedTuple):
    """A gateway, a callback, and a client of the same Redis."""

    client: Client
    http: HttpClient
    receiver: Receiver


@asynccontextmanager
async def _gateway(url: str, callback: str | None = None) -> AsyncIterator[Running]:
    """Those; webhooks that were for `callback` are for this callback, which has another port."""
    async with receiving() as receiver, connect(url) as client:
        if callback is not None:
            await _move(client, callback, receiver.url())
        async with running(client, webhooks=WebhookSettings(allow_private=True)) as http:
            yield Running(client, http, receiver)


async def _move(client: Client, before: str, now: str) -> None:
    (keys,) = await ask(client.redis, [("KEYS", "sl:{w:*}:subscriptions")])
    assert keys
    for key in keys:
        (flat,) = await ask(client.redis, [("HGETALL", key)])
        for field, value in zip(flat[::2], flat[1::2], strict=True):
            assert before.encode() in value
            await ask(client.redis, [("HSET", key, field, value.replace(before.encode(), now.encode()))])


async def _publish(client: Client, first: int, count: int) -> None:
    async with client.publisher() as publisher:
        for number in range(first, first + count):
            await publisher.send("a/1", b"%d" % number, key=b"k%d" % (number % 3))


async def write(url: str) -> dict[str, Any]:
    """A webhook that has got five messages, and cursors behind them; there are five more."""
    async with _gateway(url) as (client, http, receiver):
        await client.create_space("s", ["a/#"], streams=2, shard_by="key")
        wanted = {"filter": "a/#", "callback": receiver.url(), "secret": SECRET, "id": "h"}
        answer = await http.post("/v1/subscriptions", json.dumps({**wanted, "since": "earliest"}))
        assert answer.status == 201, answer
        await _publish(client, 0, 5)
        await receiver.until(lambda: len(receiver.acknowledged["h"]) == 5)
        page = (await http.get("/v1/messages", filter="a/#", since="earliest")).json()
        assert len(page["messages"]) == 5
        async with client.catalog("spaces") as catalog:
            done = {"callback": receiver.url(), "cursor": page["next"], "catalog": catalog.at}
    async with connect(url) as client:
        await _publish(client, 5, 5)
        await client.create_space("later", ["later/#"])
    return done


async def read(url: str, done: Any) -> dict[str, Any]:
    """The webhook, what comes to it, and what is there behind the cursors."""
    async with _gateway(url, done["callback"]) as (client, http, receiver):
        done["callback"] = receiver.url()  # where it is now
        webhooks = (await http.get("/v1/subscriptions")).json()["subscriptions"]
        page = (await http.get("/v1/messages", filter="a/#", since=done["cursor"])).json()
        async with asyncio.timeout(SECONDS), client.catalog("spaces", start=done["catalog"]) as catalog:
            change = await anext(catalog)
        await receiver.until(lambda: len(receiver.acknowledged["h"]) == 5)
        return {
            "webhooks": [[one["id"], one["filter"], one["state"]] for one in webhooks],
            "delivered": sorted(receiver.payloads("h"), key=int),
            "since": sorted((one["payload"] for one in page["messages"]), key=int),
            "changes": [[change.item.model_dump(mode="json"), change.diff]],
        }


async def go_on(url: str, done: Any) -> None:
    """One message more comes, to the webhook and behind a cursor."""
    async with _gateway(url, done["callback"]) as (client, http, receiver):
        await _publish(client, 10, 1)
        await receiver.until(lambda: "10" in receiver.payloads("h"))
        assert receiver.payloads("h") == ["10"]
        page = (await http.get("/v1/messages", filter="a/#", since=done["cursor"])).json()
        assert "10" in [one["payload"] for one in page["messages"]]
