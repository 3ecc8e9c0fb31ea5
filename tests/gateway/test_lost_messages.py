"""Redis came back without the last acknowledged messages, as after a failover: nobody is kept in the dark.

A client that has them is told, with the cursor to go on from. Offsets that it knows are not given out again,
so it gets everything that is published from then on.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from streamlease.gateway.core.cursors import Cursor
from streamlease.gateway.core.refusals import LostSince
from streamlease.gateway.since_reading import SinceReading
from streamlease.gateway.webhooks.webhook_service import WebhookSettings
from streamlease.http.channel_client import ChannelClient
from streamlease.http.core.channel_machine import ChannelFailed, ChannelMessage
from streamlease.protocol.ids import StreamId
from streamlease.streams.log.log import AsyncLog
from tests.agent.test_holes import lose_tail, next_of
from tests.gateway.conftest import Client, Start, running
from tests.gateway.http_client import HttpClient
from tests.gateway.test_event_streams import events, some
from tests.gateway.test_since import ask, payloads, publish, read_on
from tests.gateway.webhooks.conftest import subscribe
from tests.gateway.webhooks.receiver import receiving


async def six(client: Client) -> None:
    await client.create_space("s", ["a/#"])
    await publish(client, *(("a/1", str(n)) for n in range(6)))


def is_lost(problem: Any) -> bool:
    return str(problem["type"]).endswith("/history-lost")


async def lost(http: HttpClient, since: str, **parameters: Any) -> str:
    """What who has a cursor behind what was lost is told: the cursor to go on from."""
    answer = await http.get("/v1/messages", filter="a/#", since=since, **parameters)
    assert answer.status == 410 and is_lost(answer.json()), answer
    oldest: str = answer.json()["oldest"]
    return oldest


async def test_a_cursor_beyond_the_end_is_told_and_goes_on_with_all_that_comes(
    client: Client, gateway: HttpClient, start_gateway: Start
) -> None:
    await six(client)
    _, end = await read_on(gateway, "earliest", filter="a/#")
    five = (await ask(gateway, filter="a/#", since="earliest", limit=5))["next"]
    two = (await ask(gateway, filter="a/#", since="earliest", limit=2))["next"]
    await lose_tail(client, 4)
    other = await start_gateway()
    oldest = await lost(other, end)
    await publish(client, ("a/1", "new"))
    assert await next_of(client) == 8  # offset 6 was never given out
    assert payloads(await ask(gateway, filter="a/#", since=oldest)) == ["new"]
    # At any gateway, whoever has some of it is told; whoever does not first gets what is there.
    for cursor in (end, five):
        assert payloads(await ask(other, filter="a/#", since=await lost(gateway, cursor))) == ["new"]
    page = await ask(gateway, filter="a/#", since=two)
    assert payloads(page) == ["2", "3"]
    assert payloads(await ask(gateway, filter="a/#", since=await lost(gateway, page["next"]))) == ["new"]


async def test_of_two_who_are_told_in_the_same_moment_both_go_on_behind_the_hole(
    client: Client, gateway: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One marks the hole right before the other looks at what is lost, and finds nothing."""
    await six(client)
    _, end = await read_on(gateway, "earliest", filter="a/#")
    await lose_tail(client, 4)
    told, others = SinceReading._lost, ["one"]

    async def behind_another(self: SinceReading, after: Cursor) -> LostSince:
        while others:
            others.pop()
            await AsyncLog(client.redis).never_again(StreamId("s", 0, 0), 7)
        return await told(self, after)

    monkeypatch.setattr(SinceReading, "_lost", behind_another)
    oldest = await lost(gateway, end)
    assert others == []
    await publish(client, ("a/1", "new"))
    assert payloads(await ask(gateway, filter="a/#", since=oldest)) == ["new"]


async def test_who_waits_at_the_end_is_told(client: Client, gateway: HttpClient) -> None:
    await six(client)
    _, end = await read_on(gateway, "earliest", filter="a/#")
    async with gateway.streaming("/v1/events", filter="a/#", since=end) as (_, parts):
        stream = events(parts)
        assert (await anext(stream)).data is None
        polling = asyncio.ensure_future(lost(gateway, end, wait=20))
        await asyncio.sleep(0)
        await lose_tail(client, 4)
        oldest = await polling
        (said,) = await some(stream, 1)
        assert said.name == "problem" and is_lost(said.data)
    await publish(client, ("a/1", "new"))
    for cursor in (oldest, said.data["oldest"]):
        assert (await read_on(gateway, cursor, filter="a/#"))[0] == ["new"]


async def test_a_webhook_goes_on_and_what_it_gets_does_not_follow(client: Client) -> None:
    await six(client)
    settings = WebhookSettings(allow_private=True)
    async with receiving() as receiver, running(client, webhooks=settings) as http:
        await subscribe(http, receiver, since="earliest")
        await receiver.until(lambda: len(receiver.payloads("h")) == 6)
        had = receiver.deliveries[-1].body["next"]
        await lose_tail(client, 4)
        async with asyncio.timeout(20):
            while (await http.get("/v1/subscriptions/h")).json()["trouble"] is None:  # noqa: ASYNC110 (in Redis)
                await asyncio.sleep(0.02)
        shown = (await http.get("/v1/subscriptions/h")).json()
        assert (shown["state"], shown["trouble"]["error"]) == ("active", "history-lost")
        await publish(client, ("a/1", "new"))
        await receiver.until(lambda: len(receiver.payloads("h")) == 7)
        body = receiver.deliveries[-1].body
        assert receiver.deliveries[-1].payloads == ["new"]
        assert body["previous"] == shown["trouble"]["oldest"] != had
        await lost(http, had)
        assert (await http.get("/v1/subscriptions/h")).json()["trouble"] is None


async def test_a_key_of_a_channel_fails_with_the_cursor_to_go_on_from(
    client: Client, gateway: HttpClient
) -> None:
    await six(client)
    async with ChannelClient(f"http://127.0.0.1:{gateway.port}") as channel, asyncio.timeout(30):
        channel.subscribe("k", "a/#", since="earliest")
        for number in range(6):
            message = await anext(channel)
            assert isinstance(message, ChannelMessage) and message.message["payload"] == str(number)
        failing = asyncio.ensure_future(anext(channel))
        await lose_tail(client, 4)
        failed = await failing
        assert isinstance(failed, ChannelFailed) and is_lost(failed.error)
        channel.subscribe("k", "a/#", since=failed.error["oldest"])
        await publish(client, ("a/1", "new"))
        message = await anext(channel)
        assert isinstance(message, ChannelMessage) and message.message["payload"] == "new"
