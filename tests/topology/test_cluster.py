"""A real Redis Cluster of three nodes: every act in one slot, and every redirection followed."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

import streamlease
from streamlease.protocol.errors import (
    Fenced,
    Indefinite,
    InvalidInput,
    InvalidOption,
    StoreUnavailable,
    Unsupported,
)
from streamlease.protocol.ids import StreamId
from streamlease.registry import hosts, leadership
from streamlease.spark.reading.small_ranges import read_small
from streamlease.streams.log import keys
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.log.segments import read_range
from streamlease.streams.log.state import Wanted
from streamlease.streams.log.tails import Tails
from streamlease.streams.publish.publisher import Publisher
from streamlease.streams.publish.staged.batch_plan import BatchPlan
from streamlease.streams.redis.cluster import AsyncCluster, BlockingCluster
from streamlease.streams.redis.cluster_slots import slot_of
from streamlease.streams.redis.command_keys import keys_of
from streamlease.streams.redis.connection import (
    ask,
    check_server,
    connect,
    connect_blocking,
    exchange,
    run_blocking,
    servers,
)
from streamlease.streams.rows.together import Shared
from streamlease.streams.spaces.spaces import SpaceStore
from streamlease.streams.tasks import stop
from tests.conftest import MakeServer
from tests.streams.delivering import SINK, rig
from tests.streams.helpers import append, payloads, rows, until
from tests.topology.servers import Cluster
from tests.topology.servers import slot_of as slot_of_key

pytestmark = [pytest.mark.topology, pytest.mark.timeout(120)]


@pytest.fixture(params=["embedded", "redis7"])
def cluster(request: pytest.FixtureRequest, make_redis_server: MakeServer) -> Cluster:
    return Cluster(make_redis_server, request.param)


@pytest.fixture
def one_cluster(make_redis_server: MakeServer) -> Cluster:
    return Cluster(make_redis_server, "embedded")


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[AsyncCluster]:
    made = connect(cluster.url)
    assert isinstance(made, AsyncCluster)
    yield made
    await made.aclose()


async def test_publish_and_read_over_all_nodes(cluster: Cluster, client: AsyncCluster) -> None:
    await check_server(client)
    assert len(await servers(client)) == 3
    space = await SpaceStore(client).create("s", ["s/#"], streams=12)
    async with Publisher(client) as publisher:
        futures = [await publisher.submit(f"s/{n % 50}", b"%d" % n) for n in range(2000)]
        await publisher.flush()
        assert len({future.result() for future in futures}) == 2000
    homes = {cluster.owner(slot_of_key(keys.stream_log(stream))).port for stream in space.streams()}
    assert len(homes) == 3
    found = [p for stream in space.streams() for p in payloads(await AsyncLog(client).read(stream, 0))]
    assert sorted(map(int, found)) == list(range(2000))
    blocking = connect_blocking(cluster.url)
    await asyncio.to_thread(run_blocking, check_server(blocking))
    log = AsyncLog(blocking)
    states = await asyncio.to_thread(run_blocking, log.next_offsets(space.streams()))
    assert sum(states.values()) == 2000
    stream = space.streams()[0]
    again = await asyncio.to_thread(lambda: list(read_range(blocking, stream, 0, states[stream])))
    assert payloads(again) == payloads(await AsyncLog(client).read(stream, 0))
    assert isinstance(blocking, BlockingCluster)
    owners = blocking.topology.owners
    blocking.topology.owners = [next(one for one in owners if one != owner) for owner in owners]
    moved = await asyncio.to_thread(lambda: list(read_range(blocking, stream, 0, states[stream])))
    assert payloads(moved) == payloads(again)
    assert (await asyncio.to_thread(run_blocking, log.append(append(stream, 0, rows(0, 2))))).first == states[
        stream
    ]
    blocking.close()


async def test_small_ranges_of_all_nodes_are_read_together(cluster: Cluster, client: AsyncCluster) -> None:
    space = await SpaceStore(client).create("s", ["s/#"], streams=24)
    async with Publisher(client) as publisher:
        for number in range(72):
            await publisher.send(f"s/{number}", b"%d" % number)
    ends = await AsyncLog(client).next_offsets(space.streams())
    ranges = [Wanted(stream, 0, end) for stream, end in ends.items() if end]
    blocking = connect_blocking(cluster.url)
    assert isinstance(blocking, BlockingCluster)

    def read() -> tuple[int, list[int]]:
        """How many ranges were read together, and all messages."""
        shared = 0
        batches: list[pa.RecordBatch] = []
        for found in read_small(blocking, ranges):
            if isinstance(found, Shared):
                shared += len(found.lengths)
                batches.append(found.batch)
            else:
                batches += read_range(blocking, *ranges[found][:3])
        return shared, sorted(map(int, payloads(batches)))

    shared, numbers = await asyncio.to_thread(read)
    assert numbers == list(range(72))
    assert shared > len(ranges) / 2
    owners = blocking.topology.owners
    blocking.topology.owners = [next(one for one in owners if one != owner) for owner in owners]
    assert (await asyncio.to_thread(read))[1] == numbers
    blocking.close()


async def test_news_of_all_nodes_arrive(client: AsyncCluster) -> None:
    space = await SpaceStore(client).create("s", ["s/#"], streams=6)
    async with Tails(client, poll_interval=60) as watched, Publisher(client) as publisher:
        tails = watched.watch()
        tails.set_streams(space.streams())
        await until(lambda: all(tails.next_of(stream) == 0 for stream in space.streams()))
        deadline = asyncio.get_running_loop().time() + 10
        while watched.pushes < 6:
            assert asyncio.get_running_loop().time() < deadline, "no push came"
            for number in range(20):
                await publisher.send(f"s/{number}", b"x")
            await asyncio.sleep(0)


async def test_two_subscribers_share_a_group(cluster: Cluster) -> None:
    async with streamlease.connect(cluster.url) as first, streamlease.connect(cluster.url) as second:
        await first.create_space("s", ["s/#"], streams=8)
        seen: list[int] = []
        busy: set[int] = set()

        async def consume(number: int, client: object) -> None:
            async with client.subscribe("$shared/g/s/#", start="earliest") as sub:  # type: ignore[attr-defined]
                async for batch in sub:
                    seen.extend(int(message.payload) for message in batch.messages)
                    busy.add(number)
                    await batch.commit()

        tasks = [asyncio.create_task(consume(n, c)) for n, c in enumerate((first, second))]
        async with first.publisher() as publisher:
            number = 0
            deadline = asyncio.get_running_loop().time() + 60
            while len(busy) < 2:
                assert asyncio.get_running_loop().time() < deadline, f"only {busy} consumed"
                await publisher.send(f"s/{number % 40}", b"%d" % number)
                number += 1
        await until(lambda: len(set(seen)) == number, 30)
        assert sorted(seen) == list(range(number))
        await stop(tasks)


async def test_a_slot_moves_under_load(cluster: Cluster, client: AsyncCluster) -> None:
    space = await SpaceStore(client).create("s", ["s/#"], streams=3)
    log, stop = AsyncLog(client), asyncio.Event()
    acknowledged: list[int] = []

    async with Publisher(client) as publisher:

        async def load() -> None:
            while not stop.is_set():
                number = len(acknowledged)
                await asyncio.gather(
                    *(publisher.send(f"s/{n % 30}", b"%d" % n) for n in range(number, number + 30))
                )
                for n in range(number + 30, number + 36):  # alone, so on lines
                    await publisher.send(f"s/{n % 30}", b"%d" % n)
                acknowledged.extend(range(number, number + 36))

        task = asyncio.create_task(load())
        for stream in space.streams():
            slot = slot_of_key(keys.stream_log(stream))
            begin = len(acknowledged)
            await until(lambda begin=begin: len(acknowledged) > begin, 30)  # type: ignore[misc]
            source, target = await asyncio.to_thread(cluster.open_move, slot)
            # Some keys here, some there: TRYAGAIN, until the rest has followed.
            await asyncio.to_thread(cluster.move_keys, slot, source, target, 1)
            await asyncio.to_thread(cluster.move_keys, slot, source, target)
            begin = len(acknowledged)
            await until(lambda begin=begin: len(acknowledged) > begin, 30)  # type: ignore[misc]
            await asyncio.to_thread(cluster.close_move, slot, target)
            begin = len(acknowledged)
            await until(lambda begin=begin: len(acknowledged) > begin, 30)  # type: ignore[misc]
            assert cluster.owner(slot) is target
        stop.set()
        await task
    found: list[int] = []
    for stream in space.streams():
        for batch in await log.read(stream, 0):
            found.extend(map(int, batch.column("payload").to_pylist()))
    assert sorted(found) == acknowledged


async def test_a_node_that_is_gone_holds_up_nobody_else(one_cluster: Cluster) -> None:
    client = connect(one_cluster.url)
    space = await SpaceStore(client).create("s", ["s/#"], streams=12)
    for node in one_cluster.nodes:
        Cluster.run(node, "CONFIG", "SET", "cluster-require-full-coverage", "no")
    lost = one_cluster.nodes[2]
    of_lost = [s for s in space.streams() if one_cluster.owner(slot_of_key(keys.stream_log(s))) is lost]
    others = [s for s in space.streams() if s not in of_lost]
    assert of_lost
    assert others
    lost.kill()
    outcomes = await AsyncLog(client).append_many([append(s, 0, rows(0, 1)) for s in space.streams()])
    by_stream = dict(zip(space.streams(), outcomes, strict=True))
    assert all(isinstance(by_stream[s], StoreUnavailable | Indefinite) for s in of_lost)
    assert not any(isinstance(by_stream[s], Exception) for s in others)
    with pytest.raises((StoreUnavailable, Indefinite)):
        await ask(client, [("HGETALL", keys.stream_meta(s)) for s in space.streams()])
    await asyncio.to_thread(lost.start)
    await asyncio.to_thread(one_cluster_is_whole, one_cluster)
    outcomes = await AsyncLog(client).append_many([append(s, 0, rows(0, 1)) for s in space.streams()])
    assert not any(isinstance(outcome, Exception) for outcome in outcomes)
    for stream in space.streams():
        assert payloads(await AsyncLog(client).read(stream, 0)) == [b"message 0"]
    await client.aclose()


def one_cluster_is_whole(cluster: Cluster) -> None:
    from tests.topology.servers import wait_for

    wait_for(cluster._is_whole, "the cluster after the restart")


async def test_what_is_no_cluster_is_named(embedded_redis_url: str) -> None:
    url = embedded_redis_url.replace("redis://", "redis+cluster://")
    client, blocking = connect(url), connect_blocking(url)
    with pytest.raises(Unsupported, match="is no cluster"):
        await exchange(client, [("GET", "x")])
    with pytest.raises(Unsupported, match="is no cluster"):
        await asyncio.to_thread(run_blocking, exchange(blocking, [("GET", "x")]))
    await client.aclose()
    blocking.close()


@pytest.mark.parametrize(
    "url",
    [
        "redis+cluster://h:1/3",
        "redis+cluster://h:1?db=2",
        "redis+cluster://h:x",
        "redis+cluster://",
        "redis+ring://h:1",
        "redis+sentinel://h:1",
        "redis+sentinel://u:geheim@h:1/a/b",
    ],
)
def test_a_malformed_url_of_many_servers_is_named(url: str) -> None:
    for make in (connect, connect_blocking):
        with pytest.raises(InvalidOption) as caught:
            make(url)
        assert "redis+cluster://HOST:PORT" in str(caught.value)
        assert "geheim" not in str(caught.value)


@pytest.mark.parametrize(
    ("command", "found"),
    [
        (("EVALSHA", "x", 2, "a", "b", "c"), ["a", "b"]),
        (("XREAD", "COUNT", 5, "BLOCK", 10, "STREAMS", "a", b"0-0"), ["a"]),
        (("UNLINK", "a", "b"), ["a", "b"]),
        (("MEMORY", "USAGE", "a"), ["a"]),
        (("HMGET", "a", "f"), ["a"]),
        (("WAITAOF", 1, 0, 5), []),
        (("TIME",), []),
    ],
)
def test_the_keys_of_a_command(command: tuple[object, ...], found: list[str]) -> None:
    assert keys_of(command) == found  # type: ignore[arg-type]


def test_a_command_over_two_slots_is_a_defect() -> None:
    one, other = StreamId("s", 0, 0), StreamId("s", 0, 1)
    with pytest.raises(InvalidInput, match="keys in 2 slots"):
        slot_of(("UNLINK", keys.stream_meta(one), keys.stream_meta(other)))
    assert slot_of(("UNLINK", keys.stream_meta(one), keys.stream_log(one))) is not None


def start_host(url: str, name: str, log: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "streamlease.admin", "serve", "--redis", url, "--name", name]
    with log.open("wb") as output:
        return subprocess.Popen([*command, "--http-port", "0"], stdout=output, stderr=output)


async def test_a_leader_is_asked_for_by_message_and_followed_after_a_kill(
    one_cluster: Cluster, tmp_path: Path
) -> None:
    processes: dict[str, subprocess.Popen[bytes]] = {}
    try:
        for name in ("one", "two"):
            processes[name] = start_host(one_cluster.url, name, tmp_path / name)
        async with streamlease.connect(one_cluster.url, embedded=False) as client:
            await client.create_space("s", ["s/#"], streams=4)
            while len(await hosts.alive(client.redis)) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            seen: set[int] = set()

            async def consume() -> None:
                async with client.subscribe("$shared/g/s/#", start="earliest") as sub:
                    async for batch in sub:
                        seen.update(int(message.payload) for message in batch.messages)
                        with suppress(Fenced, Indefinite):  # no leader for a while: they come again
                            await batch.commit()

            consuming = asyncio.create_task(consume())
            async with client.publisher() as publisher:
                for number in range(20):
                    await publisher.send(f"s/{number}", b"%d" % number)
                await until(lambda: seen >= set(range(20)), 40)
                record = await leadership.read(client.redis, "g/s/#")
                processes[record.host.partition("-")[0]].kill()
                while (now := await leadership.read(client.redis, "g/s/#")).term == record.term:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
                assert now.term == record.term + 1
                assert now.host != record.host
                for number in range(20, 40):
                    await publisher.send(f"s/{number}", b"%d" % number)
                await until(lambda: seen >= set(range(40)), 40)
            await stop([consuming])
    finally:
        for process in processes.values():
            process.kill()
            process.wait()


async def test_a_sink_whose_decision_is_lost_with_its_shard(one_cluster: Cluster) -> None:
    """The streams of other shards have their rows; those of the repetition are not added to them."""
    async with rig(one_cluster.url) as world:
        plan = BatchPlan.of(world.stage(0, range(200), 3, "a"))
        assert len(plan.parts) >= 2
        await world.delivery()._decide(0, "", plan, False)
        await world.delivery()._append(0, plan.with_parts(dict([*plan.parts.items()][:1])))
        lost = [("DEL", keys.sink_state(SINK))]
        lost += [
            ("UNLINK", keys.stream_staged(stream, key.token))
            for stream, parts in [*plan.parts.items()][1:]
            for group in parts
            for key in group
        ]
        await ask(world.redis, lost)
        assert (await world.delivery().deliver(0, world.stage(0, range(200), 2, "b"))).repeated is False
        assert await world.numbers() == list(range(200))
        await world.delivery().deliver(1, world.stage(1, range(200, 300), 2, "c"))
        assert await world.numbers() == list(range(300))


async def test_doctor_and_orphans_take_a_cluster(one_cluster: Cluster) -> None:
    async with streamlease.connect(one_cluster.url) as client:
        await client.create_space("s", ["s/#"], streams=6)
    command = [sys.executable, "-m", "streamlease.admin", "doctor", "--redis", one_cluster.url, "--json"]
    ran = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
    checks = {check["check"]: check for check in json.loads(ran.stdout)["checks"]}
    assert ran.returncode == 0, ran.stdout
    assert "none on a Redis Cluster" in checks["spawn queue"]["message"]
    assert checks["keys"]["level"] == "ok"
    assert int(checks["keys"]["message"].partition("(")[2].split()[0]) >= 6
