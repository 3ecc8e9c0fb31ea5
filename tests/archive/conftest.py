"""A space with an archive in a folder, and what its tests ask of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from streamlease.agent.client import Client, connect
from streamlease.streams.redis.connection import BlockingRedis, connect_blocking


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return str(tmp_path / "archive")


@pytest.fixture
async def client(embedded_redis_url: str) -> AsyncIterator[Client]:
    async with connect(embedded_redis_url) as made:
        yield made


@pytest.fixture
def blocking(embedded_redis_url: str) -> Iterator[BlockingRedis]:
    made = connect_blocking(embedded_redis_url)
    yield made
    made.close()
