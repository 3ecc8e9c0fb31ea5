"""One shard of a cluster is gone, or stands still: leaders, consumers and retention of the others go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count

import pytest

import streamlease
from streamlease.hosts.host import HostConfig, LeaderHost
from streamlease.protocol.topics import SharedSubscription
from streamlease.registry import keys, leadership
from streamlease.registry.leadership import LeadershipConfig
from streamlease.streams.log.keys import stream_log
from streamlease.streams.redis.connection import connect
from streamlease.streams.tasks import stop
from tests.awake import awake
from tests.conftest import MakeServer
from tests.servers import RedisServer
from tests.topology.servers import Cluster
from tests.topology.servers import slot_of as slot_of_key

pytestmark = [pytest.mark.topology, pytest.mark.timeout(180)]

QUICK = LeadershipConfig(ttl=2000, renew_interval=400)


@pytest.fixture
def cluster(make_redis_server: MakeServer) -> Cluster:
    made = Cluster(make_redis_server, "redis7")
    for node in made.nodes:
        Cluster.run(node, "CONFIG", "SET", "cluster-require-full-coverage", "no")
    return made


@pytest.fixture
def dying(cluster: Cluster) -> RedisServer:
    """The shard that goes: it keeps the list of hosts, and neither that of groups nor that of spaces."""
    return cluster.owner(slot_of_key(keys.HOSTS_ALIVE))


def on_shard(cluster: Cluster, key: Callable[[str], str], lost: bool) -> str:
    """A name whose key stands on the shard that is lost, or not."""
    dying = cluster.owner(slot_of_key(keys.HOSTS_ALIVE))
    return next(
        name
        for name in (f"n{number}" for number in count())
        if (cluster.owner(slot_of_key(key(name))) is dying) == lost
    )


@asynccontextmanager
async def hosting(cluster: Cluster, dying: RedisServer, registered: bool) -> AsyncIterator[LeaderHost]:
    """A leader host whose own mailbox is on a shard that stays."""
    redis = connect(cluster.url)
    while True:
        host = LeaderHost(redis, HostConfig(leadership=QUICK, registered=registered))
        if cluster.owner(slot_of_key(keys.mailbox(host.id))) is not dying:
            break
    await host.start()
    try:
        yield host
    finally:
        if not dying.is_running:
            await asyncio.to_thread(dying.start)
        dying.resume()
        await host.close()
        await redis.aclose()


async def until(condition: Callable[[], bool]) -> None:
    """Look again and again; the test's own timeout ends it."""
    while not condition():  # noqa: ASYNC110 - what is waited for happens in other processes
        await asyncio.sleep(0.02)


async def test_leaders_on_healthy_shards_stay_when_one_stands_still(
    cluster: Cluster, dying: RedisServer
) -> None:
    redis = connect(cluster.url)
    async with streamlease.connect(cluster.url) as client:
        await client.create_space("s", ["s/#"], streams=6)
        names = {
            lost: on_shard(cluster, lambda name: keys.leader(f"{name}/s/#"), lost) for lost in (False, True)
        }
        for name in names.values():
            await client.groups.declare(SharedSubscription(name, "s/#"), "earliest")
    safe, doomed = f"{names[False]}/s/#", f"{names[True]}/s/#"
    async with hosting(cluster, dying, registered=False) as host:
        host.lead(safe)
        host.lead(doomed)
        await until(lambda: host.leaders == sorted([safe, doomed]))
        term = (await leadership.read(redis, safe)).term
        dying.pause()
        await until(lambda: host.leaders == [safe])  # it could not renew the other for a ttl
        began = asyncio.get_running_loop().time()
        while asyncio.get_running_loop().time() < began + 3 * QUICK.ttl / 1000:
            record = await leadership.read(redis, safe)
            assert (record.term, record.host, record.expired) == (term, host.id, False)
            assert host.leaders == [safe]
            await asyncio.sleep(0.1)
        dying.resume()
    await redis.aclose()


