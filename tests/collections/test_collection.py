"""Subscriptions to collections: what is there at one point, and each change behind it, once."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable
from typing import Any, TypeVar

import pytest

from streamlease.agent.blocking import connect as connect_blocking
from streamlease.agent.client import Client
from streamlease.agent.collections import collection
from streamlease.agent.collections.collection import Collection
from streamlease.protocol.errors import HistoryTruncated, InvalidInput, InvalidOption, UnknownSpace
from streamlease.streams.collections.change_reading import ChangeReader
from streamlease.streams.collections.core.multiset import Change, Item
from streamlease.streams.collections.points import Point
from streamlease.streams.epochs import keys
from streamlease.streams.epochs.boundary_reading import EpochsLost
from streamlease.streams.log.keys import stream_log, stream_meta
from streamlease.streams.log.state import MissingOffsets
from streamlease.streams.redis.connection import AsyncRedis, ask
from streamlease.streams.spaces.retention import Retention, Trim, trim
from streamlease.streams.spaces.spaces import Space
from streamlease.testing.memory.memory_connection import connect as connect_in_memory
from tests.epochs.playing import hand, kept, replaced, replicated_server, settled

T = TypeVar("T")
SECONDS = 20.0
SCHEMA = {"columns": [{"name": "n", "type": "int64"}, {"name": "tags", "type": "list<string>"}]}


async def soon(what: Awaitable[T]) -> T:
    async with asyncio.timeout(SECONDS):
        return await what


def item(payload: bytes, key: bytes | None = None, topic: str = "prices/a") -> Item:
    return topic, key, payload


async def send(client: Client, *changes: tuple[bytes, int], topic: str = "prices/a") -> None:
    async with client.publisher() as pub:
        for payload, diff in changes:
            await pub.submit(topic, payload, diff=diff)


async def next_of(collection: Collection, count: int) -> list[tuple[bytes, int]]:
    found = [await soon(anext(collection)) for _ in range(count)]
    return [(one.payload, one.diff) for one in found if isinstance(one.payload, bytes)]


async def test_a_late_subscriber_gets_what_is_there_and_then_each_change_once(client: Client) -> None:
    await client.create_space("prices", ["prices/#"], streams=3, collection=True)
    await send(client, (b"x", 1), (b"x", 1), (b"y", 5), (b"z", 1), (b"z", -1), (b"gone", -2))
    await send(client, (b"x", 7), topic="prices/b")
    async with client.collection("prices/#") as prices:
        assert prices.items == {
            item(b"x"): 2,
            item(b"y"): 5,
            item(b"gone"): -2,
            item(b"x", topic="prices/b"): 7,
        }
        await send(client, (b"gone", 2), (b"y", -5))
        assert await next_of(prices, 2) == [(b"gone", 2), (b"y", -5)]
        assert len(prices.items) == 4  # as of the point
    assert prices.frontier is None


async def test_only_what_the_filter_matches_and_nothing_of_an_empty_one(client: Client) -> None:
    await client.create_space("prices", ["prices/#"], collection=True)
    async with client.collection("prices/b") as prices:
        assert prices.items == {}
        await send(client, (b"x", 1))
        await send(client, (b"y", 1), topic="prices/b")
        assert await next_of(prices, 1) == [(b"y", 1)]
    async with client.collection("prices/b") as prices:
        assert prices.items == {item(b"y", topic="prices/b"): 1}


async def test_it_goes_on_at_positions(client: Client) -> None:
    await client.create_space("prices", ["prices/#"], streams=2, collection=True)
    await send(client, (b"a", 1), (b"b", 2), (b"c", 3))
    async with client.collection("prices/#") as prices:
        positions = prices.positions
    assert sum(positions.values()) == 3
    await send(client, (b"d", 4), (b"e", 5), (b"f", 6))
    async with client.collection("prices/#", start=positions) as prices:
        assert prices.items == {}
        assert await next_of(prices, 2) == [(b"d", 4), (b"e", 5)]
        positions = prices.positions
    async with client.collection("prices/#", start=positions) as prices:
        assert await next_of(prices, 1) == [(b"f", 6)]


async def test_keys_typed_columns_and_new_columns(client: Client) -> None:
    space = await client.create_space("prices", ["prices/#"], collection=True, schema=SCHEMA)
    async with client.publisher() as pub:
        await pub.send("prices/a", {"n": 1, "tags": ["x"]}, key=b"k")
        await pub.send("prices/a", {"n": 1, "tags": ["x"]}, key=b"k", diff=2)
        await pub.send("prices/a", {"n": None, "tags": None})
    async with client.collection("prices/#") as prices:
        one = ("prices/a", b"k", (("n", 1), ("tags", ("x",))))
        assert prices.items == {one: 3, ("prices/a", None, (("n", None), ("tags", None))): 1}
        wider = {"columns": [*SCHEMA["columns"], {"name": "more", "type": "int64"}]}
        from streamlease.streams.entries.schemas import Schema

        changed = await client.spaces.change("prices", lambda old: old.with_schema(Schema.of(wider)))
        await client.spaces.generations.tell_schemas(changed)
        async with client.publisher() as pub:
            await pub.send("prices/a", {"n": 1, "tags": ["x"], "more": 3}, key=b"k", diff=-1)
        # The columns of an item stay those of the beginning.
        assert await soon(anext(prices)) == Change(*one, -1)
    assert space.newest_schema is not None


async def test_several_generations_are_one_collection(client: Client) -> None:
    await client.create_space("prices", ["prices/#"], streams=1, collection=True)
    await send(client, (b"x", 1), (b"y", 1))
    await client.spaces.generations.alter("prices", streams=3)
    await send(client, (b"x", 1))
    async with client.collection("prices/#") as prices:
        assert prices.items == {item(b"x"): 2, item(b"y"): 1}
        await client.spaces.generations.alter("prices", streams=2)
        await send(client, (b"y", -1))
        assert await next_of(prices, 1) == [(b"y", -1)]
        assert sum(prices.positions.values()) == 4


async def test_what_is_no_collection_or_not_there_is_refused(client: Client) -> None:
    await client.create_space("plain", ["plain/#"])
    with pytest.raises(InvalidOption, match="plain, which is no collection"):
        async with client.collection("plain/#"):
            pass
    with pytest.raises(UnknownSpace):
        async with client.collection("nothing/#"):
            pass
    with pytest.raises(InvalidOption, match="names a group"):
        client.collection("$shared/g/plain/#")
    with pytest.raises(InvalidOption, match="use the positions"):
        client.collection("plain/#", start=5)  # type: ignore[arg-type]


async def test_what_retention_removed_is_told(client: Client) -> None:
    space = await client.create_space("prices", ["prices/#"], collection=True)
    await send(client, (b"x", 1))
    await send(client, (b"x", 1))
    await trim(client.redis, Trim(space.streams()[0], Retention(messages=1), None))
    with pytest.raises(HistoryTruncated):
        async with client.collection("prices/#"):
            pass
    with pytest.raises(HistoryTruncated):
        async with client.collection("prices/#", start={"prices.0.0": 0}):
            pass


async def test_what_redis_lost_is_told_and_the_rest_follows(client: Client) -> None:
    space = await client.create_space("prices", ["prices/#"], collection=True)
    for payload in (b"x", b"y", b"z"):
        await send(client, (payload, 1))
    (stream,) = space.streams()
    entries = await client.redis.xrange(stream_log(stream))
    await client.redis.xdel(stream_log(stream), entries[1][0])
    assert await client.redis.exists(stream_meta(stream))
    async with client.collection("prices/#") as prices:
        assert prices.items == {item(b"x"): 1, item(b"z"): 1}
        with pytest.raises(MissingOffsets):
            await soon(anext(prices))
        await send(client, (b"y", 1))
        assert await next_of(prices, 1) == [(b"y", 1)]


@pytest.mark.slow
async def test_with_epochs_the_point_is_a_boundary(client: Client) -> None:
    await client.create_space("space", ["space/#"], streams=3, epochs=1, collection=True)
    keeper = await kept(client)
    async with client.epoch_publisher("space", "one") as pub:
        for topic in ("space/a", "space/b", "space/c", "space/d"):
            await pub.submit(topic, b"x", diff=2, epoch=0)
            await pub.submit(topic, b"y", epoch=1)
        await pub.advance(1)
        await settled(keeper)
        async with client.collection("space/#") as space:
            assert {*space.items.values()} == {2} and len(space.items) == 4
            assert space.frontier == [(1,)]
            before = space.positions
            await pub.submit("space/a", b"x", diff=-2, epoch=1)
            await pub.advance(2)
            await settled(keeper)
            found = Counter([(await soon(anext(space))).item for _ in range(5)])
            assert sum(found.values()) == 5 and found["space/a", None, b"x"] == 1
            assert space.positions == before  # not all of the epoch was asked for yet
            waiting = asyncio.ensure_future(anext(space))
            async with asyncio.timeout(SECONDS):
                while space.frontier != [(2,)]:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert sum(space.positions.values()) == sum(before.values()) + 5
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting


@pytest.mark.slow
async def test_skipped_epochs_move_the_frontier_without_a_change(client: Client) -> None:
    await client.create_space("space", ["space/#"], streams=2, epochs=1, collection=True)
    keeper = await kept(client)

    async def stands_at(space: Collection, epoch: int) -> None:
        waiting = asyncio.ensure_future(anext(space))
        async with asyncio.timeout(SECONDS):
            while space.frontier != [(epoch,)]:
                assert not waiting.done()
                await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    async with client.epoch_publisher("space", "one") as pub:
        async with client.collection("space/#") as space:
            await pub.send("space/a", b"x", epoch=0)
            await pub.advance(1)
            await settled(keeper)
            assert (await soon(anext(space))).diff == 1
            await pub.advance(7)
            await settled(keeper)
            await stands_at(space, 7)
            positions = space.positions
        async with client.collection("space/#", start=positions) as space:
            assert space.frontier is None
            await stands_at(space, 7)
            await pub.advance(9)
            await settled(keeper)
        async with client.collection("space/#", start=positions) as space:
            await stands_at(space, 9)
            assert space.positions == positions


@pytest.mark.slow
async def test_who_was_handed_out_what_redis_lost_is_told(client: Client) -> None:
    await client.create_space("space", ["space/#"], epochs=1, collection=True)
    keeper = await kept(client)
    async with client.epoch_publisher("space", "one") as pub, client.collection("space/#") as space:
        for epoch in (1, 2):
            await pub.send("space/a", b"x", epoch=epoch)
            await pub.advance(epoch + 1)
            await settled(keeper)
            assert (await soon(anext(space))).diff == 1
        # As after a failover: the boundary of epoch 2 is gone, and another one comes in its place.
        (bounds,) = await ask(client.redis, [("XREVRANGE", keys.bounds("space"), "+", "-", "COUNT", 1)])
        document = bounds[0][1][1].replace(b'"lower":[[3]]', b'"lower":[[4]]')
        again = ("XADD", keys.bounds("space"), bounds[0][0], "b", document)
        await ask(client.redis, [("DEL", keys.bounds("space")), again])
        with pytest.raises(EpochsLost, match="is not there as it was read"):
            await soon(anext(space))


async def test_who_begins_while_redis_loses_the_boundary_begins_at_another_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else it would begin with what others wrote where the lost changes stood: here half of an epoch."""
    server = replicated_server()
    client = connect_in_memory(server, embedded=False)
    await client.create_space("space", ["space/#"], epochs=1, streams=1, collection=True)
    one, keeper = await hand(client.redis, "one"), await kept(client)
    await one.send(1, "kept")
    await one.advance(2)
    await settled(keeper)
    await ask(client.redis, [("WAIT", 1, 100)])
    await one.send(2, "lost")
    await one.advance(3)
    await settled(keeper)
    points = collection.newest_point

    async def lost(redis: AsyncRedis, space: Space) -> Point:
        found = await points(redis, space)
        monkeypatch.setattr(collection, "newest_point", points)
        await replaced(server, client, 2)
        return found

    monkeypatch.setattr(collection, "newest_point", lost)
    async with client.collection("space/#") as space:
        assert {payload for _, _, payload in space.items} == {b"kept", b"came", b"instead"}
        assert space.positions == {"space.0.0": 3}
    await client.close()


