"""Requests of one channel at several gateways, in turns, as a plain load balancer sends them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

import streamlease
from streamlease.channels.core.channel_limits import ChannelLimits
from streamlease.gateway.between.gateway_lines import GatewayLines, Unreachable
from streamlease.gateway.http_app import GatewayApp
from streamlease.gateway.metrics import COUNTS
from streamlease.http.channel_client import ChannelClient
from streamlease.http.core.channel_machine import ChannelMessage
from streamlease.registry.members.channel_homes import ChannelHome, ChannelName
from tests.agent.helpers import until
from tests.gateway.channels.channel_client import HandClient
from tests.gateway.channels.conftest import Desk
from tests.gateway.conftest import Client, running
from tests.http_client.faulty_proxy import Faults, between

KEYS = 20
COMMANDS = "/v1/channels/*/commands"


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as one:
        yield one


async def desks(client: Client, url: str, stack: AsyncExitStack, count: int, **limits: Any) -> list[Desk]:
    """Gateways, each with a connection of its own."""
    await client.create_space("s", ["a/#", "b/#"], streams=1)
    found = []
    for _ in range(count):
        apps: list[GatewayApp] = []
        own = await stack.enter_async_context(streamlease.connect(url))
        options = {"channel_limits": ChannelLimits(**limits), "begun": apps.append}
        http = await stack.enter_async_context(running(own, **options))  # type: ignore[arg-type]
        found.append(Desk(http, apps[0], client))
    return found


async def follow(client: Client, channel: ChannelClient, rounds: int) -> None:
    """Everything comes once, in order, under every key."""
    found: dict[str, list[str]] = {f"k{n}": [] for n in range(KEYS)}
    begun = [channel.subscribe(key, f"a/{key[1:]}") for key in found]
    async with asyncio.timeout(60), client.publisher() as publisher:
        await asyncio.gather(*begun)
        for number in range(rounds):
            for key in range(KEYS):
                await publisher.submit(f"a/{key}", str(number))
            await publisher.flush()
            while any(len(some) <= number for some in found.values()):
                event = await anext(channel)
                assert isinstance(event, ChannelMessage), event
                found[event.key].append(event.message["payload"])
    assert set(map(tuple, found.values())) == {tuple(map(str, range(rounds)))}


def requests(route: str) -> int:
    return sum(count for (of, _), count in COUNTS.requests.items() if of == route)


async def test_a_channel_stays_where_it_began(
    client: Client, embedded_redis_url: str, stack: AsyncExitStack
) -> None:
    one, two = await desks(client, embedded_redis_url, stack, 2)
    before = requests(COMMANDS)
    async with between([one.http.port, two.http.port], Faults(), seed=1) as proxy:
        async with ChannelClient(proxy.url, wait=5.0) as channel:
            await follow(client, channel, 20)
            assert sorted((len(one.channels), len(two.channels))) == [0, 1]
            assert requests(COMMANDS) - before <= 2 * 2, "nothing was subscribed to again"
        assert len(one.channels) == len(two.channels) == 0, "its end found it, too"


async def test_a_channel_of_a_dead_gateway_goes_on_at_another(
    client: Client, embedded_redis_url: str, stack: AsyncExitStack
) -> None:
    first = AsyncExitStack()
    (one,) = await desks(client, embedded_redis_url, first, 1)
    hand = HandClient(one.http)
    told = await hand.subscribe("k", "a/#")
    begun = told["subscriptions"][0]["cursor"]
    await hand.poll(wait=0.0)
    (two,) = await desks(client, embedded_redis_url, stack, 1)
    hand.http = two.http
    former = hand.gateway
    await one.publish("a/1", "x")
    assert [m["message"]["payload"] for m in (await hand.poll())["messages"]] == ["x"]
    assert hand.gateway == former and len(two.channels) == 0
    await first.aclose()
    assert (await hand.poll())["messages"] == [] and hand.gateway != former
    assert len(two.channels) == 1
    await hand.subscribe("k", "a/#", since=begun)
    assert [m["message"]["payload"] for m in (await hand.poll())["messages"]] == ["x"]


async def test_a_poll_that_was_passed_on_survives_the_end_of_its_gateway(
    client: Client, embedded_redis_url: str, stack: AsyncExitStack
) -> None:
    first = AsyncExitStack()
    (one,) = await desks(client, embedded_redis_url, first, 1)
    (two,) = await desks(client, embedded_redis_url, stack, 1)
    hand = HandClient(one.http)
    await hand.subscribe("k", "a/#")
    await hand.poll(wait=0.0)
    former, hand.http = hand.gateway, two.http
    polling = asyncio.ensure_future(hand.poll(wait=60))
    await until(lambda: one.channel().poll.is_open)
    await first.aclose()
    async with asyncio.timeout(30):
        assert (await polling)["messages"] == [] and hand.gateway != former
    assert len(two.channels) == 1


async def test_a_client_that_was_forgotten_begins_where_it_comes(
    client: Client, embedded_redis_url: str, stack: AsyncExitStack
) -> None:
    one, two = await desks(client, embedded_redis_url, stack, 2)
    hand = HandClient(one.http)
    await hand.subscribe("k", "a/#")
    one.channels.close(one.channel())
    hand.http = two.http
    await hand.subscribe("k", "a/#")
    assert (len(one.channels), len(two.channels)) == (0, 1)
    hand.http = one.http
    await hand.subscribe("other", "a/#")
    assert (len(one.channels), len(two.channels)) == (0, 1)


async def test_a_request_that_was_passed_on_is_not_passed_on_again(
    client: Client, embedded_redis_url: str, stack: AsyncExitStack
) -> None:
    one, two = await desks(client, embedded_redis_url, stack, 2)
    await HandClient(one.http).subscribe("k", "a/#")
    poll = '{"gateway": null, "processed": 0, "wait": 0}'
    answer = await two.http.post("/v1/channels/hand/poll", poll, {"streamlease-forwarded": "gateway-x"})
    assert (answer.status, answer.json()["type"]) == (421, "urn:streamlease:problem/misdirected")
    assert len(two.channels) == 0


async def test_who_was_taken_over_while_it_was_not_reached_closes_what_it_has(
    client: Client, embedded_redis_url: str, stack: AsyncExitStack
) -> None:
    one, two = await desks(client, embedded_redis_url, stack, 2)
    hand = HandClient(one.http)
    await hand.subscribe("k", "a/#")
    await hand.poll(wait=0.0)
    places = two.app.channels.places
    seen = await places._homes.read(ChannelName(None, "hand"))
    assert seen is not None and seen.address == f"http://127.0.0.1:{one.http.port}"
    assert await places._homes.take(ChannelName(None, "hand"), seen, ChannelHome("other", ""), 60_000)
    assert len(one.channels) == 1
    await one.app.channels.places.keep_records()
    assert len(one.channels) == 0


async def test_requests_at_once_begin_one_channel(
    client: Client, embedded_redis_url: str, stack: AsyncExitStack
) -> None:
    some = await desks(client, embedded_redis_url, stack, 3)
    for number in range(10):
        hands = [HandClient(desk.http, f"c{number}") for desk in some]
        answers = await asyncio.gather(*(hand.subscribe("k", "a/#") for hand in hands for _ in range(2)))
        assert len({answer["gateway"] for answer in answers}) == 1
    assert sum(len(desk.channels) for desk in some) == 10


async def test_gateways_that_do_not_reach_each_other_are_not_stormed(
    client: Client, embedded_redis_url: str, stack: AsyncExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every poll finds another gateway, where all is subscribed to again: the less often, the longer."""

    async def none(*_: Any) -> None:
        raise Unreachable("no way", asked=False)

    monkeypatch.setattr(GatewayLines, "ask", none)
    one, two = await desks(client, embedded_redis_url, stack, 2)
    before, loop = requests("/v1/channels/*/poll"), asyncio.get_running_loop()
    began = loop.time()
    async with (
        asyncio.timeout(60),
        between([one.http.port, two.http.port], Faults(), seed=1) as proxy,
        ChannelClient(proxy.url, wait=5.0) as channel,
    ):
        channel.subscribe("k", "a/#")
        while requests("/v1/channels/*/poll") - before < 8:
            await one.http.get("/healthz")
    assert loop.time() - began > 1.5
