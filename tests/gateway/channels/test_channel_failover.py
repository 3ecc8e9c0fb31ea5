"""Gateways die, by SIGKILL, and channels go on at another one: nothing is missing, nothing comes twice."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import streamlease
from streamlease.http.channel_client import ChannelClient
from streamlease.http.core.channel_machine import ChannelMessage
from tests.admin.command import Command, Process, lines_of

KEYS = 20
MESSAGES = 300


@pytest.fixture
def gateways(tmp_path: Path, embedded_redis_url: str) -> Iterator[list[tuple[str, Process]]]:
    command = Command(tmp_path, embedded_redis_url)
    processes = [command.start("gateway", "--port", "0") for _ in range(3)]
    try:
        yield [(lines_of(one, 1)[0].removeprefix("the gateway is at ").rstrip("/"), one) for one in processes]
    finally:
        for one in processes:
            one.kill()
            one.wait()
            assert one.stdout is not None
            one.stdout.close()


@pytest.mark.parametrize("policy", ["critical", "lossy"])
async def test_gateways_are_killed_while_messages_come(
    gateways: list[tuple[str, Process]], embedded_redis_url: str, policy: Any
) -> None:
    found: dict[str, list[str]] = {f"k{n}": [] for n in range(KEYS)}
    quiet: list[str] = []
    (one, first), (two, second), (three, _) = gateways
    async with streamlease.connect(embedded_redis_url) as client:
        await client.create_space("s", ["a/#"], streams=3)

        async def publish() -> None:
            async with client.publisher() as publisher:
                for number in range(MESSAGES):
                    for key in range(KEYS):
                        await publisher.send(f"a/{key}", b"%d" % number)
                    if number in (MESSAGES // 3, 2 * MESSAGES // 3):
                        (first if number == MESSAGES // 3 else second).send_signal(signal.SIGKILL)
                await publisher.send("a/quiet", b"after all")

        async with ChannelClient(one, two, three, wait=5.0) as channel:
            begun = [channel.subscribe(key, f"a/{key[1:]}", policy=policy, limit=5000) for key in found]
            begun.append(channel.subscribe("quiet", "a/quiet", policy=policy))
            await asyncio.gather(*begun)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(publish())
                while not quiet or any(len(some) < MESSAGES for some in found.values()):
                    async with asyncio.timeout(30):
                        event = await anext(channel)
                    assert isinstance(event, ChannelMessage), event
                    found.get(event.key, quiet).append(event.message["payload"])
    assert quiet == ["after all"]
    for key, some in found.items():
        assert some == [str(number) for number in range(MESSAGES)], key
