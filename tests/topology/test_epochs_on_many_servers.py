"""Epochs where the streams of a space stand on several servers, and its lines on one of them."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

import streamlease
from streamlease.agent.epochs.epoch_items import EpochBatch, Frontier
from streamlease.agent.epochs.epoch_reading import EpochSubscription
from streamlease.streams.epochs import keys
from tests.conftest import MakeServer
from tests.topology.servers import Cluster
from tests.topology.servers import slot_of as slot_of_key

pytestmark = [pytest.mark.topology, pytest.mark.timeout(400)]

EPOCHS, ROWS = 5, 200


async def test_an_epoch_is_whole_over_the_servers_of_a_cluster(make_redis_server: MakeServer) -> None:
    cluster = Cluster(make_redis_server, "redis7")
    async with streamlease.connect(cluster.url) as client:
        space = await client.create_space("s", ["s/#"], streams=6, epochs=1)
        homes = {cluster.owner(slot_of_key(keys.staged_log(one))).port for one in space.streams()}
        assert len(homes) == 3
        async with client.epoch_publisher("s", "a") as one, client.epoch_publisher("s", "b") as other:
            for epoch in range(EPOCHS):
                for publisher in (one, other):
                    for number in range(ROWS):
                        await publisher.submit(f"s/{number % 29}", b"%d" % number, epoch=epoch)
                    await publisher.send_many("s/x", [b"many"] * ROWS, epoch=epoch)
                    await publisher.advance(epoch + 1)
        wanted = Counter({b"%d" % number: 2 for number in range(ROWS)} | {b"many": 2 * ROWS})
        found: dict[tuple[int, ...], Counter[bytes]] = {}
        async with client.listen("s/#", start="earliest", epochs="atomic") as items:
            async for item in items:
                if isinstance(item, EpochBatch):
                    assert item.epoch not in found
                    found[item.epoch] = Counter(message.payload for message in item.messages)
                elif isinstance(item, Frontier) and item.lower >= ((EPOCHS,),):
                    break
        assert found == {(epoch,): wanted for epoch in range(EPOCHS)}


async def test_what_is_staged_on_several_servers_comes_once(make_redis_server: MakeServer) -> None:
    cluster = Cluster(make_redis_server, "redis7")
    async with streamlease.connect(cluster.url) as client:
        await client.create_space("s", ["s/#"], streams=6, epochs=1)
        found: Counter[tuple[tuple[int, ...], bytes]] = Counter()

        async def listen(items: EpochSubscription) -> None:
            async for item in items:
                if isinstance(item, EpochBatch):
                    found.update((item.epoch, message.payload) for message in item.messages)
                elif isinstance(item, Frontier) and item.lower >= ((EPOCHS,),):
                    break

        async with client.listen("s/#", epochs="eager") as items, client.epoch_publisher("s", "a") as one:
            listening = asyncio.create_task(listen(items))
            for epoch in range(EPOCHS):
                for number in range(ROWS):
                    await one.submit(f"s/{number % 29}", b"%d" % number, epoch=epoch)
                await one.advance(epoch + 1)
            await listening
        assert found == Counter(
            {((epoch,), b"%d" % row): 1 for epoch in range(EPOCHS) for row in range(ROWS)}
        )
