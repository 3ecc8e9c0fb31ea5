"""A file of an archive is missing: whoever comes to it is told its name, and where to go on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from streamlease.gateway.webhooks.webhook_service import WebhookSettings
from streamlease.http.channel_client import ChannelClient
from streamlease.http.core.channel_machine import ChannelFailed, ChannelMessage
from streamlease.streams.archive.files import places
from streamlease.streams.archive.recording import recorded
from streamlease.streams.redis.connection import BlockingRedis
from streamlease.streams.spaces.definitions import Space
from tests.archive.conftest import blocking, uri
from tests.archive.helpers import archive, publish, space_of, trim_all
from tests.gateway.conftest import Client, running
from tests.gateway.http_client import HttpClient
from tests.gateway.members.member_client import Member, ends
from tests.gateway.test_event_streams import events
from tests.gateway.test_since import ask
from tests.gateway.webhooks.conftest import post, subscribe
from tests.gateway.webhooks.receiver import SECRET, Receiver, receiving

__all__ = ["blocking", "uri"]

FILTER = "flights/#"


@pytest.fixture
async def lost(client: Client, blocking: BlockingRedis, uri: str) -> str:
    """The name of the second of three files, which is gone; the newest messages stand in Redis."""
    space: Space = await space_of(client, uri, streams=1)
    for first in (0, 200, 400):
        await publish(client, first, 200)
        await asyncio.to_thread(archive, blocking, space)
    await trim_all(client, space)
    await publish(client, 600, 50)
    gone = recorded(blocking, space.streams())[space.streams()[0]].files[1].path
    await asyncio.to_thread(places.remove, gone)
    return str(gone)


def check(problem: Any, file: str) -> str:
    """The cursor to go on from."""
    assert (problem["status"], problem["type"].rpartition("/")[2]) == (410, "lost"), problem
    assert problem["file"] == file and file in problem["detail"] and "oldest" in problem["detail"]
    oldest: str = problem["oldest"]
    return oldest


def offsets(page: Any) -> list[int]:
    return [message["offset"] for message in page["messages"]]


async def test_who_asks_gets_what_stands_before_it_then_its_name_and_then_the_rest(
    gateway: HttpClient, lost: str
) -> None:
    first = await ask(gateway, filter=FILTER, since="earliest", limit=1000)
    assert offsets(first) == list(range(200))
    refused = await gateway.get("/v1/messages", filter=FILTER, since=first["next"])
    assert "retry-after" not in refused.headers
    rest = await ask(gateway, filter=FILTER, since=check(refused.json(), lost), limit=1000)
    assert offsets(rest) == list(range(400, 650))
    async with gateway.streaming("/v1/events", filter=FILTER, since=first["next"]) as (head, parts):
        if head.status == 200:
            said = [one async for one in events(parts)][-1]
            assert said.name == "problem"
            check(said.data, lost)
        else:
            assert head.status == 410


async def test_a_webhook_is_suspended_and_says_so(client: Client, lost: str) -> None:
    settings = WebhookSettings(allow_private=True)
    async with receiving() as receiver, running(client, webhooks=settings) as http:
        await subscribe(http, receiver, filter=FILTER, since="earliest")
        trouble = await suspended(http)
        assert trouble["error"] == "lost" and lost in trouble["detail"]
        await subscribed_again(http, receiver, lost, trouble)


async def suspended(http: HttpClient) -> Any:
    async with asyncio.timeout(30):
        while (found := (await http.get("/v1/subscriptions/h")).json())["state"] != "suspended":
            pass
    return found["trouble"]


async def subscribed_again(http: HttpClient, receiver: Receiver, lost: str, trouble: Any) -> None:
    assert len(receiver.payloads("h")) == 200
    again = {"filter": FILTER, "callback": receiver.url(), "secret": SECRET, "id": "h"}
    assert check((await post(http, again)).json(), lost) == trouble["oldest"]
    assert (await post(http, {**again, "since": trouble["oldest"]})).status == 201
    await receiver.until(lambda: len(receiver.payloads("h")) == 450)


async def test_a_key_of_a_channel_fails_with_its_name(gateway: HttpClient, lost: str) -> None:
    async with ChannelClient(f"http://127.0.0.1:{gateway.port}") as channel, asyncio.timeout(30):
        channel.subscribe("k", FILTER, since="earliest")
        found = []
        while isinstance(event := await anext(channel), ChannelMessage):
            found.append(event.message["offset"])
        assert found == list(range(200)) and isinstance(event, ChannelFailed)
        channel.subscribe("k", FILTER, since=check(event.error, lost))
        message = await anext(channel)
        assert isinstance(message, ChannelMessage) and message.message["offset"] == 400


async def test_a_member_of_a_group_gets_what_stands_before_it_and_then_its_name(
    gateway: HttpClient, lost: str
) -> None:
    """Whoever reads ahead for it meets the file long before all of that is fetched and committed."""
    member = await Member([gateway], "g").join(FILTER)
    found: list[int] = []
    while len(found) < 200:
        page = (await gateway.get(f"{member.base}/{member.id}/messages", wait=20, max=30)).json()
        found += offsets(page)
        assert (await member.commit(ends(page))).status == 200
    assert found == list(range(200))
    answer = await gateway.get(f"{member.base}/{member.id}/messages", wait=20)
    assert (answer.status, answer.json()["type"].rpartition("/")[2]) == (410, "lost"), answer
    assert answer.json()["file"] == lost and "retry-after" not in answer.headers


async def test_a_member_may_commit_what_it_has_after_it_was_told(gateway: HttpClient, lost: str) -> None:
    member = await Member([gateway], "g").join(FILTER)
    page = (await gateway.get(f"{member.base}/{member.id}/messages", wait=20, max=1000)).json()
    while len(offsets(page)) < 200:
        more = await gateway.get(f"{member.base}/{member.id}/messages", wait=20, since=page["next"])
        page["messages"] += more.json()["messages"]
        page["next"] = more.json()["next"]
    told = await gateway.get(f"{member.base}/{member.id}/messages", wait=20, since=page["next"])
    assert (told.status, told.json()["file"]) == (410, lost)
    done = await member.commit(ends(page))
    assert done.status == 200, done
    async with asyncio.timeout(30):
        while (gone := await gateway.get(f"{member.base}/{member.id}/messages", wait=0)).status == 200:
            pass
    assert gone.status in (404, 410), gone
