"""The client of channels in Python, at a gateway."""

from __future__ import annotations

import asyncio
import hashlib
import json
import socket
from pathlib import Path

import pytest

from streamlease.http import GatewayDefect, GatewayRefused
from streamlease.http.channel_client import ChannelClient
from streamlease.http.core.channel_machine import ChannelDropped, ChannelEvent, ChannelFailed, ChannelMessage
from streamlease.protocol.errors import InvalidOption, TaskFailed
from tests.agent.helpers import until
from tests.awake import within
from tests.gateway.channels.conftest import Desk
from tests.gateway.conftest import Client, running


def address(desk: Desk) -> str:
    return f"http://127.0.0.1:{desk.http.port}"


async def take(channel: ChannelClient, count: int) -> list[ChannelEvent]:
    async with asyncio.timeout(20):
        return [await anext(channel) for _ in range(count)]


def payloads(events: list[ChannelEvent]) -> list[str]:
    return [one.message["payload"] for one in events if isinstance(one, ChannelMessage)]


async def test_messages_come_and_the_channel_ends_with_its_client(desk: Desk) -> None:
    async with ChannelClient(address(desk)) as channel:
        begun = channel.subscribe("k", "a/#")
        other = channel.subscribe("other", "b/#")
        assert await begun and await other
        await desk.publish("a/1", "x")
        await desk.publish("b/1", "y")
        assert payloads(await take(channel, 2)) == ["x", "y"]
        assert channel.keys == ["k", "other"]
        channel.unsubscribe("k")
        await desk.publish("a/1", "unwanted")
        await desk.publish("b/1", "z")
        assert payloads(await take(channel, 1)) == ["z"]
    assert len(desk.channels) == 0


async def test_a_key_goes_on_from_its_cursor_in_another_client(desk: Desk) -> None:
    await desk.publish("a/1", *map(str, range(10)))
    async with ChannelClient(address(desk)) as channel:
        channel.subscribe("k", "a/#", since="earliest")
        events = await take(channel, 4)
    last = events[-1]
    assert isinstance(last, ChannelMessage)
    async with ChannelClient(address(desk)) as channel:
        channel.subscribe("k", "a/#", since=last.cursor)
        assert payloads(await take(channel, 6)) == [str(number) for number in range(4, 10)]


async def test_a_key_that_fails_leaves_the_others(desk: Desk) -> None:
    async with ChannelClient(address(desk)) as channel:
        keys = {"good": "a/#", "nowhere": "nowhere/#", "bad": "a/#/b", "better": "b/#"}
        begun = {key: channel.subscribe(key, filter) for key, filter in keys.items()}
        failed = {one.key: one for one in await take(channel, 2) if isinstance(one, ChannelFailed)}
        assert failed.keys() == {"nowhere", "bad"}
        assert failed["nowhere"].error["status"] == 404 and "a/#/b" in failed["bad"].error["detail"]
        assert (await begun["nowhere"], await begun["bad"]) == (None, None)
        assert await begun["good"] and await begun["better"]
        await desk.publish("a/1", "x")
        assert payloads(await take(channel, 1)) == ["x"]


