"""What each durability promises, against real servers that are killed and replicas that are stopped."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from streamlease.protocol.errors import InvalidOption, NotDurable, SpaceConflict, Unsupported
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.publish.publisher import Publisher
from streamlease.streams.redis.connection import AsyncRedis, connect, connect_blocking, exchange, run_blocking
from streamlease.streams.redis.durability import FSYNC, MEMORY, Durability, strongest
from streamlease.streams.redis.durable import Waits
from streamlease.streams.spaces.retention import Retention
from streamlease.streams.spaces.spaces import Space, SpaceStore
from tests.conftest import MakeServer
from tests.servers import Kind, RedisServer
from tests.streams.helpers import Proxy, append, payloads, rows, until

REPLICATED = Durability("replicated", 1)


def replica_of(primary: RedisServer, make: MakeServer, kind: Kind) -> RedisServer:
    """A replica that is in step with `primary`."""
    replica = make(kind)
    with replica.client() as client, primary.client() as source:
        source.config_set("repl-diskless-sync-delay", 0)
        client.replicaof("127.0.0.1", primary.port)
        source.set("in-step", "yes")
        source.config_set("repl-ping-replica-period", 1)
        deadline = time.monotonic() + 30
        while source.execute_command("WAIT", 1, 200) < 1:
            assert time.monotonic() < deadline, "the replica did not come into step"
            source.set("in-step", "yes")
    return replica


@asynccontextmanager
async def client_of(url: str) -> AsyncIterator[AsyncRedis]:
    client = connect(url)
    yield client
    await client.aclose()


async def create(redis: AsyncRedis, durability: str, streams: int = 2) -> Space:
    return await SpaceStore(redis).create("s", ["s/#"], streams=streams, durability=durability)


# -- the choice ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["memory", "fsync", "replicated:1", "replicated:16"])
def test_a_choice_is_written_as_it_is_read(text: str) -> None:
    assert str(Durability.parse(text)) == text


@pytest.mark.parametrize(
    "text",
    ["", "disk", "replicated", "replicated:", "replicated:0", "replicated:17", "replicated:x", "fsync:1"],
)
def test_another_choice_is_refused(text: str) -> None:
    with pytest.raises(InvalidOption, match=r"use memory, fsync or replicated:K"):
        Durability.parse(text)


def test_what_satisfies_several_choices() -> None:
    assert strongest([MEMORY]) == ()
    assert strongest([FSYNC, REPLICATED, Durability("replicated", 3), MEMORY]) == (
        FSYNC,
        Durability("replicated", 3),
    )


def test_a_definition_without_durability_is_in_memory() -> None:
    old = '{"name":"s","topics":["s/#"],"generations":[{"number":0,"streams":1}]}'
    assert Space.model_validate_json(old).promised == MEMORY


async def test_a_choice_that_the_server_cannot_keep_is_refused(real_redis_url: str) -> None:
    async with client_of(real_redis_url) as redis:
        with pytest.raises(Unsupported, match=r"no append-only file is kept.*CONFIG SET appendonly yes"):
            await create(redis, "fsync")
        with pytest.raises(Unsupported, match=r"needs 1 replicas and Redis at .* has 0"):
            await create(redis, "replicated:1")
        with pytest.raises(InvalidOption):
            await create(redis, "paper")
        assert await SpaceStore(redis).list() == []


async def test_a_server_that_writes_every_second_and_has_no_waitaof_is_refused(
    make_redis_server: MakeServer,
) -> None:
    server = make_redis_server("redis7", persistent=True, settings={"appendfsync": "everysec"})
    async with client_of(server.url) as redis:
        with pytest.raises(Unsupported, match=r"appendfsync is everysec, and the server has no WAITAOF"):
            await create(redis, "fsync")


async def test_a_space_of_another_durability_is_another_space(make_redis_server: MakeServer) -> None:
    server = make_redis_server(persistent=True)
    async with client_of(server.url) as redis:
        space = await create(redis, "fsync")
        assert space.promised == FSYNC
        assert await create(redis, "fsync") == space
        with pytest.raises(SpaceConflict, match="durability fsync"):
            await create(redis, "memory")


# -- fsync ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["embedded", "redis7"])
@pytest.mark.slow
async def test_what_was_acknowledged_on_disk_survives_a_crash(
    make_redis_server: MakeServer, kind: str
) -> None:
    # The embedded server would keep a crash's last second in the kernel only; WAITAOF makes the difference.
    settings = {} if kind == "redis7" else {"appendfsync": "everysec"}
    server = make_redis_server(kind, persistent=True, settings=settings)
    async with client_of(server.url) as redis:
        space = await create(redis, "fsync")
        acknowledged: list[bytes] = []
        async with Publisher(redis, delivery_timeout=20) as publisher:
            for number in range(30):
                await publisher.send(f"s/{number % 4}", b"%d" % number)
                acknowledged.append(b"%d" % number)
            futures = [await publisher.submit(f"s/{n % 4}", b"%d" % n) for n in range(30, 2000)]
            await asyncio.wait(
                [asyncio.ensure_future(one) for one in futures], return_when=asyncio.FIRST_COMPLETED
            )
            server.kill()
            acknowledged += [b"%d" % n for n, one in enumerate(futures, 30) if one.done()]
            await asyncio.to_thread(server.start)
            await publisher.flush()
        assert acknowledged[30:]
        found = [
            payload
            for stream in space.streams()
            for payload in payloads(await AsyncLog(redis).read(stream, 0))
        ]
        assert sorted(map(int, found)) == list(range(2000))


@pytest.mark.slow
async def test_a_server_that_gave_up_its_file_is_noticed(make_redis_server: MakeServer) -> None:
    for kind in ("embedded", "redis7"):
        server = make_redis_server(kind, persistent=True)
        async with client_of(server.url) as redis:
            space = await create(redis, "fsync")
            with server.client() as admin:
                admin.config_set("appendonly", "no")
            async with Publisher(redis, delivery_timeout=0.5) as publisher:
                with pytest.raises(NotDurable, match=r"append") as caught:
                    await publisher.send("s/x", b"0")
                assert (caught.value.stream, caught.value.offset) == (str(space.stream_for("s/x")), 0)


async def test_a_blocking_client_waits_as_well(make_redis_server: MakeServer) -> None:
    for kind in ("embedded", "redis7"):
        server = make_redis_server(kind, persistent=True)
        async with client_of(server.url) as redis:
            space = await create(redis, "fsync", streams=1)
        blocking = connect_blocking(server.url)
        log, (stream,) = AsyncLog(blocking), space.streams()
        assert run_blocking(log.append(append(stream, 0, rows(0, 2), durability=FSYNC))).first == 0
        with server.client() as admin:
            admin.config_set("appendonly", "no")
        (outcome,) = run_blocking(log.append_many([append(stream, 1, rows(2, 2), durability=FSYNC)]))
        assert isinstance(outcome, NotDurable)
        assert outcome.offset == 2
        blocking.close()


# -- replicated ----------------------------------------------------------------------------------------------


@pytest.fixture(params=["embedded", "redis7"])
def pair(request: pytest.FixtureRequest, make_redis_server: MakeServer) -> tuple[RedisServer, RedisServer]:
    """A primary and its replica."""
    primary = make_redis_server(request.param)
    return primary, replica_of(primary, make_redis_server, request.param)


@pytest.mark.slow
async def test_what_was_acknowledged_is_in_the_replica(pair: tuple[RedisServer, RedisServer]) -> None:
    primary, replica = pair
    async with client_of(primary.url) as redis:
        space = await create(redis, "replicated:1")
        async with Publisher(redis) as publisher:
            for number in range(50):
                await publisher.send("s/x", b"%d" % number)
        primary.kill()
    async with client_of(replica.url) as copy:
        found = payloads(await AsyncLog(copy).read(space.stream_for("s/x"), 0))
        assert found == [b"%d" % number for number in range(50)]
        assert (await SpaceStore(copy).get("s")).promised == REPLICATED


def error_of(future: asyncio.Future[Any]) -> NotDurable:
    error = future.exception()
    assert isinstance(error, NotDurable)
    return error


@pytest.mark.slow
async def test_a_stopped_replica_is_told_and_the_messages_stay_in_order(
    pair: tuple[RedisServer, RedisServer],
) -> None:
    primary, replica = pair
    async with client_of(primary.url) as redis:
        space = await create(redis, "replicated:1")
        stream = space.stream_for("s/x")
        async with Publisher(redis, delivery_timeout=1.0) as publisher:
            assert await publisher.send("s/x", b"0") == (stream, 0)
            replica.pause()
            futures = [await publisher.submit("s/x", b"%d" % n) for n in range(1, 4)]
            with pytest.raises(NotDurable, match="0 of 1 replicas") as caught:
                await publisher.flush()
            assert "may still exist" in str(caught.value)
            assert "\n" not in str(caught.value)
            for place, future in enumerate(futures, 1):
                error = error_of(future)
                assert not error.retriable
                assert (error.stream, error.offset) == (str(stream), place)
            replica.resume()
            assert await publisher.send("s/x", b"4") == (stream, 4)
        found = payloads(await AsyncLog(redis).read(stream, 0))
        assert found == [b"%d" % number for number in range(5)]


@pytest.mark.slow
async def test_many_messages_that_are_not_durable_are_one_line(
    pair: tuple[RedisServer, RedisServer], caplog: pytest.LogCaptureFixture
) -> None:
    primary, replica = pair
    async with client_of(primary.url) as redis:
        await create(redis, "replicated:1")
        async with Publisher(redis, delivery_timeout=1.0) as publisher:
            replica.pause()
            futures = [await publisher.submit(f"s/{n}", b"%d" % n) for n in range(30)]
            with pytest.raises(NotDurable):
                await publisher.flush()
            assert len({(one.stream, one.offset) for one in map(error_of, futures)}) == 30
            (said,) = [line for line in caplog.messages if line.startswith(f"publisher {publisher.id}: ")]
            assert "not as durably as replicated:1 demands" in said
            replica.resume()


@pytest.mark.slow
async def test_a_pause_of_the_replica_shorter_than_the_timeout_is_bridged(
    pair: tuple[RedisServer, RedisServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamlease.streams.publish.sending.sender.WAIT_SECONDS", 0.1)
    primary, replica = pair
    async with client_of(primary.url) as redis:
        space = await create(redis, "replicated:1")
        async with Publisher(redis, delivery_timeout=30) as publisher:
            await publisher.send("s/x", b"0")
            replica.pause()
            future = await publisher.submit("s/x", b"1")
            log = AsyncLog(redis)
            while (await log.next_offsets([space.stream_for("s/x")]))[space.stream_for("s/x")] < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
            assert not future.done()
            replica.resume()
            assert await future == (space.stream_for("s/x"), 1)
        assert payloads(await log.read(space.stream_for("s/x"), 0)) == [b"0", b"1"]


@pytest.mark.slow
async def test_a_repetition_over_another_connection_waits_for_the_first_attempt(
    pair: tuple[RedisServer, RedisServer],
) -> None:
    """WAIT covers only what its own connection wrote, so the repetition itself must write."""
    primary, replica = pair
    async with Proxy(primary.port) as proxy, client_of(proxy.url) as redis:
        space = await create(redis, "replicated:1", streams=1)
        log, (stream,) = AsyncLog(redis), space.streams()
        await log.append(append(stream, 0, rows(0, 1), durability=REPLICATED))
        replica.pause()
        await log.append(append(stream, 1, rows(1, 1)))
        again = append(stream, 1, rows(1, 1), durability=REPLICATED)
        async with client_of(primary.url) as other:
            (outcome,) = await AsyncLog(other).append_many([again], wait_seconds=0.2)
            assert isinstance(outcome, NotDurable)
            assert outcome.offset == 1
            replica.resume()
            assert (await AsyncLog(other).append(again)).duplicate


@pytest.mark.slow
async def test_several_choices_share_one_pipeline(pair: tuple[RedisServer, RedisServer]) -> None:
    primary, replica = pair
    async with client_of(primary.url) as redis:
        spaces = SpaceStore(redis)
        safe = await spaces.create("safe", ["safe/#"], durability="replicated:1")
        plain = await spaces.create("plain", ["plain/#"])
        replica.pause()
        log = AsyncLog(redis)
        outcomes = await log.append_many(
            [
                append(safe.streams()[0], 0, rows(0, 1), durability=safe.promised),
                append(plain.streams()[0], 0, rows(0, 1), durability=plain.promised),
            ],
            wait_seconds=0.2,
        )
        assert isinstance(outcomes[0], NotDurable)
        assert not isinstance(outcomes[1], Exception)
        replica.resume()


@pytest.mark.slow
async def test_the_wait_is_one_per_pipeline(real_redis_url: str) -> None:
    async with client_of(real_redis_url) as redis:
        waits = Waits(redis, [REPLICATED, MEMORY, REPLICATED, FSYNC], 2)
        assert [command[0] for command in waits.commands] == ["WAITAOF", "WAIT"]
        replies = await exchange(redis, waits.commands)
        assert waits.failure(MEMORY, replies) == ""
        assert "0 of 1 replicas" in waits.failure(REPLICATED, replies)
        assert waits.failure(FSYNC, replies)


@pytest.mark.slow
async def test_a_lost_answer_of_the_wait_adds_nothing_twice(pair: tuple[RedisServer, RedisServer]) -> None:
    primary, _ = pair
    async with Proxy(primary.port) as proxy, client_of(proxy.url) as redis:
        space = await create(redis, "replicated:1")
        async with Publisher(redis) as publisher:
            await publisher.send("s/x", b"0")
            proxy.lose(b"WAIT", times=2)
            assert await publisher.send("s/x", b"1") == (space.stream_for("s/x"), 1)
        await until(lambda: proxy.lost == 2)
        assert payloads(await AsyncLog(redis).read(space.stream_for("s/x"), 0)) == [b"0", b"1"]


@pytest.mark.parametrize("act", ["alter", "rotate", "seal", "retain"])
@pytest.mark.slow
async def test_a_change_of_a_space_is_as_durable_as_its_messages(
    pair: tuple[RedisServer, RedisServer], act: str
) -> None:
    """Told while the replica stands still, it is done when it is repeated, and then the replica has it."""
    primary, replica = pair
    async with client_of(primary.url) as redis:
        await create(redis, "replicated:1", streams=1)

        async def change(spaces: SpaceStore) -> object:
            if act == "alter":
                return await spaces.generations.alter("s", streams=3)
            if act == "rotate":
                return await spaces.generations.alter("s", rotate=True, expected=0)
            if act == "seal":
                return await spaces.generations.seal("s")
            keep = Retention(messages=5)
            return await spaces.change("s", lambda space: space.model_copy(update={"retention": keep}))

        replica.pause()
        with pytest.raises(NotDurable, match="0 of 1 replicas"):
            await change(SpaceStore(redis, wait_seconds=0.2))
        replica.resume()
        done = await change(SpaceStore(redis))
        primary.kill()
    async with client_of(replica.url) as copy:
        space = await SpaceStore(copy).get("s")
        assert space == done
        assert space.settled
        states = await AsyncLog(copy).states(space.streams())
        newest = space.newest.number
        assert all(state.sealed is (space.ended or s.generation < newest) for s, state in states.items())
        assert len(space.generations) == (2 if act in ("alter", "rotate") else 1)
