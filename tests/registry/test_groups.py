"""Declarations hold for good, and say where a group begins."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from streamlease.protocol.errors import (
    GroupConflict,
    HistoryTruncated,
    InvalidInput,
    InvalidOption,
    StreamleaseError,
    UnknownGroup,
    UnknownSpace,
)
from streamlease.protocol.ids import StreamId
from streamlease.protocol.topics import SharedSubscription
from streamlease.registry import keys
from streamlease.registry.groups import Groups
from streamlease.streams.log.keys import stream_meta
from streamlease.streams.publish.publisher import Publisher
from streamlease.streams.redis.connection import AsyncRedis, ask
from streamlease.streams.spaces.spaces import SpaceStore

SHARED = SharedSubscription.parse("$shared/g/a/#")
QUEUE = SharedSubscription.parse("$queue/g/a/#")


async def a_space(redis: AsyncRedis, name: str = "a", streams: int = 2) -> None:
    await SpaceStore(redis).create(name, [f"{name}/#"], streams=streams)


async def test_declaring_again_gives_the_declaration_that_holds(redis: AsyncRedis) -> None:
    await a_space(redis)
    groups = Groups(redis)
    first = await groups.declare(SHARED, "earliest")
    assert first.start == "earliest"
    assert await groups.declare(SHARED, "latest") == first
    assert await groups.get(SHARED) == first
    assert first.shared == SHARED


async def test_queue_and_shared_of_one_name_conflict(redis: AsyncRedis) -> None:
    await a_space(redis)
    groups = Groups(redis)
    await groups.declare(QUEUE)
    with pytest.raises(GroupConflict, match=r"is declared as '\$queue/g/a/#': subscribe to that name"):
        await groups.declare(SHARED)
    assert await groups.list() == [QUEUE]


async def test_a_filter_that_no_space_covers_is_unknown_and_declares_nothing(redis: AsyncRedis) -> None:
    await a_space(redis)
    groups = Groups(redis)
    other = SharedSubscription.parse("$shared/g/b/#")
    with pytest.raises(UnknownSpace) as caught:
        await groups.declare(other)
    assert len(str(caught.value).splitlines()) == 1
    assert await groups.list() == []
    with pytest.raises(UnknownGroup, match=r"group '\$shared/g/b/#' does not exist: subscribe to it once"):
        await groups.get(other)


async def test_another_start_is_refused(redis: AsyncRedis) -> None:
    start: Any = "yesterday"
    with pytest.raises(InvalidOption, match="start is 'yesterday': use 'earliest', 'latest', an offset"):
        await Groups(redis).declare(SHARED, start)


async def test_latest_keeps_the_position_of_the_declaration(redis: AsyncRedis) -> None:
    """What is published between the declaration and the first leader is not missed."""
    await a_space(redis, streams=1)
    groups = Groups(redis)
    async with Publisher(redis) as publisher:
        for _ in range(3):
            await publisher.send("a/x", b"before")
        declaration = await groups.declare(SHARED, "latest")
        await publisher.send("a/x", b"after")
    (stream,) = await groups.streams(SHARED)
    assert declaration.positions == {str(stream): 3}
    assert await groups.starts(declaration) == {str(stream): 3}


async def test_earliest_begins_with_what_is_still_there(redis: AsyncRedis) -> None:
    await a_space(redis)
    groups = Groups(redis)
    declaration = await groups.declare(SHARED, "earliest")
    assert declaration.positions == {}
    assert await groups.starts(declaration) == {str(s): 0 for s in await groups.streams(SHARED)}


async def test_a_space_made_later_is_read_from_its_beginning(redis: AsyncRedis) -> None:
    wide = SharedSubscription.parse("$shared/g/#")
    await a_space(redis, "a", 1)
    groups = Groups(redis)
    declaration = await groups.declare(wide, "latest")
    await a_space(redis, "b", 1)
    starts = await Groups(redis).starts(declaration)
    assert sorted(stream.partition(".")[0] for stream in starts) == ["a", "b"]
    assert set(starts.values()) == {0}


async def test_groups_are_listed_by_name(redis: AsyncRedis) -> None:
    await a_space(redis)
    groups = Groups(redis)
    names = ["$shared/z/a/#", "$shared/b/a/+", "$queue/b/a/#"]
    for name in names:
        await groups.declare(SharedSubscription.parse(name))
    assert [str(subscription) for subscription in await groups.list()] == sorted(names)


async def test_each_arrival_is_later_than_all_before(redis: AsyncRedis) -> None:
    groups = Groups(redis)
    numbers = [await groups.arrive(SHARED) for _ in range(3)]
    assert numbers == sorted(set(numbers))
    assert await groups.arrive(QUEUE) > numbers[-1]


async def test_a_damaged_declaration_is_one_clear_line(redis: AsyncRedis) -> None:
    await ask(redis, [("SET", keys.definition(SHARED.id), b'{"nonsense": "' + b"x" * 500)])
    with pytest.raises(StreamleaseError, match="the declaration of group g/a/# is damaged") as caught:
        await Groups(redis).get(SHARED)
    assert len(str(caught.value)) < 300


def test_all_keys_of_a_group_share_one_slot_whatever_its_name() -> None:
    for group in ("g/a", "g/{x}/b", "g/}{", "g/%7B"):
        made = [
            part(group) for part in (keys.definition, keys.leader, keys.journal, keys.snapshot, keys.arrivals)
        ]
        tags = {key[key.index("{") + 1 : key.index("}")] for key in made}
        assert len(tags) == 1
        assert all(key.count("{") == key.count("}") == 1 for key in made)
    assert keys.leader("g/{") != keys.leader("g/%7B")


# -- beginning at an offset or a time ----------------------------------------------------------------------


async def five_messages(redis: AsyncRedis) -> datetime:
    """One stream with five messages; a moment between the third and the fourth."""
    await a_space(redis, streams=1)
    async with Publisher(redis) as publisher:
        for _ in range(3):
            await publisher.send("a/x", b"before")
        ((seconds, microseconds),) = await ask(redis, [("TIME",)])
        for _ in range(2):
            await publisher.send("a/x", b"after")
    return datetime.fromtimestamp(int(seconds), UTC) + timedelta(microseconds=int(microseconds))


async def test_a_group_begins_at_an_offset_of_each_stream(redis: AsyncRedis) -> None:
    await five_messages(redis)
    declaration = await Groups(redis).declare(SHARED, 2)
    assert (declaration.start, declaration.positions) == ("offset 2", {"a.0.0": 2})
    named = SharedSubscription.parse("$shared/h/a/#")
    assert (await Groups(redis).declare(named, {"a.0.0": 5})).positions == {"a.0.0": 5}


async def test_a_group_begins_with_the_first_message_of_a_time(redis: AsyncRedis) -> None:
    moment = await five_messages(redis)
    declaration = await Groups(redis).declare(SHARED, moment)
    assert (declaration.start, declaration.positions) == (moment.isoformat(), {"a.0.0": 3})
    assert await Groups(redis).declare(SHARED, 1) == declaration, "the first declaration holds"


@pytest.mark.parametrize("start", [6, {"a.0.7": 0}, -1, {"a.0.0": -1}, True])
async def test_a_start_that_no_stream_has_is_refused(redis: AsyncRedis, start: Any) -> None:
    await five_messages(redis)
    with pytest.raises(InvalidInput):
        await Groups(redis).declare(SHARED, start)
    assert await Groups(redis).list() == []


async def test_a_start_that_retention_passed_is_refused(redis: AsyncRedis) -> None:
    await five_messages(redis)
    await ask(redis, [("HSET", stream_meta(StreamId("a", 0, 0)), "floor", 3)])
    with pytest.raises(HistoryTruncated):
        await Groups(redis).declare(SHARED, 2)
    assert (await Groups(redis).declare(SHARED, 3)).positions == {"a.0.0": 3}


async def test_a_queue_is_declared_before_anybody_joins_it(redis: AsyncRedis) -> None:
    await five_messages(redis)
    groups = Groups(redis)
    with pytest.raises(UnknownGroup, match="declare it first"):
        await groups.join(QUEUE, "earliest")
    assert await groups.list() == []
    declared = await groups.declare(QUEUE, "earliest")
    assert await groups.join(QUEUE, "latest") == declared
    with pytest.raises(GroupConflict):
        await groups.join(SHARED)
    assert (await groups.join(SharedSubscription.parse("$shared/h/a/#"), 4)).positions == {"a.0.0": 4}
