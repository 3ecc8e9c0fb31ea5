"""An asyncio client of the Redis under test."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from streamlease.streams.redis.connection import AsyncRedis, connect


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[AsyncRedis]:
    client = connect(redis_url)
    yield client
    await client.aclose()
