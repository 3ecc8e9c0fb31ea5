"""A group whose streams are assigned by rate, on a real server with a leader host and two consumers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from streamlease.agent.client import Client, connect
from streamlease.hosts import upkeep
from streamlease.hosts.host import HostConfig, LeaderHost
from streamlease.leader.core.machine import LeaderConfig
from streamlease.protocol.errors import InvalidOption
from streamlease.protocol.group_options import GroupOptions
from streamlease.protocol.topics import SharedSubscription
from streamlease.streams.tasks import stop
from tests.admin.command import InProcess
from tests.agent.helpers import SUB, Consumer, until

SHARED = SharedSubscription.parse(SUB)
RATE = GroupOptions(strategy="rate")


@asynccontextmanager
async def hosting(client: Client) -> AsyncIterator[LeaderHost]:
    config = HostConfig(name="one", leader=LeaderConfig(weight_interval=1000))
    host = LeaderHost(client.redis, config)
    await host.start()
    try:
        yield host
    finally:
        await host.close()


@asynccontextmanager
async def busy(client: Client, topic: str) -> AsyncIterator[None]:
    """Messages go to one topic all the time."""

    async def publish() -> None:
        async with client.publisher() as publisher:
            while True:
                for _ in range(20):
                    await publisher.submit(topic, b"1")
                await asyncio.sleep(0.02)

    task = asyncio.create_task(publish())
    try:
        yield
    finally:
        assert not task.done(), task
        await stop([task])


async def test_one_hot_stream_makes_the_others_move_away(
    embedded_redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "WEIGH_SECONDS", 0.2)
    async with (
        connect(embedded_redis_url, embedded=False) as client,
        connect(embedded_redis_url, embedded=False) as other,
    ):
        await client.create_space("s", ["a/#"], streams=4)
        await client.groups.declare(SHARED, "earliest", options=RATE)
        async with hosting(client) as host, client.publisher() as publisher:
            host.lead(SHARED.id)
            hot, _ = await publisher.send("a/hot", b"0")
            async with client.subscribe(SUB) as one, other.subscribe(SUB) as two:
                readers = (one, two)
                consumers = [Consumer(reader).start() for reader in readers]
                await until(lambda: sorted(len(reader.streams) for reader in readers) == [2, 2])
                async with busy(client, "a/hot"):
                    await until(lambda: sorted(len(reader.streams) for reader in readers) == [1, 3])
                    alone = min(readers, key=lambda reader: len(reader.streams))
                    assert alone.streams == [str(hot)]
                for consumer in consumers:
                    await consumer.stop()
                    assert (consumer.error, consumer.fenced) == (None, [])
                command = InProcess(tmp_path, embedded_redis_url)
                shown = await asyncio.to_thread(command.ok, "group", "describe", SUB, "--json")
                assert shown.document["strategy"] == "rate"
                planned = await asyncio.to_thread(command.ok, "group", "rebalance", SUB, "--dry-run")
                assert planned.out.startswith("planned, nothing was changed:")
        shown = await asyncio.to_thread(command.ok, "group", "describe", SUB)
        assert "streams are assigned by rate" in shown.out


async def test_an_unknown_strategy_is_refused_before_anything_is_declared(embedded_redis_url: str) -> None:
    async with connect(embedded_redis_url) as client:
        await client.create_space("s", ["a/#"])
        with pytest.raises(InvalidOption, match="'best' does not exist: use one of count, lag, rate"):
            client.subscribe(SUB, options=GroupOptions(strategy="best"))
        assert await client.groups.list() == []
