"""Alerts of groups: their situations are made by real processes, and a real Prometheus tells of them."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis import Redis
from rq import Queue

from streamlease.agent.client import Client, connect
from streamlease.protocol.acts import StepDown
from streamlease.protocol.topics import SharedSubscription
from streamlease.registry import leadership
from streamlease.registry.keys import QUEUE, leader
from streamlease.registry.leadership import Candidacy, LeadershipConfig
from streamlease.streams.catalog.keys import rows
from tests.admin.command import Command, finish
from tests.admin.test_doctor_and_serve import start_host
from tests.agent.helpers import publish, take
from tests.alerts.prometheus import Prometheus
from tests.conftest import MakeServer
from tests.servers import Kind
from tests.streams.test_durability import replica_of

DEAD, STALLED, HUNG, KEPT, DAMAGED = (
    SharedSubscription.parse(f"$shared/{name}/a/#") for name in ("dead", "stalled", "hung", "kept", "damaged")
)


@pytest.fixture
async def client(embedded_redis_url: str) -> AsyncIterator[Client]:
    async with connect(embedded_redis_url) as client:
        await client.create_space("a", ["a/#"], streams=2)
        yield client


async def test_alerts_of_groups(client: Client, prometheus: Prometheus, tmp_path: Path) -> None:
    """Side by side: a dead fleet, a stalled leader, a consumer that hangs, a group that cannot be read, a
    slow publisher of epochs, and somebody who writes into the queue of hosts."""
    command = Command(tmp_path, client.url)
    host, port = await asyncio.to_thread(start_host, command)
    try:
        await asyncio.to_thread(lambda: prometheus.watch(host=port))
        await kill_the_fleet(client, command)
        await stall_the_leader(client)
        await client.create_space("e", ["e/#"], streams=1, epochs=1)
        async with (
            client.subscribe(str(STALLED), start="earliest"),
            client.subscribe(str(HUNG), start="earliest") as hung,
            client.epoch_publisher("e", "slow"),
            client.epoch_publisher("e", "fast") as fast,
            asyncio.TaskGroup() as work,
        ):
            await publish(client, range(8))
            await take(hung, 8, commit=False)
            await client.alter_space("a", streams=3)
            await fast.advance([5])
            publishing = work.create_task(publish_on(client))
            with Redis.from_url(client.url) as store:
                Queue(QUEUE, connection=store).enqueue("os.system", "true")
                await client.groups.declare(DAMAGED, "earliest")
                store.hset(leader(DAMAGED.id), "term", "x")
            waits = {
                "StreamleaseJobsRefused": {},
                "StreamleaseNothingConsumed": {"subscription": str(HUNG)},
                "StreamleaseLagGrows": {"subscription": str(HUNG)},
                "StreamleaseStreamsWithoutOwner": {"subscription": str(HUNG)},
                "StreamleaseEpochsHeldBack": {"space": "e"},
                "StreamleaseLeaderStalls": {"subscription": str(STALLED)},
                "StreamleaseDeadFleet": {"subscription": str(DEAD)},
                "StreamleaseGroupDamaged": {"subscription": str(DAMAGED), "job": "streamlease"},
            }
            for alert, labels in waits.items():
                await asyncio.to_thread(prometheus.until_fires, alert, **labels)
            publishing.cancel()
        # Nobody leads it any more, and it is told all the same.
        assert prometheus.value(f'streamlease_group_state{{subscription="{DEAD}",state="no_leader"}}') == 1
        assert prometheus.value(f'count(streamlease_group_lag_messages{{subscription="{DEAD}"}})') == 1
        critical = {one["subscription"] for one in prometheus.firing()["StreamleaseDeadFleet"]}
        assert str(HUNG) not in critical
    finally:
        await asyncio.to_thread(finish, host)


async def test_a_leader_stalls_that_has_granted_all_and_keeps_its_term(
    make_redis_server: MakeServer, prometheus: Prometheus, tmp_path: Path
) -> None:
    """The replica hangs that its group's journal waits for. What keeps the term waits for no replica."""
    primary = make_redis_server(Kind.REDIS7)
    replica = replica_of(primary, make_redis_server, Kind.REDIS7)
    host, port = await asyncio.to_thread(start_host, Command(tmp_path, primary.url))
    try:
        await asyncio.to_thread(lambda: prometheus.watch(alone=port))
        async with connect(primary.url) as client:
            await client.create_space("a", ["a/#"], streams=2, durability="replicated:1")
            await publish(client, range(8))
            async with client.subscribe(str(KEPT), start="earliest") as reader:
                await take(reader, 8, commit=False)
                term = (await leadership.read(client.redis, KEPT.id)).term
                replica.pause()
                async with client.subscribe(str(KEPT)):
                    await asyncio.to_thread(
                        prometheus.until_fires, "StreamleaseLeaderStalls", subscription=str(KEPT)
                    )
                    held = f'streamlease_group_held_streams{{subscription="{KEPT}"}}'
                    assert await asyncio.to_thread(prometheus.value, held) == 2
                    record = await leadership.read(client.redis, KEPT.id)
                    assert (record.term, record.held, record.expired) == (term, True, False)
                    replica.resume()
    finally:
        await asyncio.to_thread(finish, host)


async def kill_the_fleet(client: Client, command: Command) -> None:
    """Its only consumer is killed, and its leader has gone since."""
    await client.groups.declare(DEAD, "earliest")
    consumer = command.start("consume", str(DEAD), "--from", "earliest")
    try:
        async with asyncio.timeout(60):
            while not (await leadership.read(client.redis, DEAD.id)).held:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            while not await client.redis.hlen(rows("borrowers")):  # type: ignore[union-attr]  # noqa: ASYNC110
                await asyncio.sleep(0.02)
    finally:
        os.kill(consumer.pid, signal.SIGKILL)
        await asyncio.to_thread(consumer.communicate)
    await client.act(DEAD, StepDown(), who="me")


async def stall_the_leader(client: Client) -> None:
    """Somebody leads the group, keeps its term, and does nothing."""
    await client.groups.declare(STALLED, "earliest")
    stalled = Candidacy(STALLED.id, "stalled", "stalled", LeadershipConfig(ttl=600_000))
    stalled.observe(await leadership.read(client.redis, STALLED.id), 0)
    assert await stalled.attempt(client.redis) == 1


async def publish_on(client: Client) -> None:
    for number in range(8, 100_000):
        await publish(client, [number])
        await asyncio.sleep(0.1)
