"""What services count for Prometheus."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from prometheus_client import REGISTRY

import streamlease
from streamlease.protocol.errors import NoService, ServiceBusy, ServiceError
from tests.services.models import Score, Scored, score


@pytest.fixture
async def client(embedded_redis_url: str) -> AsyncIterator[streamlease.Client]:
    async with streamlease.connect(embedded_redis_url) as connected:
        yield connected


def sample(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(f"streamlease_{name}", {"service": "counted", **labels}) or 0.0


async def test_requests_and_calls_are_counted_by_what_became_of_them(client: streamlease.Client) -> None:
    begun, gate = asyncio.Event(), asyncio.Event()

    async def handle(request: Score) -> Scored:
        if request.x < 0:
            raise ServiceError("too low")
        if request.x > 100:
            begun.set()
            await gate.wait()
        return await score(request)

    def call(x: int) -> asyncio.Future[Scored]:
        return asyncio.ensure_future(client.call("counted", Score(x=x), answer=Scored))

    with pytest.raises(NoService):
        await call(1)
    async with client.serve("counted", {Score: handle}, limit=1):
        for x in (1, 2):
            await call(x)
        with pytest.raises(ServiceError):
            await call(-1)
        waiting = call(200)
        await begun.wait()
        assert sample("service_running") == 1
        with pytest.raises(ServiceBusy):
            await call(3)
        gate.set()
        await waiting
        begun.clear()
        gate.clear()
        given_up = call(300)
        await begun.wait()
        given_up.cancel()
        async with asyncio.timeout(20):
            while not sample("service_requests_total", outcome="cancelled"):  # noqa: ASYNC110 (a counter)
                await asyncio.sleep(0.01)
    assert sample("service_running") == 0
    requests = {
        outcome: sample("service_requests_total", outcome=outcome)
        for outcome in ("answered", "failed", "busy", "cancelled")
    }
    assert requests == {"answered": 3, "failed": 1, "busy": 1, "cancelled": 1}
    assert sample("service_seconds_count") == 4
    calls = {
        outcome: sample("calls_total", outcome=outcome)
        for outcome in ("answered", "NoService", "ServiceError", "ServiceBusy", "CancelledError")
    }
    assert calls == {"answered": 3, "NoService": 1, "ServiceError": 1, "ServiceBusy": 1, "CancelledError": 1}
    assert sample("call_seconds_count") == 7
