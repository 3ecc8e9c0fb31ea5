"""Plain subscriptions: history and listening, without a group."""

from __future__ import annotations

import asyncio
import itertools
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from streamlease.agent.client import Client
from streamlease.agent.plain import listening as plain
from streamlease.agent.plain.listening import PlainSubscription
from streamlease.protocol.errors import HistoryTruncated, InvalidInput, InvalidTopic, UnknownSpace
from streamlease.protocol.ids import StreamId
from streamlease.streams.log import keys, many, merging
from streamlease.streams.log.compacting import Compacted, compact
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.spaces.retention import Retention, Trim, trim
from streamlease.streams.spaces.spaces import Known, SpaceStore
from tests.agent.helpers import SECONDS, in_order, publish

ALL = Retention(bytes=1)


async def everything(subscription: PlainSubscription) -> list[int]:
    async with asyncio.timeout(SECONDS), subscription as batches:
        return [int(message.payload) async for batch in batches for message in batch.messages]


async def some(subscription: PlainSubscription, count: int) -> list[int]:
    got: list[int] = []
    async with asyncio.timeout(SECONDS):
        while len(got) < count:
            got += [int(message.payload) for message in (await anext(subscription)).messages]
    return got


async def test_history_is_what_is_there_and_then_ends(client: Client) -> None:
    await client.create_space("s", ["a/#"], streams=4)
    await publish(client, range(500))
    got = await everything(client.history("a/#", max_batch=7))
    assert sorted(got) == list(range(500))
    assert in_order(got)
    assert await everything(client.history("a/3")) == list(range(3, 500, 8))
    assert await everything(client.history("a/none")) == []


async def test_many_streams_are_read_in_few_exchanges(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await client.create_space("s", ["a/#"], streams=80)
    await publish(client, range(800))
    exchanges, whole = 0, many.exchange_behind

    async def counted(*args: Any) -> Any:
        nonlocal exchanges
        exchanges += 1
        return await whole(*args)

    monkeypatch.setattr(many, "exchange_behind", counted)
    got = await everything(client.history("a/#"))
    assert sorted(got) == list(range(800))
    assert in_order(got)
    assert exchanges <= 8


async def test_merged_entries_are_asked_for_once_that_is_where_the_reading_goes_on(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merging, "ENOUGH_ROWS", 10)
    (stream,) = (await client.create_space("s", ["a/#"], streams=1)).streams()
    async with client.publisher() as publisher:
        for number in range(64):
            await publisher.send("a/0", str(number))
    while isinstance(await compact(client.redis, stream, 2**60), Compacted):
        pass
    exchanges, whole = 0, many.exchange_behind

    async def counted(*args: Any) -> Any:
        nonlocal exchanges
        exchanges += 1
        return await whole(*args)

    monkeypatch.setattr(many, "exchange_behind", counted)
    assert await everything(client.history("a/#", max_batch=10)) == [*range(64)]
    # Six merged entries, and what is left of the log; one more to find the merged ones, one to leave them.
    assert exchanges <= 9


async def test_history_since_a_moment_has_what_came_after_it(client: Client) -> None:
    await client.create_space("s", ["a/#"], streams=4)
    await publish(client, range(40))
    async with client.history("a/#") as batches:
        times = [m.append_timestamp async for batch in batches for m in batch.messages]
    await publish(client, range(40, 60))
    assert sorted(await everything(client.history("a/#", since=max(times)))) == list(range(40, 60))
    everywhere = await everything(client.history("a/#", since=datetime(2000, 1, 1, tzinfo=UTC)))
    assert sorted(everywhere) == list(range(60))
    assert await everything(client.history("a/#", since=datetime.now(UTC) + timedelta(hours=1))) == []


async def test_listening_goes_on_from_a_point(client: Client) -> None:
    await client.create_space("s", ["a/#"], streams=2)
    await publish(client, range(10))
    async with (
        client.listen("a/#") as latest,
        client.listen("a/#", start="earliest") as earliest,
        client.listen("a/#", start=datetime.now(UTC) - timedelta(hours=1)) as timed,
    ):
        assert sorted(await some(earliest, 10)) == list(range(10))
        assert sorted(await some(timed, 10)) == list(range(10))
        await publish(client, range(10, 20))
        for one in (latest, earliest, timed):
            assert sorted(await some(one, 10)) == list(range(10, 20))


async def test_a_time_is_inclusive_where_it_is_a_start(client: Client) -> None:
    await client.create_space("s", ["a/#"])
    for number in range(5):
        await publish(client, [number])
    async with client.history("a/#") as batches:
        times = [m.append_timestamp async for batch in batches for m in batch.messages]
    async with client.listen("a/#", start=times[2]) as listening:
        assert await some(listening, 3) == [2, 3, 4]
    assert await everything(client.history("a/#", since=times[2])) == [3, 4]
    assert await everything(client.history("a/#", since=2)) == [3, 4]
    assert await everything(client.history("a/#", since={"s.0.0": 3})) == [4]


async def test_another_subscription_goes_on_at_the_positions_of_one(client: Client) -> None:
    await client.create_space("s", ["a/#"], streams=3)
    await publish(client, range(100))
    async with client.listen("a/#", start="earliest", max_batch=5) as one:
        first = await some(one, 30)
        positions = one.positions
    async with client.listen("a/#", start=positions) as two:
        rest = await some(two, 100 - len(first))
    assert sorted(first + rest) == list(range(100))


async def test_what_retention_took_is_never_passed_over_in_silence(client: Client) -> None:
    await client.create_space("s", ["a/#"])
    for number in range(10):
        await publish(client, [number])
    stream = StreamId("s", 0, 0)
    async with client.history("a/#") as batches:
        times = [m.append_timestamp async for batch in batches for m in batch.messages]
    async with client.listen("a/#", start=2, max_batch=1) as slow:
        assert await some(slow, 1) == [2]
        await trim(client.redis, Trim(stream, Retention(messages=4), 10))
        with pytest.raises(HistoryTruncated) as error:
            await some(slow, 1)
        assert (error.value.asked, error.value.oldest) == (3, 6)
    for start in (0, 5, times[5], {"s.0.0": 1}):
        with pytest.raises(HistoryTruncated):
            async with client.listen("a/#", start=start):
                pass
    assert await everything(client.history("a/#", since=times[5])) == [6, 7, 8, 9]
    assert await everything(client.history("a/#")) == [6, 7, 8, 9]


@pytest.mark.slow
async def test_the_earliest_moves_with_retention_until_it_is_read(client: Client) -> None:
    await client.create_space("s", ["a/#"])
    for number in range(10):
        await publish(client, [number])
    async with client.listen("a/#", start="earliest") as listening:
        await trim(client.redis, Trim(StreamId("s", 0, 0), Retention(messages=4), 10))
        assert await some(listening, 4) == [6, 7, 8, 9]


async def test_an_offset_that_never_was_is_refused(client: Client) -> None:
    await client.create_space("s", ["a/#"])
    await publish(client, range(3))
    with pytest.raises(InvalidInput, match="never had offset 8"):
        await everything(client.history("a/#", since={"s.0.0": 8}))
    for start in ("newest", -1, True, 1.5):
        with pytest.raises(InvalidInput, match=r"start (is|has)"):
            client.listen("a/#", start=start)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="no zone"):
        client.history("a/#", since=datetime(2026, 1, 1))
    with pytest.raises(InvalidTopic):
        client.listen("a/#/b")
    with pytest.raises(UnknownSpace):
        await everything(client.history("nowhere/#"))


