"""What stands behind a channel: the log. What a mailbox has no room for, what died, and what is gone."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import streamlease
from streamlease.channels.core.channel_limits import ChannelLimits
from streamlease.protocol.ids import StreamId
from streamlease.streams.spaces.retention import Retention, Trim, trim
from tests.agent.helpers import until
from tests.awake import within
from tests.gateway.channels.channel_client import Document, HandClient, payloads
from tests.gateway.channels.conftest import Desk, StartDesk
from tests.gateway.conftest import Client, Start, running
from tests.servers import Kind, RedisServer


def numbers(count: int, first: int = 0) -> list[str]:
    return [str(number) for number in range(first, first + count)]


def told(found: list[Document]) -> tuple[list[str], int]:
    """The payloads, and how many were dropped."""
    return payloads([one for one in found if "message" in one]), sum(one.get("dropped", 0) for one in found)


async def forgotten(desk: Desk, end: int) -> None:
    """Let the gateway forget the newest messages, as it does when there are more of them."""
    feed = desk.feeds.get("s")
    assert feed is not None
    await until(lambda: feed.recent.ends.get(StreamId("s", 0, 0)) == end)
    feed.recent.begin(feed.recent.ends)


async def test_a_critical_key_falls_back_to_its_cursor(desk: Desk) -> None:
    hand = desk.hand()
    await hand.subscribe("k", "a/#", policy="critical", limit=10)
    for first in range(0, 300, 100):
        await desk.publish("a/1", *numbers(100, first))
    await until(lambda: bool(desk.channel().behind))
    assert desk.channel().mailbox.waiting == 10
    assert payloads(await hand.until(300)) == numbers(300)
    await until(lambda: not desk.channel().behind)
    await desk.publish("a/1", "live again")
    assert payloads(await hand.until(1)) == ["live again"]


async def test_a_lossy_key_drops_the_oldest_and_says_so(desk: Desk) -> None:
    hand = desk.hand()
    await hand.subscribe("k", "a/#", policy="lossy", limit=10)
    await hand.subscribe("all", "a/#")
    await desk.publish("a/1", *numbers(100))
    await until(lambda: desk.channel().mailbox.waiting == 110)
    found = await hand.until(111)
    mine = [one for one in found if one["key"] == "k"]
    assert told(mine) == (numbers(10, 90), 90)
    assert "dropped" in mine[0]  # before what is left
    assert told([one for one in found if one["key"] == "all"]) == (numbers(100), 0)


async def test_a_lossy_key_that_catches_up_loses_nothing(desk: Desk) -> None:
    await desk.publish("a/1", *numbers(100))
    hand = desk.hand()
    await hand.subscribe("k", "a/#", since="earliest", policy="lossy", limit=10)
    assert payloads(await hand.until(100)) == numbers(100)


async def test_a_full_mailbox_bounds_what_is_read_from_the_log(start_desk: StartDesk) -> None:
    desk = await start_desk(mailbox_bytes=50_000)
    for first in range(0, 400, 50):
        await desk.publish("a/1", *(f"{number} {'x' * 1000}" for number in range(first, first + 50)))
    hand = desk.hand()
    await hand.commands(*({"subscribe": f"k{n}", "filter": "a/#", "since": "earliest"} for n in range(5)))
    found: dict[str, list[str]] = {f"k{n}": [] for n in range(5)}
    async with asyncio.timeout(60):
        while any(len(some) < 400 for some in found.values()):
            assert desk.channel().mailbox.bytes < 60_000
            for one in (await hand.poll())["messages"]:
                found[one["key"]].append(one["message"]["payload"].partition(" ")[0])
    assert all(some == numbers(400) for some in found.values())


async def test_it_goes_on_at_another_gateway_from_its_cursors(
    client: Client, start_gateway: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.create_space("s", ["a/#"], streams=3)
    one, two = await start_gateway(), await start_gateway()
    hand = HandClient(one)
    begun = await hand.commands({"subscribe": "k", "filter": "a/#"}, {"subscribe": "quiet", "filter": "a/q"})
    async with client.publisher() as publisher:
        await publisher.send_many("a/1", numbers(50))
        first = await hand.until(30)
        monkeypatch.setattr("streamlease.registry.members.member_records.GatewaySigns.alive", dead)
        moved = HandClient(two)
        moved.gateway = hand.gateway
        assert (await moved.poll(wait=30))["messages"] == []  # at once: it is another gateway
        await moved.commands(
            {"subscribe": "k", "filter": "a/#", "since": first[29]["cursor"]},
            {"subscribe": "quiet", "filter": "a/q", "since": begun["subscriptions"][1]["cursor"]},
        )
        await publisher.send("a/q", "after all")
    found = await moved.until(22)
    mine = payloads([one for one in found if one["key"] == "k"])
    assert sorted(payloads(first[:30]) + mine) == sorted([*numbers(50), "after all"])
    assert payloads([one for one in found if one["key"] == "quiet"]) == ["after all"]


async def dead(*_: Any) -> bool:
    return False


async def test_the_cursor_of_an_answer_stands_behind_all_keys(desk: Desk) -> None:
    hand = desk.hand()
    await hand.commands({"subscribe": "k", "filter": "a/1"}, {"subscribe": "quiet", "filter": "b/#"})
    await desk.publish("a/1", "x")
    await desk.publish("a/2", "nobody's")
    async with within(10):
        while (answer := await hand.poll(wait=0.1))["cursor"] is None or answer["messages"]:
            pass
    await desk.publish("b/1", "y")
    page = (await desk.http.get("/v1/messages", filter="#", since=answer["cursor"])).json()
    assert [one["payload"] for one in page["messages"]] in ([["y"]], ["y"], ["nobody's", "y"])
    assert answer["command"] == 2


async def test_what_retention_took_is_told_of_the_key_with_the_oldest_cursor(desk: Desk) -> None:
    hand = desk.hand()
    begun = await hand.subscribe("k", "a/#", since="earliest")
    await hand.unsubscribe("k")
    for number in numbers(10):
        await desk.publish("a/1", number)
    await trim(desk.client.redis, Trim(StreamId("s", 0, 0), Retention(messages=3), 10))
    await forgotten(desk, 10)
    await hand.subscribe("k", "a/#", since=begun["subscriptions"][0]["cursor"])
    (failure,) = await hand.until(1)
    assert failure["key"] == "k" and failure["error"]["status"] == 410
    await hand.subscribe("k", "a/#", since=failure["error"]["oldest"])
    assert payloads(await hand.until(3)) == numbers(3, 7)


async def test_a_parked_key_that_retention_overtook_is_told(desk: Desk) -> None:
    hand = desk.hand()
    await hand.subscribe("k", "a/#", limit=5)
    for number in numbers(30):
        await desk.publish("a/1", number)
    await until(lambda: bool(desk.channel().behind))
    await trim(desk.client.redis, Trim(StreamId("s", 0, 0), Retention(messages=3), 30))
    await forgotten(desk, 30)
    found = await hand.until(6)
    assert payloads(found[:5]) == numbers(5)
    assert found[5]["error"]["status"] == 410
    await hand.subscribe("k", "a/#", since=found[5]["error"]["oldest"])
    assert payloads(await hand.until(3)) == numbers(3, 27)


async def test_a_space_that_is_deleted_fails_its_keys_only(desk: Desk) -> None:
    await desk.client.create_space("other", ["c/#"], streams=1)
    hand = desk.hand()
    await hand.commands({"subscribe": "k", "filter": "a/#"}, {"subscribe": "other", "filter": "c/#"})
    await desk.client.spaces.delete("other")
    async with asyncio.timeout(30):
        failures: list[Document] = []
        while not failures:
            failures = (await hand.poll(wait=1))["failures"]
    assert [one["key"] for one in failures] == ["other"]
    assert failures[0]["error"]["status"] in (404, 410)
    await desk.publish("a/1", "x")
    assert payloads(await hand.until(1)) == ["x"]


async def test_a_filter_takes_in_spaces_that_come_later(desk: Desk) -> None:
    hand = desk.hand()
    await hand.subscribe("all", "#")
    await desk.publish("a/1", "x")
    assert payloads(await hand.until(1)) == ["x"]
    await desk.client.create_space("later", ["z/#"], streams=2)
    await desk.publish("z/1", "first of a new space")
    assert payloads(await hand.until(1)) == ["first of a new space"]
    await desk.publish("a/1", "y")
    assert payloads(await hand.until(1)) == ["y"]


async def test_messages_go_on_over_other_streams_of_the_space(desk: Desk) -> None:
    hand = desk.hand()
    await hand.subscribe("all", "a/#")
    for streams in (3, 1):
        await desk.publish("a/1", *numbers(10))
        await desk.client.spaces.generations.alter("s", streams=streams)
        await desk.publish("a/1", *numbers(10, 10))
        assert payloads(await hand.until(20)) == numbers(20)


@pytest.mark.parametrize("how", ["pause", "restart"])
async def test_redis_stands_still_or_dies(tmp_path: Path, how: str) -> None:
    with RedisServer(Kind.EMBEDDED, tmp_path, persistent=True) as server:
        async with streamlease.connect(server.url) as client, running(client) as http:
            await client.create_space("s", ["a/#"], streams=1)
            hand = HandClient(http)
            await hand.subscribe("k", "a/#")
            async with client.publisher() as publisher:
                await publisher.send("a/1", "before")
            assert payloads(await hand.until(1)) == ["before"]
            await _interrupt(server, how, hand)
            async with asyncio.timeout(30):
                while True:
                    try:
                        async with client.publisher() as publisher:
                            await publisher.send("a/1", "after")
                        break
                    except streamlease.StreamleaseError:
                        await asyncio.sleep(0.1)
            found: list[Document] = []
            async with asyncio.timeout(30):
                while not found:
                    answer = await hand.post_poll(gateway=hand.gateway, processed=hand.processed, wait=1.0)
                    assert answer.status in (200, 503), answer
                    found = answer.json()["messages"] if answer.status == 200 else []
            assert payloads(found) == ["after"]


async def _interrupt(server: RedisServer, how: str, hand: HandClient) -> None:
    if how == "pause":
        server.pause()
        answer = await hand.post_poll(gateway=hand.gateway, processed=hand.processed, wait=0.2)
        assert answer.status in (200, 503)
        server.resume()
    else:
        server.kill()
        answer = await hand.post_commands([hand.numbered({"subscribe": "new", "filter": "a/#"})])
        assert answer.status == 503 and answer.json()["detail"]
        server.start()


async def test_ten_thousand_keys_in_one_poll(client: Client) -> None:
    async with running(client, channel_limits=ChannelLimits()) as http:
        await client.create_space("s", ["a/#"], streams=4)
        hand = HandClient(http)
        for first in range(0, 10_000, 1000):
            await hand.commands(
                *({"subscribe": f"k{n}", "filter": f"a/{n}"} for n in range(first, first + 1000))
            )
        async with client.publisher() as publisher:
            await asyncio.gather(*(publisher.send(f"a/{n}", str(n)) for n in range(10_000)))
        found = await hand.until(10_000, 60.0)
        assert {one["key"]: one["message"]["payload"] for one in found} == {
            f"k{n}": str(n) for n in range(10_000)
        }
        moved = HandClient(http, "moved")  # as after the death of its gateway, from a cursor of each key
        cursors: Any = {one["key"]: one["cursor"] for one in found}
        for first in range(0, 10_000, 1000):
            keys = range(first, first + 1000)
            await moved.commands(
                *({"subscribe": f"k{n}", "filter": f"a/{n}", "since": cursors[f"k{n}"]} for n in keys)
            )
        async with client.publisher() as publisher:
            await asyncio.gather(*(publisher.send(f"a/{n}", "again") for n in range(10_000)))
        again = await moved.until(10_000, 120.0)
        assert sorted(one["key"] for one in again) == sorted(cursors)
