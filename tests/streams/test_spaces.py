"""Definitions of spaces: what may be created, by whom, and where messages go."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import streamlease
from streamlease.protocol.errors import InvalidInput, InvalidOption, SpaceConflict, UnknownSpace, Unsupported
from streamlease.protocol.ids import StreamId
from streamlease.streams.log.keys import SPACE_DEFINITIONS
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.redis.connection import AsyncRedis, connect
from streamlease.streams.spaces.archive_settings import ArchiveSettings
from streamlease.streams.spaces.definitions import parse_definition
from streamlease.streams.spaces.retention import Retention
from streamlease.streams.spaces.spaces import Generation, Space, SpaceStore
from tests.streams.helpers import append, rows


@pytest.fixture
def spaces(redis: AsyncRedis) -> SpaceStore:
    return SpaceStore(redis)


async def test_a_created_space_has_open_streams(spaces: SpaceStore, log: AsyncLog) -> None:
    space = await spaces.create("flights", ["flights/#", "flights/#"], streams=3)
    assert space == Space(
        name="flights", topics=("flights/#",), generations=(Generation(number=0, streams=3),)
    )
    assert await log.next_offsets(space.streams()) == {StreamId("flights", 0, shard): 0 for shard in range(3)}
    assert await spaces.get("flights") == space
    assert await spaces.list() == [space]


async def test_creating_the_same_again_is_a_success(spaces: SpaceStore) -> None:
    space = await spaces.create("flights", ["a/#", "b"], streams=2)
    assert await spaces.create("flights", ["b", "a/#"], streams=2) == space
    for topics, streams, shard_by in (
        (["a/#"], 2, "topic"),
        (["a/#", "b"], 3, "topic"),
        (["a/#", "b"], 2, "key"),
    ):
        with pytest.raises(SpaceConflict, match="flights exists"):
            await spaces.create("flights", topics, streams=streams, shard_by=shard_by)  # type: ignore[arg-type]


async def test_topics_belong_to_one_space(spaces: SpaceStore) -> None:
    await spaces.create("flights", ["flights/#"])
    with pytest.raises(SpaceConflict, match=r"overlap flights/# of space flights"):
        await spaces.create("arrivals", ["trains/#", "+/arrivals"])
    await spaces.create("trains", ["trains/#"])
    assert [space.name for space in await spaces.list()] == ["flights", "trains"]


@pytest.mark.parametrize(
    ("name", "topics", "streams"),
    [
        ("no good", ["a"], 1),
        ("", ["a"], 1),
        ("x", [], 1),
        ("x", ["a/#/b"], 1),
        ("x", ["a"], 0),
        ("x", ["a"], 4097),
        ("x", ["a"], True),
        ("x", ["a"], 1.5),
    ],
)
async def test_nonsense_is_refused(spaces: SpaceStore, name: str, topics: list[str], streams: int) -> None:
    with pytest.raises(InvalidInput):
        await spaces.create(name, topics, streams=streams)
    assert await spaces.list() == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"retention": "7 days"}, "retention '7 days' is no duration: write a number with a unit, such as"),
        ({"retention": {"messages": 2}}, "retention is {'messages': 2}: give an age, such as '7d', or stre"),
        ({"retention": 7}, "retention is 7: give an age, such as '7d', or streamlease.Retention(...)"),
        ({"archive": "ftp://b/a"}, "--archive 'ftp://b/a' is of no kind that is known: give a folder,"),
        (
            {"archive": ArchiveSettings("ftp://b/a")},
            "--archive 'ftp://b/a' is of no kind that is known",
        ),
        (
            {"archive": b"/data"},
            "archive is b'/data': give an address, such as 's3://BUCKET/PATH', or",
        ),
    ],
)
async def test_settings_that_are_none_are_refused(
    spaces: SpaceStore, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidOption, match=re.escape(said)):
        await spaces.create("flights", ["flights/#"], **options)
    assert await spaces.list() == []


async def test_settings_in_words(spaces: SpaceStore, tmp_path: Path) -> None:
    uri = (tmp_path / "a").as_uri()
    space = await spaces.create("flights", ["flights/#"], retention="7d", archive=uri)
    assert space.retention == Retention(age_ms=7 * 86_400_000)
    assert space.archive == ArchiveSettings.of(uri)
    kept = ArchiveSettings(f"{uri}-other/", keep_ms=1000)
    other = await spaces.create("other", ["other/#"], retention="none", archive=kept)
    assert other.retention == Retention()
    assert other.archive == ArchiveSettings.of(f"{uri}-other", keep_ms=1000), (
        "whatever the form of its address"
    )
    assert await spaces.create("other", ["other/#"], archive=kept) == other
    with pytest.raises(SpaceConflict):
        await spaces.create("flights", ["flights/#"], retention="8d")


def test_public_settings_are_those_of_spaces() -> None:
    assert (streamlease.Retention, streamlease.ArchiveSettings) == (Retention, ArchiveSettings)


def more(part: Any) -> Any:
    """A definition as a later version may write it."""
    if isinstance(part, dict):
        return {"later": {"a": 1}, **{name: more(value) for name, value in part.items()}}
    return [more(one) for one in part] if isinstance(part, list) else part


async def test_what_a_later_version_adds_is_left_out(spaces: SpaceStore, tmp_path: Path) -> None:
    space = await spaces.create(
        "flights",
        ["flights/#"],
        retention=Retention(messages=5),
        archive=str(tmp_path),
        schema=pa.schema([("number", pa.int64())]),
    )
    assert parse_definition("flights", json.dumps(more(space.model_dump(mode="json"))).encode()) == space


def test_settings_of_an_earlier_version_have_what_was_there_before() -> None:
    some = b'"retention": {"age_ms": 5}, "archive": {"uri": "/a"}'
    text = b'{"name": "s", "topics": ["s"], "generations": [{"number": 0, "streams": 1}], %b}' % some
    space = parse_definition("s", text)
    assert (space.retention, space.archive) == (Retention(age_ms=5), ArchiveSettings("/a"))


def test_settings_that_lack_something_are_damage() -> None:
    text = b'{"name": "s", "topics": ["s"], "generations": [{"number": 0, "streams": 1}], "archive": {}}'
    with pytest.raises(Unsupported, match=r"^archive: .*uri: Input should be a valid string"):
        parse_definition("s", text)


async def test_an_unknown_space_says_what_to_do(spaces: SpaceStore) -> None:
    for asking in (
        spaces.get("nope"),
        spaces.delete("nope"),
        spaces.for_topic("x/y"),
        spaces.for_filter("x/+"),
    ):
        with pytest.raises(UnknownSpace, match="streamlease space create NAME --topics"):
            await asking


async def test_an_unknown_space_names_the_nearest_ones(spaces: SpaceStore) -> None:
    await spaces.create("flights", ["flights/#"], streams=1)
    for asking in (spaces.get("flihgts"), spaces.generations.alter("flihgts", streams=2)):
        with pytest.raises(UnknownSpace, match=r"there is no space 'flihgts'; nearest: flights; "):
            await asking


async def test_lookups_by_topic_and_filter(spaces: SpaceStore, redis: AsyncRedis) -> None:
    await spaces.create("one", ["a/+/x", "a/b"])
    await spaces.create("two", ["b/#"])
    assert (await spaces.for_topic("a/q/x")).name == "one"
    assert (await spaces.for_topic("b")).name == "two"
    with pytest.raises(UnknownSpace):
        await spaces.for_topic("a/q/y")
    assert [space.name for space in await spaces.for_filter("#")] == ["one", "two"]
    assert [space.name for space in await spaces.for_filter("a/#")] == ["one"]
    await SpaceStore(redis).create("three", ["c"])
    assert (await spaces.for_topic("c")).name == "three"


async def test_many_creators_at_once_leave_spaces_that_do_not_overlap(redis_url: str) -> None:
    clients = [connect(redis_url) for _ in range(6)]

    async def create(number: int) -> str:
        store = SpaceStore(clients[number])
        try:
            await store.create(f"s{number}", [f"own/{number}", "common/x"], streams=1 + number)
        except SpaceConflict:
            await store.create(f"t{number}", [f"own/{number}"], streams=1 + number)
            return "t"
        return "s"

    assert sorted(await asyncio.gather(*map(create, range(6)))) == ["s", "t", "t", "t", "t", "t"]
    found = await SpaceStore(clients[0]).list()
    assert sum("common/x" in space.topics for space in found) == 1
    assert len(found) == 6
    states = await AsyncLog(clients[0]).states(stream for space in found for stream in space.streams())
    assert len(states) == 1 + 2 + 3 + 4 + 5 + 6
    await asyncio.gather(*(client.aclose() for client in clients))


async def test_the_same_space_created_by_many_at_once_is_one(redis_url: str) -> None:
    clients = [connect(redis_url) for _ in range(6)]
    made = await asyncio.gather(*(SpaceStore(client).create("s", ["s/#"], streams=4) for client in clients))
    assert len(set(made)) == 1
    await asyncio.gather(*(client.aclose() for client in clients))


async def test_deleting_removes_the_messages_and_a_new_space_gets_other_streams(
    spaces: SpaceStore, redis: AsyncRedis, log: AsyncLog
) -> None:
    first = await spaces.create("s", ["s/#"], streams=2)
    await log.append(append(first.streams()[0], 0, rows(0, 3)))
    await spaces.delete("s")
    assert await redis.keys("sl:{s.*") == []
    with pytest.raises(UnknownSpace):
        await log.append(append(first.streams()[0], 1, rows(0, 3)))
    second = await spaces.create("s", ["s/#"], streams=2)
    assert set(first.streams()).isdisjoint(second.streams())
    assert second.newest.number == 1


async def test_a_definition_of_another_version_is_an_error(spaces: SpaceStore, redis: AsyncRedis) -> None:
    await redis.hset(SPACE_DEFINITIONS, "future", '{"name": "future", "topics": 3}')
    with pytest.raises(Unsupported, match="space future cannot be read"):
        await spaces.list()


def test_a_topic_or_its_key_always_goes_to_the_same_stream() -> None:
    by_topic = Space(
        name="s",
        topics=("#",),
        generations=(Generation(number=0, streams=2, sealed=True), Generation(number=3, streams=8)),
    )
    shard = _shard("ä/b".encode(), 8)
    assert by_topic.stream_for("ä/b", b"key") == by_topic.stream_for("ä/b") == StreamId("s", 3, shard)
    by_key = by_topic.model_copy(update={"shard_by": "key"})
    assert by_key.stream_for("ä/b", b"key") == StreamId("s", 3, _shard(b"key", 8))
    assert by_key.stream_for("ä/b", None) == StreamId("s", 3, shard)
    assert len(by_topic.streams()) == 10
    assert by_topic.covers("x")
    assert not by_topic.covers("$x")


def _shard(hashed: bytes, streams: int) -> int:
    return int.from_bytes(hashlib.blake2b(hashed, digest_size=8).digest(), "big") % streams


@pytest.mark.parametrize(
    ("hash", "shards"), [("blake2b", (5, 6, 0, 2)), ("sha256", (4, 1, 4, 1))], ids=["blake2b", "sha256"]
)
def test_which_stream_a_topic_has_never_changes(hash: Any, shards: tuple[int, ...]) -> None:
    """Golden: messages that were written stand there."""
    generation = Generation(number=0, streams=8)
    space = Space(name="s", topics=("#",), generations=(generation,), shard_hash=hash)
    topics = ("flights/JFK/LAX", "flights/JFK/SFO", "ä/b", "a" * 200)
    assert tuple(space.stream_for(topic).shard for topic in topics) == shards
    by_key = space.model_copy(update={"shard_by": "key"})
    assert by_key.stream_for("x", b"flights/JFK/LAX").shard == shards[0]


def test_a_definition_without_a_hash_is_older_and_has_blake2b() -> None:
    text = b'{"name": "s", "topics": ["#"], "generations": [{"number": 0, "streams": 8}]}'
    assert parse_definition("s", text).shard_hash == "blake2b"


async def test_the_hash_of_a_space_stays(spaces: SpaceStore) -> None:
    for hash, other in (("blake2b", "sha256"), ("sha256", "blake2b")):
        made = await spaces.create(hash, [f"{hash}/#"], streams=2, shard_hash=hash)  # type: ignore[arg-type]
        assert made.shard_hash == hash
        assert await spaces.create(hash, [f"{hash}/#"], streams=2) == made
        with pytest.raises(SpaceConflict, match=f"sharded by {hash} of the topic"):
            await spaces.create(hash, [f"{hash}/#"], streams=2, shard_hash=other)  # type: ignore[arg-type]
        altered = await spaces.generations.alter(hash, streams=4)
        assert altered.shard_hash == hash


@pytest.mark.parametrize("hash", ["blake2b", "sha256"])
def test_similar_topics_use_all_streams(hash: Any) -> None:
    space = Space(name="s", topics=("a/#",), generations=(Generation(number=1, streams=8),), shard_hash=hash)
    used = {space.stream_for(f"a/{number}").shard for number in range(100)}
    assert used == set(range(8))
