"""What a gateway counts of its requests, as Prometheus reads it."""

from __future__ import annotations

import asyncio
import re

import pytest

from streamlease.gateway.core.rates import GatewayLimits
from tests.gateway.conftest import Client, running
from tests.gateway.http_client import HttpClient


class Counts:
    """The metrics of a gateway, since the first look at them."""

    def __init__(self, http: HttpClient) -> None:
        self._http = http
        self._before: dict[str, float] = {}

    async def look(self) -> dict[str, float]:
        text = (await self._http.get("/metrics")).body.decode()
        found = dict(re.findall(r"^streamlease_gateway_(\S+) (\S+)$", text, re.MULTILINE))
        return {name: float(value) for name, value in found.items()}

    async def begin(self) -> Counts:
        self._before = await self.look()
        return self

    async def since(self, name: str, **labels: str) -> float:
        wanted = ",".join(f'{key}="{value}"' for key, value in sorted(labels.items()))
        full = f"{name}{{{wanted}}}" if wanted else name
        return (await self.look()).get(full, 0.0) - self._before.get(full, 0.0)

    async def until(self, wanted: float, name: str, **labels: str) -> None:
        async with asyncio.timeout(30):
            while await self.since(name, **labels) != wanted:  # noqa: ASYNC110 (it is asked over HTTP)
                await asyncio.sleep(0.01)


@pytest.fixture
async def counts(client: Client, gateway: HttpClient) -> Counts:
    await client.create_space("s", ["a/#"])
    return await Counts(gateway).begin()


async def test_requests_are_counted_by_route_and_status(gateway: HttpClient, counts: Counts) -> None:
    for number in range(3):
        await gateway.post(f"/v1/topics/a/{number}", b"x" * 100)
    await gateway.post("/v1/topics/b/1", b"x")
    await gateway.get("/v1/messages?filter=a/%23&since=earliest")
    for path in ("/v1/nothing", "/a/long/way/to/nothing"):
        await gateway.get(path)
    topics = "/v1/topics/*"
    assert await counts.since("requests_total", route=topics, status="201") == 3
    assert await counts.since("requests_total", route=topics, status="404") == 1
    assert await counts.since("requests_total", route="/v1/messages", status="200") == 1
    assert await counts.since("requests_total", route="other", status="404") == 2
    assert await counts.since("request_seconds_count", route=topics) == 4
    assert await counts.since("request_seconds_bucket", route=topics, le="30.0") == 4
    assert 0 < await counts.since("request_seconds_sum", route=topics) < 30
    assert await counts.since("received_bytes_total", route=topics) == 301
    assert await counts.since("sent_bytes_total", route="/v1/messages") > 300


async def test_what_waits_is_counted_while_it_waits(gateway: HttpClient, counts: Counts) -> None:
    async with gateway.streaming("/v1/events", filter="a/#") as (_, parts):
        await anext(parts)
        waiting = asyncio.ensure_future(gateway.get("/v1/messages?filter=a/%23&wait=30"))
        await counts.until(1, "open", route="/v1/messages")
        assert await counts.since("open", route="/v1/events") == 1
        assert await counts.since("feeds") == 1
        await gateway.post("/v1/topics/a/1", b"x")
        assert (await waiting).status == 200
    await counts.until(0, "open", route="/v1/events")
    assert await counts.since("open", route="/v1/messages") == 0
    assert await counts.since("requests_total", route="/v1/messages", status="200") == 1
    assert await counts.since("request_seconds_count", route="/v1/messages") == 0
    assert await counts.since("request_seconds_count", route="/v1/events") == 0


async def test_what_a_limit_refuses_is_counted_by_the_limit(client: Client) -> None:
    await client.create_space("s", ["a/#"])
    limits = GatewayLimits(body_bytes=10, requests_per_second=3, open_polls=2, client_polls=1)
    async with running(client, limits=limits) as http:
        counts = await Counts(http).begin()
        assert (await http.post("/v1/topics/a/1", b"x" * 11)).status == 413
        async with http.streaming("/v1/events", filter="a/#") as (answer, _):
            assert answer.status == 200
            assert (await http.get("/v1/events?filter=a/%23")).status == 429
            assert (await http.get("/v1/events?filter=a/%23")).status == 429
        for limit in ("body", "client_polls", "rate"):
            assert await counts.since("refused_total", limit=limit) == 1
