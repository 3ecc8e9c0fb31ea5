"""Channels over HTTP: commands, polls, acknowledgements, what is bounded, and who is dead."""

from __future__ import annotations

import asyncio

from tests.awake import within
from tests.gateway.channels.channel_client import HandClient, payloads
from tests.gateway.conftest import Client
from tests.gateway.http_client import HttpClient


async def test_messages_of_several_keys_come_in_one_poll(client: Client, gateway: HttpClient) -> None:
    await client.create_space("s", ["a/#"], streams=2)
    hand = HandClient(gateway)
    told = await hand.commands({"subscribe": "one", "filter": "a/1"}, {"subscribe": "all", "filter": "a/#"})
    assert told["command"] == 2
    assert [one["key"] for one in told["subscriptions"]] == ["one", "all"]
    async with client.publisher() as publisher:
        await publisher.send("a/1", b"x")
        await publisher.send("a/2", b"y")
    found = await hand.until(3)
    assert {(one["key"], one["message"]["payload"]) for one in found} == {
        ("one", "x"), ("all", "x"), ("all", "y"),
    }  # fmt: skip
    assert [one["sequence"] for one in found] == [1, 2, 3]


async def test_what_is_not_acknowledged_comes_again(client: Client, gateway: HttpClient) -> None:
    await client.create_space("s", ["a/#"], streams=1)
    hand = HandClient(gateway)
    await hand.subscribe("k", "a/#")
    async with client.publisher() as publisher:
        for number in range(3):
            await publisher.send("a/1", b"%d" % number)
    first = await hand.until(3)
    again = await hand.poll(processed=1)
    assert again["messages"] == first[1:]
    assert (await hand.poll(wait=0.0))["messages"] == []


async def test_a_parked_poll_is_answered_by_a_message(client: Client, gateway: HttpClient) -> None:
    await client.create_space("s", ["a/#"], streams=1)
    hand = HandClient(gateway)
    await hand.subscribe("k", "a/#")
    parked = asyncio.ensure_future(hand.poll(wait=30.0))
    await asyncio.sleep(0.2)
    assert not parked.done()
    async with client.publisher() as publisher:
        await publisher.send("a/1", b"x")
    async with within(10):
        assert payloads((await parked)["messages"]) == ["x"]


async def test_from_earliest_everything_comes_in_order(client: Client, gateway: HttpClient) -> None:
    await client.create_space("s", ["a/#"], streams=1)
    async with client.publisher() as publisher:
        await publisher.send_many("a/1", [b"%d" % number for number in range(2500)])
    hand = HandClient(gateway)
    await hand.subscribe("k", "a/#", since="earliest", limit=100)
    assert payloads(await hand.until(2500)) == [str(number) for number in range(2500)]


async def test_what_channels_count(client: Client, gateway: HttpClient) -> None:
    await client.create_space("s", ["a/#"], streams=1)
    before = await counted(gateway)
    hand = HandClient(gateway)
    await hand.commands(
        {"subscribe": "k", "filter": "a/#", "policy": "lossy", "limit": 2},
        {"subscribe": "critical", "filter": "a/#", "limit": 2},
        {"subscribe": "none", "filter": "nowhere/#"},
    )
    async with client.publisher() as publisher:
        await publisher.send_many("a/1", [b"%d" % number for number in range(10)])
    found = await hand.until(1 + 1 + 2 + 10)
    assert sum("dropped" in one for one in found) == 1
    after = await counted(gateway)
    grown = {name: after[name] - before.get(name, 0) for name in after}
    assert grown["dropped_total"] == 8 and grown["failed_total"] == 1 and grown["fell_back_total"] >= 1
    assert grown["sent_total"] >= 14 and grown["open"] == 1 and grown["keys"] == 2


async def counted(http: HttpClient) -> dict[str, float]:
    lines = (await http.get("/metrics")).body.decode().splitlines()
    mine = [line.partition("streamlease_channels_")[2].split() for line in lines if line[:1] != "#"]
    return {one[0]: float(one[1]) for one in mine if one}
