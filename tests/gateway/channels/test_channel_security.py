"""What is refused, with the value and the remedy; whose channel it is; and what a client may have of it."""

from __future__ import annotations

import asyncio
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from streamlease.channels.core.channel_limits import ChannelLimits
from streamlease.channels.core.channel_polls import MOST_NUMBER
from streamlease.gateway.core.rates import GatewayLimits
from streamlease.protocol.errors import InvalidOption
from tests.awake import within
from tests.gateway.channels.channel_client import HandClient, payloads
from tests.gateway.channels.conftest import Desk, StartDesk
from tests.gateway.conftest import Client, running
from tests.gateway.http_client import HttpClient

GOOD: dict[str, Any] = {"command": 1, "subscribe": "k", "filter": "a/#"}


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (b"", "commands"),
        (b"{}", "list of commands"),
        (b"[", "list of commands"),
        (b"\xff\xfe", "list of commands"),
        (b"null", "list of commands"),
        ([{}], "command"),
        ([{"command": 1}], "subscribe"),
        ([{"command": 1, "subscribe": "k", "unsubscribe": "k"}], "either"),
        ([{**GOOD, "command": 0}], "0.command"),
        ([{**GOOD, "command": -1}], "-1"),
        ([{**GOOD, "command": 1.5}], "1.5"),
        ([{**GOOD, "command": "1"}], "'1'"),
        ([{**GOOD, "command": MOST_NUMBER + 1}], str(MOST_NUMBER + 1)),
        ([{**GOOD, "command": True}], "True"),
        ([GOOD, GOOD], "number them upwards"),
        ([{**GOOD, "subscribe": ""}], "subscribe"),
        ([{**GOOD, "subscribe": "x" * 513}], "subscribe"),
        ([{**GOOD, "subscribe": 7}], "7"),
        ([{**GOOD, "filter": None}], "give \"filter\""),
        ([{**GOOD, "filter": "a/#/b"}], "a/#/b"),
        ([{**GOOD, "filter": ""}], "filter"),
        ([{**GOOD, "filter": "a\x00"}], "filter"),
        ([{**GOOD, "filter": "$shared/g/a/#"}], "names a group"),
        ([{**GOOD, "since": "yesterday"}], "yesterday"),
        ([{**GOOD, "since": "2026-01-01T00:00:00"}], "zone"),
        ([{**GOOD, "since": 5}], "since"),
        ([{**GOOD, "policy": "perhaps"}], "perhaps"),
        ([{**GOOD, "limit": 0}], "limit"),
        ([{**GOOD, "limit": 10_001}], "10001"),
        ([{**GOOD, "more": 1}], "more"),
        ([{**GOOD, "subscribe": "\ud800"}], "list of commands"),
    ],
)  # fmt: skip
async def test_bad_commands_are_told_and_do_nothing(desk: Desk, body: Any, named: str) -> None:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = await desk.http.post("/v1/channels/hand/commands", text)
    assert answer.status == 400, answer
    assert named in answer.json()["detail"], answer.json()
    assert len(desk.channels) == 0


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (b"[]", "a poll"),
        (b"\xff", "a poll"),
        ({"gateway": 5}, "gateway"),
        ({"gateway": "x" * 101}, "gateway"),
        ({"processed": -1}, "processed"),
        ({"processed": None}, "processed"),
        ({"wait": -1}, "wait"),
        ({"wait": 61}, "61"),
        ({"wait": "5"}, "wait"),
        (b'{"wait": NaN}', "wait"),
        ({"more": 1}, "more"),
    ],
)
async def test_bad_polls_are_told(desk: Desk, body: Any, named: str) -> None:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = await desk.http.post("/v1/channels/hand/poll", text)
    assert answer.status == 400 and named in answer.json()["detail"], answer


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/v1/channels/", 404),
        ("POST", "/v1/channels/a", 405),
        ("GET", "/v1/channels/a/poll", 405),
        ("DELETE", "/v1/channels/a/poll", 405),
        ("POST", "/v1/channels//poll", 400),
        ("POST", "/v1/channels/%FF/poll", 400),
        ("POST", "/v1/channels/a%2Fb/poll", 400),
        ("POST", f"/v1/channels/{'x' * 201}/poll", 400),
        ("DELETE", "/v1/channels/", 400),
        ("DELETE", "/v1/channels/none", 204),
    ],
)
async def test_addresses(desk: Desk, method: str, path: str, status: int) -> None:
    answer = await desk.http.request(method, path, b"")
    if path == "/v1/channels/":
        status = 400 if method == "DELETE" else 405
    assert answer.status == status, answer


async def test_a_poll_cannot_process_what_was_never_sent(desk: Desk) -> None:
    hand = desk.hand()
    await hand.poll(wait=0)
    answer = await hand.post_poll(gateway=hand.gateway, processed=7, wait=0)
    assert answer.status == 400 and "processed is 7" in answer.json()["detail"]


async def test_a_refused_batch_names_its_command(desk: Desk) -> None:
    hand = desk.hand()
    answer = await hand.post_commands([GOOD, {"command": 2, "subscribe": "bad", "filter": "a/#/b"}])
    assert (answer.status, answer.json()["command"], answer.json()["key"]) == (400, 2, "bad")
    assert len(desk.channels) == 0


async def test_a_body_that_is_too_long(client: Client) -> None:
    async with running(client, limits=GatewayLimits(body_bytes=100)) as http:
        answer = await http.post("/v1/channels/hand/commands", b" " * 101)
        assert answer.status == 413
        assert (await http.post("/v1/channels/hand/poll", b" " * 5000)).status == 413


