"""Servers stand in the catalog as long as they live, in the same act in which they are to be called."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import streamlease
from streamlease.catalog.items import ServiceItem
from streamlease.catalog.own_rows import OwnRows
from streamlease.services.core.shapes import shape_of
from streamlease.services.endpoint import Endpoint
from streamlease.services.handlers import typed_handlers
from streamlease.streams.redis.connection import ask
from tests.services.models import Score, Scored, score


async def _next(following: Any) -> tuple[str, int]:
    async with asyncio.timeout(30):
        change = await anext(following)
    return change.item.service, change.diff


async def test_a_service_comes_and_goes_with_its_server(redis_url: str) -> None:
    async with (
        streamlease.connect(redis_url) as server,
        streamlease.connect(redis_url) as other,
        other.catalog("services") as following,
    ):
        async with server.serve("scorer", {Score: score}):
            assert await _next(following) == ("scorer", 1)
            async with other.catalog("services") as services:
                (item,) = services.items
            assert isinstance(item, ServiceItem)
            assert item.types == (("Score", shape_of(Score).fingerprint),)
            assert item.server == (await server._services.endpoint()).address
            async with server.serve("second", {Score: score}):
                assert await _next(following) == ("second", 1)
            assert await _next(following) == ("second", -1)
        assert await _next(following) == ("scorer", -1)
        assert not following.items


@pytest.mark.slow
async def test_a_server_that_died_is_gone_though_nobody_serves_or_calls(redis_url: str) -> None:
    async with streamlease.connect(redis_url) as client:
        anybody = OwnRows(client.redis, beat_seconds=0.2)
        anybody.put("executors", "x", {"executor": "x", "slots": 1})
        endpoint = Endpoint(client.redis, 1500)
        await endpoint.start()
        await endpoint.bind("scorer", typed_handlers("scorer", {Score: score}, {}), 10)
        async with client.catalog("services") as following:
            assert [item.service for item in following.items if isinstance(item, ServiceItem)] == ["scorer"]
            await endpoint._tasks.close()  # as if its process were killed
            assert await _next(following) == ("scorer", -1)
        async with client.catalog("services") as services:
            assert not services.items
        await anybody.close()
        await endpoint.close()


async def test_nothing_is_left_of_services_that_ended(redis_url: str) -> None:
    async with (
        streamlease.connect(redis_url) as caller,
        streamlease.connect(redis_url) as server,
        server.serve("scorer", {Score: score}),
    ):
        await caller.call("scorer", Score(x=1), answer=Scored, wait=5)
    async with streamlease.connect(redis_url) as client:
        (left,) = await ask(client.redis, [("SCAN", 0, "MATCH", "sl:*", "COUNT", 1000)])
        assert {key.decode() for key in left[1]} <= {"sl:{catalog}:changes"}
