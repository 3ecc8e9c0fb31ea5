"""The host of a client does what one host does for all only while no leader host is there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import streamlease
from streamlease.hosts import archiving, chores, compactor, snapshot_maker, trimming
from streamlease.hosts.host import HostConfig, LeaderHost
from streamlease.registry import hosts, keys, leadership
from streamlease.streams.redis.connection import AsyncRedis, connect
from streamlease.streams.spaces.archive_settings import ArchiveSettings
from streamlease.streams.spaces.retention import Retention

CLAIMS = (archiving.CLAIM, compactor.CLAIM, snapshot_maker.CLAIM, trimming.CLAIM, f"{keys.KEEPER}counted")


@asynccontextmanager
async def hosting(url: str, config: HostConfig) -> AsyncIterator[LeaderHost]:
    async with connect(url) as redis:
        host = LeaderHost(redis, config)
        await host.start()
        try:
            yield host
        finally:
            await host.close()


async def until_done_by(redis: AsyncRedis, host: LeaderHost) -> None:
    """Wait until it has all the claims."""
    async with asyncio.timeout(60):
        for claim in CLAIMS:
            while (record := await leadership.read(redis, claim)).host != host.id or not record.held:  # noqa: ASYNC110
                await asyncio.sleep(0.05)


@pytest.mark.slow
async def test_a_client_leaves_to_leader_hosts_what_one_host_does_for_all(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may not even have the rights of an archive, which would stand still as long as it lives."""
    monkeypatch.setattr(chores, "HOSTS_SECONDS", 0.05)
    for module in (archiving, compactor, snapshot_maker):
        monkeypatch.setattr(module, "INTERVAL_SECONDS", 0.1)
    often = 0.1
    of_client = HostConfig(name=hosts.CLIENT, retention_interval=often, registered=False)
    async with streamlease.connect(redis_url, embedded=False) as client:
        archive = ArchiveSettings.of(str(tmp_path / "archive"))
        await client.create_space("kept", ["kept/#"], archive=archive)
        few = Retention(messages=2)
        await client.create_space("merged", ["merged/#"], compact_after_ms=60_000, retention=few)
        await client.create_space("counted", ["counted/#"], epochs=1)
        await client.create_space("seats", ["seats/#"], collection=True)
        async with hosting(redis_url, of_client) as mine:
            await until_done_by(client.redis, mine)
            assert mine.keeps == ["counted"]
            async with hosting(redis_url, HostConfig(retention_interval=often)) as one:
                await until_done_by(client.redis, one)
                assert (mine.keeps, one.keeps) == ([], ["counted"])
            await until_done_by(client.redis, mine)
            assert mine.keeps == ["counted"], "nobody else is there any more"
        for claim in CLAIMS:
            assert not (await leadership.read(client.redis, claim)).held
