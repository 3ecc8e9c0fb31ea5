"""Services on a cluster, also while slots move, and through a failover by real Sentinels."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

import streamlease
from streamlease.services import keys
from streamlease.services.client_services import ClientServices
from tests.conftest import MakeServer
from tests.services.load import Load
from tests.services.models import Score, Scored, Scorer
from tests.topology.servers import Cluster, Sentinels, slot_of

pytestmark = [pytest.mark.topology, pytest.mark.timeout(240)]

Client = streamlease.Client
NAMES = ("one", "other", "third")


async def _serve(stack: AsyncExitStack, url: str) -> tuple[dict[str, Client], dict[str, Scorer]]:
    clients, scorers = {}, {name: Scorer(name) for name in NAMES}
    for name, scorer in scorers.items():
        clients[name] = await stack.enter_async_context(streamlease.connect(url))
        await stack.enter_async_context(clients[name].serve("scorer", {Score: scorer.score}, drain=1.0))
    return clients, scorers


async def _key(client: Client) -> str:
    services: ClientServices = client._services
    return keys.requests((await services.endpoint()).address)


async def test_servers_and_callers_of_all_nodes_reach_each_other(make_redis_server: MakeServer) -> None:
    cluster = Cluster(make_redis_server, "redis7")
    async with AsyncExitStack() as stack:
        clients, scorers = await _serve(stack, cluster.url)
        for client in clients.values():
            answers = await asyncio.gather(
                *(client.call("scorer", Score(x=x), answer=Scored, wait=10) for x in range(300))
            )
            assert [answer.y for answer in answers] == [x / 2 for x in range(300)]
        assert sum(sum(one.ran.values()) for one in scorers.values()) == 900


async def test_calls_go_on_while_the_stream_of_a_server_moves(make_redis_server: MakeServer) -> None:
    cluster = Cluster(make_redis_server, "redis7")
    async with AsyncExitStack() as stack:
        clients, scorers = await _serve(stack, cluster.url)
        caller = await stack.enter_async_context(streamlease.connect(cluster.url))
        load = Load(caller)
        loading = asyncio.ensure_future(load.run())
        await load.until_answered_by(*NAMES)
        slot = slot_of(await _key(clients["one"]))
        source, target = await asyncio.to_thread(cluster.open_move, slot)
        await load.until_answered_by("other", "third")
        await asyncio.to_thread(cluster.move_keys, slot, source, target)
        await asyncio.to_thread(cluster.close_move, slot, target)
        await load.until_answered_by(*NAMES)
        load.end()
        await loading
        load.judge(sum((one.ran for one in scorers.values()), start=Scorer().ran))


@pytest.fixture
def sentinels(make_redis_server: MakeServer, tmp_path: Path) -> Iterator[Sentinels]:
    made = Sentinels(make_redis_server, "redis7", tmp_path)
    yield made
    made.stop()


async def test_calls_go_on_behind_a_failover(sentinels: Sentinels) -> None:
    async with AsyncExitStack() as stack:
        _, scorers = await _serve(stack, sentinels.url)
        caller = await stack.enter_async_context(streamlease.connect(sentinels.url))
        load = Load(caller)
        loading = asyncio.ensure_future(load.run())
        await load.until_answered_by(*NAMES)
        sentinels.primary.kill()
        await asyncio.to_thread(sentinels.wait_for_failover)
        await load.until_answered_by(*NAMES)
        load.end()
        await loading
        load.judge(sum((one.ran for one in scorers.values()), start=Scorer().ran))
