"""What Redis keeps of a webhook, and is damaged, or of a later version."""

from __future__ import annotations

import json
from typing import Any

import pytest

from streamlease.gateway.webhooks.core.subscribing_forms import parse_standing, standing_json
from streamlease.gateway.webhooks.core.webhook_standing import WebhookStanding
from streamlease.gateway.webhooks.kept_webhooks import read_webhook
from streamlease.gateway.webhooks.webhook_service import WebhookSettings
from streamlease.protocol.errors import Unsupported
from streamlease.registry.webhooks.webhook_records import WebhookName, WebhookRecord
from streamlease.streams.redis.connection import ask
from tests.gateway.conftest import Client, running
from tests.gateway.http_client import HttpClient
from tests.gateway.webhooks.conftest import publish, subscribe
from tests.gateway.webhooks.receiver import Receiver

DEFINITION: dict[str, Any] = {"filter": "a/#", "callback": "http://x/", "secret": "s" * 16, "since": None}


@pytest.mark.parametrize(
    ("definition", "standing"),
    [
        (b"\xff", b'{"position": "c"}'),
        (b"{", b'{"position": "c"}'),
        (b"[]", b'{"position": "c"}'),
        (json.dumps({**DEFINITION, "filter": 7}).encode(), b'{"position": "c"}'),
        (json.dumps(DEFINITION).encode(), b"{}"),
        (json.dumps(DEFINITION).encode(), b"\xff"),
        (json.dumps(DEFINITION).encode(), b"[]"),
        (json.dumps(DEFINITION).encode(), b'{"position": 7}'),
        (json.dumps(DEFINITION).encode(), b'{"position": "c", "failures": "x"}'),
        (json.dumps(DEFINITION).encode(), b'{"position": "c", "delivered": -1}'),
        (json.dumps(DEFINITION).encode(), b'{"position": "c", "state": "asleep"}'),
        (json.dumps(DEFINITION).encode(), b'{"position": "c", "trouble": 7}'),
    ],
)
def test_what_cannot_be_read_is_one_line(definition: bytes, standing: bytes) -> None:
    with pytest.raises(
        Unsupported, match=r"webhook h is damaged, or of a later version \(.*\): delete it"
    ) as told:
        read_webhook(WebhookRecord(WebhookName("", "h"), "t", definition, standing))
    assert "\n" not in str(told.value)


def test_what_a_later_version_adds_is_left_out() -> None:
    definition = json.dumps({**DEFINITION, "colour": "red"}).encode()
    kept = {**json.loads(standing_json(WebhookStanding("c", "b", failures=3))), "colour": ["red"]}
    kept["trouble"] = ["gone", "why", 5, None, "more"]
    _, standing = read_webhook(
        WebhookRecord(WebhookName("", "h"), "t", definition, json.dumps(kept).encode())
    )
    assert (standing.position, standing.told, standing.failures) == ("c", "b", 3)
    assert standing.trouble is not None and standing.trouble.detail == "why"
    assert parse_standing(standing_json(standing)) == standing


@pytest.mark.slow
@pytest.mark.parametrize("part", ["definition", "standing", "all"])
async def test_one_that_is_damaged_is_listed_and_can_be_made_again(
    client: Client, receiver: Receiver, part: str, caplog: pytest.LogCaptureFixture
) -> None:
    await client.create_space("s", ["a/#"], streams=2)
    settings = WebhookSettings(allow_private=True)
    async with running(client, webhooks=settings) as hooks:
        for id in ("bad", "good"):
            await subscribe(hooks, receiver, id=id)
    await damage(client, WebhookName("", "bad"), part)
    async with running(client, webhooks=settings) as hooks:
        await publish(hooks, 3)
        await receiver.until(lambda: len(receiver.acknowledged["good"]) == 3)
        assert receiver.acknowledged["bad"] == []
        assert [one for one in caplog.messages if one.startswith("webhook bad is damaged")] != []
        listed = {one["id"]: one for one in (await hooks.get("/v1/subscriptions")).json()["subscriptions"]}
        assert listed["good"]["state"] == "active"
        assert listed["bad"].keys() == listed["good"].keys()
        assert (listed["bad"]["state"], listed["bad"]["trouble"]["error"]) == ("unreadable", "unsupported")
        assert "delete it, and subscribe again" in listed["bad"]["trouble"]["detail"]
        await told(hooks)
        await subscribe(hooks, receiver, expected=501, id="bad")
        assert (await hooks.request("DELETE", "/v1/subscriptions/bad", b"")).status == 204
        await subscribe(hooks, receiver, id="bad")
        await publish(hooks, 2, start=3)
        await receiver.until(lambda: len(receiver.acknowledged["bad"]) == 2)


async def told(hooks: HttpClient) -> None:
    answer = await hooks.get("/v1/subscriptions/bad")
    assert answer.status == 501
    assert "webhook bad is damaged" in answer.json()["detail"]


async def damage(client: Client, name: WebhookName, part: str) -> None:
    """Write junk over what is kept of the webhook, or over the JSON of it."""
    field, done = name.field.encode(), 0
    for key in await client.redis.keys(f"sl:{{w:{name.slot}}}:*"):
        held = await client.redis.hget(key, field) if await client.redis.type(key) == b"hash" else None
        if held is None:
            continue
        is_definition = b'"callback"' in held
        if is_definition and part != "standing":
            whole = held[: held.index(b"{")] if part == "definition" else b""
            await client.redis.hset(key, field, whole + b"\xffjunk")
            done += 1
        elif b'"position"' in held and part != "definition":
            await client.redis.hset(key, field, b"\xffjunk")
            done += 1
    assert done == (2 if part == "all" else 1)


async def test_a_damaged_count_of_webhooks_is_told_with_its_key(
    client: Client, hooks: HttpClient, receiver: Receiver
) -> None:
    await subscribe(hooks, receiver)
    key = f"sl:{{w:{WebhookName('', 'h').slot}}}:owners"
    await ask(client.redis, [("HSET", key, "", b"\xff")])
    told = await subscribe(hooks, receiver, expected=501, id="another")
    assert key in told["detail"]
