"""One definition that cannot be read hurts its own space only."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlease.protocol.errors import SpaceConflict, UnknownSpace, Unsupported
from streamlease.protocol.ids import StreamId
from streamlease.streams.imports.inbox import InboxMover
from streamlease.streams.log.keys import SPACE_DEFINITIONS, SPACE_VERSION, inbox_refused, space_inbox
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.publish.publisher import Publisher
from streamlease.streams.redis.connection import AsyncRedis, BlockingRedis, run_blocking
from streamlease.streams.spaces.known import read_definitions
from streamlease.streams.spaces.spaces import SpaceStore
from tests.streams.helpers import append, rows

GOOD: dict[str, Any] = {"name": "bad", "topics": ["bad/#"], "generations": [{"number": 0, "streams": 2}]}

DAMAGE = [
    b"",
    b"\xff\xfe",
    b"null",
    b"[1]",
    b'{"name": "bad", "topics": ["bad/#"]',
    b'{"name": "bad"}',
    b'{"name": "bad", "topics": 3}',
    b"[" * 100_000,
    *(
        json.dumps(GOOD | change).encode()
        for change in (
            {"name": "other"},
            {"name": "no name"},
            {"topics": []},
            {"topics": ["a/#/b"]},
            {"generations": []},
            {"generations": [{"number": 0, "streams": 10**15}]},
            {"generations": [{"number": 0, "streams": 0}]},
            {"generations": [{"number": 3, "streams": 1}, {"number": 2, "streams": 1}]},
            {"retention": {"age_ms": -1}},
            {"retention": {"force": True}},
            {"durability": "granite"},
            {"schemas": [{"columns": [{"name": "x", "type": "no type", "nullable": True}]}]},
        )
    ),
]


@pytest.mark.parametrize("text", DAMAGE, ids=lambda text: ascii(text[:60]))
def test_each_kind_of_damage_is_told_in_one_line(text: bytes) -> None:
    known = read_definitions([b"bad", text])
    assert not known.spaces
    (line,) = str(known.damaged["bad"].error).splitlines()
    assert line.startswith("the definition of space bad cannot be read (")
    with pytest.raises(Unsupported, match="space delete bad"):
        known.get("bad")


@given(
    st.one_of(
        st.binary(max_size=40),
        st.recursive(
            st.none() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(["bad", "a/#"]),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(
                    st.sampled_from(["name", "topics", "generations", "number", "streams", "schemas"]),
                    inner,
                    max_size=7,
                )
            ),
        ).map(lambda value: json.dumps({**GOOD, **value} if isinstance(value, dict) else value).encode()),
    )
)
def test_a_definition_is_a_usable_space_or_damaged(text: bytes) -> None:
    known = read_definitions([b"bad", text])
    for space in known.listed:
        assert space.stream_for("bad/x", b"key") in space.streams()
        assert isinstance(space.intersects("#") and space.settled, bool)
    assert len(known.spaces) + len(known.damaged) == 1


def test_a_name_that_is_no_utf_8_is_shown_otherwise() -> None:
    known = read_definitions([b"\xff", b"{}"])
    assert [*known.damaged] == ["\\xff"]
    assert known.damaged["\\xff"].key == b"\xff"


@pytest.fixture
async def spaces(redis: AsyncRedis) -> SpaceStore:
    """Space `good` works, `bad` is damaged and `half` is, but its topics can be read."""
    spaces = SpaceStore(redis)
    for name in ("bad", "good", "half"):
        await spaces.create(name, [f"{name}/#"], streams=2)
    await redis.hset(SPACE_DEFINITIONS, "bad", '{"name": "bad", "top')
    await redis.hset(SPACE_DEFINITIONS, "half", '{"name": "half", "topics": ["half/#"]}')
    spaces.forget()
    return spaces


async def test_the_others_are_listed_and_found(spaces: SpaceStore, blocking: BlockingRedis) -> None:
    for known in (await spaces.look(), run_blocking(SpaceStore(blocking).look())):
        assert [space.name for space in known.listed] == ["good"]
        assert sorted(known.damaged) == ["bad", "half"]
    assert (await spaces.for_topic("good/x")).name == "good"
    assert [space.name for space in await spaces.for_filter("good/#")] == ["good"]
    with pytest.raises(Unsupported, match="space half cannot be read"):
        await spaces.for_topic("half/x")
    with pytest.raises(UnknownSpace, match="definition of space bad cannot be read"):
        await spaces.for_topic("other/x")
    # What is read once would be incomplete; what is read for long goes on without it.
    with pytest.raises(Unsupported, match="space half cannot be read"):
        await spaces.for_filter("#")
    assert [space.name for space in await spaces.for_filter("#", partly=True)] == ["good"]
    with pytest.raises(Unsupported, match="space half cannot be read"):
        await spaces.for_filter("half/#", partly=True)


async def test_a_new_publisher_publishes(spaces: SpaceStore, redis: AsyncRedis) -> None:
    async with Publisher(redis) as publisher:
        assert (await publisher.send("good/x", b"1"))[1] == 0
        with pytest.raises(Unsupported, match="space half cannot be read"):
            await publisher.send("half/x", b"1")


async def test_inboxes_of_the_others_go_on(spaces: SpaceStore, redis: AsyncRedis) -> None:
    await redis.xadd(space_inbox("good"), {"topic": "good/x", "payload": "1"})
    await redis.xadd(space_inbox("good"), {"topic": "half/x", "payload": "2"})
    assert await InboxMover(redis, "me").round() == 1
    ((_, refused),) = await redis.xrange(inbox_refused("good"))
    assert b"space half cannot be read" in b" ".join(refused.values())
    assert await redis.xlen(space_inbox("good")) == 0


async def test_their_names_and_topics_stay_taken(spaces: SpaceStore) -> None:
    for name in ("bad", "half"):
        with pytest.raises(Unsupported, match=f"space {name} cannot be read"):
            await spaces.create(name, ["new/#"])
    with pytest.raises(SpaceConflict, match="half/# of space half, whose definition is damaged"):
        await spaces.create("new", ["half/x"])
    assert (await spaces.create("new", ["new/#"])).name == "new"


async def test_a_damaged_space_is_deleted_with_its_messages(
    spaces: SpaceStore, redis: AsyncRedis, log: AsyncLog
) -> None:
    streams = {name: StreamId(name, 0, 1) for name in ("bad", "good", "half")}
    for stream in streams.values():
        await log.append(append(stream, 0, rows(0, 3)))
    for name in ("bad", "half"):
        await spaces.delete(name)
        assert await redis.keys(f"*{{{name}.*") == []
        with pytest.raises(UnknownSpace):
            await spaces.get(name)
        anew = await spaces.create(name, [f"{name}/#"])
        assert anew.newest.number == 1  # a stream id names the same stream for ever
    assert len(await redis.keys("*{good.*")) >= 4
    assert [space.name for space in await spaces.list()] == ["bad", "good", "half"]


async def test_a_name_with_signs_of_a_pattern_deletes_nothing_else(
    spaces: SpaceStore, redis: AsyncRedis
) -> None:
    await redis.hset(SPACE_DEFINITIONS, "*", "{}")
    await spaces.delete("*")
    assert len(await redis.keys("*{good.*")) >= 2
    assert sorted((await spaces.look()).damaged) == ["bad", "half"]


async def test_a_damaged_counter_is_told_in_one_line(spaces: SpaceStore, redis: AsyncRedis) -> None:
    await redis.set(SPACE_VERSION, "many")
    for change in (spaces.create("new", ["new/#"]), spaces.delete("good"), spaces.generations.seal("good")):
        with pytest.raises(Unsupported, match="holds b'many', which is no number"):
            await change
    assert [space.name for space in (await spaces.look()).listed] == ["good"]  # who reads does not need it
