"""A pause until a time, with leader hosts of their own: it outlives its leader and ends by itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from streamlease.agent.client import Client, connect
from streamlease.hosts.host import HostConfig, LeaderHost
from streamlease.leader.core.state.group_state import GroupState
from streamlease.leader.journal import recover
from streamlease.protocol.acts import parse
from streamlease.protocol.errors import ActRefused
from streamlease.protocol.topics import SharedSubscription
from streamlease.streams.log.times import server_time
from tests.admin.command import InProcess
from tests.agent.helpers import SUB, publish, take

SHARED = SharedSubscription.parse(SUB)
HOUR = 3_600_000


@asynccontextmanager
async def hosting(client: Client, name: str) -> AsyncIterator[LeaderHost]:
    host = LeaderHost(client.redis, HostConfig(name=name))
    await host.start()
    host.lead(SHARED.id)
    try:
        yield host
    finally:
        await host.close()


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(60):
        while not await condition():  # noqa: ASYNC110 - the condition is in Redis, which tells nobody
            await asyncio.sleep(0.05)


async def state(client: Client) -> GroupState:
    return (await recover(client.redis, SHARED.id)).state


async def pause_for(client: Client, milliseconds: int) -> int:
    """Pause the group until a moment from now on; which."""
    moment = await server_time(client.redis) // 1000 + milliseconds
    await client.act(SHARED, parse("pause", until=moment), who="ann@host")
    return moment


async def pause_soon_over(client: Client) -> int:
    """Pause it for as short a time as the machine allows."""
    for milliseconds in (1500, 15_000):
        try:
            return await pause_for(client, milliseconds)
        except ActRefused:
            continue  # the machine stood still for so long that the moment passed
    return await pause_for(client, 60_000)


async def test_a_pause_ends_by_itself_under_the_next_leader(embedded_redis_url: str, tmp_path: Path) -> None:
    async with connect(embedded_redis_url, embedded=False) as client:
        await client.create_space("s", ["a/#"], streams=2)
        await publish(client, range(10))
        async with client.subscribe(SUB, start="earliest") as reader:
            async with hosting(client, "one") as one:
                assert sorted(await take(reader, 10)) == list(range(10))
                await pause_for(client, HOUR)

                async def is_free() -> bool:
                    return all(stream.owner is None for stream in (await state(client)).streams.values())

                await until(is_free)
                await publish(client, range(10, 30))
                assert one.leaders == [SHARED.id]
            async with hosting(client, "two"):

                async def leads_paused() -> bool:
                    kept = await state(client)
                    return kept.term > 1 and kept.operated.paused is not None

                await until(leads_paused)
                assert await is_free()
                moment = await pause_soon_over(client)
                assert sorted(await take(reader, 20)) == list(range(10, 30))
                kept = (await state(client)).operated
    assert kept.paused is None
    assert [(act.act, act.who) for act in kept.acts] == [
        ("pause", "ann@host"),
        ("pause", "ann@host"),
        ("resume", ""),
    ]
    assert kept.acts[-1].at >= moment
    told = await asyncio.to_thread(history, tmp_path, embedded_redis_url)
    assert [(act["act"], act["who"], act["outcome"]) for act in told] == [
        ("pause", "ann@host", "done"),
        ("pause", "ann@host", "done"),
        ("resume", "the leader", "done"),
    ]
    assert told[-1]["what"] == "the time that it was paused until has come"


def history(directory: Path, url: str) -> list[dict[str, Any]]:
    """What the command says was done to the group."""
    found: list[dict[str, Any]] = (
        InProcess(directory, url).ok("group", "history", SUB, "--json").document["acts"]
    )
    return found


@pytest.mark.parametrize("seconds", [-1, 0])
async def test_a_moment_that_has_passed_is_refused(embedded_redis_url: str, seconds: int) -> None:
    async with connect(embedded_redis_url) as client:
        await client.create_space("s", ["a/#"])
        await client.groups.declare(SHARED)
        with pytest.raises(ActRefused, match="the time to pause group g/a/# until has passed"):
            await pause_for(client, seconds * 1000)
        assert (await state(client)).operated.paused is None
