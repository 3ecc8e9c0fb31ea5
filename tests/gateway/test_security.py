"""Who is served: tokens and rights, pages of other hosts, headers that inject, limits."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from streamlease.gateway.core.rates import GatewayLimits
from streamlease.gateway.metrics import COUNTS
from tests.gateway.conftest import Client, running
from tests.gateway.http_client import Answer, HttpClient


@pytest.fixture
async def space(client: Client) -> None:
    await client.create_space("s", ["a/#", "b/#"])


def token_file(path: Path, **secrets: str) -> Path:
    path.write_text(
        json.dumps(
            {
                "tokens": [
                    {
                        "name": name, "sha256": hashlib.sha256(secret.encode()).hexdigest(),
                        "publish": [f"{name}/#"], "consume": [f"{name}/#"],
                    }
                    for name, secret in secrets.items()
                ]
            }
        )
    )  # fmt: skip
    return path


@pytest.mark.usefixtures("space")
async def test_a_token_opens_what_it_has_rights_to_and_nothing_else(client: Client, tmp_path: Path) -> None:
    async with running(client, tokens=token_file(tmp_path / "tokens", a="one", b="two")) as http:
        for path in ("/v1/messages?filter=a/%23", "/v1/events?filter=a/%23", "/v1/nothing"):
            for given in ({}, {"authorization": "Bearer three"}, {"authorization": "Basic b25l"}):
                answer = await http.get(path, given)
                assert (answer.status, answer.headers["www-authenticate"][:6]) == (401, "Bearer")
        one = {"authorization": "Bearer one"}
        assert (await http.post("/v1/topics/a/1", "x", one)).status == 201
        assert (await http.get("/v1/messages?filter=a/%23&since=earliest", one)).status == 200
        for path in ("/v1/messages?filter=%23", "/v1/events?filter=b/1", "/v1/messages?filter=%2B/1"):
            answer = await http.get(path, one)
            assert (answer.status, answer.json()["type"][-12:]) == (403, "/not-allowed")
        assert (await http.post("/v1/topics/b/1", "x", one)).status == 403
        assert (await http.get("/healthz")).status == 200


@pytest.mark.usefixtures("space")
async def test_tokens_change_without_a_restart_and_a_broken_file_changes_nothing(
    client: Client, tmp_path: Path
) -> None:
    file = token_file(tmp_path / "tokens", a="one")
    async with running(client, tokens=file) as http:

        async def until(secret: str, status: int) -> None:
            async with asyncio.timeout(20):
                while (await http.get("/v1/x", {"authorization": f"Bearer {secret}"})).status != status:
                    pass

        await until("one", 404)
        file.write_text("{")
        await until("one", 404)
        token_file(file, a="other")
        await until("other", 404)
        await until("one", 401)


ONE = {"authorization": "Bearer one"}


async def message_poll(http: HttpClient) -> Answer:
    return await http.get("/v1/messages", ONE, filter="a/#", since="earliest", wait=60)


async def channel_poll(http: HttpClient) -> Answer:
    command = json.dumps([{"command": 1, "subscribe": "k", "filter": "a/#", "since": "earliest"}])
    assert (await http.post("/v1/channels/c/commands", command, ONE)).status == 200
    return await http.post("/v1/channels/c/poll", json.dumps({"gateway": None, "wait": 60}), ONE)


async def member_fetch(http: HttpClient) -> Answer:
    joined = await http.post("/v1/groups/g/members", json.dumps({"filter": "a/#", "start": "earliest"}), ONE)
    assert joined.status == 201, joined
    return await http.get(f"/v1/groups/g/members/{joined.json()['member']}/messages", ONE, wait=60)


async def event_stream(http: HttpClient) -> Answer:
    async with http.streaming("/v1/events", ONE, filter="a/#", since="earliest") as (head, parts):
        return Answer(head.status, head.headers, b"".join([part async for part in parts]))


async def catalog_stream(http: HttpClient) -> Answer:
    async with http.streaming("/v1/catalog/spaces", ONE, follow="true") as (head, parts):
        return Answer(head.status, head.headers, b"".join([part async for part in parts]))


def rights(path: Path, *consume: str, groups: list[str] | None = None) -> Path:
    token = {"name": "a", "sha256": hashlib.sha256(b"one").hexdigest(), "consume": consume, "groups": groups}
    other = {**token, "name": "publisher", "sha256": hashlib.sha256(b"two").hexdigest(), "publish": ["#"]}
    path.write_text(json.dumps({"tokens": [other, *([token] if consume else [])]}))
    return path


@pytest.mark.usefixtures("space")
@pytest.mark.parametrize("left", [[], ["b/#"]], ids=["gone", "narrower"])
@pytest.mark.parametrize(
    ("ask", "route"),
    [
        (message_poll, "/v1/messages"),
        (event_stream, "/v1/events"),
        (channel_poll, "/v1/channels/*/poll"),
        (member_fetch, "/v1/groups/*"),
        (catalog_stream, "/v1/catalog/*"),
    ],
)
async def test_what_is_open_ends_when_its_token_loses_the_right(
    client: Client,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ask: Callable[[HttpClient], Awaitable[Answer]],
    route: str,
    left: list[str],
) -> None:
    monkeypatch.setattr("streamlease.gateway.token_file.LOOK_SECONDS", 0.0)
    file = rights(tmp_path / "tokens", "a/#", "$catalog/#")
    async with running(client, tokens=file) as http, asyncio.timeout(60):
        asked = asyncio.ensure_future(ask(http))
        while not COUNTS.open[route]:
            await http.get("/healthz")
        rights(file, *left)
        published = await http.post("/v1/topics/a/1", "SECRET", {"authorization": "Bearer two"})
        assert published.status == 201
        await client.create_space("SECRET", ["c/#"])
        answer = await asked
    assert b"SECRET" not in answer.body
    told = b"not-allowed" if left else b"not-authenticated"
    assert told in answer.body, answer
    if ask not in (event_stream, catalog_stream, channel_poll):
        assert answer.status == (403 if left else 401)


@pytest.mark.usefixtures("space")
async def test_a_page_of_another_host_is_refused_where_no_token_is_asked_for(gateway: HttpClient) -> None:
    own = f"http://127.0.0.1:{gateway.port}"
    assert (await gateway.post("/v1/topics/a/1", "x", {"origin": own})).status == 201
    foreign = "https://evil.example"
    for given in ({"origin": foreign}, {"origin": "null"}, {"host": "evil.example"}, {"host": ""}):
        answer = await gateway.post("/v1/topics/a/1", "x", given)
        assert (answer.status, answer.headers["content-type"]) == (403, "application/problem+json")


HOSTILE = ["a\r\nx-evil: 1", "a%0d%0ax-evil:%201", "a%00", "%F0%9F%A6%84", "a" * 5000, "%ff%fe", "<script>"]


@pytest.mark.parametrize("text", HOSTILE)
async def test_nothing_that_comes_in_becomes_a_header_that_goes_out(gateway: HttpClient, text: str) -> None:
    target = text.replace("\r\n", "%0d%0a").replace(" ", "%20")
    for method, path in (
        ("GET", f"/v1/messages?filter={target}&since={target}"),
        ("GET", f"/v1/messages?filter=a&{target}=1"),
        ("GET", f"/{target}"),
        ("POST", f"/v1/topics/{target}"),
        ("BREW", "/v1/messages"),
    ):
        answer = await gateway.request(method, path, b"", {"accept": "*/*"})
        assert 400 <= answer.status < 500, (method, path, answer)
        assert "x-evil" not in answer.headers
    value = text.replace("\r\n", " ")
    for name in ("streamlease-key", "content-type", "accept", "ce-specversion", "last-event-id"):
        answer = await gateway.post("/v1/topics/a/1", "x", {name: value})
        assert 400 <= answer.status < 500 and "x-evil" not in answer.headers


async def test_limits_are_told(client: Client) -> None:
    await client.create_space("s", ["a"])
    async with running(client, limits=GatewayLimits(body_bytes=10, requests_per_second=3)) as http:
        assert (await http.post("/v1/topics/a", b"x" * 10)).status == 201
        assert (await http.post("/v1/topics/a", b"x" * 11)).status == 413
        answers = [await http.post("/v1/topics/a", b"x") for _ in range(20)]
        refused = [answer for answer in answers if answer.status == 429]
        assert refused and refused[0].headers["retry-after"] == "1"
        assert (await http.get("/healthz")).status == 200


async def test_unknown_tokens_and_foreign_pages_are_limited_too(client: Client, tmp_path: Path) -> None:
    limits = GatewayLimits(requests_per_second=3)
    async with running(client, tokens=token_file(tmp_path / "tokens", a="one"), limits=limits) as http:
        guesses = [await http.get("/v1/x", {"authorization": f"Bearer {n}"}) for n in range(20)]
        assert {answer.status for answer in guesses} == {401, 429}
        assert (await http.get("/v1/x", ONE)).status == 404, "who has a token is not limited by that"
    async with running(client, limits=limits) as http:
        foreign = [await http.get("/v1/x", {"host": "evil.example"}) for _ in range(20)]
        assert {answer.status for answer in foreign} == {403, 429}


async def test_methods_and_forms_that_are_not_there(gateway: HttpClient) -> None:
    answer = await gateway.post("/v1/messages")
    assert (answer.status, answer.headers["allow"]) == (405, "GET")
    assert (await gateway.get("/v1/messages?filter=a", {"accept": "text/html"})).status == 406
    assert (await gateway.get("/v1/messages?filter=a")).status == 404  # no space
    assert (await gateway.get("/v1/messages?filter=a&filter=b")).status == 400
    for path in ("/healthz", "/readyz", "/metrics"):
        assert (await gateway.get(path)).status == 200


async def test_without_redis_it_is_alive_and_not_ready(client: Client, gateway: HttpClient) -> None:
    await client.create_space("s", ["a"])

    async def away() -> None:
        from streamlease.protocol.errors import StoreUnavailable

        raise StoreUnavailable("Redis does not answer: start it")

    client.spaces.look = away  # type: ignore[method-assign, assignment]
    assert (await gateway.get("/healthz")).status == 200
    for path in ("/readyz", "/v1/messages?filter=a&since=earliest"):
        answer = await gateway.get(path)
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
