"""What the scripts of an archive do in each state that archivers may find."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest

from streamlease.protocol.errors import StoreRefused
from streamlease.protocol.ids import StreamId
from streamlease.streams.log.keys import (
    archive_table,
    archive_turn,
    archives_left,
    stream_files,
    stream_log,
    stream_meta,
    stream_news,
    stream_publishers,
)
from streamlease.streams.redis.connection import Argument, AsyncRedis, ask, connect
from streamlease.streams.redis.scripts import load_script

STREAM = StreamId("space", 0, 0)
META, FILES, LOG = stream_meta(STREAM), stream_files(STREAM), stream_log(STREAM)
FIELDS = ("archived", "exists", "archive_term", "retired_at")


@pytest.fixture
async def redis(real_redis_url: str) -> AsyncIterator[AsyncRedis]:
    client = connect(real_redis_url)
    yield client
    await client.aclose()


async def run(redis: AsyncRedis, name: str, keys: list[str], *args: Argument) -> Any:
    return await load_script("streamlease.streams.archive", name).run(redis, keys, args)


@dataclass(frozen=True, slots=True)
class File:
    """What is to be recorded of a new file."""

    next: int
    until: int
    name: str = "file"


async def filled(redis: AsyncRedis) -> dict[int, int]:
    """A stream of three entries, of three, two and one messages; the append time of each offset."""
    times: dict[int, int] = {}
    await redis.hset(META, mapping={"next": 0, "state": "open", "floor": 0, "last_append": 0, "bytes": 0})
    append = load_script("streamlease.streams.log", "append")
    for sequence, count in enumerate((3, 2, 1)):
        args = ("me", 1, sequence, count, "0", stream_news(STREAM), 0, "p", b"payload")
        reply = await append.run(redis, [META, stream_publishers(STREAM), LOG], args)
        times |= dict.fromkeys(range(reply[1], reply[1] + count), reply[2])
    assert sorted(times) == [*range(6)]
    return times


async def record(
    redis: AsyncRedis,
    before: int,
    upto: int,
    *new: File,
    term: int = 5,
    exists: int = 0,
    retired: int = 0,
    gone: tuple[str, ...] = (),
) -> Any:
    files = [value for one in new for value in (one.next, one.until, one.name)]
    about = (term, before, upto, exists, retired, len(gone), *gone, *files)
    return await run(redis, "record", [META, FILES, LOG], *about)


async def kept(redis: AsyncRedis) -> tuple[list[Any], list[bytes]]:
    """All that is recorded."""
    fields, files = await ask(redis, [("HMGET", META, *FIELDS), ("ZRANGE", FILES, 0, -1)])
    return [None if one is None else int(one) for one in fields], files


async def test_what_is_in_files_is_recorded_and_never_goes_back(redis: AsyncRedis) -> None:
    assert await record(redis, 0, 3) == [b"unknown"]
    times = await filled(redis)
    assert await record(redis, 0, 3, File(3, times[2], "one"), term=4) == [b"recorded", 3, 0]
    assert await kept(redis) == ([3, 0, 4, 0], [b"one"])
    new = File(6, times[5], "two")
    assert await record(redis, 3, 6, new, term=5, exists=2, retired=7) == [b"recorded", 6, 2]
    assert await kept(redis) == ([6, 2, 5, 7], [b"one", b"two"])
    assert (await ask(redis, [("ZSCORE", FILES, "two")]))[0] in (b"6", 6.0)
    joined = File(6, times[5], "both")
    assert await record(redis, 6, 1, joined, gone=("one", "two"), exists=1, retired=6) == [b"recorded", 6, 2]
    assert await kept(redis) == ([6, 2, 5, 7], [b"both"])


async def test_an_archiver_that_was_overtaken_records_nothing(redis: AsyncRedis) -> None:
    times = await filled(redis)
    await record(redis, 0, 3, File(3, times[2], "one"), term=5)
    before = await kept(redis)
    new = File(5, times[4], "two")
    assert await record(redis, 3, 5, new, term=4) == [b"fenced", 5]
    assert await record(redis, 0, 5, new) == [b"moved", 3]
    assert await record(redis, 2, 5, new) == [b"moved", 3]
    assert await record(redis, 3, 5, new, gone=("one", "nowhere")) == [b"moved", 3]
    for wrong in range(6):
        about: list[Argument] = [5, 3, 5, 0, 0, 0]
        about[wrong] = "many"
        with pytest.raises(StoreRefused, match="must be numbers"):
            await run(redis, "record", [META, FILES, LOG], *about)
    assert await kept(redis) == before


async def test_the_first_archiver_begins_at_nothing(redis: AsyncRedis) -> None:
    await filled(redis)
    assert await record(redis, 2, 5) == [b"moved", 0]


async def test_each_file_must_end_with_a_message_that_redis_has(redis: AsyncRedis) -> None:
    """Of what was not archived before: else a failover took what the file has, and others take its place."""
    times = await filled(redis)
    for last in range(8):
        for until in {*times.values(), 1}:
            await redis.delete(FILES)
            await redis.hdel(META, *FIELDS)
            reply = await record(redis, 0, last + 1, File(last + 1, until))
            there = times.get(last) == until
            assert reply == ([b"recorded", last + 1, 0] if there else [b"lost", last + 1]), (last, until)
            assert (await kept(redis))[1] == ([b"file"] if there else [])
    await ask(redis, [("XDEL", LOG, (await redis.xrange(LOG))[1][0])])
    await redis.hdel(META, *FIELDS)
    assert await record(redis, 0, 5, File(3, times[2]), File(5, times[5])) == [b"lost", 5]
    assert await kept(redis) == ([None] * 4, [])


async def test_what_was_archived_or_merged_is_not_looked_for(redis: AsyncRedis) -> None:
    times = await filled(redis)
    await record(redis, 0, 3, File(3, times[2], "one"))
    assert await record(redis, 3, 3, File(3, 1, "joined"), gone=("one",)) == [b"recorded", 3, 0]
    await redis.hset(META, "merged", 5)
    assert await record(redis, 3, 6, File(4, 1, "two"), File(5, 1, "three"), File(6, 1, "four")) == [
        b"lost",
        6,
    ]
    assert await record(redis, 3, 6, File(4, 1, "two"), File(5, 1, "three"), File(6, times[5], "four")) == [
        b"recorded",
        6,
        0,
    ]
    await redis.hset(META, mapping={"merged": 0, "archived": 3})
    assert await record(redis, 3, 4, File(4, 1, "five")) == [b"lost", 4], "the first behind what was archived"


async def test_a_table_points_to_what_follows_what_was_seen(redis: AsyncRedis) -> None:
    table = archive_table("space")

    async def point(seen: str, new: str) -> Any:
        return await run(redis, "point", [table], seen, new)

    assert await point("0", "1") == [b"moved", b""]
    assert await point("", "1") == [b"pointed"]
    assert await point("", "2") == [b"moved", b"1"]
    assert await point("1", "2") == [b"pointed"]
    assert await redis.hgetall(table) == {b"metadata": b"2", b"before": b"1"}


async def test_what_is_to_be_removed_is_noted(redis: AsyncRedis) -> None:
    assert await run(redis, "leave", [archives_left()], "which", "what") == [b"noted"]
    assert await redis.hgetall(archives_left()) == {b"which": b"what"}


async def test_a_turn_is_of_one(redis: AsyncRedis) -> None:
    key = archive_turn("space")

    async def turn(whose: str, ms: Argument, wants: str = "0") -> Any:
        (said,) = await run(redis, "turn", [key], whose, ms, wants)
        return said

    assert await turn("a", 60_000) == b"taken"
    assert 50_000 < await redis.pttl(key) <= 60_000
    assert await turn("b", 60_000) == b"other"
    assert await turn("a", 90_000) == b"taken", "whoever does not say so does not wait"
    assert 60_000 < await redis.pttl(key) <= 90_000
    assert await turn("b", 0, "1") == b"other", "nobody gives up what is not theirs"
    assert await turn("a", 60_000) == b"wanted"
    assert await turn("a", 0) == b"given"
    assert await turn("b", 60_000) == b"taken", "who waited is not waited for any more"
    for wrong in (-1, "soon"):
        with pytest.raises(StoreRefused, match="a number of milliseconds"):
            await turn("b", wrong)
