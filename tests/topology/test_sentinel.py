"""A real failover by real Sentinels: nothing acknowledged is lost, and no term comes twice."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import streamlease
from streamlease.catalog.own_rows import OwnRows
from streamlease.protocol.errors import CatalogTruncated, Fenced, Indefinite, StreamleaseError
from streamlease.registry import leadership
from streamlease.streams import tasks
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.log.state import MissingOffsets
from streamlease.streams.publish.staged.staging import StagedLost
from streamlease.streams.redis.connection import check_server, connect, connect_blocking, run_blocking
from streamlease.streams.spaces.spaces import SpaceStore
from tests.conftest import MakeServer
from tests.streams.delivering import rig
from tests.streams.helpers import append, payloads, rows, until
from tests.topology.servers import Cluster, Sentinels, wait_for

pytestmark = [pytest.mark.topology, pytest.mark.timeout(180)]


@pytest.fixture(params=["embedded", "redis7"])
def sentinels(
    request: pytest.FixtureRequest, make_redis_server: MakeServer, tmp_path: Path
) -> Iterator[Sentinels]:
    made = Sentinels(make_redis_server, request.param, tmp_path)
    yield made
    made.stop()


async def test_the_primary_is_found(sentinels: Sentinels) -> None:
    client, blocking = connect(sentinels.url), connect_blocking(sentinels.url)
    await check_server(client)
    await asyncio.to_thread(run_blocking, check_server(blocking))
    (port,) = {sentinels.primary_port(), sentinels.primary.port}
    assert port
    await client.aclose()
    blocking.close()


async def test_an_unknown_service_is_named(sentinels: Sentinels) -> None:
    client = connect(sentinels.url.replace("/main", "/other"))
    with pytest.raises(StreamleaseError, match="the primary of other does not answer"):
        await check_server(client)
    await client.aclose()


async def test_nothing_replicated_is_lost_and_consumers_go_on(sentinels: Sentinels) -> None:
    async with streamlease.connect(sentinels.url) as client:
        space = await client.create_space("s", ["s/#"], streams=4, durability="replicated:1")
        seen: list[int] = []
        acknowledged: list[int] = []

        async def consume() -> None:
            async with client.subscribe("$shared/g/s/#", start="earliest") as sub:
                async for batch in sub:
                    seen.extend(int(message.payload) for message in batch.messages)
                    try:
                        await batch.commit()
                    except (Fenced, Indefinite):
                        continue  # no leader for a while: the messages come again

        consuming = asyncio.create_task(consume())
        stop = asyncio.Event()

        async def load() -> None:
            # After the failover there is no replica for a while, so what comes then is NotDurable; it waits.
            async with client.publisher(delivery_timeout=90) as publisher:
                number = 0
                while not stop.is_set():
                    await publisher.send(f"s/{number % 12}", b"%d" % number)
                    acknowledged.append(number)
                    number += 1

        loading = asyncio.create_task(load())
        await until(lambda: len(seen) > 50, 40)
        before = await leadership.read(client.redis, "g/s/#")
        sentinels.primary.kill()
        at_failover = len(acknowledged)
        await asyncio.to_thread(sentinels.wait_for_failover)
        await asyncio.to_thread(sentinels.restart_old_primary)
        await until(lambda: len(acknowledged) > at_failover + 50, 60)
        stop.set()
        await loading
        await until(lambda: set(acknowledged) <= set(seen), 40)
        after = await leadership.read(client.redis, "g/s/#")
        assert after.term >= before.term
        await tasks.stop([consuming])
        stored: list[int] = []
        for stream in space.streams():
            stored.extend(map(int, payloads(await AsyncLog(client.redis).read(stream, 0))))
        assert sorted(stored) == acknowledged


async def test_what_memory_lost_is_told(sentinels: Sentinels) -> None:
    """The publisher goes on above what it knows, so the hole stays a hole, and readers are told of it."""
    client = connect(sentinels.url)
    async with streamlease.connect(sentinels.url) as own:
        space = await own.create_space("s", ["s/#"], streams=1)
        (stream,) = space.streams()
        log = AsyncLog(client)
        async with own.publisher() as publisher:
            for number in range(10):
                await publisher.send("s/x", b"%d" % number)
            await asyncio.to_thread(in_step, sentinels)
            sentinels.replica.pause()
            Cluster.run(sentinels.primary, "CLIENT", "KILL", "TYPE", "replica")  # what comes now reaches none
            for number in range(10, 20):
                await publisher.send("s/x", b"%d" % number)
            sentinels.primary.kill()
            sentinels.replica.resume()
            await asyncio.to_thread(sentinels.wait_for_failover)
            assert await publisher.send("s/x", b"20") == (stream, 20)
        assert (await log.next_offsets([stream]))[stream] == 21
        with pytest.raises(MissingOffsets) as caught:
            await log.read(stream, 10)
        assert (caught.value.asked, caught.value.oldest) == (10, 20)
        assert payloads(await log.read(stream, 20)) == [b"20"]
    await client.aclose()


async def test_the_catalog_is_told_what_memory_lost_and_processes_show_it_anew(sentinels: Sentinels) -> None:
    async with (
        streamlease.connect(sentinels.url) as client,
        client.catalog("services") as services,
        client.catalog("spaces") as spaces,
    ):
        own = OwnRows(client.redis, beat_seconds=0.2)
        own.put("services", "kept", {"service": "kept", "server": "1"})
        await client.create_space("kept", ["kept/#"])
        await own.settled()
        await asyncio.to_thread(in_step, sentinels)
        sentinels.replica.pause()
        Cluster.run(sentinels.primary, "CLIENT", "KILL", "TYPE", "replica")  # what comes now reaches none
        own.put("services", "lost", {"service": "lost", "server": "1"})
        await client.create_space("lost", ["lost/#"])
        while len(services.items) < 2 or len(spaces.items) < 2:
            await anext(services if len(services.items) < 2 else spaces)
        start = spaces.at
        sentinels.primary.kill()
        sentinels.replica.resume()
        await asyncio.to_thread(sentinels.wait_for_failover)
        gone = await anext(spaces)
        assert (getattr(gone.item, "space", None), gone.diff) == ("lost", -1)
        await asyncio.to_thread(sentinels.wait_for_new_clients)
        async with streamlease.connect(sentinels.url) as other:
            with pytest.raises(CatalogTruncated, match="or Redis lost it"):
                async with other.catalog("spaces", start=start):
                    pass
            async with other.catalog("services") as anew, asyncio.timeout(60):
                while len(anew.items) < 2:
                    await anext(anew)
                while services.items != anew.items:
                    await anext(services)
        await own.close()


async def test_rows_that_a_sink_staged_are_lost_before_its_commit(sentinels: Sentinels) -> None:
    """The commit appended what the new primary had of a micro-batch, and nobody was told of the rest."""
    async with rig(sentinels.url) as world:
        staged = world.stage(0, range(0, 100, 2), 1, "a")
        await asyncio.to_thread(in_step, sentinels)
        sentinels.replica.pause()
        Cluster.run(sentinels.primary, "CLIENT", "KILL", "TYPE", "replica")
        staged += world.stage(0, range(1, 100, 2), 1, "b")
        sentinels.primary.kill()
        sentinels.replica.resume()
        await asyncio.to_thread(sentinels.wait_for_failover)
    await asyncio.to_thread(sentinels.wait_for_new_clients)
    async with connect(sentinels.url) as client:
        world.redis, world.log, world.spaces = client, AsyncLog(client), SpaceStore(client)
        with pytest.raises(StagedLost, match=r"0 of . entries are left .* start again"):
            await world.delivery().deliver(0, staged)
        assert await world.numbers() == []
        await world.delivery().deliver(0, world.stage(0, range(100), 3, "c"))
        assert await world.numbers() == list(range(100))


def in_step(sentinels: Sentinels) -> None:
    wait_for(lambda: Cluster.run(sentinels.primary, "WAIT", 1, 500) == 1, "the replica in step")
    offset = Cluster.run(sentinels.primary, "INFO", "replication")["master_repl_offset"]  # type: ignore[index]
    wait_for(
        lambda: Cluster.run(sentinels.replica, "INFO", "replication")["slave_repl_offset"] >= offset,  # type: ignore[index]
        "the replica in step",
    )


async def test_a_term_that_redis_lost_is_not_issued_again(sentinels: Sentinels) -> None:
    from streamlease.hosts.host import HostConfig, LeaderHost

    client = connect(sentinels.url)
    async with streamlease.connect(sentinels.url) as own:
        await own.create_space("s", ["s/#"])
        async with own.subscribe("$shared/g/s/#"):
            group = "g/s/#"
            deadline = asyncio.get_running_loop().time() + 20
            while (record := await leadership.read(client, group)).term < 1:
                assert asyncio.get_running_loop().time() < deadline, "nobody leads"
                await asyncio.sleep(0.02)
    host = LeaderHost(client, HostConfig(registered=False))
    await host.start()
    host.lead(group, above=record.term + 7)
    deadline = asyncio.get_running_loop().time() + 20
    while (seen := await leadership.read(client, group)).host != host.id:
        assert asyncio.get_running_loop().time() < deadline, "nobody leads"
        await asyncio.sleep(0.02)
    assert seen.term > record.term + 8
    await host.close()
    await client.aclose()


async def test_rows_are_read_back_behind_sentinels(sentinels: Sentinels) -> None:
    client = connect(sentinels.url)
    log = AsyncLog(client)
    async with streamlease.connect(sentinels.url) as own:
        (stream,) = (await own.create_space("s", ["s/#"])).streams()
    assert (await log.append(append(stream, 0, rows(0, 3)))).first == 0
    assert len(payloads(await log.read(stream, 0))) == 3
    await client.aclose()


async def test_questions_at_the_same_time_lose_no_sentinel(sentinels: Sentinels) -> None:
    """redis-py reorders its list of Sentinels while others go through it."""
    client = connect(sentinels.url)
    manager: Any = client.connection_pool.sentinel_manager  # type: ignore[union-attr]
    before = {id(one) for one in manager.sentinels}
    # The first one does not know the service, so each question swaps the first two.
    state = manager.check_master_state
    manager.check_master_state = lambda found, name: next(turn) % 2 == 1 and state(found, name)
    turn = itertools.count()
    await asyncio.gather(*(manager.discover_master("main") for _ in range(8)), return_exceptions=True)
    assert {id(one) for one in manager.sentinels} == before
    await client.aclose()