async def test_who_follows_while_redis_loses_the_boundary_is_told_before_others_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else it would be handed out half of the epoch that stands there now."""
    server = replicated_server()
    client = connect_in_memory(server, embedded=False)
    await client.create_space("space", ["space/#"], epochs=1, streams=1, collection=True)
    one, keeper = await hand(client.redis, "one"), await kept(client)
    await settled(keeper)
    await ask(client.redis, [("WAIT", 1, 100)])
    read = ChangeReader._read

    async def late(reader: ChangeReader, *of: Any) -> Any:
        monkeypatch.setattr(ChangeReader, "_read", read)
        await replaced(server, client, 2)
        return await read(reader, *of)

    async with client.collection("space/#") as space:
        assert space.items == {}
        monkeypatch.setattr(ChangeReader, "_read", late)
        await one.send(2, "lost")
        await one.advance(3)
        await settled(keeper)
        with pytest.raises(EpochsLost, match="is not there as it was read"):
            await soon(anext(space))
    await client.close()


@pytest.mark.slow
async def test_what_is_there_and_what_follows_are_all_changes_at_every_point(client: Client) -> None:
    """Invariant 14: subscribers that come at any time, while several publishers send."""
    await client.create_space("prices", ["prices/#"], streams=3, collection=True)
    chance = random.Random(14)
    sums: Counter[Item] = Counter()

    async def publish(number: int) -> None:
        async with client.publisher() as pub:
            for _ in range(150):
                topic, payload = f"prices/{chance.randrange(5)}", b"%d" % chance.randrange(4)
                diff = chance.choice([1, -1, 2, -3])
                sums[item(payload, topic=topic)] += diff
                await (pub.send if chance.random() < 0.3 else pub.submit)(topic, payload, diff=diff)
        async with client.publisher() as pub:
            sums[item(b"", topic=f"prices/end{number}")] += 1
            await pub.send(f"prices/end{number}", b"")

    async def subscribe(delay: int) -> Counter[Item]:
        for _ in range(delay):
            await asyncio.sleep(0)
        async with client.collection("prices/#") as prices:
            mine = Counter(prices.items)
            while not all(mine[item(b"", topic=f"prices/end{number}")] for number in range(3)):
                change = await anext(prices)
                mine[change.item] += change.diff
            while sum(prices.positions.values()) < 453:
                change = await anext(prices)
                mine[change.item] += change.diff
        return mine

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        for number in range(3):
            group.create_task(publish(number))
        readers = [group.create_task(subscribe(delay)) for delay in (0, 20, 100, 400)]
    expected = {one: count for one, count in sums.items() if count}
    for reader in readers:
        assert {one: count for one, count in reader.result().items() if count} == expected


def test_the_blocking_client_has_the_same(redis_url: str) -> None:
    with connect_blocking(redis_url, embedded=False) as client:
        client.create_space("prices", ["prices/#"], collection=True)
        with client.publisher() as pub:
            pub.send("prices/a", b"x", diff=2)
            pub.submit("prices/a", b"x", diff=-1)
            pub.flush()
            with client.collection("prices/#") as prices:
                assert prices.items == {item(b"x"): 1}
                pub.send("prices/a", b"y")
                assert next(iter(prices)) == Change("prices/a", None, b"y", 1)
                assert prices.positions == {"prices.0.0": 3}
                assert prices.frontier is None


async def test_a_diff_goes_with_each_message_of_an_epoch(client: Client) -> None:
    await client.create_space("space", ["s/#"], epochs=1, collection=True)
    async with client.epoch_publisher("space", "one") as pub:
        for payload, diff in ((b"x", 5), (b"x", -3), (b"y", -1), (b"z", None)):
            await pub.submit("s/a", payload, diff=diff, epoch=4)
        with pytest.raises(InvalidInput, match="a diff of 0"):
            await pub.submit("s/a", b"x", diff=0, epoch=4)
        await pub.send("s/a", b"y", diff=-2, epoch=4)
        await pub.advance(5)
        await settled(await kept(client))
        async with client.collection("s/#") as found:
            assert found.items == {("s/a", None, b"x"): 2, ("s/a", None, b"y"): -3, ("s/a", None, b"z"): 1}
