"""A space with epochs gets other streams while no publisher is there: each epoch lies in one generation."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from streamlease.agent.client import Client, connect
from streamlease.agent.epochs.epoch_items import EpochBatch
from streamlease.hosts.host import HostConfig, LeaderHost
from streamlease.protocol.errors import SpaceConflict, StoreRefused
from streamlease.protocol.ids import StreamId
from streamlease.streams.epochs import keys, sealing
from streamlease.streams.epochs.completed import completed, newest_ends
from streamlease.streams.epochs.staged_log import StagedLog
from streamlease.streams.epochs.writing import LineWriter
from streamlease.streams.log.keys import stream_meta
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.redis.connection import AsyncRedis, ask
from streamlease.streams.redis.connection import connect as connect_redis
from streamlease.streams.spaces.table import DefinitionTable

SECONDS = 40.0
TOPICS = 8


@pytest.fixture
async def client(redis_url: str) -> AsyncIterator[Client]:
    redis = connect_redis(redis_url)
    host = LeaderHost(redis, HostConfig(name="host"))
    await host.start()
    async with connect(redis_url, embedded=False) as client:
        yield client
    await host.close()
    await redis.aclose()


async def publish(client: Client, epochs: range, name: str = "p", space: str = "s") -> None:
    async with client.epoch_publisher(space, name) as pub:
        for epoch in epochs:
            for topic in range(TOPICS):
                await pub.submit(f"{space}/{topic}", b"%d" % epoch, key=b"k", epoch=epoch)
            await pub.advance(epoch + 1)


def whole(epochs: range) -> dict[int, list[str]]:
    return {epoch: sorted(f"s/{topic}" for topic in range(TOPICS)) for epoch in epochs}


async def read(client: Client, upto: int, **options: Any) -> dict[int, list[str]]:
    """The topics of the messages of each epoch, each epoch once and in order."""
    found: dict[int, list[str]] = {}
    async with asyncio.timeout(SECONDS), client.listen("s/#", start="earliest", **options) as items:
        async for item in items:
            if isinstance(item, EpochBatch):
                (epoch,) = item.epoch
                if options["epochs"] == "atomic":
                    assert epoch not in found and epoch > max(found, default=-1)
                found.setdefault(epoch, []).extend(message.topic for message in item.messages)
                found[epoch].sort()
                if upto in found and len(found[upto]) == TOPICS:
                    return found
    raise AssertionError


async def generations(client: Client) -> dict[int, set[int]]:
    """By epoch, the generations in which its messages stand."""
    found: dict[int, set[int]] = defaultdict(set)
    async with client.history("s/#") as batches:
        async for batch in batches:
            for message in batch.messages:
                assert message.epoch is not None
                found[message.epoch[0]].add(StreamId.parse(message.stream).generation)
    return found


@pytest.mark.slow
async def test_epochs_go_on_in_the_streams_of_the_next_generation(client: Client) -> None:
    await client.create_space("s", ["s/#"], streams=2, epochs=1)
    atomic = asyncio.create_task(read(client, 11, epochs="atomic"))
    eager = asyncio.create_task(read(client, 11, epochs="eager"))
    await publish(client, range(4))
    space = await client.alter_space("s", streams=3)
    assert (space.newest.number, space.newest.streams, space.settled) == (1, 3, True)
    await publish(client, range(4, 8), "q")
    assert (await client.alter_space("s", rotate=True, expected=1)).newest.number == 2
    assert (await client.alter_space("s", rotate=True, expected=1)).newest.number == 2, "safe to repeat"
    await publish(client, range(8, 12))
    assert await atomic == await eager == whole(range(12))
    assert await read(client, 11, epochs="atomic") == whole(range(12)), "also from the beginning"
    assert await generations(client) == {epoch: {epoch // 4} for epoch in range(12)}
    states = await ask(client.redis, [("HGET", stream_meta(one), "state") for one in space.streams()[2:]])
    assert states == [b"sealed"] * 3
    newest = (await client.spaces.get("s")).streams()[-3:]
    states = await ask(client.redis, [("HGET", stream_meta(one), "state") for one in newest])
    assert states == [b"epochs"] * 3, "only a keeper writes into them"


async def test_while_publishers_are_there_it_is_refused_and_nothing_is_changed(client: Client) -> None:
    await client.create_space("s", ["s/#"], streams=2, epochs=1)
    async with client.epoch_publisher("s", "p") as pub:
        await pub.send("s/a", b"x", epoch=3)
        with pytest.raises(SpaceConflict, match=r"publishers that hold epochs open \(p\)") as told:
            await client.alter_space("s", streams=4)
        assert "\n" not in str(told.value)
        assert (await client.spaces.get("s")).newest.streams == 2
        await pub.send("s/a", b"y", epoch=3)
    await client.alter_space("s", streams=4)


@pytest.mark.slow
async def test_what_waits_for_its_stream_keeps_it_open(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sealing, "SEAL_SECONDS", 0.3)
    space = await client.create_space("s", ["s/#"], streams=1, epochs=1)
    (stream,) = space.streams()
    await ask(client.redis, [("HSET", keys.staged_epochs(stream), "3 p 9", "1")])
    with pytest.raises(StoreRefused, match="still wait for their streams"):
        await sealing._until_nothing_waits(client.redis, space, 0.3)
    with pytest.raises(StoreRefused, match="staged for a stream that is to be sealed"):
        await client.spaces.generations.alter("s", streams=2, at_rest=True)
    assert not (await client.spaces.get("s")).settled
    await ask(client.redis, [("DEL", keys.staged_epochs(stream))])
    assert (await client.alter_space("s", streams=2)).settled, "it is gone on with"


@pytest.mark.slow
async def test_who_comes_meanwhile_waits_and_goes_on_in_the_new_streams(client: Client) -> None:
    await client.create_space("s", ["s/#"], streams=2, epochs=1)
    await publish(client, range(2))
    space = await client.spaces.get("s")
    await sealing._rest(client.redis, space, 60_000)
    with pytest.raises(StoreRefused, match="gets other streams right now"):
        await LineWriter(client.redis, "s", "other").enter()
    later = asyncio.create_task(publish(client, range(2, 5), "q"))
    await sealing._until_nothing_waits(client.redis, space)
    await client.spaces.generations.alter("s", streams=3, at_rest=True)
    assert not later.done()
    await sealing._rest(client.redis, space, 0)
    await later
    assert await read(client, 4, epochs="atomic") == whole(range(5))
    assert await generations(client) == {0: {0}, 1: {0}, 2: {1}, 3: {1}, 4: {1}}


@pytest.mark.slow
async def test_parts_that_follow_to_other_streams_stay_of_their_epochs(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when it had looked the space up before, and nothing of it had arrived."""
    await client.create_space("s", ["s/#"], streams=2, epochs=1)
    changed, append_many = asyncio.Event(), StagedLog.append_many

    async def late(self: StagedLog, *args: Any, **options: Any) -> Any:
        await changed.wait()
        return await append_many(self, *args, **options)

    monkeypatch.setattr(StagedLog, "append_many", late)
    async with client.epoch_publisher("s", "p") as pub:
        for epoch in range(6):
            for topic in range(TOPICS):
                await pub.submit(f"s/{topic}", b"%d" % epoch, epoch=epoch)
        await client.spaces.generations.alter("s", streams=3, at_rest=True)
        changed.set()
        await pub.advance(6)
    assert await read(client, 5, epochs="atomic") == whole(range(6))
    assert await generations(client) == {epoch: {1} for epoch in range(6)}


