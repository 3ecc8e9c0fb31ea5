"""A client without leader hosts."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from streamlease.agent.client import Client, connect


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[Client]:
    async with connect(redis_url, embedded=False) as client:
        yield client
