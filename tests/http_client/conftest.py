"""Gateways, as those of tests/gateway."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack

import pytest

import streamlease
from tests.gateway.conftest import client, gateway, running, start_gateway

__all__ = ["client", "gateway", "start_gateway"]


@pytest.fixture
def gateway_url(embedded_redis_url: str) -> Iterator[str]:
    """A gateway on a loop of its own thread, for clients that block; with a space for ``a/#``."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    stack = AsyncExitStack()

    async def begin() -> str:
        connected = await stack.enter_async_context(streamlease.connect(embedded_redis_url))
        await connected.create_space("s", ["a/#"], streams=2)
        http = await stack.enter_async_context(running(connected))
        return f"http://127.0.0.1:{http.port}"

    try:
        yield asyncio.run_coroutine_threadsafe(begin(), loop).result(30)
    finally:
        asyncio.run_coroutine_threadsafe(stack.aclose(), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        loop.close()
