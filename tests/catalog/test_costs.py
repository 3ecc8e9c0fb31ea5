"""What followers cost those whose facts they follow: nothing. On virtual time, command by command."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from streamlease.agent.client import Client
from streamlease.testing.memory.memory_connection import connect
from streamlease.testing.memory.memory_server import MemoryServer
from streamlease.testing.memory.sockets import Line, Socket
from streamlease.testing.timelines.loops import Timeline

GROUP = "$shared/g/t/#"
FOLLOWERS = 20
JITTER = 3
"""So many commands of a kind, more or less, come of waiting times drawn by lot; one for each follower
would be 20."""
REST, BUSY = 10.0, 10.0
"""Seconds: nobody publishes; then ten messages a second are read and committed."""


class CountingLine(Line):
    """Counts the commands that one process sends."""

    def __init__(self) -> None:
        self.sent: Counter[bytes] = Counter()

    def sending(self, socket: Socket, commands: list[list[bytes]]) -> None:
        self.sent.update(command[0].upper() for command in commands)
        super().sending(socket, commands)


def sent_by_the_leader(followers: int) -> tuple[dict[bytes, int], dict[bytes, int]]:
    """What a process sends that leads, consumes and commits, at rest and busy, with so many followers."""
    with Timeline() as timeline:
        server = MemoryServer(lambda: 1_000_000.0 + timeline.now)
        line = CountingLine()
        leading, publishing = timeline.process("leading"), timeline.process("publishing")
        following = timeline.process("following")
        committed: list[int] = []
        followed: list[Any] = []

        async def consume() -> None:
            client = connect(server, line, embedded=True)
            async with client, client.subscribe(GROUP, start="earliest") as messages:
                async for batch in messages:
                    await batch.commit()
                    committed.append(len(batch.messages))

        async def follow(client: Client, collection: str) -> None:
            async with client.catalog(collection) as items:
                followed.append(items)
                async for _ in items:
                    pass

        async def follow_all() -> None:
            async with connect(server, embedded=False) as client:
                names = ("leaders", "leases") * (followers // 2)
                await asyncio.gather(*(follow(client, name) for name in names))

        async def publish() -> None:
            async with connect(server, embedded=False) as client, client.publisher() as publisher:
                for number in range(int(10 * BUSY)):
                    await publisher.send(f"t/{number % 3}", b"x")
                    await asyncio.sleep(0.1)

        async def make() -> None:
            async with connect(server, embedded=False) as client:
                await client.create_space("t", ["t/#"], streams=3)

        publishing.start(make())
        timeline.run(1)
        leading.start(consume())
        timeline.run(5)
        if followers:
            following.start(follow_all())
        timeline.run(10)
        assert len(followed) == followers
        assert all(one.items for one in followed), "they see who leads, and who holds what"
        line.sent.clear()
        timeline.run(10 + REST)
        rest = dict(line.sent)
        line.sent.clear()
        publishing.start(publish())
        timeline.run(10 + REST + BUSY + 1)
        assert sum(committed) == 10 * BUSY
        return rest, dict(line.sent)


def test_a_follower_costs_a_leader_no_command() -> None:
    alone, followed = sent_by_the_leader(0), sent_by_the_leader(FOLLOWERS)
    for without, with_them in zip(alone, followed, strict=True):
        assert sum(without.values()) > 50
        assert without.keys() == with_them.keys()
        assert {name: with_them[name] - count for name, count in without.items()} == {
            name: pytest.approx(0, abs=JITTER) for name in without
        }
