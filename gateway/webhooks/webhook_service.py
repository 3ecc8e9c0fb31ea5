"""The webhooks of one gateway, put together; a context manager around its life."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from streamlease.gateway.core.cursors import CursorCodec
from streamlease.gateway.feeds import Feeds
from streamlease.gateway.since_reading import SinceReading
from streamlease.gateway.webhooks.callback_lines import CallbackLines, Resolve
from streamlease.gateway.webhooks.core.webhook_standing import Patience
from streamlease.gateway.webhooks.delivering import DeliveryMeans
from streamlease.gateway.webhooks.delivery_turns import DeliveryTurns
from streamlease.gateway.webhooks.subscription_handlers import SubscriptionHandlers
from streamlease.gateway.webhooks.webhook_leases import WebhookLeases
from streamlease.protocol.errors import InvalidOption
from streamlease.registry.webhooks.webhook_records import WebhookRecords

if TYPE_CHECKING:
    from streamlease.agent.client import Client
    from streamlease.gateway.token_file import TokenFile


@dataclass(frozen=True, slots=True)
class WebhookSettings:
    """How webhooks are delivered; it refuses nonsense when it is made.

    Raises:
        InvalidOption: a value is out of range.
    """

    allow_private: bool = False
    """Whether callbacks may lead to addresses that are not of the public internet."""
    seconds: float = 10.0
    """How long a callback may take to answer."""
    patience: Patience = field(default_factory=Patience)
    resolve: Resolve | None = None
    """The addresses of a host; None: as the system says."""

    def __post_init__(self) -> None:
        if not 0.1 <= self.seconds <= 25:
            raise InvalidOption(f"a callback may take {self.seconds:g} s: give 0.1 to 25 seconds")


@asynccontextmanager
async def webhook_service(
    client: Client,
    feeds: Feeds,
    reading: SinceReading,
    cursors: CursorCodec,
    tokens: TokenFile | None,
    settings: WebhookSettings,
    handlers: SubscriptionHandlers,
) -> AsyncIterator[None]:
    """Deliver, and answer requests about webhooks."""
    lines = CallbackLines(
        allow_private=settings.allow_private, seconds=settings.seconds, resolve=settings.resolve
    )
    records = WebhookRecords(client.redis)

    def check(owner: str, filter: str) -> None:
        if tokens is not None:
            tokens.rights_of(owner).check_consume(filter)

    means = DeliveryMeans(
        feeds,
        reading,
        cursors,
        lines,
        DeliveryTurns(),
        settings.patience,
        check,
        lambda: time.time_ns() // 1_000_000,
    )
    leases = WebhookLeases(client, means, records, settings.seconds + 1)
    handlers.begin(reading, cursors, lines, records, leases)
    leases.start()
    try:
        yield
    finally:
        await leases.close()
