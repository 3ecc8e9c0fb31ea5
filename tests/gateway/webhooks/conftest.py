"""Gateways that deliver to this machine, and a callback."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from streamlease.gateway.webhooks.webhook_service import WebhookSettings
from tests.gateway.conftest import Client, running
from tests.gateway.http_client import Answer, HttpClient
from tests.gateway.webhooks.receiver import SECRET, Receiver, receiving


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as one:
        yield one


@pytest.fixture
async def hooks(client: Client) -> AsyncIterator[HttpClient]:
    """A gateway that may deliver to this machine."""
    await client.create_space("s", ["a/#"], streams=4, shard_by="key")
    async with running(client, webhooks=WebhookSettings(allow_private=True)) as http:
        yield http


async def subscribe(http: HttpClient, receiver: Receiver, /, expected: int = 201, **fields: Any) -> Any:
    wanted = {"filter": "a/#", "callback": receiver.url(), "secret": SECRET, "id": "h", **fields}
    answer = await post(http, wanted)
    assert answer.status == expected, answer
    return answer.json()


async def post(http: HttpClient, wanted: object) -> Answer:
    return await http.post("/v1/subscriptions", json.dumps(wanted))


async def publish(http: HttpClient, count: int, *, topic: str = "a/1", start: int = 0, keys: int = 5) -> None:
    lines = [json.dumps({"payload": str(n), "key": f"k{n % keys}"}) for n in range(start, start + count)]
    answer = await http.post(
        f"/v1/topics/{topic}", "\n".join(lines), {"content-type": "application/x-ndjson"}
    )
    assert answer.status == 201, answer