async def test_streams_of_healthy_shards_are_published_and_consumed_when_one_is_gone(
    cluster: Cluster, dying: RedisServer
) -> None:
    seen: set[bytes] = set()

    async def consume(client: streamlease.Client, name: str) -> None:
        async with client.subscribe(f"$shared/{name}/s/#", start="earliest") as sub:
            async for batch in sub:
                seen.update(message.payload for message in batch.messages)
                await batch.commit()

    async with AsyncExitStack() as stack:
        await stack.enter_async_context(hosting(cluster, dying, registered=True))
        while True:  # its mailbox is on a shard that stays, too
            client = await stack.enter_async_context(streamlease.connect(cluster.url, embedded=False))
            if cluster.owner(slot_of_key(keys.mailbox((await client.agent()).id))) is not dying:
                break
        space = await client.create_space("s", ["s/#"], streams=12)
        name = on_shard(cluster, lambda name: keys.leader(f"{name}/s/#"), lost=False)
        topics = [f"s/{number}" for number in range(60)]
        healthy = {
            topic
            for topic in topics
            if cluster.owner(slot_of_key(stream_log(space.stream_for(topic)))) is not dying
        }
        assert 0 < len(healthy) < len(topics)
        consumer = asyncio.create_task(consume(client, name))
        publisher = await stack.enter_async_context(client.publisher(delivery_timeout=60.0))
        for topic in topics:
            await publisher.submit(topic, f"{topic} before".encode())
        await until(lambda: len(seen) == len(topics))
        dying.kill()
        after = [(topic, await publisher.submit(topic, f"{topic} after".encode())) for topic in topics]
        await until(lambda: {f"{topic} after".encode() for topic in healthy} <= seen)
        assert not any(receipt.done() for topic, receipt in after if topic not in healthy)
        await asyncio.to_thread(dying.start)
        await publisher.flush()
        await until(lambda: len(seen) == 2 * len(topics))
        await stop([consumer])


async def test_a_listener_goes_on_with_the_streams_of_healthy_shards(
    cluster: Cluster, dying: RedisServer
) -> None:
    got: list[tuple[str, bytes]] = []

    async def listen(client: streamlease.Client) -> None:
        async with client.listen("s/#", start="earliest") as batches:
            async for batch in batches:
                got.extend((message.topic, message.payload) for message in batch.messages)

    async with streamlease.connect(cluster.url, embedded=False) as client, client.publisher() as publisher:
        space = await client.create_space("s", ["s/#"], streams=12)
        topics = [f"s/{number}" for number in range(60)]
        healthy = [
            topic
            for topic in topics
            if cluster.owner(slot_of_key(stream_log(space.stream_for(topic)))) is not dying
        ]
        assert 0 < len(healthy) < len(topics)
        await asyncio.gather(*(publisher.send(topic, b"0") for topic in topics))
        listening = asyncio.create_task(listen(client))
        await until(lambda: len(got) == len(topics))
        late = [topic for topic in topics if topic not in healthy]
        await asyncio.gather(*(publisher.send(topic, b"1") for topic in late))
        dying.pause()  # perhaps in the middle of reading what is new there
        # Where the news came over the server that stands still, the ends are asked for once a second, until
        # after 5 s they come over another one.
        with awake() as clock:
            for number in range(2, 12):
                await asyncio.gather(*(publisher.send(topic, b"%d" % number) for topic in healthy))
                await until(lambda number=number: {(t, b"%d" % number) for t in healthy} <= {*got})  # type: ignore[misc]
        assert clock.seconds < 8.0  # one reply may take 10 s
        dying.resume()
        await until(lambda: {(topic, b"1") for topic in late} <= {*got})
        assert len(got) == len({*got}), "each message once"
        for topic in topics:
            numbers = [int(payload) for of, payload in got if of == topic]
            assert numbers == sorted(numbers)
        await stop([listening])
