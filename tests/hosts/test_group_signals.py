"""All declared groups are told, whoever leads them or nobody; by one host, and at little cost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable

import pytest
from redis.asyncio import Redis

from streamlease.agent.client import Client, connect
from streamlease.hosts.host import HostConfig, LeaderHost
from streamlease.hosts.signals import ages, exporter, group_signals
from streamlease.hosts.signals.exporter import exporter_of
from streamlease.hosts.signals.group_signals import GroupSignals, StreamsOfGroups, read_signals
from streamlease.protocol.acts import PauseGroup
from streamlease.protocol.errors import StoreUnavailable
from streamlease.protocol.ids import StreamId
from streamlease.protocol.topics import SharedSubscription
from streamlease.registry import keys
from streamlease.registry.hosts import HostInfo
from streamlease.streams.log.keys import stream_log, stream_meta
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.log.times import server_time, waiting
from streamlease.streams.redis.connection import AsyncRedis
from streamlease.testing.memory.memory_connection import connect as connect_memory
from streamlease.testing.memory.memory_connection import connect_redis
from streamlease.testing.memory.memory_server import MemoryServer
from tests.agent.helpers import publish, take

SUB = "$shared/g/a/#"
DEAD = "$shared/dead/a/#"


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[Client]:
    async with connect(redis_url) as client:
        await client.create_space("a", ["a/#"], streams=2)
        yield client


async def signals(client: Client) -> dict[str, GroupSignals]:
    return {one.subscription: one for one in await read_signals(client.redis, client.groups, client.spaces)}


@pytest.mark.slow
async def test_a_group_is_told_with_consumers_and_when_all_of_them_and_its_leader_are_gone(
    client: Client, redis_url: str
) -> None:
    async with connect(redis_url) as consumer, consumer.subscribe(SUB, start="earliest") as reader:
        await publish(client, range(8))
        await take(reader, 8)
        seen = (await signals(client))[SUB]
        assert (seen.state, seen.borrowers, seen.streams, seen.held) == ("led", 1, 2, 2)
        assert (seen.committed, seen.lag, seen.lag_seconds) == (8, 0, 0.0)
        await publish(client, range(8, 12))
        await take(reader, 4, commit=False)
        assert (await signals(client))[SUB].lag == 4
    await publish(client, range(12, 15))
    seen = (await signals(client))[SUB]
    assert (seen.state, seen.borrowers, seen.streams, seen.held) == ("no_leader", 0, 2, 0)
    assert (seen.committed, seen.lag) == (8, 7)
    assert seen.lag_seconds is not None
    assert 0 < seen.lag_seconds < 60


async def test_a_group_that_nobody_ever_consumed_waits_from_its_start(client: Client) -> None:
    await publish(client, range(3))
    await client.groups.declare(SharedSubscription.parse(DEAD), start="earliest")
    await client.groups.declare(SharedSubscription.parse(SUB), start="latest")
    seen = await signals(client)
    assert (seen[DEAD].state, seen[DEAD].borrowers, seen[DEAD].lag) == ("no_leader", 0, 3)
    assert (seen[SUB].lag, seen[SUB].lag_seconds) == (0, 0.0)


async def test_what_is_remembered_of_streams_is_forgotten_when_a_space_changes(client: Client) -> None:
    await client.groups.declare(SharedSubscription.parse(SUB), start="earliest")
    known = StreamsOfGroups()
    for streams in (2, 5):
        client.spaces.forget()
        (seen,) = await read_signals(client.redis, client.groups, client.spaces, known)
        assert seen.streams == streams
        await client.alter_space("a", streams=5)


async def test_a_paused_group_says_so(client: Client) -> None:
    async with client.subscribe(SUB):
        await client.act(SharedSubscription.parse(SUB), PauseGroup(), who="me")
        assert (await signals(client))[SUB].state == "paused"


async def test_what_cannot_be_read_hides_nothing_else(client: Client) -> None:
    await client.groups.declare(SharedSubscription.parse(DEAD), start="earliest")
    await client.groups.declare(SharedSubscription.parse(SUB), start="earliest")
    await publish(client, range(3))
    await client.redis.set(keys.definition(SharedSubscription.parse(DEAD).id), b"{")
    seen = await signals(client)
    assert seen[DEAD] == GroupSignals(DEAD, "damaged", 0)
    assert (seen[SUB].state, seen[SUB].lag) == ("no_leader", 3)


async def test_a_lag_that_nobody_knows_is_none(client: Client) -> None:
    """The log ends below what is committed, as after a failover that lost writes; or cannot be read."""
    await client.groups.declare(SharedSubscription.parse(SUB), start="earliest")
    stream = (await client.groups.streams(SharedSubscription.parse(SUB)))[0]
    for field, value in ((str(stream), 99), ("damage", 0)):
        assert isinstance(client.redis, Redis)
        if field == "damage":
            await client.redis.hset(stream_meta(stream), "next", "?")
        else:
            await client.redis.hset(keys.progress(SharedSubscription.parse(SUB).id), field, str(value))
        seen = (await signals(client))[SUB]
        assert (seen.state, seen.streams, seen.lag, seen.lag_seconds) == ("no_leader", 2, None, None)


def test_the_host_that_has_been_there_longest_tells_of_all_groups() -> None:
    one, two, old = HostInfo(host="b", since=1), HostInfo(host="a", since=2), HostInfo(host="o")
    assert exporter_of([two, one, old]) == "b"
    assert exporter_of([two, HostInfo(host="0", since=2)]) == "0"
    assert exporter_of([old]) is None
    assert exporter_of([]) is None


async def test_one_host_tells_and_another_one_goes_on_when_it_is_gone(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporter, "FRESH_SECONDS", 0.0)
    await client.groups.declare(SharedSubscription.parse(SUB), start="earliest")
    hosts = [LeaderHost(client.redis, HostConfig(name=name)) for name in ("first", "second")]
    for host in hosts:
        await host.start()
    try:
        declared = [(await host.facts()).declared for host in hosts]
        assert declared[0] is not None
        assert [one.subscription for one in declared[0]] == [SUB]
        assert declared[1] is None
        await hosts[0].close()
        found = (await hosts[1].facts()).declared
        assert found is not None
        assert [one.subscription for one in found] == [SUB]
    finally:
        for host in hosts:
            await host.close()


async def test_what_a_scrape_of_a_hundred_groups_costs() -> None:
    """About 9 commands for a group of 4 streams; if asked again within a moment, none."""
    server = MemoryServer()
    async with connect_memory(server) as client:
        for number in range(100):
            await client.create_space(f"s{number}", [f"t/{number}/#"], streams=4)
            await client.groups.declare(
                SharedSubscription.parse(f"$shared/g{number}/t/{number}/#"), start="latest"
            )
        redis = connect_redis(server)
        host = LeaderHost(redis, HostConfig(name="host"))
        await host.start()
        try:
            told = exporter.Exporter(redis, host.id, lambda: 0)
            await asyncio.sleep(0)
            before = server.commands
            found = await told.signals()
            assert found is not None
            assert len(found) == 100
            cost = server.commands - before
            assert cost < 1000
            await told.signals()
            assert server.commands - before < cost + 100, "but for what the host does meanwhile"
        finally:
            await host.close()
            await redis.aclose()


async def test_the_age_of_what_waits_is_told_of_every_group_and_of_the_oldest_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """More groups than fit on a page; the oldest message waits in the stream with the smaller lag. What is
    known of a message is not asked for again."""
    asked: list[int] = []

    async def counted(redis: AsyncRedis, places: Iterable[tuple[StreamId, int]]) -> object:
        listed = [*places]
        asked.append(len(listed))
        return await waiting(redis, listed)

    monkeypatch.setattr(ages, "waiting", counted)
    async with connect_memory(MemoryServer()) as client:
        space = await client.create_space("a", ["a/#"], streams=2)
        names = [f"$shared/g{number}/a/#" for number in range(70)]
        for name in names:
            await client.groups.declare(SharedSubscription.parse(name), start="earliest")
        topics = {space.stream_for(topic, None): topic for topic in map("a/{}".format, range(20))}
        old, new = (topics[stream] for stream in space.streams())
        async with client.publisher() as publisher:
            await publisher.send(old, b"")
            first = await server_time(client.redis)
            for _ in range(5):
                await publisher.send(new, b"")
        known = StreamsOfGroups()
        for look in (1, 2):
            seen = await read_signals(client.redis, client.groups, client.spaces, known)
            now = await server_time(client.redis)
            assert [one.subscription for one in seen] == sorted(names)
            assert {one.lag for one in seen} == {6}
            for one in seen:
                assert one.lag_seconds is not None
                assert one.lag_seconds <= (now - first) / 1e6 + 1.0
                assert one.lag_seconds == max(other.lag_seconds or 0.0 for other in seen)
            assert asked == [2], f"look {look}"


async def test_an_age_is_asked_for_again_where_a_stream_was_lost() -> None:
    async with connect_memory(MemoryServer()) as client:
        space = await client.create_space("a", ["a/#"], streams=1)
        await publish(client, range(2))
        (stream,) = space.streams()
        known = ages.Ages()
        (before,) = await known.look(client.redis, [[ages.StreamBehind(stream, 0, 2)]])
        assert before is not None
        await client.redis.delete(stream_meta(stream), stream_log(stream))
        assert await known.look(client.redis, [[ages.StreamBehind(stream, 0, 2)]]) == [before]
        assert await known.look(client.redis, [[ages.StreamBehind(stream, 0, 1)]]) == [None]


async def test_of_too_many_messages_each_group_is_told_of_its_largest_lag_first() -> None:
    async with connect_memory(MemoryServer()) as client:
        (stream,) = (await client.create_space("a", ["a/#"], streams=1)).streams()
        for number in range(4):
            await publish(client, [number])
        first, second, third, fourth = (ages.StreamBehind(stream, offset, 4) for offset in range(4))
        known = ages.Ages()
        groups = [[second, first], [third]]
        began = await known.look(client.redis, groups, most=2)
        assert None not in began
        groups.append([fourth])
        (late, *_, last) = await known.look(client.redis, groups, most=1)
        assert (late, last is None) == (began[0], False)
        (oldest, *_) = await known.look(client.redis, groups, most=1)
        assert oldest is not None
        assert oldest < began[0]


async def test_what_goes_wrong_with_one_of_many_pages_is_raised_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def states(log: AsyncLog, *args: object) -> object:
        raise StoreUnavailable("Redis does not answer")

    async with connect_memory(MemoryServer()) as client:
        await client.create_space("a", ["a/#"])
        for number in range(group_signals.PAGE + 1):
            await client.groups.declare(SharedSubscription.parse(f"$shared/g{number}/a/#"))
        monkeypatch.setattr(AsyncLog, "states", states)
        with pytest.raises(StoreUnavailable, match="does not answer"):
            await read_signals(client.redis, client.groups, client.spaces)
