"""What can be subscribed, by whom, and what comes of nonsense: a problem document, and nothing half done."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from streamlease.gateway.core.rates import GatewayLimits
from streamlease.gateway.webhooks.webhook_service import WebhookSettings
from streamlease.registry.webhooks import webhook_records
from streamlease.registry.webhooks.webhook_records import WebhookName
from tests.gateway.conftest import Client, running
from tests.gateway.http_client import HttpClient
from tests.gateway.test_security import token_file
from tests.gateway.webhooks.conftest import post, publish, subscribe
from tests.gateway.webhooks.receiver import SECRET, Delivered, Receiver

GOOD: dict[str, Any] = {"filter": "a/#", "callback": "http://127.0.0.1:1/", "secret": SECRET, "id": "h"}
WITHOUT = object()

BAD: list[tuple[dict[str, Any], int, str]] = [
    ({"filter": WITHOUT}, 400, "'filter': Field required"),
    ({"callback": WITHOUT}, 400, "'callback': Field required"),
    ({"filter": 7}, 400, "it is 7"),
    ({"filter": ""}, 400, "filter"),
    ({"filter": "a/#/b"}, 400, "a/#/b"),
    ({"filter": "a\0"}, 400, "NUL"),
    ({"filter": "x" * 70_000}, 400, "filter"),
    ({"filter": "nobody/has"}, 404, "nobody/has"),
    ({"callback": None}, 400, "it is None"),
    ({"callback": ["http://x/"]}, 400, "callback"),
    ({"callback": "x"}, 400, "give one such as"),
    ({"callback": "ftp://example.com/"}, 400, "ftp://example.com/"),
    ({"callback": "http://user:pw@127.0.0.1/"}, 400, "user name or password"),
    ({"since": 1}, 400, "it is 1"),
    ({"since": ""}, 400, "since"),
    ({"since": "2026-01-01"}, 400, "without a zone"),
    ({"since": "yesterday"}, 400, "'yesterday' is no cursor"),
    ({"id": ""}, 400, "id"),
    ({"id": "a/b"}, 400, "a/b"),
    ({"id": "x" * 65}, 400, "id"),
    ({"id": "a\r\nx-evil: 1"}, 400, "id"),
    ({"id": 5}, 400, "it is 5"),
    ({"secret": ""}, 400, "secret"),
    ({"secret": "x" * 1025}, 400, "secret"),
    ({"secret": True}, 400, "it is True"),
    ({"more": 1}, 400, "more"),
]


@pytest.mark.parametrize(("change", "status", "told"), BAD)
async def test_a_bad_field_is_told(hooks: HttpClient, change: dict[str, Any], status: int, told: str) -> None:
    wanted = {name: value for name, value in {**GOOD, **change}.items() if value is not WITHOUT}
    await check_refused(hooks, json.dumps(wanted), status, told)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("", "no JSON document"), ("{", "no JSON document"), ("[]", "send"), ("null", "send"),
        ("NaN", "no JSON document"),
        ('"x"', "send"), (b"\xff\xfe", "no JSON document"), ("[" * 100_000, "no JSON document"),
        (json.dumps({**GOOD, "secret": "\ud800"}), ""), (json.dumps({**GOOD, "filter": "a/\ud800"}), ""),
        (json.dumps({**GOOD, "callback": "http://127.0.0.1/\ud800"}), ""),
    ],
)  # fmt: skip
async def test_a_bad_body_is_told(hooks: HttpClient, body: str | bytes, told: str) -> None:
    await check_refused(hooks, body, 400, told)


async def check_refused(http: HttpClient, body: str | bytes, status: int, told: str) -> None:
    answer = await http.post("/v1/subscriptions", body)
    assert (answer.status, answer.headers["content-type"]) == (status, "application/problem+json"), answer
    assert told in answer.json()["detail"] and "x-evil" not in answer.headers
    assert SECRET not in answer.body.decode()
    assert (await http.get("/v1/subscriptions")).json() == {"subscriptions": []}


async def check_too_much(http: HttpClient, id: str, told: str) -> None:
    answer = await post(http, {**GOOD, "id": id})
    assert (answer.status, answer.json()["type"]) == (429, "urn:streamlease:problem/too-much"), answer
    assert told in answer.json()["detail"]


async def test_one_client_does_not_take_all_webhooks(client: Client, receiver: Receiver) -> None:
    await client.create_space("s", ["a/#"])
    settings = WebhookSettings(allow_private=True)
    async with running(client, webhooks=settings, limits=GatewayLimits(client_webhooks=2)) as http:
        for id in ("1", "2", "2"):  # what is there may be made again
            await subscribe(http, receiver, id=id)
        await check_too_much(http, "3", "has 2 webhooks")
        assert (await http.request("DELETE", "/v1/subscriptions/1", b"")).status == 204
        assert (await http.request("DELETE", "/v1/subscriptions/1", b"")).status == 404
        await subscribe(http, receiver, id="3")
        await check_too_much(http, "4", "has 2 webhooks")


async def test_a_full_slot_is_told(
    hooks: HttpClient, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook_records, "MOST_IN_SLOT", 1)
    slot = WebhookName("", "0").slot
    other = next(id for id in map(str, range(1, 1000)) if WebhookName("", id).slot == slot)
    await subscribe(hooks, receiver, id="0")
    await check_too_much(hooks, other, "take another id")
    assert (await hooks.request("DELETE", "/v1/subscriptions/0", b"")).status == 204
    await subscribe(hooks, receiver, id=other)


async def test_a_body_that_is_too_large_is_refused(hooks: HttpClient) -> None:
    assert (await hooks.post("/v1/subscriptions", b" " * 300_000)).status == 413


@pytest.mark.parametrize("id", ["unknown", "a%2Fb", "%00", "a/b", "", "%ff", "x" * 65])
async def test_an_id_that_is_not_there(hooks: HttpClient, id: str) -> None:
    for method in ("GET", "DELETE"):
        answer = await hooks.request(method, f"/v1/subscriptions/{id}", b"")
        assert answer.status in (400, 404) and answer.json()["detail"], (method, answer)
    assert (await hooks.request("PUT", "/v1/subscriptions/x", b"")).headers["allow"] == "GET, DELETE"
    assert (await hooks.get("/v1/subscriptions", limit=1)).status == 400


async def test_a_subscription_is_shown_listed_and_deleted(hooks: HttpClient, receiver: Receiver) -> None:
    made = await subscribe(hooks, receiver, since="earliest", id="one")
    await subscribe(hooks, receiver, id="two", filter="a/+")
    shown = (await hooks.get("/v1/subscriptions/one")).json()
    assert shown == made and SECRET not in json.dumps(shown, ensure_ascii=False)
    listed = (await hooks.get("/v1/subscriptions")).json()["subscriptions"]
    assert [(one["id"], one["filter"]) for one in listed] == [("one", "a/#"), ("two", "a/+")]
    assert (await hooks.request("DELETE", "/v1/subscriptions/one", b"")).status == 204
    assert (await hooks.request("DELETE", "/v1/subscriptions/one", b"")).status == 404
    assert (await hooks.get("/v1/subscriptions/one")).status == 404
    await publish(hooks, 1)
    await receiver.until(lambda: receiver.payloads("two") == ["0"])
    assert receiver.payloads("one") == []


async def test_what_is_not_given_is_made_up(hooks: HttpClient, receiver: Receiver) -> None:
    answer = await post(hooks, {"filter": "a/#", "callback": receiver.url(), "since": "earliest"})
    made = answer.json()
    assert answer.status == 201 and answer.headers["location"] == f"/v1/subscriptions/{made['id']}"
    assert len(made["secret"]) == 64 and len(made["id"]) == 24
    receiver.secret = made["secret"]
    await publish(hooks, 1)
    await receiver.until(lambda: receiver.payloads(made["id"]) == ["0"])  # which checks the signature
    assert "secret" not in (await hooks.get(f"/v1/subscriptions/{made['id']}")).json()


async def test_the_same_request_twice_changes_nothing(hooks: HttpClient, receiver: Receiver) -> None:
    await publish(hooks, 5)
    await subscribe(hooks, receiver, since="earliest")
    await receiver.until(lambda: len(receiver.acknowledged["h"]) == 5)
    async with asyncio.timeout(20):
        while (await subscribe(hooks, receiver, since="earliest"))["delivered"] != 5:
            pass
    await publish(hooks, 5, start=5)
    await receiver.until(lambda: len(receiver.acknowledged["h"]) == 10)
    assert sorted(receiver.payloads("h"), key=int) == [str(n) for n in range(10)]


async def test_a_subscription_is_changed_by_its_id(hooks: HttpClient, receiver: Receiver) -> None:
    """Another callback goes on where the former was; another point moves it."""
    await publish(hooks, 5, keys=1)
    await subscribe(hooks, receiver, since="earliest")
    await receiver.until(lambda: len(receiver.acknowledged["h"]) == 5)
    middle = (await hooks.get("/v1/messages", filter="a/#", since="earliest", limit=3)).json()["next"]
    await subscribe(hooks, receiver, callback=receiver.url("/other"))
    await publish(hooks, 1, start=5, keys=1)
    await receiver.until(lambda: len(receiver.acknowledged["h"]) >= 6)
    assert receiver.deliveries[-1].path == "/other"
    receiver.deliveries.clear()
    await subscribe(hooks, receiver, since=middle)
    await receiver.until(lambda: len(receiver.payloads("h")) >= 3)
    assert receiver.payloads("h") == ["3", "4", "5"] and receiver.deliveries[0].body["previous"] == middle
    await subscribe(hooks, receiver, filter="a/2", since=middle)
    await publish(hooks, 1, start=6)
    await publish(hooks, 1, start=7, topic="a/2")
    await receiver.until(lambda: "7" in receiver.payloads("h"))
    assert receiver.payloads("h") == ["3", "4", "5", "7"]


async def test_a_subscription_belongs_to_its_token(
    client: Client, tmp_path: Path, receiver: Receiver
) -> None:
    await client.create_space("s", ["a/#", "b/#"])
    file = token_file(tmp_path / "tokens", a="one", b="two")
    async with running(client, tokens=file, webhooks=WebhookSettings(allow_private=True)) as http:
        first = HttpClient(http.port, authorization="Bearer one")
        second = HttpClient(http.port, authorization="Bearer two")
        assert (await http.get("/v1/subscriptions")).status == 401
        await subscribe(first, receiver)
        for filter in ("#", "b/1", "+/1"):
            assert (await post(first, {**GOOD, "filter": filter})).status == 403
        assert (await second.get("/v1/subscriptions/h")).status == 404
        assert (await second.request("DELETE", "/v1/subscriptions/h", b"")).status == 404
        assert (await second.get("/v1/subscriptions")).json() == {"subscriptions": []}
        await subscribe(second, receiver, filter="b/#", callback=receiver.url("/second"))
        await publish(first, 1)
        await publish(second, 1, topic="b/1", start=1)
        await receiver.until(lambda: len(receiver.deliveries) == 2)
        assert {one.path: one.payloads for one in receiver.deliveries} == {"/hook": ["0"], "/second": ["1"]}
        token_file(file, b="two")  # the other one is gone
        await publish(second, 1, topic="b/1", start=2)
        await until_state(client, "suspended", "not-allowed", lambda: publish_alone(client))
        count = len([one for one in receiver.deliveries if one.path == "/hook"])
        await publish_alone(client)
        await publish(second, 1, topic="b/1", start=3)
        await receiver.until(lambda: "3" in receiver.deliveries[-1].payloads)
        assert len([one for one in receiver.deliveries if one.path == "/hook"]) == count


async def publish_alone(client: Client) -> None:
    async with client.publisher() as publisher:
        await publisher.send("a/1", b"9")


async def until_state(client: Client, state: str, error: str, again: Callable[[], Any]) -> None:
    from streamlease.registry.webhooks.webhook_records import WebhookName, WebhookRecords

    async with asyncio.timeout(30):
        while True:
            await again()
            record = await WebhookRecords(client.redis).read(WebhookName("a", "h"))
            assert record is not None
            standing = json.loads(record.standing)
            if standing.get("state") == state:
                assert standing["trouble"][0] == error
                return


async def test_private_callbacks_are_refused_where_nobody_allowed_them(client: Client) -> None:
    await client.create_space("s", ["a/#"])
    names = {"inside.example": ["10.0.0.1"], "both.example": ["93.184.216.34", "127.0.0.1"],
             "six.example": ["::ffff:192.168.0.1"], "zone.example": ["fe80::1%eth0"]}  # fmt: skip
    async with running(client, webhooks=WebhookSettings(resolve=lambda host, _: names[host])) as http:
        for url in (
            *(f"https://{name}/" for name in names),
            "http://127.0.0.1/",
            "http://[::1]/",
            "http://0x7f.1/",
        ):
            answer = await post(http, {**GOOD, "callback": url})
            assert (answer.status, answer.json()["type"][-15:]) == (400, "/invalid-option"), answer
            assert (
                "--allow-private-callbacks" in answer.json()["detail"]
                or "unusual form" in answer.json()["detail"]
            )
        assert (await http.get("/v1/subscriptions")).json() == {"subscriptions": []}


async def test_a_name_that_changes_its_address_leads_nowhere(client: Client, receiver: Receiver) -> None:
    """The address is looked up again for the connection, checked, and then connected to."""
    await client.create_space("s", ["a/#"])
    asked: list[str] = []

    def resolve(host: str, port: int) -> list[str]:
        asked.append(host)
        return ["93.184.216.34"] if len(asked) == 1 else ["127.0.0.1"]

    async with running(client, webhooks=WebhookSettings(resolve=resolve)) as http:
        await subscribe(http, receiver, callback=receiver.url(host="rebinding.example"), since="earliest")
        await publish(http, 1)
        async with asyncio.timeout(30):
            while (shown := (await http.get("/v1/subscriptions/h")).json())["state"] != "failing":
                pass
        assert shown["trouble"]["error"] == "callback-refused" and "127.0.0.1" in shown["trouble"]["detail"]
        assert receiver.connections == 0 and len(asked) >= 2


async def test_a_connection_goes_to_the_address_that_was_checked(client: Client, receiver: Receiver) -> None:
    await client.create_space("s", ["a/#"])
    settings = WebhookSettings(allow_private=True, resolve=lambda host, port: ["127.0.0.1"])
    async with running(client, webhooks=settings) as http:
        await subscribe(http, receiver, callback=receiver.url(host="nowhere.example"), since="earliest")
        await publish(http, 1)
        await receiver.until(lambda: len(receiver.deliveries) == 1)
        assert receiver.deliveries[0].headers["host"] == f"nowhere.example:{receiver.port}"


async def test_messages_look_as_in_a_since_query(hooks: HttpClient, receiver: Receiver) -> None:
    line = {"payload_base64": "/w==", "key": "k", "headers": {"colour": "red"}}
    await hooks.post("/v1/topics/a/1", json.dumps(line), {"content-type": "application/x-ndjson"})
    await subscribe(hooks, receiver, since="earliest")
    await receiver.until(lambda: len(receiver.deliveries) == 1)
    one: Delivered = receiver.deliveries[0]
    page = (await hooks.get("/v1/messages", filter="a/#", since="earliest")).json()
    assert one.body["messages"] == page["messages"] and one.body["next"] == page["next"]
