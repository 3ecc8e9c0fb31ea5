"""Gateways in the process of the tests, on ports of their own."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import streamlease
from streamlease.channels.core.channel_limits import ChannelLimits
from streamlease.gateway.core.rates import GatewayLimits
from streamlease.gateway.http_app import GatewayApp
from streamlease.gateway.http_server import GatewayServer, gateway_config
from streamlease.gateway.token_file import TokenFile
from streamlease.gateway.webhooks.webhook_service import WebhookSettings
from tests.gateway.http_client import HttpClient

Client = streamlease.Client
Start = Callable[..., Any]


@asynccontextmanager
async def running(
    client: Client,
    tokens: Path | None = None,
    limits: GatewayLimits | None = None,
    channel_limits: ChannelLimits | None = None,
    webhooks: WebhookSettings | None = None,
    begun: Callable[[GatewayApp], None] = lambda app: None,
) -> AsyncIterator[HttpClient]:
    """A gateway for `client`.

    Args:
        begun: gets the application, to look into it.
    """
    file = None if tokens is None else TokenFile(tokens)
    app = GatewayApp(client, tokens=file, limits=limits, channel_limits=channel_limits, webhooks=webhooks)
    begun(app)
    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    server = GatewayServer(app, gateway_config(app), signals=False)
    serving = asyncio.ensure_future(server.serve(sockets=[listener]))
    try:
        yield HttpClient(listener.getsockname()[1])
    finally:
        server.end()
        await serving
        listener.close()


@pytest.fixture
async def client(embedded_redis_url: str) -> AsyncIterator[Client]:
    async with streamlease.connect(embedded_redis_url) as connected:
        yield connected


@pytest.fixture
async def gateway(client: Client) -> AsyncIterator[HttpClient]:
    """A gateway without tokens."""
    async with running(client) as http:
        yield http


@pytest.fixture
async def start_gateway(embedded_redis_url: str) -> AsyncIterator[Start]:
    """Starts more gateways, each with a connection of its own."""
    async with AsyncExitStack() as stack:

        async def start(**options: Any) -> HttpClient:
            connected = await stack.enter_async_context(streamlease.connect(embedded_redis_url))
            return await stack.enter_async_context(running(connected, **options))

        yield start
