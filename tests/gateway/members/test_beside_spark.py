"""A Spark query and members over HTTP in one group: each stream has one owner, and no message comes to two.

The query runs as in tests/spark/world.py: the source of Spark, called as its engine calls it, without Java.
"""

from __future__ import annotations

import json
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

import streamlease
from streamlease.agent.loop import LoopThread
from tests.gateway.conftest import running
from tests.spark.conftest import make_world, world
from tests.spark.test_query import held_all
from tests.spark.world import Query, World, wait_for

__all__ = ["make_world", "world"]

PATIENT = 60_000
"""How long (ms) leaders and sessions may be silent: nobody is given up because a machine is busy."""

BASE = "/v1/groups/g/members"


@pytest.fixture
def url(world: World) -> Iterator[str]:
    """A gateway on a loop of its own."""
    thread, stack = LoopThread("test-gateway"), AsyncExitStack()

    async def begin() -> str:
        client = await stack.enter_async_context(streamlease.connect(world.url))
        http = await stack.enter_async_context(running(client))
        return f"http://127.0.0.1:{http.port}"

    try:
        yield thread.call(begin())
    finally:
        thread.call(stack.aclose())
        thread.stop()


class Member:
    """One that commits what it is handed."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.got: list[tuple[str, int]] = []
        self._id = self._ask("POST", BASE, {"filter": "t/#", "session_timeout": PATIENT / 1000})["member"]

    def take(self) -> None:
        """Fetch what there is, and commit it."""
        page = self._ask("GET", f"{BASE}/{self._id}/messages?max=1000")
        places = [(one["stream"], one["offset"]) for one in page["messages"]]
        if places:
            self.got += places
            offsets = {stream: offset + 1 for stream, offset in places}
            done = self._ask("POST", f"{BASE}/{self._id}/commit", {"offsets": offsets})
            assert done == {"committed": offsets}

    def leave(self) -> None:
        self._ask("DELETE", f"{BASE}/{self._id}")

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        sent = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, sent, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            text = answer.read()
        return json.loads(text) if text else None


def owners(world: World) -> Counter[str]:
    """How many streams each session holds."""
    return Counter(one.session for one in world.state().streams.values() if one.session is not None)


def while_busy(world: World, query: Query, members: list[Member], shares: list[int]) -> None:
    """Publish, and let all of them work, until they hold so many streams each."""

    def settled() -> bool:
        world.publish(1)
        query.trigger()
        for member in members:
            member.take()
        return sorted(owners(world).values()) == shares

    wait_for(settled)


def test_members_over_http_come_and_go_beside_a_query(world: World, url: str) -> None:
    world.lead(ttl=PATIENT)
    query = world.query(slots=1, sessionTimeoutMs=PATIENT)
    held_all(query, world)
    world.publish(5)
    query.run(lambda: len(query.checkpoint.rows) == world.total)

    one = Member(url)
    while_busy(world, query, [one], [2, 2])
    assert len(query.held) == 2
    other = Member(url)
    while_busy(world, query, [one, other], [1, 1, 2])
    one.leave()
    while_busy(world, query, [other], [2, 2])
    other.leave()
    while_busy(world, query, [], [4])
    world.publish(5)

    def all_of() -> list[tuple[str, int]]:
        return [(row.stream, row.offset) for row in query.checkpoint.rows] + one.got + other.got

    query.run(lambda: len(all_of()) >= world.total)
    once = [(stream, offset) for stream in world.streams for offset in range(world.published[stream])]
    assert sorted(all_of()) == sorted(once), "each message came to one of them, once"
    for member in (one, other):
        assert member.got
        for stream in world.streams:
            offsets = [offset for of, offset in member.got if of == stream]
            assert offsets == sorted(offsets)
