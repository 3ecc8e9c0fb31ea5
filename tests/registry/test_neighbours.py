"""Letters between neighbours, and where they stop being ones."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest

from streamlease.protocol.messages import Message, Ping
from streamlease.registry.mailbox import Letter, Mailbox
from streamlease.registry.neighbours import Inbox, Neighbours
from streamlease.registry.postbox import Postbox
from streamlease.streams.redis.connection import AsyncRedis, connect
from streamlease.streams.tasks import Supervisor


def wanted(number: int) -> Message:
    return Ping(group="$shared/g/a", borrower=f"b{number}", term=number)


@pytest.fixture
async def redis(embedded_redis_url: str) -> AsyncIterator[AsyncRedis]:
    redis = connect(embedded_redis_url)
    yield redis
    await redis.aclose()


async def test_a_neighbour_gets_its_letters_in_order_and_redis_none(redis: AsyncRedis) -> None:
    tasks, neighbours = Supervisor("test", lambda name, error: None), Neighbours()
    inbox, mailbox = neighbours.move_in("here"), Mailbox(redis, "here", 100)
    await mailbox.open()
    postbox = Postbox(redis, "me", tasks, neighbours=neighbours)
    for number in range(3):
        postbox.post("here", wanted(number))
    assert len(postbox) == 0
    assert await inbox.receive() == [Letter("me", wanted(number)) for number in range(3)]

    neighbours.move_out("here")
    postbox.post("here", wanted(3))
    await postbox.empty()
    assert await mailbox.receive() == [Letter("me", wanted(3))]
    await mailbox.close()


async def test_who_waits_is_woken_and_a_later_letter_comes_alone() -> None:
    inbox = Inbox("here")
    waiting = asyncio.create_task(inbox.receive())
    await asyncio.sleep(0)
    inbox.put(Letter("me", wanted(0)))
    assert await waiting == [Letter("me", wanted(0))]
    inbox.put(Letter("me", wanted(1)))
    assert await inbox.receive() == [Letter("me", wanted(1))]


async def test_beyond_its_bound_an_inbox_drops_the_oldest_and_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    inbox = Inbox("here", most=2)
    with caplog.at_level(logging.WARNING):
        for number in range(4):
            inbox.put(Letter("me", wanted(number)))
    assert [letter.message for letter in await inbox.receive()] == [wanted(2), wanted(3)]
    assert inbox.dropped == 2
    assert caplog.messages == ["here drops messages: 2 wait to be heard already"]