async def test_too_many_keys_channels_and_polls(client: Client) -> None:
    limits = ChannelLimits(keys=2, channels=2)
    async with running(client, limits=GatewayLimits(client_polls=1), channel_limits=limits) as http:
        await client.create_space("s", ["a/#"], streams=1)
        hand = HandClient(http)
        await hand.commands({"subscribe": "1", "filter": "a/1"}, {"subscribe": "2", "filter": "a/2"})
        answer = await hand.post_commands([hand.numbered({"subscribe": "3", "filter": "a/3"})])
        assert (answer.status, answer.json()["key"]) == (400, "3")
        assert "at most 2 keys" in answer.json()["detail"]
        await hand.commands({"unsubscribe": "1"}, {"subscribe": "3", "filter": "a/3"})
        parked = asyncio.ensure_future(HandClient(http, "other").poll(wait=30))
        async with within(10):
            while (answer := await hand.post_poll(wait=0.0)).status != 429:  # noqa: ASYNC110 (over HTTP)
                await asyncio.sleep(0.01)
        assert "open polls" in answer.json()["detail"] and "retry-after" in answer.headers
        answer = await HandClient(http, "third").post_commands([GOOD])
        assert answer.status == 429 and "2 channels" in answer.json()["detail"]
        await http.request("DELETE", "/v1/channels/other", b"")
        await parked


async def test_one_client_does_not_take_all_channels(client: Client, tmp_path: Path) -> None:
    limits = ChannelLimits(channels=10, client_channels=2)
    await client.create_space("s", ["a/#"], streams=1)
    file = tokens(tmp_path / "tokens", one=["a/#"], two=["a/#"])
    async with running(client, tokens=file, channel_limits=limits) as http:
        given = {name: {"authorization": f"Bearer {name}"} for name in ("one", "two")}

        async def begun(name: str, channel: str) -> Any:
            return await http.post(f"/v1/channels/{channel}/commands", json.dumps([GOOD]), given[name])

        assert [(await begun("one", channel)).status for channel in ("a", "b")] == [200, 200]
        refused = await begun("one", "c")
        assert refused.status == 429 and "2 channels" in refused.json()["detail"]
        assert "retry-after" in refused.headers
        assert (await begun("two", "c")).status == 200
        assert (await http.request("DELETE", "/v1/channels/a", b"", given["one"])).status == 204
        assert (await begun("one", "c")).status == 200


def test_limits_refuse_nonsense() -> None:
    with pytest.raises(InvalidOption, match="keys of channels is 0"):
        ChannelLimits(keys=0)


# -- tokens --------------------------------------------------------------------------------------------------


def tokens(path: Path, **consume: list[str]) -> Path:
    path.write_text(
        json.dumps(
            {
                "tokens": [
                    {"name": name, "sha256": hashlib.sha256(name.encode()).hexdigest(), "consume": filters}
                    for name, filters in consume.items()
                ]
            }
        )
    )
    return path


def bearing(http: HttpClient, token: str) -> HttpClient:
    return HttpClient(http.port, authorization=f"Bearer {token}")


async def test_rights_of_tokens(client: Client, tmp_path: Path) -> None:
    await client.create_space("s", ["a/#", "b/#"], streams=1)
    file = tokens(tmp_path / "tokens", one=["a/#"], two=["b/#"])
    async with running(client, tokens=file) as http:
        assert (await HandClient(http).post_commands([GOOD])).status == 401
        assert (await HandClient(http).post_poll(wait=0.0)).status == 401
        assert (await http.request("DELETE", "/v1/channels/hand", b"")).status == 401
        one, two = HandClient(bearing(http, "one")), HandClient(bearing(http, "two"))
        for filter in ("b/1", "#", "+/1"):
            answer = await one.post_commands([{**GOOD, "filter": filter}])
            assert (answer.status, answer.json()["command"]) == (403, 1)
            assert "'one' may not read" in answer.json()["detail"]
        await one.subscribe("k", "a/#")
        await two.subscribe("k", "b/#")  # the same client name, and another channel
        async with client.publisher() as publisher:
            await publisher.send("a/1", b"for one")
            await publisher.send("b/1", b"for two")
        assert payloads(await one.until(1)) == ["for one"]
        assert payloads(await two.until(1)) == ["for two"]


async def test_a_token_that_loses_a_right_loses_its_keys(client: Client, tmp_path: Path) -> None:
    await client.create_space("s", ["a/#", "b/#"], streams=1)
    file = tokens(tmp_path / "tokens", one=["#"])
    async with running(client, tokens=file) as http:
        one = HandClient(bearing(http, "one"))
        await one.commands({"subscribe": "a", "filter": "a/#"}, {"subscribe": "b", "filter": "b/#"})
        tokens(tmp_path / "tokens", one=["b/#"])
        failures: list[Any] = []
        async with asyncio.timeout(20):
            while not failures:
                failures = (await one.poll(wait=0.2))["failures"]
        assert [one["key"] for one in failures] == ["a"]
        assert failures[0]["error"]["status"] == 403
        async with client.publisher() as publisher:
            await publisher.send("a/1", b"secret")
            await publisher.send("b/1", b"open")
        assert payloads(await one.until(1)) == ["open"]


async def test_keys_in_foreign_writing(start_desk: StartDesk) -> None:
    desk = await start_desk()
    hand = desk.hand("K%C3%B6ln%20%F0%9F%8C%8A")
    await hand.subscribe('"quoted" \\ {ß}\u0000', "a/#")
    await desk.publish("a/1", "x")
    (found,) = await hand.until(1)
    assert found["key"] == '"quoted" \\ {ß}\u0000'
