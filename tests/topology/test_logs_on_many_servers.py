"""Retention, imports, inboxes and new generations where the keys of a space stand on several servers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import streamlease
from streamlease.hosts.host import HostConfig, LeaderHost
from streamlease.protocol.errors import HistoryTruncated
from streamlease.protocol.ids import StreamId
from streamlease.protocol.topics import SharedSubscription
from streamlease.streams.imports.inbox import InboxMover
from streamlease.streams.imports.redis_streams import Mapping, PlainReader
from streamlease.streams.imports.transfer import Transfer
from streamlease.streams.log import keys
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.redis.connection import AsyncRedis, ask
from streamlease.streams.spaces.retention import Kept, Retention, kept
from tests.conftest import MakeServer
from tests.topology.servers import Cluster, Sentinels
from tests.topology.servers import slot_of as slot_of_key

pytestmark = [pytest.mark.topology, pytest.mark.timeout(400)]

SUB = "$shared/g/s/#"
SECONDS = 120


async def numbers(client: streamlease.Client, filter: str = "s/#") -> list[int]:
    async with client.history(filter) as batches:
        return sorted([int(message.payload) async for batch in batches for message in batch.messages])


async def fill_inbox(redis: AsyncRedis, found: range) -> None:
    await ask(
        redis,
        [("XADD", keys.space_inbox("s"), "*", "topic", f"s/{n % 9}", "payload", str(n)) for n in found],
    )


async def import_all(redis: AsyncRedis, key: str) -> int:
    """Bring all entries of a plain stream in; how many were not there yet."""
    reader, mapping = PlainReader(redis, key, (-1, -1)), Mapping(topic_field="t", payload_field="p")
    transfer, added = Transfer(redis, f"redis:{key}", space="s"), 0
    while entries := await reader.next():
        added += await transfer.put([mapping.item(key, entry) for entry in entries])
    return added


def trimmed(streams: dict[StreamId, Kept]) -> bool:
    """Whether retention came by: entries go whole, so a few messages more than its limit may stay."""
    full = [one for one in streams.values() if one.state.next > 10]
    return bool(full) and all(one.state.floor > 0 for one in full)


async def test_a_cluster_moves_imports_retains_and_forgets(make_redis_server: MakeServer) -> None:
    cluster = Cluster(make_redis_server, "redis7")
    async with streamlease.connect(cluster.url) as client:
        redis = client.redis
        space = await client.create_space("s", ["s/#"], streams=6, retention=Retention(messages=5))
        homes = {cluster.owner(slot_of_key(keys.stream_log(one))).port for one in space.streams()}
        assert len(homes) == 3

        await fill_inbox(redis, range(100))
        await ask(redis, [("XADD", "plain", "*", "t", f"s/{n % 9}", "p", str(n)) for n in range(100, 200)])
        moved = await InboxMover(redis, "one").round()
        assert moved == 100
        assert [await import_all(redis, "plain"), await import_all(redis, "plain")] == [100, 0]
        assert await numbers(client) == list(range(200))

        # A new generation under a group that has read nothing yet: it gets all of the old one first.
        await client.groups.declare(SharedSubscription.parse(SUB), "earliest")
        await client.spaces.generations.alter("s", streams=4)
        await fill_inbox(redis, range(200, 300))
        assert await InboxMover(redis, "one").round() == 100
        assert await import_all(redis, "plain") == 0
        host = LeaderHost(redis, HostConfig(retention_interval=0.1, registered=False))
        await host.start()
        try:
            got: list[int] = []
            async with asyncio.timeout(SECONDS), client.subscribe(SUB, start="earliest") as reader:
                while len(got) < 300:
                    batch = await anext(reader)
                    got += [int(message.payload) for message in batch.messages]
                    await batch.commit()
            assert sorted(got) == list(range(300)), "retention took what the group needed, or it came twice"
            for topic in range(9):
                mine = [n for n in got if n % 9 == topic]
                assert [n for n in mine if n < 200] == mine[: len([n for n in mine if n < 200])]
            async with asyncio.timeout(SECONDS):
                while len((await client.spaces.get("s")).generations) != 2:  # noqa: ASYNC110 (a condition in Redis)
                    await asyncio.sleep(0.05)
                while True:
                    floors = await kept(redis, (await client.spaces.get("s")).streams())
                    newest = {s: one for s, one in floors.items() if s.generation == 1}
                    if trimmed(newest):
                        break
                    await asyncio.sleep(0.05)
        finally:
            await host.close()
        with pytest.raises(HistoryTruncated) as caught:
            await client.history("s/#", since=-1).__aenter__()
        assert caught.value.oldest > 0


async def test_what_was_moved_trimmed_and_sealed_stays_so_over_a_failover(
    make_redis_server: MakeServer, tmp_path: Path
) -> None:
    sentinels = Sentinels(make_redis_server, "redis7", tmp_path)
    try:
        async with streamlease.connect(sentinels.url) as client:
            redis = client.redis
            await client.create_space(
                "s", ["s/#"], streams=2, retention=Retention(messages=5), durability="replicated:1"
            )
            await fill_inbox(redis, range(60))
            assert await InboxMover(redis, "one").round() == 60
            await ask(redis, [("XADD", "plain", "*", "t", f"s/{n % 9}", "p", str(n)) for n in range(60, 90)])
            assert await import_all(redis, "plain") == 30
            host = LeaderHost(redis, HostConfig(retention_interval=0.1, registered=False))
            await host.start()
            async with asyncio.timeout(SECONDS):
                while True:
                    floors = await kept(redis, (await client.spaces.get("s")).streams())
                    if trimmed(floors):
                        break
                    await asyncio.sleep(0.05)
            await host.close()
            space = await client.spaces.generations.alter("s", rotate=True, expected=0)
            before = await AsyncLog(redis).states(space.streams())
            sentinels.primary.kill()
            await asyncio.to_thread(sentinels.wait_for_failover)
        await asyncio.to_thread(sentinels.wait_for_new_clients)
        async with streamlease.connect(sentinels.url) as client:
            assert await client.spaces.get("s") == space
            after = await AsyncLog(client.redis).states(space.streams())
            assert {s: (one.next, one.sealed) for s, one in after.items()} == {
                s: (one.next, one.sealed) for s, one in before.items()
            }
            with pytest.raises(HistoryTruncated):
                await client.history("s/#", since=-1).__aenter__()
            left = await numbers(client)
            assert len(left) == sum(one.next - one.floor for one in after.values())
    finally:
        sentinels.stop()
