"""The examples in other languages: TypeScript on Node, and a shell with curl."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from streamlease.gateway.core.rates import GatewayLimits
from streamlease.gateway.metrics import COUNTS
from streamlease.http.core.webhook_signatures import signature
from tests.gateway.conftest import Client, running
from tests.gateway.http_client import HttpClient
from tests.http_client.faulty_proxy import EVERYTHING, Faults, between
from tests.http_client.other_programs import EXAMPLES, NODE, SECONDS, documents, said, started
from tests.http_client.test_following import check, publish, truth

GATEWAY_TS = EXAMPLES / "gateway.mts"
APPEND_TS = EXAMPLES / "append.mts"


def places(messages: list[Any]) -> list[tuple[str, int]]:
    return [(message["stream"], message["offset"]) for message in messages]


async def test_typescript_publishes_once_though_answers_are_lost(
    client: Client, gateway: HttpClient, tmp_path: Path
) -> None:
    await client.create_space("s", ["a/#"])
    async with between(gateway.port, Faults(no_answer=0.6), seed=1) as proxy:
        (placed,) = await documents(
            tmp_path, NODE, GATEWAY_TS, "publish", proxy.url, "a/ü/x y", "on ütime", "k"
        )
        assert proxy.done["no_answer"]
    found = [m async for batch in _history(client, "a/#") for m in batch.messages]
    assert [(m.topic, m.payload, m.key, m.offset) for m in found] == [
        ("a/ü/x y", "on ütime".encode(), b"k", placed["offset"])
    ]
    refused = await said(
        tmp_path, NODE, GATEWAY_TS, "publish", f"http://127.0.0.1:{gateway.port}", "b", "", code=1
    )
    assert refused == ""


async def _history(client: Client, filter: str) -> Any:
    async with client.history(filter) as reading:
        async for batch in reading:
            yield batch


@pytest.mark.parametrize("faults", [Faults(), EVERYTHING], ids=["honest", "faulty"])
async def test_typescript_follows_whatever_becomes_of_pushes(
    client: Client, gateway: HttpClient, tmp_path: Path, faults: Faults
) -> None:
    await client.create_space("s", ["a/#"], streams=3)
    await publish(client, 0, 30)
    async with between(gateway.port, faults, seed=4) as proxy:
        words = ("follow", proxy.url, "a/wanted/+", "earliest", "60")
        async with started(tmp_path, NODE, GATEWAY_TS, *words) as process:
            assert process.stdout is not None
            lines = [await asyncio.wait_for(process.stdout.readline(), SECONDS)]
            await publish(client, 30, 60)
            await publish(client, 60, 90)
            rest, error = await asyncio.wait_for(process.communicate(), SECONDS)
            assert process.returncode == 0, error.decode()
    found = [json.loads(line) for line in [*lines, *rest.splitlines()]]
    check(places(found), await truth(client))


async def test_typescript_tells_what_no_repetition_helps_against(
    client: Client, gateway: HttpClient, tmp_path: Path
) -> None:
    await client.create_space("s", ["a/#"])
    url = f"http://127.0.0.1:{gateway.port}"
    async with started(tmp_path, NODE, GATEWAY_TS, "follow", url, "a/#", "nonsense", "1") as process:
        _, error = await asyncio.wait_for(process.communicate(), SECONDS)
        assert process.returncode == 1 and "is no cursor of this service" in error.decode()


async def test_typescript_takes_callbacks_that_are_signed_and_in_their_turn(tmp_path: Path) -> None:
    secret = "sécret"

    def body(previous: str, next: str, number: int) -> bytes:
        messages = [{"stream": "s.0.0", "offset": number}]
        return json.dumps(
            {"subscription": "x", "messages": messages, "previous": previous, "next": next}
        ).encode()

    async with started(tmp_path, NODE, GATEWAY_TS, "receive", "0", secret, "3") as process:
        assert process.stderr is not None
        told = (await asyncio.wait_for(process.stderr.readline(), SECONDS)).decode()
        url = told.split()[-1]
        async with httpx.AsyncClient(trust_env=False, headers={"connection": "close"}) as caller:

            async def post(body: bytes, signed: str) -> int:
                answer = await caller.post(url, content=body, headers={"Streamlease-Signature": signed})
                return answer.status_code

            first = body("c0", "c1", 0)
            assert await post(first, signature("other", first)) == 401
            assert await post(first, "") == 401
            assert await post(first, signature(secret, first)) == 204
            assert await post(first, signature(secret, first)) == 204  # its answer was lost
            skipping = body("c2", "c3", 2)
            assert await post(skipping, signature(secret, skipping)) == 409
            for number in (1, 2):
                one = body(f"c{number}", f"c{number + 1}", number)
                assert await post(one, signature(secret, one)) == 204
        out, error = await asyncio.wait_for(process.communicate(), SECONDS)
        assert process.returncode == 0, error.decode()
    assert [json.loads(line)["offset"] for line in out.splitlines()] == [0, 1, 2]


async def test_typescript_appends_to_redis_by_itself(
    client: Client, embedded_redis_url: str, tmp_path: Path
) -> None:
    """By SHA-256, to the streams that Streamlease has for these topics; what it sends twice is there once."""
    space = await client.create_space("flights", ["flights/#"], streams=8, shard_hash="sha256")
    shown = json.dumps(
        {
            "name": "flights",
            "shard_hash": "sha256",
            "generations": [{"number": one.number, "streams": one.streams} for one in space.generations],
        }
    )
    address = embedded_redis_url.removeprefix("redis://").partition("/")[0]
    for topic in ("flights/JFK/LAX", "flights/ä", "flights/SEA"):
        replies = await documents(tmp_path, NODE, APPEND_TS, address, topic, "on tïme", "late", given=shown)
        assert [reply["reply"][0] for reply in replies] == ["appended", "duplicate"] * 2
        assert {reply["stream"] for reply in replies} == {str(space.stream_for(topic))}
        found = [m async for batch in _history(client, topic) for m in batch.messages]
        assert [m.payload for m in found] == ["on tïme".encode(), b"late"]
        assert {m.stream for m in found} == {str(space.stream_for(topic))}
        async with client.publisher() as publisher:  # the same stream, so the order of the topic goes on
            assert (await publisher.send(topic, "next"))[1] == found[-1].offset + 1
    other = shown.replace("sha256", "blake2b")
    await said(tmp_path, NODE, APPEND_TS, address, "flights/x", "", given=other, code=1)


async def test_what_space_show_prints_is_what_typescript_takes(
    client: Client, embedded_redis_url: str, tmp_path: Path
) -> None:
    from tests.admin.command import Command

    command = Command(tmp_path, embedded_redis_url)
    made = ("--topics", "flights/#", "--streams", "8", "--shard-hash", "sha256")
    await asyncio.to_thread(command.ok, "space", "create", "flights", *made)
    shown = (await asyncio.to_thread(command.ok, "space", "show", "flights", "--json")).out
    address = embedded_redis_url.removeprefix("redis://").partition("/")[0]
    replies = await documents(tmp_path, NODE, APPEND_TS, address, "flights/JFK/LAX", "x", given=shown)
    assert replies[0]["stream"] == "flights.0.4"


async def test_a_shell_follows_with_a_cursor_in_a_file(
    client: Client, gateway: HttpClient, tmp_path: Path
) -> None:
    await client.create_space("s", ["a/#"], streams=3)
    await publish(client, 0, 60)
    words = ("sh", EXAMPLES / "follow.sh", f"http://127.0.0.1:{gateway.port}", "a/wanted/%2B", "cursor")
    found = await documents(tmp_path, *words, "1")
    assert len(found) == 40
    await publish(client, 60, 90)
    found += await documents(tmp_path, *words, "1")
    check(places(found), await truth(client))
    (tmp_path / "cursor").write_text("nonsense")
    assert await said(tmp_path, *words, "1", code=1) == ""


async def test_a_shell_that_asks_too_much_waits_and_one_that_meets_a_defect_ends(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.create_space("s", ["a/#"], streams=3)
    await publish(client, 0, 9)
    async with running(client, limits=GatewayLimits(client_polls=1)) as gateway:
        words = ("sh", EXAMPLES / "follow.sh", f"http://127.0.0.1:{gateway.port}", "a/wanted/%2B", "cursor")
        async with gateway.streaming("/v1/events", filter="a/#") as (_, parts):
            await anext(parts)
            refused = COUNTS.refused["client_polls"]
            assert await said(tmp_path, *words, "1") == ""
            assert COUNTS.refused["client_polls"] == refused + 1
        async with asyncio.timeout(SECONDS):
            while COUNTS.open["/v1/events"]:
                await gateway.get("/healthz")
        assert len(await documents(tmp_path, *words, "1")) == 6
        monkeypatch.setattr("streamlease.gateway.message_handlers.rendered", lambda *_: 1 / 0)
        (tmp_path / "cursor").write_text("earliest")
        assert await said(tmp_path, *words, code=1) == ""


def test_the_examples_need_nothing_but_node() -> None:
    for file in EXAMPLES.glob("*.mts"):
        imported = re.findall(r'^import .* from "(.*)";$', file.read_text(), re.MULTILINE)
        assert imported and all(name.startswith("node:") for name in imported)
