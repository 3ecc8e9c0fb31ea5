"""How long a start and a take-over take: in virtual time, where work costs nothing and every wait shows."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable

import pytest

from streamlease.agent.client import Client
from streamlease.testing.memory.memory_connection import connect
from streamlease.testing.memory.memory_server import MemoryServer
from streamlease.testing.timelines.loops import Timeline

STREAMS = 16
SPARE = 1.5
"""So long (s) after the session timeout all is consumed, in virtual time; a busy machine may need 2 s."""


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


class Consumer:
    """A process that consumes a group, leads by itself if need be, and commits each batch."""

    def __init__(self, timeline: Timeline, server: MemoryServer, name: str, session_timeout: float) -> None:
        self.session_timeout = session_timeout
        self.process = timeline.process(name)
        self.streams: list[str] = []
        self.seen: set[bytes] = set()
        self.task = self.process.start(self._consume(server))

    async def _consume(self, server: MemoryServer) -> None:
        async with (
            connect(server, embedded=True) as client,
            client.subscribe(
                "$shared/g/a/#", start="earliest", session_timeout=self.session_timeout
            ) as batches,
        ):
            async for batch in batches:
                self.streams = batches.streams
                self.seen.update(message.payload for message in batch.messages)
                await batch.commit()


async def _publish(server: MemoryServer, numbers: Iterable[int]) -> None:
    async with connect(server) as client:
        await client.create_space("s", ["a/#"], streams=STREAMS)
        async with client.publisher() as publisher:
            for number in numbers:
                await publisher.submit(f"a/{number}", b"%d" % number)


@pytest.mark.parametrize("lived", [10.0, 10.2, 10.35, 10.5, 10.7, 10.85])
@pytest.mark.parametrize("session_timeout", [10.0, 6.0])
@pytest.mark.slow
def test_a_consumer_that_died_with_its_leader_is_followed_within_its_session_timeout_and_2_s(
    session_timeout: float, lived: float
) -> None:
    """Whenever it dies between two signs of life: others consume what it had, and keep what they have."""
    everything = {b"%d" % number for number in range(16 * STREAMS)}
    with Timeline() as timeline:
        server = MemoryServer(lambda: 1_000_000.0 + timeline.now)
        publisher = timeline.process("publisher")
        publisher.start(_publish(server, range(8 * STREAMS)))
        timeline.run(0.5)
        first = Consumer(timeline, server, "leads", session_timeout)
        timeline.run(1.0)
        others = [Consumer(timeline, server, f"other {number}", session_timeout) for number in range(2)]
        timeline.run(lived)
        before = [{*other.streams} for other in others]
        first.process.kill()
        publisher.start(_publish(server, range(8 * STREAMS, 16 * STREAMS)))
        assert timeline.run(
            timeline.now + 30.0, lambda: first.seen.union(*(other.seen for other in others)) == everything
        )
        assert timeline.now - lived <= session_timeout + SPARE
        assert all(kept <= {*other.streams} for kept, other in zip(before, others, strict=True))


CONSUME = """
import asyncio, sys
import streamlease

class NoPandas:
    def find_spec(self, name, path=None, target=None):
        assert name != "pandas", "pandas is imported"

sys.meta_path.insert(0, NoPandas())

async def main():
    seen = 0
    async with (
        streamlease.connect(sys.argv[1]) as client,
        client.subscribe("$shared/g/a/+/yes", start="earliest") as batches,
    ):
        async for batch in batches:
            seen += sum(message.payload is not None for message in batch.messages)
            await batch.commit()
            if seen == int(sys.argv[2]):
                break
    print(seen, [name for name in ("pandas", "rq") if name in sys.modules])

asyncio.run(main())
"""


@pytest.mark.slow
async def test_a_consumer_of_plain_messages_imports_neither_pandas_nor_rq(embedded_redis_url: str) -> None:
    """Single ones and batches, small and large, with keys and headers, of which some are passed over."""
    wanted = 0
    async with Client(embedded_redis_url) as client:
        await client.create_space("s", ["a/#"])
        async with client.publisher() as publisher:
            for number in range(3):
                await publisher.send(
                    f"a/{number}/yes", b"x", key=b"k" if number else None, headers={"h": b"1"}
                )
                await publisher.send("a/0/yes", b"x")
                wanted += 2
            for size in (3, 5, 4000, 6000):
                for number in range(size):
                    await publisher.submit(f"a/{number % 7}/{'yes' if number % 3 else 'no'}", b"x", key=b"k")
                    wanted += bool(number % 3)
                await publisher.flush()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CONSUME, embedded_redis_url, str(wanted), stdout=asyncio.subprocess.PIPE
    )
    said, _ = await process.communicate()
    assert said.decode().split() == [str(wanted), "[]"]
