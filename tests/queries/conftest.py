"""An empty Redis, and executors on it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from streamlease.streams.redis.connection import AsyncRedis, connect
from tests.admin.command import Command
from tests.queries.executors import Executors, running


@pytest.fixture
def executors(tmp_path: Path, embedded_redis_url: str) -> Iterator[Executors]:
    """No executor is started yet."""
    yield from running(Command(tmp_path, embedded_redis_url), tmp_path)


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[AsyncRedis]:
    client = connect(redis_url)
    yield client
    await client.aclose()
