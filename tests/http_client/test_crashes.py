"""Followers over crashes: a gateway that is killed and started again, and a Redis that is."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

import streamlease
from streamlease import http
from streamlease.agent import blocking
from tests.http_client.faulty_proxy import Faults, between
from tests.http_client.gateway_process import GatewayProcess
from tests.http_client.test_following import MODES, QUICK, check, publish, take, truth
from tests.servers import RedisServer

pytestmark = pytest.mark.cluster


@pytest.fixture
def server(make_redis_server: Any) -> RedisServer:
    made: RedisServer = make_redis_server(persistent=True)
    with blocking.connect(made.url) as client:
        client.create_space("s", ["a/#"], streams=3)
    return made


@pytest.fixture
def process(tmp_path: Path, server: RedisServer) -> Iterator[GatewayProcess]:
    made = GatewayProcess(tmp_path, server.url, "--idempotency-timeout", "1s")
    made.start()
    yield made
    made.kill()


@pytest.mark.parametrize("mode", MODES)
async def test_a_gateway_is_killed_and_started_again(
    server: RedisServer, process: GatewayProcess, mode: str
) -> None:
    async with (
        streamlease.connect(server.url) as client,
        between(process.port, Faults(drop=0.05, double=0.05, cut=0.02), seed=5) as proxy,
        http.connect(proxy.url) as service,
        service.follow("a/wanted/+", "earliest", quiet=QUICK, wait=2.0, **MODES[mode]) as pages,
    ):
        found: list[tuple[str, int]] = []
        for turn in range(3):
            taking = asyncio.ensure_future(take(pages, 40))
            await publish(client, 60 * turn, 60 * turn + 20)
            await asyncio.to_thread(process.kill)
            await publish(client, 60 * turn + 20, 60 * turn + 40)
            await asyncio.to_thread(process.start)
            await publish(client, 60 * turn + 40, 60 * turn + 60)
            found += await taking
        check(found, await truth(client))


@pytest.mark.parametrize("mode", MODES)
async def test_redis_is_killed_and_started_again(
    server: RedisServer, process: GatewayProcess, mode: str
) -> None:
    async with (
        streamlease.connect(server.url) as client,
        http.connect(process.url) as service,
        service.follow("a/wanted/+", "earliest", quiet=QUICK, wait=2.0, **MODES[mode]) as pages,
    ):
        found: list[tuple[str, int]] = []
        for turn in range(2):
            taking = asyncio.ensure_future(take(pages, 40))
            await publish(client, 60 * turn, 60 * turn + 30)
            await asyncio.to_thread(server.restart)
            await publish(client, 60 * turn + 30, 60 * turn + 60)
            found += await taking
        check(found, await truth(client))


async def test_a_message_is_published_once_though_its_gateway_is_killed(
    server: RedisServer, process: GatewayProcess
) -> None:
    """Lost answers, a killed gateway and a killed Redis: everything that was answered is there, once."""
    async with (
        streamlease.connect(server.url) as client,
        between(process.port, Faults(no_answer=0.3, cut=0.1), seed=3) as proxy,
        http.connect(proxy.url) as service,
    ):

        async def some(first: int) -> list[tuple[str, int, str]]:
            placed = []
            for number in range(first, first + 8):
                if number % 4 == 3:
                    batch = [http.MessageToPublish(f"{number}-{n}") for n in range(3)]
                    result = await service.publish_many(f"a/{number}", batch)
                    placed.append((result.stream, result.offset, f"{number}-2"))
                else:
                    result = await service.publish(f"a/{number}", str(number), key="k")
                    placed.append((result.stream, result.offset, str(number)))
            return placed

        publishing = [asyncio.ensure_future(some(8 * task)) for task in range(4)]
        await asyncio.to_thread(process.kill)
        await asyncio.to_thread(process.start)
        await asyncio.to_thread(server.restart)
        placed = [one for part in await asyncio.gather(*publishing) for one in part]
        found = {}
        async with client.history("a/#") as reading:
            async for batch in reading:
                for message in batch.messages:
                    found[message.stream, message.offset] = message.payload.decode()
        assert len(found) == 32 + 2 * 8
        assert {(stream, offset): found[stream, offset] for stream, offset, _ in placed} == {
            (stream, offset): text for stream, offset, text in placed
        }
        assert len(set(found.values())) == len(found)
        assert proxy.done["no_answer"]


async def test_two_gateways_behind_a_load_balancer(server: RedisServer, tmp_path: Path) -> None:
    """Each request goes to the next gateway, answers are lost, both gateways are killed, and Redis is."""
    gateways = []
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        gateways.append(GatewayProcess(tmp_path / name, server.url, "--idempotency-timeout", "1s"))
        gateways[-1].start()
    faults = Faults(drop=0.05, double=0.05, cut=0.05, no_answer=0.1)
    try:
        async with (
            streamlease.connect(server.url) as client,
            between([one.port for one in gateways], faults, seed=7) as proxy,
            http.connect(proxy.url) as service,
            service.follow("a/wanted/+", "earliest", quiet=QUICK, wait=2.0) as pages,
        ):

            async def publishing(task: int, count: int) -> list[str]:
                texts = [f"{task}-{number}" for number in range(count)]
                for text in texts:
                    await service.publish(f"a/wanted/{task}", text, key=text)
                return texts

            sending = [asyncio.ensure_future(publishing(task, 12)) for task in range(4)]
            following = asyncio.ensure_future(take(pages, 48))
            await asyncio.to_thread(gateways[0].kill)
            await asyncio.to_thread(server.restart)
            await asyncio.to_thread(gateways[0].start)
            await asyncio.to_thread(gateways[1].kill)
            await asyncio.to_thread(server.restart)
            await asyncio.to_thread(gateways[1].start)
            sent = [text for some in await asyncio.gather(*sending) for text in some]
            check(await following, await truth(client))
        # A cursor that was taken at one of them is used at the other one.
        found: list[str] = []
        cursor = "earliest"
        async with http.connect(gateways[0].url) as first, http.connect(gateways[1].url) as second:
            for service in cycle((first, second)):
                page = await service.since("a/wanted/+", cursor, limit=5)
                if not page.messages:
                    break
                found += [message.payload.decode() for message in page.messages]
                cursor = page.next
        assert sorted(found) == sorted(sent)
    finally:
        for process in gateways:
            process.kill()
