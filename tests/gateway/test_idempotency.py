"""Idempotency-Key: the same answer within an hour, nothing twice, whatever died or stood still meanwhile."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from streamlease.catalog import own_rows
from streamlease.protocol.errors import StoreUnavailable
from streamlease.streams.publish import kept_answers
from streamlease.streams.publish.kept_answers import KeptAnswers
from streamlease.streams.spaces.published_topics import note_topics
from tests.catalog.waiting import eventually
from tests.gateway.conftest import Client, Start
from tests.gateway.http_client import HttpClient
from tests.gateway.test_publishing import NDJSON, everything

KEY = {"idempotency-key": "order-17"}
LINES = "\n".join(json.dumps({"payload": str(n), "key": f"k{n}"}) for n in range(100))


@pytest.fixture(autouse=True)
async def space(client: Client) -> None:
    await client.create_space("s", ["a/#"], streams=4, shard_by="key")


async def payloads(client: Client) -> list[str]:
    return sorted(message.payload.decode() for message in await everything(client))


@pytest.mark.parametrize(("body", "kind", "count"), [("x", {}, 1), (LINES, NDJSON, 100)])
async def test_a_repetition_gets_the_same_answer_and_adds_nothing(
    client: Client, gateway: HttpClient, start_gateway: Start, body: str, kind: dict[str, str], count: int
) -> None:
    other = await start_gateway()
    answers = await asyncio.gather(
        *(http.post("/v1/topics/a/1", body, kind | KEY) for http in (gateway, other) for _ in range(5))
    )
    answers.append(await other.post("/v1/topics/a/1", body, kind | KEY))
    assert {answer.status for answer in answers} == {201}
    assert len({answer.body for answer in answers}) == 1
    assert len(await payloads(client)) == count
    again = await gateway.post("/v1/topics/a/1", body, kind | {"idempotency-key": "order-18"})
    assert again.status == 201 and again.body != answers[0].body
    publishers = await client.redis.keys("sl:{s.*:pubs")  # type: ignore[attr-defined]
    assert [f for key in publishers for f in await client.redis.hkeys(key) if len(f) == 41] == []  # type: ignore[attr-defined]


async def test_what_is_published_under_keys_stands_in_the_catalog_and_is_told_once(
    client: Client, gateway: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def topics(collection: str) -> list[Any]:
        async with client.catalog(collection) as found:
            return sorted((one.topic, one.space) for one in found.items)

    noted: list[tuple[str, str]] = []

    async def note(redis: Any, some: list[tuple[str, str]]) -> None:
        noted.extend(some)
        await note_topics(redis, some)

    monkeypatch.setattr(own_rows, "note_topics", note)
    for number in range(30):
        key = {"idempotency-key": f"order-{number}"}
        assert (await gateway.post(f"/v1/topics/a/{number % 2}", "x", key)).status == 201

    async def shown() -> bool:
        both = [("a/0", "s"), ("a/1", "s")]
        return await topics("publications") == both and await topics("topics") == both

    await eventually(shown)
    assert sorted(noted) == [("s", "a/0"), ("s", "a/1")], "and not with each message"


async def test_a_key_names_one_request(client: Client, gateway: HttpClient) -> None:
    assert (await gateway.post("/v1/topics/a/1", "x", KEY)).status == 201
    for path, body, more in (("a/2", "x", {}), ("a/1", "y", {}), ("a/1", "x", {"streamlease-key": "k"})):
        answer = await gateway.post(f"/v1/topics/{path}", body, KEY | more)
        assert (answer.status, answer.json()["type"][-11:]) == (422, "/key-reused")
    for key in ("", "x" * 256, "\x7f"):
        assert (await gateway.post("/v1/topics/a/1", "x", {"idempotency-key": key})).status == 400
    assert await payloads(client) == ["x"]


async def test_a_refused_request_may_be_repeated_when_it_can_be_done(
    client: Client, gateway: HttpClient
) -> None:
    assert (await gateway.post("/v1/topics/b/1", "x", KEY)).status == 404
    await client.create_space("t", ["b/#"])
    assert (await gateway.post("/v1/topics/b/1", "x", KEY)).status == 201


@pytest.mark.parametrize("altered", [False, True])
@pytest.mark.parametrize(("body", "kind", "count"), [("x", {}, 1), (LINES, NDJSON, 100)])
async def test_who_dies_behind_the_append_is_taken_over_and_adds_nothing(
    client: Client,
    gateway: HttpClient,
    monkeypatch: pytest.MonkeyPatch,
    body: str,
    kind: dict[str, str],
    count: int,
    altered: bool,
) -> None:
    run = KeptAnswers._run

    async def dies(self: KeptAnswers, record: str, *args: Any) -> Any:
        if args[0] in ("settle", "let_go"):
            raise StoreUnavailable("died")
        return await run(self, record, *args)

    monkeypatch.setattr(kept_answers, "OWNED", 0.0)
    monkeypatch.setattr(KeptAnswers, "_run", dies)
    assert (await gateway.post("/v1/topics/a/1", body, kind | KEY)).status == 503
    assert len(await payloads(client)) == count
    monkeypatch.setattr(KeptAnswers, "_run", run)
    if altered:
        await client.spaces.generations.alter("s", streams=3)
    answer = await gateway.post("/v1/topics/a/1", body, kind | KEY)
    assert answer.status == 201, answer.body
    assert (await gateway.post("/v1/topics/a/1", body, kind | KEY)).body == answer.body
    assert len(await payloads(client)) == count
    last = next(one for one in await everything(client) if one.payload in (b"x", b"99"))
    stands = {
        "stream": last.stream,
        "offset": last.offset,
        "timestamp": last.timestamp.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
    }
    assert answer.json().get("last", answer.json()) == stands


async def test_while_another_one_publishes_a_repetition_waits(
    gateway: HttpClient, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_answers, "LONGEST_WAIT", 0.2)
    answers = KeptAnswers(client.redis, client.spaces)
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow(publisher: Any, began: int) -> bytes:
        begun.set()
        await go_on.wait()
        return b"done"

    def publish() -> Any:
        return answers.once("me", "k", b"content", "a/1", 0, slow, lambda *_: None)

    first = asyncio.ensure_future(publish())
    await begun.wait()
    with pytest.raises(StoreUnavailable, match="under way"):
        await publish()
    go_on.set()
    assert await first == b"done" == await publish()
