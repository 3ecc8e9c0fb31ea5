"""This gateway, as the others know it: its name, and the signs of life that it gives."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

from streamlease.protocol.errors import StreamleaseError
from streamlease.protocol.ids import random_token
from streamlease.protocol.seldom import Seldom
from streamlease.registry.members.member_records import GatewaySigns
from streamlease.streams.tasks import Supervisor

if TYPE_CHECKING:
    from streamlease.agent.client import Client

SIGN_SECONDS = 1.0
SIGN_MS = 3500
"""How long a gateway counts as alive after its last sign: it misses three before others take over."""

_logger = logging.getLogger(__name__)


class GatewayPresence:
    """An asynchronous context manager; within it the gateway lives, once it has been shown."""

    def __init__(self, client: Client) -> None:
        self.id = f"gateway-{random_token()[:16]}"
        self._signs = GatewaySigns(client.redis)
        self._given = False
        self._seldom = Seldom(_logger)
        self._tasks = Supervisor(
            "gateway", lambda _, error: _logger.error("gateway: signs of life: %s", error)
        )

    async def __aenter__(self) -> GatewayPresence:
        self._tasks.start("signs of life", self._sign(), endless=True)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._tasks.close()
        with contextlib.suppress(StreamleaseError):
            await self._signs.withdraw(self.id)

    async def show(self) -> None:
        """Be alive before a record says that something is served here.

        Raises:
            StoreUnavailable, StoreRefused, Indefinite.
        """
        if not self._given:
            await self._signs.give(self.id, SIGN_MS)
            self._given = True

    async def alive(self, gateway: str) -> bool:
        """Whether another one is.

        Raises:
            StoreUnavailable, StoreRefused.
        """
        return await self._signs.alive(gateway)

    async def _sign(self) -> None:
        while True:
            await asyncio.sleep(SIGN_SECONDS)
            try:
                if self._given:
                    await self._signs.give(self.id, SIGN_MS)
            except StreamleaseError as error:
                self._seldom.warning("gateway: others cannot see that this one is alive: %s", error)