@pytest.mark.slow
async def test_spaces_that_come_later_are_listened_to_from_their_beginning(
    client: Client, second: Client
) -> None:
    await client.create_space("s", ["a/#"])
    async with client.listen("#", start="latest") as listening:
        await second.create_space("t", ["b/#"], streams=2)
        await publish(second, range(10), root="b")
        assert sorted(await some(listening, 10)) == list(range(10))


async def test_a_key_keeps_its_order_over_generations(client: Client) -> None:
    await client.create_space("s", ["a/#"], streams=2)
    await publish(client, range(400))
    await client.spaces.generations.alter("s", streams=5)
    await publish(client, range(400, 800))
    got = await everything(client.history("a/#", max_batch=10))
    assert sorted(got) == list(range(800))
    assert in_order(got)
    async with client.listen("a/#", start="earliest", max_batch=10) as listening:
        assert in_order(await some(listening, 800))


async def test_a_definition_that_is_damaged_meanwhile_ends_nothing(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plain, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(SpaceStore, "recent", SpaceStore.look)
    for name in ("a", "b"):
        await client.create_space(name, [f"{name}/#"])
    async with client.publisher() as publisher:
        await publisher.send("a/x", b"0")
        await publisher.send("b/x", b"0")
        async with client.listen("#", start="earliest") as listening:
            got: list[str] = []
            numbers = itertools.count(10)

            async def take(*wanted: str) -> None:
                async with asyncio.timeout(30):
                    while not set(wanted) <= set(got):
                        batch = await anext(listening)
                        got.extend(f"{one.topic} {one.payload.decode()}" for one in batch.messages)

            await take("a/x 0", "b/x 0")
            for number, damage in enumerate(('{"name": "a"', '{"name": "a", "topics": ["a/#"]}'), 1):
                await client.redis.hset("sl:{spaces}:defs", "a", damage)
                while listening._seen != await client.spaces.look():  # the publisher knows its routes
                    passing = next(numbers)
                    await publisher.send("b/x", b"%d" % passing)
                    await take(f"b/x {passing}")
                for name in ("a", "b"):
                    await publisher.send(f"{name}/x", b"%d" % number)
                await take(f"a/x {number}", f"b/x {number}")
            assert len(set(got)) == len(got), "nothing comes twice"


async def test_streams_that_a_definition_names_are_looked_for_until_they_are_there(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plain, "LOOK_SECONDS", 0.05)
    looked = [0]

    async def recent(store: SpaceStore) -> Known:
        looked[0] += 1
        return await store.look()

    monkeypatch.setattr(SpaceStore, "recent", recent)
    space = await client.create_space("s", ["s/#"], streams=3)
    late, lost, _ = sorted(space.streams(), key=lambda one: one == space.stream_for("s/there"))
    topics = {space.stream_for(f"s/{number}"): f"s/{number}" for number in range(100)}
    await client.redis.delete(keys.stream_meta(late))
    async with (
        client.listen("s/#", start="earliest") as listening,
        asyncio.timeout(SECONDS),
        client.publisher() as publisher,
    ):

        async def comes(stream: StreamId) -> None:
            """It is there after a while, and so is its first message."""
            before = looked[0]
            while looked[0] < before + 2:  # it looked and did not find it
                await publisher.send("s/there", b"")
                assert [one.topic for one in (await anext(listening)).messages] == ["s/there"]
            assert str(stream) not in listening.positions
            await AsyncLog(client.redis).open([stream])
            while str(stream) not in listening.positions:
                await publisher.send("s/there", b"")
                assert [one.topic for one in (await anext(listening)).messages] == ["s/there"]
            await publisher.send(topics[stream], b"")
            assert [one.topic for one in (await anext(listening)).messages] == [topics[stream]]

        await comes(late)
        await client.redis.delete(keys.stream_meta(lost))
        listening._tails._tails.set_end(lost, 1)  # it reads, and finds nothing
        await comes(lost)
