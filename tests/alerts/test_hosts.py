"""Alerts of hosts and of consumers that they lead: a host stands and goes on, and then all of them die."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import streamlease
from streamlease.agent.client import Client, connect
from streamlease.protocol.topics import SharedSubscription
from streamlease.registry import hosts, leadership
from tests.admin.command import Command, Process, finish
from tests.admin.test_doctor_and_serve import start_host
from tests.agent.helpers import publish, take
from tests.alerts.prometheus import Prometheus

GROUPS = [SharedSubscription.parse(f"$shared/g{number}/a/#") for number in range(24)]
"""So many that a host which leads a third of them loses more terms at once than an alert wants. Which one
leads how many is chance: of 14 it was six to eight, too near to the five that are no alert."""

MANY = GROUPS[0]
"""It has so many consumers that together they lose their leader more often than an alert wants."""


async def test_alerts_of_hosts(embedded_redis_url: str, prometheus: Prometheus, tmp_path: Path) -> None:
    command = Command(tmp_path, embedded_redis_url)
    processes: list[Process] = []
    ports = {"test": streamlease.serve_metrics(0)}
    try:
        for name in ("first", "second"):
            process, ports[name] = await asyncio.to_thread(start_host, command)
            processes.append(process)
        async with connect(embedded_redis_url) as client, AsyncExitStack() as consumers:
            await client.create_space("a", ["a/#"], streams=8)
            for group in [*[MANY] * 6, *GROUPS[1:]]:
                await consumers.enter_async_context(client.subscribe(str(group)))
            await led(client, lambda host: host != "")
            await asyncio.to_thread(lambda: prometheus.watch(**ports))
            await hand_over_slowly(client, embedded_redis_url)
            await asyncio.to_thread(prometheus.until_fires, "StreamleaseSlowHandOver")
            former = (await leadership.read(client.redis, MANY.id)).host
            (stopped,) = [one.pid for one in await hosts.alive(client.redis) if one.host == former]
            os.kill(stopped, signal.SIGSTOP)
            try:
                await led(client, lambda host: host not in ("", former))
                await asyncio.to_thread(
                    prometheus.until_fires, "StreamleaseConsumersReconnect", subscription=str(MANY)
                )
            finally:
                os.kill(stopped, signal.SIGCONT)
            await asyncio.to_thread(prometheus.until_fires, "StreamleaseLeadersChange")
        for process in processes:
            os.kill(process.pid, signal.SIGKILL)
        await asyncio.to_thread(prometheus.until_fires, "StreamleaseNoLeaderHost")
    finally:
        for process in processes:
            await asyncio.to_thread(finish, process, signal.SIGKILL)


async def led(client: Client, by: Callable[[str], bool]) -> None:
    """Wait until each group has a leader that is right."""
    async with asyncio.timeout(60):
        while True:
            records = await leadership.read_all(client.redis, [group.id for group in GROUPS])
            if all(by(record.host) and not record.expired for record in records.values()):
                return
            await asyncio.sleep(0.05)


async def hand_over_slowly(client: Client, url: str) -> None:
    """A consumer that is asked for a stream works on its batch for two seconds before it commits."""
    async with client.subscribe("$shared/slow/a/#", start="earliest") as slow:
        await publish(client, range(16))
        batches = []
        while sum(len(batch.messages) for batch in batches) < 16:
            batches.append(await anext(slow))
        async with connect(url) as other, other.subscribe("$shared/slow/a/#") as second:
            work = asyncio.create_task(asyncio.sleep(2.0))  # what it does with the batch
            await work
            for batch in batches:
                await batch.commit()
            await publish(client, range(16, 48))
            await take(second, 1)
