"""Clients of the Redis that a test runs on."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from streamlease.agent.client import Client, connect


@pytest.fixture
async def client(real_redis_url: str) -> AsyncIterator[Client]:
    async with connect(real_redis_url) as client:
        yield client


@pytest.fixture
async def second(real_redis_url: str) -> AsyncIterator[Client]:
    """Another client, as another process would have it: with an agent and a leader host of its own."""
    async with connect(real_redis_url) as client:
        yield client
