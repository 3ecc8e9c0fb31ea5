"""A collection of the catalog under its topic, ``$catalog/NAME``, for those who read messages."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

import streamlease
from streamlease.agent import blocking
from streamlease.agent.client import Client
from streamlease.protocol.errors import InvalidInput, InvalidOption, UnknownSpace
from tests.catalog.waiting import SECONDS

TOPIC = "$catalog/spaces"


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[Client]:
    async with streamlease.connect(redis_url) as client:
        yield client


def told(batch: Any) -> list[tuple[str, str, int]]:
    found = []
    for one in batch.messages:
        headers = dict(one.headers)
        found.append((one.topic, json.loads(one.payload)["space"], int(headers["diff"])))
    return found


async def test_all_that_there_is_comes_first_and_then_each_change(client: Client) -> None:
    for name in ("a", "b", "c"):
        await client.create_space(name, [f"{name}/#"])
    async with client.listen(TOPIC, start="earliest", max_batch=2) as spaces, asyncio.timeout(SECONDS):
        first, second = await anext(spaces), await anext(spaces)
        assert [len(first), len(second)] == [2, 1]
        assert {*told(first), *told(second)} == {(TOPIC, name, 1) for name in "abc"}
        await client.spaces.delete("b")
        (gone,) = (batch := await anext(spaces)).messages
        assert told(batch) == [(TOPIC, "b", -1)]
        assert (gone.key, gone.offset, gone.epoch) == (None, -1, None)
        at = dict(gone.headers)["at"].decode()
        async with client.catalog("subscriptions") as subscriptions:
            while TOPIC not in {getattr(one, "filter", None) for one in subscriptions.items}:
                await anext(subscriptions)
    await client.create_space("d", ["d/#"])
    async with client.catalog("spaces", start=at) as later:
        assert getattr((await anext(later)).item, "space", None) == "d"


def test_the_blocking_client_has_all_of_it(redis_url: str) -> None:
    with blocking.connect(redis_url) as client, client.publisher() as publisher:
        client.create_space("a", ["a/#"])
        publisher.send("a/1", b"x")
        assert client.lookup("a/1", wait=SECONDS).space == "a"
        with client.catalog("spaces") as spaces, client.listen(TOPIC, start="earliest") as messages:
            assert [getattr(one, "space", None) for one in spaces.items] == ["a"]
            client.create_space("b", ["b/#"])
            change = next(iter(spaces))
            assert (getattr(change.item, "space", None), change.at) == ("b", spaces.at)
            batches = iter(messages)
            found = [one for _ in range(2) for one in told(next(batches))]
            assert found == [(TOPIC, "a", 1), (TOPIC, "b", 1)]
        with client.history(TOPIC) as past:
            assert sum(len(batch) for batch in past) == 2


async def test_only_changes_come_from_the_latest_and_history_ends(client: Client) -> None:
    await client.create_space("a", ["a/#"])
    async with client.listen(TOPIC) as spaces, asyncio.timeout(SECONDS):
        await client.create_space("b", ["b/#"])
        assert told(await anext(spaces)) == [(TOPIC, "b", 1)]
    async with client.history(TOPIC) as past:
        assert sorted([one async for batch in past for one in told(batch)]) == [
            (TOPIC, "a", 1),
            (TOPIC, "b", 1),
        ]


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (lambda c: c.listen("$catalog/space"), "the catalog has no collection 'space': did you mean spaces?"),
        (lambda c: c.listen("$catalog/+"), "the catalog has no collection '+': it has spaces, "),
        (lambda c: c.listen(TOPIC, start=3), "the catalog keeps no history"),
        (lambda c: c.listen(TOPIC, epochs="atomic"), "has no epochs and no schema"),
        (lambda c: c.subscribe(f"$shared/g/{TOPIC}"), "is read without a group: use client.listen"),
        (lambda c: c.collection(TOPIC), "use client.catalog('spaces'), or 'streamlease catalog spaces'"),
    ],
)
async def test_what_it_is_not_is_refused(client: Client, act: Callable[[Client], Any], said: str) -> None:
    with pytest.raises((InvalidInput, InvalidOption)) as caught:
        act(client)
    assert said in str(caught.value)


async def test_nobody_else_has_topics_there(client: Client) -> None:
    with pytest.raises(InvalidOption, match=r"topics below \$catalog/ are of the catalog"):
        await client.create_space("mine", ["mine/#", "$catalog/mine"])
    async with client.publisher() as publisher:
        with pytest.raises(UnknownSpace):
            await publisher.send(TOPIC, b"x")
