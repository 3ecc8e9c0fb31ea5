"""Compaction where the streams of a space stand on several servers."""

from __future__ import annotations

import asyncio

import pytest

import streamlease
from streamlease.hosts.compactor import Compactor
from streamlease.streams.clock import milliseconds
from streamlease.streams.log import compacting, keys, merging
from tests.conftest import MakeServer
from tests.topology.servers import Cluster
from tests.topology.servers import slot_of as slot_of_key

pytestmark = [pytest.mark.topology, pytest.mark.timeout(400)]


async def test_the_streams_of_a_cluster_are_compacted_each_on_its_server(
    make_redis_server: MakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merging, "ENOUGH_ROWS", 10)
    monkeypatch.setattr(compacting, "LEAST_ENTRIES", 4)
    cluster = Cluster(make_redis_server, "redis7")
    async with streamlease.connect(cluster.url) as client:
        space = await client.create_space("s", ["s/#"], streams=6, compact_after_ms=1000)
        homes = {cluster.owner(slot_of_key(keys.stream_merged(one))).port for one in space.streams()}
        assert len(homes) == 3
        async with client.publisher() as publisher:
            for number in range(300):
                await publisher.send(f"s/{number % 29}", b"%d" % number)
        ends = await client.next_offsets(space.streams())
        wanted = sum(end // 10 for end in ends.values())
        compactor, done = Compactor(client.redis, "h", milliseconds), 0
        async with asyncio.timeout(60):
            while done < wanted:  # until all are a second old
                done += len(await compactor.round())
        found: dict[str, list[int]] = {}
        async with client.history("s/#") as batches:
            async for batch in batches:
                for message in batch.messages:
                    found.setdefault(message.stream, []).append(message.offset)
        assert found == {str(stream): list(range(end)) for stream, end in ends.items() if end}
