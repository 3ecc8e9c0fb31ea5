"""A leader that ends while Redis does not answer cannot resign: its host does, as soon as Redis answers."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from streamlease.hosts.host import HostConfig, LeaderHost
from streamlease.hosts.renewing import Renewing
from streamlease.leader.runner import Runner
from streamlease.protocol.errors import StoreUnavailable
from streamlease.protocol.topics import SharedSubscription
from streamlease.registry import leadership
from streamlease.registry.groups import Groups
from streamlease.registry.leadership import LeaderRecord, LeadershipConfig
from streamlease.streams.redis.connection import AsyncRedis, connect
from streamlease.streams.spaces.spaces import SpaceStore
from streamlease.streams.tasks import Supervisor
from tests.leader.test_host import until

LASTING = LeadershipConfig(ttl=300_000, renew_interval=100)
"""With which nobody follows within a test who has not resigned."""


@pytest.fixture
async def redis(embedded_redis_url: str) -> AsyncIterator[AsyncRedis]:
    client = connect(embedded_redis_url)
    await SpaceStore(client).create("a", ["a/#"], streams=2)
    yield client
    await client.aclose()


async def _unanswered(*_: object) -> bool:
    raise StoreUnavailable("Redis does not answer")


async def test_what_was_resigned_meanwhile_is_left_alone(redis: AsyncRedis) -> None:
    """In a cluster a slow turn of one server may end after the next one has chosen its groups."""
    tasks = Supervisor("renewing", lambda _, error: None)
    renewing = Renewing(redis, "one", LASTING, {}, tasks)
    await renewing._renew(["g/a"])
    assert await leadership.read(redis, "g/a") == leadership.NOBODY
    await tasks.close()


@pytest.mark.parametrize("count", [1, 5], ids=["renewed by themselves", "kept by a pulse"])
async def test_a_host_resigns_for_leaders_that_could_not(
    count: int, redis: AsyncRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = []
    for number in range(count):
        subscription = SharedSubscription.parse(f"$shared/g{number}/a")
        await Groups(redis).declare(subscription, "earliest")
        groups.append(subscription.id)
    runners: list[Runner] = []
    run = Runner.run

    async def noted(runner: Runner) -> str:
        runners.append(runner)
        return await run(runner)

    monkeypatch.setattr(Runner, "run", noted)

    async def records() -> dict[str, LeaderRecord]:
        return await leadership.read_all(redis, groups)

    async def renewed() -> None:
        """Wait until all that are led have been renewed from now on."""
        before = await records()

        async def so() -> bool:
            return all(
                one.renewed_at > before[group].renewed_at
                for group, one in (await records()).items()
                if one.held
            )

        await until(so)

    async def nobody_leads() -> bool:
        return not any(one.held for one in (await records()).values())

    host = LeaderHost(redis, HostConfig(name="one", registered=False, leadership=LASTING))
    await host.start()
    try:
        for group in groups:
            host.lead(group)
            assert await host.led(group, 60.0) == 1
        await renewed()
        with monkeypatch.context() as outage:
            outage.setattr(leadership, "resign", _unanswered)
            for runner in runners:
                runner.end("it could not be renewed in time")
            await until(nobody_leads)
        host.lead(groups[0])
        assert await host.led(groups[0], 60.0) == 2
        await renewed()
        await renewed()
        assert {group: one.host for group, one in (await records()).items() if one.held} == {
            groups[0]: host.id
        }
    finally:
        await host.close()