class Killed(BaseException):
    """The process that changes the space dies."""


STEPS: tuple[tuple[type, str], ...] = ((AsyncLog, "open"), (AsyncLog, "seal_all"), (DefinitionTable, "write"))


@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", range(5))
@pytest.mark.slow
async def test_a_change_that_is_killed_is_gone_on_with(
    client: Client, monkeypatch: pytest.MonkeyPatch, step: int, late: bool
) -> None:
    """Five steps write: the new streams, the definition, the seals, the opening, the definition again."""
    await client.create_space("s", ["s/#"], streams=2, epochs=1)
    await publish(client, range(2))
    done = 0

    def dies(real: Callable[..., Any]) -> Callable[..., Any]:
        async def act(*args: Any, **options: Any) -> Any:
            nonlocal done
            done += 1
            if done == step + 1 and not late:
                raise Killed
            found = await real(*args, **options)
            if done == step + 1:
                raise Killed
            return found

        return act

    async def nobody(redis: AsyncRedis, space: object, milliseconds: int) -> None:
        """Who is dead lets nobody in."""
        if milliseconds:
            await rest(redis, space, milliseconds)  # type: ignore[arg-type]

    rest = sealing._rest
    with monkeypatch.context() as patched:
        for kind, name in STEPS:
            patched.setattr(kind, name, dies(getattr(kind, name)))
        patched.setattr(sealing, "_rest", nobody)
        with pytest.raises(Killed):
            await client.alter_space("s", streams=3)
    space = await client.alter_space("s", streams=3)
    assert (space.newest.streams, space.settled) == (3, True)
    await publish(client, range(2, 4))
    assert await read(client, 3, epochs="atomic") == whole(range(4))
    assert all(len(found) == 1 for found in (await generations(client)).values())


@pytest.mark.slow
async def test_a_collection_follows_to_other_streams(client: Client) -> None:
    await client.create_space("s", ["s/#"], streams=2, epochs=1, collection=True)
    await publish(client, range(2))
    async with client.collection("s/#") as items:
        seen = sum(items.items.values())
        await client.alter_space("s", streams=3)
        await publish(client, range(2, 4), "q")
        async with asyncio.timeout(SECONDS):
            while seen < 4 * TOPICS:
                seen += (await anext(items)).diff
    async with client.collection("s/#") as again:
        assert sum(again.items.values()) == 4 * TOPICS


@pytest.mark.slow
async def test_a_group_has_each_epoch_of_one_generation_after_the_other(client: Client) -> None:
    await client.create_space("s", ["s/#"], streams=2, epochs=1)
    await publish(client, range(3))
    await client.alter_space("s", streams=3)
    await publish(client, range(3, 6))
    seen: dict[str, list[int]] = defaultdict(list)
    async with asyncio.timeout(SECONDS), client.subscribe("$shared/g/s/#", start="earliest") as batches:
        async for batch in batches:
            for message in batch.messages:
                assert message.epoch is not None
                seen[message.topic].append(message.epoch[0])
            await batch.commit()
            if sum(map(len, seen.values())) == 6 * TOPICS:
                break
    assert all(epochs == [*range(6)] for epochs in seen.values()) and len(seen) == TOPICS


@pytest.mark.slow
async def test_where_a_generation_was_dropped_is_the_earliest(client: Client) -> None:
    await client.create_space("s", ["s/#"], streams=2, epochs=1)
    await publish(client, range(3))
    await client.alter_space("s", streams=3)
    await publish(client, range(3, 6))
    await read(client, 5, epochs="atomic")
    space = await client.spaces.generations.drop("s", 0)
    assert await read(client, 5, epochs="atomic") == whole(range(3, 6))
    ends, _ = await newest_ends(client.redis, space)
    found = await completed(client.redis, space, (4,))
    assert found is not None
    assert ends.keys() == found.before.keys() == found.ends.keys() == {*space.streams()}
    assert sum(found.behind.values()) - sum(found.before.values()) == TOPICS
