"""A space that nobody waits for any more is no longer followed, and is again once somebody does."""

from __future__ import annotations

import asyncio

import pytest

from streamlease.gateway import feeds
from tests.agent.helpers import until
from tests.gateway.channels.channel_client import payloads
from tests.gateway.channels.conftest import Desk


def following() -> list[asyncio.Task[object]]:
    return [task for task in asyncio.all_tasks() if task.get_name() == "gateway: feed of s"]


async def test_a_feed_ends_that_nobody_wants_and_begins_anew(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "LINGER_SECONDS", 1.5)
    monkeypatch.setattr(feeds, "LOOK_SECONDS", 0.1)
    hand = desk.hand()
    for turn in range(2):
        await hand.subscribe("k", "a/#")
        await desk.publish("a/1", f"of turn {turn}")
        assert payloads(await hand.until(1)) == [f"of turn {turn}"]
        (task,) = following()
        await hand.unsubscribe("k")
        await until(lambda: desk.feeds.get("s") is None)
        await until(lambda: not following())
        assert task.cancelled()
