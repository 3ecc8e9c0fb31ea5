"""Probes: whether the process lives, whether it can do its work, and what it counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from streamlease.gateway.http_calls import HttpCall

if TYPE_CHECKING:
    from streamlease.agent.client import Client


class ProbeHandlers:
    """Answers probes, for which nobody needs a token."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def health(self, call: HttpCall) -> None:
        """``GET /healthz``: the process lives."""
        await call.answer(200, b'{"healthy":true}', b"application/json")

    async def ready(self, call: HttpCall) -> None:
        """``GET /readyz``: Redis answers; otherwise it is a problem."""
        await self._client.spaces.look()
        await call.answer(200, b'{"ready":true}', b"application/json")

    async def metrics(self, call: HttpCall) -> None:
        """``GET /metrics``: the text form of Prometheus."""
        await call.answer(200, generate_latest(), CONTENT_TYPE_LATEST.encode())
