"""Clients of the server that a test runs on, closed after it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from streamlease.protocol.ids import StreamId
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.redis.connection import AsyncRedis, BlockingRedis, connect, connect_blocking


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[AsyncRedis]:
    client = connect(redis_url)
    yield client
    await client.aclose()


@pytest.fixture
def blocking(redis_url: str) -> Iterator[BlockingRedis]:
    client = connect_blocking(redis_url)
    yield client
    client.close()


@pytest.fixture
async def log(redis: AsyncRedis) -> AsyncLog:
    return AsyncLog(redis)


@pytest.fixture
async def stream(log: AsyncLog) -> StreamId:
    """An open, empty stream."""
    stream = StreamId("space", 0, 0)
    await log.open([stream])
    return stream
