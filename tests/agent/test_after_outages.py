"""How soon a group goes on after Redis was away: in virtual time, where work costs nothing and waits show."""

from __future__ import annotations

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from streamlease.testing.memory.memory_connection import connect
from streamlease.testing.memory.memory_server import MemoryServer
from streamlease.testing.memory.sockets import Line
from streamlease.testing.timelines.loops import Timeline

RETURNS = 1.5
"""Seconds: a host renews what it leads, and resigns from what it does not lead any more, every second."""


class Broken(Line):
    """A line over which no connection is made while it is broken."""

    broken = False

    def connecting(self) -> float:
        if self.broken:
            raise RedisConnectionError("connection refused")
        return super().connecting()


@pytest.mark.parametrize("restarted", [False, True], ids=["unreachable", "restarted"])
@pytest.mark.parametrize("away", [2.0, 4.5, 6.0, 30.0])
def test_a_group_goes_on_soon_after_redis_is_back(away: float, restarted: bool) -> None:
    """Also if its leader ended meanwhile: nobody waits for the term of a host that lives."""
    seen: list[bytes | None] = []

    async def consume() -> None:
        async with (
            connect(server, line, embedded=True) as client,
            client.subscribe("$shared/g/a/#", start="earliest") as batches,
        ):
            async for batch in batches:
                await batch.commit()
                seen.extend(message.payload for message in batch.messages)

    async def publish(payload: bytes) -> None:
        async with connect(server, embedded=False) as client:
            await client.create_space("s", ["a/#"], streams=4)
            async with client.publisher() as publisher:
                await publisher.send("a/1", payload)

    with Timeline() as timeline:
        server, line = MemoryServer(lambda: 1_000_000.0 + timeline.now), Broken()
        publisher = timeline.process("publisher")
        publisher.start(publish(b"before"))
        timeline.process("consumer").start(consume())
        assert timeline.run(10.0, lambda: seen == [b"before"])
        timeline.run(timeline.now + 3.0)
        line.broken = True
        if restarted:
            server.restart()
        else:
            for peer in server.peers():
                peer.lose()
        timeline.run(timeline.now + away)
        line.broken = False
        publisher.start(publish(b"behind"))
        assert timeline.run(timeline.now + RETURNS, lambda: seen == [b"before", b"behind"])
