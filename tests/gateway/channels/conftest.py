"""Gateways with channels, looked into."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

import pytest

from streamlease.channels.core.channel_limits import ChannelLimits
from streamlease.gateway.channels.all_channels import Channels
from streamlease.gateway.channels.channel import Channel
from streamlease.gateway.core.bearer import EVERYTHING
from streamlease.gateway.feeds import Feeds
from streamlease.gateway.http_app import GatewayApp
from tests.gateway.channels.channel_client import HandClient
from tests.gateway.conftest import Client, running
from tests.gateway.http_client import HttpClient


class Desk(NamedTuple):
    """A gateway, and what it holds of channels."""

    http: HttpClient
    app: GatewayApp
    client: Client

    @property
    def channels(self) -> Channels:
        return self.app.channels.channels

    @property
    def feeds(self) -> Feeds:
        return self.channels.feeds

    def hand(self, name: str = "hand") -> HandClient:
        return HandClient(self.http, name)

    def channel(self, name: str = "hand") -> Channel:
        found = self.channels.get(name, EVERYTHING)
        assert found is not None
        return found

    async def publish(self, topic: str, *payloads: str) -> None:
        async with self.client.publisher() as publisher:
            await publisher.send_many(topic, payloads)


StartDesk = Callable[..., Any]


@pytest.fixture
async def start_desk(client: Client) -> AsyncIterator[StartDesk]:
    async with AsyncExitStack() as stack:

        async def start(**limits: Any) -> Desk:
            await client.create_space("s", ["a/#", "b/#"], streams=1)
            apps: list[GatewayApp] = []
            options = {"channel_limits": ChannelLimits(**limits), "begun": apps.append}
            http = await stack.enter_async_context(running(client, **options))  # type: ignore[arg-type]
            return Desk(http, apps[0], client)

        yield start


@pytest.fixture
async def desk(start_desk: StartDesk) -> Desk:
    started: Desk = await start_desk()
    return started
