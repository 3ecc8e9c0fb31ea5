"""Subscriptions and their deliveries by one gateway."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from tests.gateway.http_client import HttpClient
from tests.gateway.webhooks.conftest import publish, subscribe
from tests.gateway.webhooks.receiver import Receiver


def by_stream(messages: list[Any]) -> dict[str, list[int]]:
    found: defaultdict[str, list[int]] = defaultdict(list)
    for message in messages:
        found[message["stream"]].append(message["offset"])
    return found


def check_whole(messages: list[Any], count: int) -> None:
    """All messages came once, in order per stream."""
    assert sorted(int(message["payload"]) for message in messages) == [*range(count)]
    for offsets in by_stream(messages).values():
        assert offsets == [*range(len(offsets))]


async def test_what_was_there_comes_first_and_then_what_comes(hooks: HttpClient, receiver: Receiver) -> None:
    await publish(hooks, 600)
    made = await subscribe(hooks, receiver, since="earliest")
    assert (made["id"], made["state"], made["delivered"], "secret" in made) == ("h", "active", 0, False)
    await publish(hooks, 300, start=600)
    await receiver.until(lambda: len(receiver.acknowledged["h"]) >= 900)
    await publish(hooks, 1, start=900)
    await receiver.until(lambda: len(receiver.acknowledged["h"]) >= 901)
    check_whole(receiver.acknowledged["h"], 901)
    previous = made["next"]
    for one in receiver.deliveries:
        assert one.body["previous"] == previous and one.headers["content-type"] == "application/json"
        previous = one.body["next"]
    assert receiver.connections == 1  # it is kept
    there = await hooks.get("/v1/messages", filter="a/#", since=previous)
    assert there.json()["messages"] == []
