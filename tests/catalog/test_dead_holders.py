"""Who died with the leader of his group has no row: on virtual time, and as a process that is killed."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter

import pytest

import streamlease
from streamlease.agent.client import Client
from streamlease.catalog.items import CatalogItem, LeaderItem, LeaseItem
from streamlease.registry.keys import GROUPS_NEWS
from streamlease.streams.redis.connection import ask
from streamlease.testing.memory.memory_connection import connect
from streamlease.testing.memory.memory_server import MemoryServer
from streamlease.testing.timelines.loops import Timeline
from tests.catalog.waiting import SECONDS

QUIET = "$shared/quiet/t/#"
BUSY = "$shared/busy/t/#"


def held(items: Counter[CatalogItem]) -> set[str]:
    """Groups of which somebody holds a stream."""
    return {item.subscription for item in items if isinstance(item, LeaseItem)}


def led(items: Counter[CatalogItem]) -> set[str]:
    """Groups that somebody leads."""
    return {item.subscription for item in items if isinstance(item, LeaderItem) and item.host}


async def consume(client: Client, group: str) -> None:
    """Have a group, and lead it, for ever."""
    async with client, client.subscribe(group, start="earliest") as messages:
        async for batch in messages:
            await batch.commit()


def test_a_group_whose_leader_died_is_seen_so_while_others_are_busy() -> None:
    """What is pushed of one group defers no look at another."""
    with Timeline() as timeline:
        server = MemoryServer(lambda: 1_000_000.0 + timeline.now)
        dying, living = timeline.process("dying"), timeline.process("living")
        watching = timeline.process("watching")
        followed: dict[str, Counter[CatalogItem]] = {}

        def client() -> Client:
            return connect(server, embedded=True)

        async def watch(collection: str) -> None:
            async with client() as own, own.catalog(collection) as items:
                followed[collection] = items.items
                async for _ in items:
                    pass

        async def make_space() -> None:
            async with client() as own:
                await own.create_space("t", ["t/#"], streams=2)

        async def be_busy() -> None:
            async with client() as own:
                while True:
                    await ask(own.redis, [("PUBLISH", GROUPS_NEWS, "")])
                    await asyncio.sleep(0.5)

        living.start(make_space())
        timeline.run(1)
        dying.start(consume(client(), QUIET))
        living.start(consume(client(), BUSY))
        for collection in ("leaders", "leases"):
            watching.start(watch(collection))
        living.start(be_busy())
        assert timeline.run(30, lambda: len(followed) == 2 and held(followed["leases"]) == {QUIET, BUSY})
        dying.kill()
        died = timeline.now
        assert timeline.run(
            died + 12, lambda: held(followed["leases"]) == {BUSY} and led(followed["leaders"]) == {BUSY}
        ), followed


CONSUMES = """
import asyncio, sys
import streamlease

async def main():
    async with streamlease.connect(sys.argv[1]) as client:
        async with client.subscribe(sys.argv[2], start="earliest") as messages:
            async for batch in messages:
                print(len(batch.messages), flush=True)

asyncio.run(main())
"""


@pytest.mark.slow
async def test_a_consumer_that_is_killed_with_its_leader_leaves_no_lease(embedded_redis_url: str) -> None:
    redis_url = embedded_redis_url
    async with streamlease.connect(redis_url, embedded=False) as client:
        await client.create_space("t", ["t/#"], streams=1)
        async with client.publisher() as publisher:
            await publisher.send("t/a", b"x")
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", CONSUMES, redis_url, QUIET, stdout=asyncio.subprocess.PIPE
        )
        try:
            assert process.stdout is not None
            assert await process.stdout.readline() == b"1\n"
            async with client.catalog("leases") as leases, asyncio.timeout(SECONDS):
                (item,) = leases.items
                process.kill()
                gone = await anext(leases)
                assert (gone.item, gone.diff) == (item, -1)
                cursor = leases.at
            async with client.catalog("leases") as newcomer:
                assert not newcomer.items
            async with client.catalog("leases", start=cursor) as further:
                assert not further.ready(), "it is not told twice"
                async with (
                    streamlease.connect(redis_url) as other,
                    other.subscribe(QUIET, start="earliest"),
                    asyncio.timeout(60),
                ):
                    told = await anext(further)
                    while told.diff < 0 or not isinstance(told.item, LeaseItem):
                        told = await anext(further)
                    assert told.item.subscription == QUIET
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()
