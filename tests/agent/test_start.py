"""How long a consumer's start takes: in virtual time, where work costs nothing and every wait shows."""

from __future__ import annotations

import asyncio

from streamlease.agent.client import Client
from streamlease.testing.loops import Timeline
from streamlease.testing.memory_connection import connect
from streamlease.testing.memory_server import MemoryServer

STREAMS = 16


async def _first_message(client: Client, group: str) -> float:
    """Seconds from `subscribe` to the first message; it is committed, and the group is left."""
    now = asyncio.get_running_loop().time
    began = now()
    async with client.subscribe(f"$shared/{group}/a/#", start="earliest") as batches:
        batch = await anext(batches)
        took = now() - began
        await batch.commit()
    return took


def test_no_wait_lies_between_subscribe_and_the_first_message() -> None:
    took: dict[str, float] = {}

    async def consume(server: MemoryServer) -> None:
        async with connect(server, embedded=True) as client:
            await client.create_space("s", ["a/#"], streams=STREAMS)
            async with client.publisher() as publisher:
                for number in range(8 * STREAMS):
                    await publisher.submit(f"a/{number}", b"x")
            took["a new group"] = await _first_message(client, "g")
            async with client.subscribe("$shared/h/a/#", start="earliest") as other:
                await anext(other)
                took["a second one in the same process"] = await _first_message(client, "i")
        async with connect(server, embedded=True) as client:
            took["a known group, in another process"] = await _first_message(client, "g")

    with Timeline() as timeline:
        task = timeline.process("consumer").start(consume(MemoryServer(lambda: 1_000_000.0 + timeline.now)))
        timeline.run(60.0, task.done)
        task.result()
    assert {start: round(seconds, 3) for start, seconds in took.items()} == dict.fromkeys(took, 0.0)
    assert len(took) == 3
