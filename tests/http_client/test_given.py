"""What a program hands to a client of the gateway is told in one line where it is of another kind."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import pytest

from streamlease import http
from streamlease.http import MessageToPublish
from streamlease.http.channel_client import ChannelClient
from streamlease.http.gateway_client import GatewayClient
from streamlease.protocol.errors import InvalidInput, InvalidOption, StreamleaseError
from tests.gateway.conftest import Client
from tests.gateway.http_client import HttpClient
from tests.http_client.test_gateway_client import url

NAIVE = datetime(2026, 1, 1)
LONE = "\ud800"

PUBLISHED: dict[str, tuple[Callable[[GatewayClient], Awaitable[object]], str]] = {
    "number": (lambda it: it.publish("a/b", 7), "the payload is 7: give bytes, text, or values by column"),
    "list": (lambda it: it.publish("a/b", [1, 2]), "the payload is [1, 2]: give bytes"),
    "nothing": (lambda it: it.publish("a/b", None), "the payload is None: give bytes"),
    "surrogate": (lambda it: it.publish("a/b", LONE), r"the payload is '\ud800', which cannot be encoded"),
    "no JSON": (lambda it: it.publish("a/b", {"a": {1}}), "the payload {'a': {1}} cannot be written as JSON"),
    "key": (lambda it: it.publish("a/b", "x", key=7), "the key is 7: give a text or bytes"),
    "headers": (lambda it: it.publish("a/b", "x", headers="ab"), "headers is 'ab': give a mapping, or pairs"),
    "header": (lambda it: it.publish("a/b", "x", headers=["ab"]), "the header 'ab' is no pair"),
    "name": (lambda it: it.publish("a/b", "x", headers={7: "x"}), "the name of a header is 7: give a text"),
    "value": (lambda it: it.publish("a/b", "x", headers={"n": 7}), "header n is 7: give a text or bytes"),
    "time": (
        lambda it: it.publish("a/b", "x", timestamp=7),
        "the timestamp is 7: give a datetime with its zone",
    ),
    "zone": (
        lambda it: it.publish("a/b", "x", timestamp=NAIVE),
        "the timestamp 2026-01-01 00:00:00 has no zone",
    ),
    "seconds": (lambda it: it.publish("a/b", "x", seconds="2"), "seconds is '2': give seconds, more than 0"),
    "no number": (lambda it: it.publish("a/b", "x", seconds=float("nan")), "seconds is nan: give seconds"),
    "name of it": (lambda it: it.publish("a/b", "x", idempotency_key=7), "the idempotency key is 7: give"),
    "topic": (lambda it: it.publish(7, "x"), "topic 7"),
    "wild": (lambda it: it.publish("a/#", "x"), "topic 'a/#' contains a wildcard"),
    "no list": (lambda it: it.publish_many("a/b", "xy"), "messages is 'xy': give a list of MessageToPublish"),
    "no messages": (lambda it: it.publish_many("a/b", ["xy"]), "'xy' is no message: give MessageToPublish("),
    "one of two": (
        lambda it: it.publish_many("a/b", [MessageToPublish("x"), MessageToPublish(1.5)]),
        "the payload is 1.5: give bytes",
    ),
    "since": (lambda it: it.since("a/#", 7), "since is 7: give a cursor, earliest, latest or a datetime"),
    "since a text": (lambda it: it.since("a/#", LONE), r"since is '\ud800', which cannot be encoded"),
    "filter": (lambda it: it.since(7), "filter 7"),
    "wait": (lambda it: it.since("a/#", wait="5"), "wait is '5': give a number of seconds"),
}


@contextmanager
def refused(said: str) -> Iterator[None]:
    with pytest.raises(StreamleaseError) as told:
        yield
    assert str(told.value).startswith(said), str(told.value)


@pytest.mark.parametrize("what", PUBLISHED)
async def test_a_kind_that_cannot_be_is_refused_and_nothing_is_published(
    client: Client, gateway: HttpClient, what: str
) -> None:
    """A payload of 7 was published as seven zero bytes."""
    await client.create_space("s", ["a/#"], streams=1)
    call, said = PUBLISHED[what]
    async with http.connect(url(gateway)) as service:
        with refused(said):
            await call(service)
        assert (await service.since("a/#", "earliest")).messages == ()


async def test_what_is_like_it_is_taken(client: Client, gateway: HttpClient) -> None:
    await client.create_space("s", ["a/#"], streams=1)
    forms: list[Any] = [{"n": "v"}, [("n", b"v")], {"n": "v"}.items(), None, ()]
    async with http.connect(url(gateway)) as service:
        for headers in forms:
            await service.publish("a/b", memoryview(b"x"), headers=headers, seconds=float("inf"))
        await service.publish("a/b", bytearray(b"\xff"), key=bytearray(b"k"))
        messages = (await service.since("a/#", "earliest")).messages
    assert [one.headers for one in messages] == [*[(("n", b"v"),)] * 3, (), (), ()]
    assert [one.payload for one in messages] == [*[b"x"] * 5, b"\xff"]


FOLLOWED: dict[str, tuple[dict[str, Any], str]] = {
    "filter": ({"filter": 7}, "filter 7"),
    "since": ({"since": NAIVE}, "since 2026-01-01 00:00:00 has no zone"),
    "webhook": ({"webhook": "http://127.0.0.1/hook"}, "webhook is 'http://127.0.0.1/hook': give a Webhook"),
    "quiet": ({"quiet": 5}, "quiet is 5: give two numbers, the lower one first"),
    "quiet of texts": ({"quiet": ("1", "2")}, "quiet_least is '1': give a number"),
    "wait": ({"wait": "20"}, "wait is '20': give a number"),
    "limit": ({"limit": True}, "limit is True: give a number"),
    "patience": ({"patience": "5"}, "patience is '5': give a number"),
}


@pytest.mark.parametrize("what", FOLLOWED)
async def test_a_follower_is_told_at_once(what: str) -> None:
    given, said = FOLLOWED[what]
    async with http.connect("http://127.0.0.1:1") as service:
        with refused(said):
            service.follow(**{"filter": "a/#", **given})


@pytest.mark.parametrize("given", [7, None, b"http://127.0.0.1:1", ["http://127.0.0.1:1"]])
async def test_an_address_is_a_text(given: Any) -> None:
    for made in (http.connect, ChannelClient):
        with pytest.raises(StreamleaseError, match="is no address of a gateway: give one such as"):
            made(given)
    with pytest.raises(StreamleaseError, match=r"^the token is 7: give a text"):
        http.connect("http://127.0.0.1:1", token=7)  # type: ignore[arg-type]


SUBSCRIBED: dict[str, tuple[dict[str, Any], str]] = {
    "key": ({"key": ["k"]}, "key is ['k']: give a text"),
    "filter": ({"filter": b"a/#"}, "filter is b'a/#': give a text"),
    "since": ({"since": 7}, "since is 7: give a text"),
    "policy": ({"policy": "often"}, "policy is 'often': use lossy or critical"),
    "limit": ({"limit": {1}}, "limit is {1}: give a number of messages"),
}


@pytest.mark.parametrize("what", SUBSCRIBED)
async def test_a_channel_goes_on_after_a_subscription_that_cannot_be(
    client: Client, gateway: HttpClient, what: str
) -> None:
    """What JSON does not have ended its task, and who awaited the subscription waited for ever."""
    await client.create_space("s", ["a/#"], streams=1)
    given, said = SUBSCRIBED[what]
    async with ChannelClient(url(gateway)) as channel:
        with refused(said):
            channel.subscribe(**{"key": "k", "filter": "a/#", **given})
        async with asyncio.timeout(30):
            assert await channel.subscribe("k", "a/#") is not None
        assert channel.keys == ["k"]


async def test_who_awaits_a_subscription_of_a_channel_that_ended_goes_on(gateway: HttpClient) -> None:
    async with ChannelClient(url(gateway)) as channel:
        begun = channel.subscribe("k", "a/#")
        channel._failed("commands", StreamleaseError("it ended"))
        assert begun.done(), "before any gateway has answered"
        assert begun.result() is None


async def test_what_is_closed_or_not_entered_says_so(client: Client, gateway: HttpClient) -> None:
    await client.create_space("s", ["a/#"], streams=1)
    channel = ChannelClient(url(gateway))
    async with asyncio.timeout(30):
        with pytest.raises(InvalidOption, match=r"^the channel is not open: write 'async with"):
            await anext(channel)
        begun = channel.subscribe("k", "a/#")  # before it is entered, which is as good
        async with channel:
            assert await begun is not None
            waiting = asyncio.create_task(anext(channel))
            await asyncio.sleep(0)
        with pytest.raises(StopAsyncIteration):
            await waiting
        with pytest.raises(StopAsyncIteration):
            await anext(channel)
        for call in (channel.subscribe, channel.follow):
            with pytest.raises(InvalidOption, match=r"^the channel is closed: make another one$"):
                call("k", *(["a/#"] if call == channel.subscribe else []))
        with pytest.raises(InvalidOption, match="was entered before"):
            await channel.__aenter__()
        async with http.connect(url(gateway)) as service:
            pass
        closed = r"^the client is closed: connect again$"
        for asked in (service.publish("a/b", "x"), service.since("a/#")):
            with pytest.raises(InvalidInput, match=closed):
                await asked
        async with service.follow("a/#") as pages:
            with pytest.raises(InvalidInput, match=closed):
                await anext(pages)