async def test_a_task_that_is_cancelled_by_nobody_does_not_leave_the_reader_waiting(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def cancelled(*_: object, **__: object) -> None:
        raise asyncio.CancelledError("from what it waited for")

    async with ChannelClient(address(desk)) as channel, asyncio.timeout(20):
        await channel.subscribe("k", "a/#")
        monkeypatch.setattr(channel, "_exchange", cancelled)
        await desk.publish("a/1", "x")
        assert payloads(await take(channel, 1)) == ["x"]
        with pytest.raises(TaskFailed, match="polls ended by a defect"):
            await anext(channel)


async def test_a_defect_of_the_gateway_is_told_and_not_asked_for_again(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def defect(*_: object) -> None:
        raise LookupError("a defect")

    async with ChannelClient(address(desk)) as channel, asyncio.timeout(20):
        await channel.subscribe("k", "a/#")
        monkeypatch.setattr(desk.channels, "command", defect)
        channel.subscribe("other", "b/#")
        (failed,) = await take(channel, 1)
        assert isinstance(failed, ChannelFailed) and failed.key == "other" and failed.error["status"] == 500
        monkeypatch.setattr(desk.app.channels.places, "find", defect)
        await desk.publish("a/1", "x")
        assert payloads(await take(channel, 1)) == ["x"]
        with pytest.raises(GatewayDefect, match="it may have been done"):
            await anext(channel)


async def test_a_lossy_key_tells_what_it_dropped(desk: Desk) -> None:
    async with ChannelClient(address(desk), name="slow") as channel:
        await channel.subscribe("k", "a/#", policy="lossy", limit=5)
        await desk.publish("a/1", "first")
        assert payloads(await take(channel, 1)) == ["first"]  # nothing is asked for meanwhile
        await desk.publish("a/1", *map(str, range(50)))
        await until(lambda: desk.channel("slow").mailbox.dropped > 0)
        events: list[ChannelEvent] = []
        while sum(one.dropped if isinstance(one, ChannelDropped) else 1 for one in events) < 50:
            events += await take(channel, 1)
        assert payloads(events)[-5:] == [str(number) for number in range(45, 50)]


async def test_a_client_that_the_gateway_took_for_dead_misses_nothing(desk: Desk) -> None:
    async with ChannelClient(address(desk), name="sleeper") as channel:
        await channel.subscribe("k", "a/#")
        await desk.publish("a/1", "x")
        assert payloads(await take(channel, 1)) == ["x"]  # not acknowledged yet: no poll is open
        desk.channels.forget_dead(asyncio.get_running_loop().time() + 61)
        assert len(desk.channels) == 0
        await desk.publish("a/1", "y", "z")
        assert payloads(await take(channel, 2)) == ["y", "z"]


async def test_another_poll_ends_the_one_before(desk: Desk) -> None:
    hand, same = desk.hand(), desk.hand()
    await hand.subscribe("k", "a/#")
    first = asyncio.ensure_future(hand.poll(wait=30))
    await until(lambda: desk.channel().poll.is_open)
    second = asyncio.ensure_future(same.poll(wait=30))
    async with within(10):
        assert (await first)["messages"] == []
    await desk.publish("a/1", "x")
    assert len((await second)["messages"]) == 1


async def test_an_address_where_nobody_is_costs_an_attempt(desk: Desk) -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    async with ChannelClient(f"http://127.0.0.1:{port}", address(desk)) as channel:
        channel.subscribe("k", "a/#", since="earliest")
        await desk.publish("a/1", "x")
        assert payloads(await take(channel, 1)) == ["x"]


async def test_an_unknown_token_ends_the_iteration(client: Client, tmp_path: Path) -> None:
    await client.create_space("s", ["a/#", "b/#"], streams=1)
    digest = hashlib.sha256(b"right").hexdigest()
    document = {"tokens": [{"name": "n", "sha256": digest, "consume": ["a/#"]}]}
    (tmp_path / "tokens").write_text(json.dumps(document))
    async with running(client, tokens=tmp_path / "tokens") as http:
        url = f"http://127.0.0.1:{http.port}"
        async with ChannelClient(url, token="wrong") as channel:
            channel.subscribe("k", "a/#")
            with pytest.raises(GatewayRefused, match="token is unknown"):
                await take(channel, 1)
        async with ChannelClient(url, token="right") as channel:
            channel.subscribe("mine", "a/#", since="earliest")
            channel.subscribe("not mine", "b/#")
            async with client.publisher() as publisher:
                await publisher.send("a/1", "x")
            events = await take(channel, 2)
            (failed,) = [one for one in events if isinstance(one, ChannelFailed)]
            assert (failed.key, failed.error["status"]) == ("not mine", 403)
            assert payloads(events) == ["x"]


def test_a_channel_needs_an_address() -> None:
    with pytest.raises(InvalidOption, match="needs an address"):
        ChannelClient()
