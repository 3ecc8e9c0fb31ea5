"""``streamlease doctor`` on streams whose small entries are merged no further."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from streamlease.admin.doctor import compaction as compaction_check
from streamlease.admin.doctor.findings import Finding
from streamlease.admin.doctor.roles import OBSERVER
from streamlease.agent.client import Client, connect
from streamlease.hosts.claim import Claim
from streamlease.hosts.compactor import CLAIM, INTERVAL_SECONDS
from streamlease.protocol.ids import StreamId
from streamlease.registry import leadership
from streamlease.streams.log import compacting, merging, times
from streamlease.streams.log.compacting import Compacted, compact
from streamlease.streams.log.keys import stream_log, stream_meta
from streamlease.streams.log.merging import NotMerged
from streamlease.streams.log.state import meta_command
from streamlease.streams.redis.connection import AsyncRedis
from tests.admin.command import InProcess

STREAM, OTHER = StreamId("s", 0, 0), StreamId("other", 0, 0)
EVER = 2**60
HOUR = 3600_000_000


@pytest.fixture(autouse=True)
def an_hour_later_and_few_messages_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run is whole with ten messages, and everything is an hour old when it is looked at."""
    monkeypatch.setattr(merging, "ENOUGH_ROWS", 10)
    monkeypatch.setattr(compacting, "LEAST_ENTRIES", 4)
    server_time = times.server_time

    async def later(redis: AsyncRedis) -> int:
        return await server_time(redis) + HOUR

    monkeypatch.setattr(times, "server_time", later)


@pytest.fixture
async def client(real_redis_url: str) -> AsyncIterator[Client]:
    async with connect(real_redis_url) as client:
        for stream, age in ((STREAM, 60_000), (OTHER, None)):
            await client.create_space(stream.space, [f"{stream.space}/#"], compact_after_ms=age)
        assert await claim_of(client).get()
        yield client


def claim_of(client: Client) -> Claim:
    """That of a process that merges: a leader host, or a consumer that leads because there is none."""
    return Claim(client.redis, CLAIM, "one", lambda: 0, INTERVAL_SECONDS)


async def publish(client: Client, messages: int, space: str = "s") -> None:
    async with client.publisher() as publisher:
        for number in range(messages):
            await publisher.send(f"{space}/a", b"%d" % number)  # awaited: an entry each


async def damage_an_id(client: Client) -> None:
    """Put an entry that says no offsets where the next message would stand."""
    (meta,) = [await client.redis.execute_command(*meta_command(STREAM))]
    end = int(meta[0])
    await client.redis.execute_command("XADD", stream_log(STREAM), f"{end}-0", "x", "y")
    await client.redis.execute_command("HSET", stream_meta(STREAM), "next", end + 1)


async def merge(client: Client, stream: StreamId = STREAM) -> list[Compacted]:
    done: list[Compacted] = []
    while isinstance(one := await compact(client.redis, stream, EVER), Compacted):
        done.append(one)
    return done


async def keys_of(client: Client) -> dict[bytes, Any]:
    redis: Any = client.redis
    return {key: await redis.execute_command("DUMP", key) for key in sorted(await redis.keys("sl:{s.*"))}


async def judged(client: Client) -> Finding:
    return await compaction_check.compaction(client)


async def test_where_all_is_well_nothing_is_said(client: Client) -> None:
    found = await judged(client)
    assert (found.level, found.message) == ("ok", "it can go on in each of 0 streams with small entries")
    await publish(client, 25)
    before = await keys_of(client)
    found = await judged(client)
    assert (found.level, found.message) == ("ok", "it can go on in each of 1 stream with small entries")
    assert await keys_of(client) == before, "a look changes nothing"
    assert len(await merge(client)) == 2
    assert (await judged(client)).level == "ok"


async def test_a_space_that_does_not_want_it_is_not_looked_at(client: Client) -> None:
    await client.spaces.delete("s")
    await publish(client, 25, "other")
    assert (await judged(client)).message == "no space wants it"


async def test_an_id_without_offsets_is_named_with_its_place_and_its_remedy(
    client: Client, real_redis_url: str, tmp_path: Path
) -> None:
    await publish(client, 12)
    await damage_an_id(client)
    await publish(client, 12)
    assert (await judged(client)).level == "ok", "those before it can be merged"
    assert [one.messages for one in await merge(client)] == [10, 2]
    place = {
        "stream": "s.0.0",
        "offset": 12,
        "why": "the id 12-0 of the entry there says no offsets",
        "remedy": "remove that entry, which nobody can read: XDEL sl:{s.0.0}:log 12-0",
    }
    command = InProcess(tmp_path, real_redis_url)
    document = (await asyncio.to_thread(command, "doctor", "--json")).document
    checks = {check["check"]: check for check in document["checks"]}
    assert checks["compaction"] == {
        "check": "compaction",
        "level": "warn",
        "message": "1 of 1 stream with small entries is merged no further: "
        "s.0.0 from offset 12 on (the id 12-0 of the entry there says no offsets)",
        "remedy": place["remedy"],
        "places": [place],
    }
    assert "places" not in checks["groups"]
    lines = (await asyncio.to_thread(command, "doctor")).out.splitlines()
    (line,) = [line for line in lines if "compaction" in line]
    assert line == f"warn compaction: {checks['compaction']['message']}; {place['remedy']}"
    await client.redis.execute_command(*shlex.split(place["remedy"].partition(": ")[2]))
    assert [one.messages for one in await merge(client)] == [10], "the remedy helps"
    assert (await judged(client)).level == "ok"


async def test_what_would_not_be_the_same_is_named(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    await publish(client, 25)
    assert await compact(client.redis, STREAM, EVER) == Compacted(STREAM, 10, 10)

    def fails(stream: StreamId, *args: object) -> object:
        raise NotMerged(f"offsets 10 to 19 of stream {stream} are not the same in one entry")

    monkeypatch.setattr(compacting, "merged", fails)
    found = await judged(client)
    assert (found.level, [one[:3] for one in found.places]) == (
        "warn",
        [("s.0.0", 10, "offsets 10 to 19 of stream s.0.0 are not the same in one entry")],
    )
    assert "streamlease space alter s --rotate" in found.remedy


async def test_a_payload_that_cannot_be_read_stops_nothing(client: Client) -> None:
    await publish(client, 5)
    await client.redis.execute_command("XADD", stream_log(STREAM), "5-1", "a", 5, "n", "nonsense")
    await client.redis.execute_command("HSET", stream_meta(STREAM), "next", 6)
    await publish(client, 15)
    assert (await judged(client)).level == "ok"
    assert [one.messages for one in await merge(client)] == [5, 1, 10]


async def test_a_schema_that_cannot_be_read_is_named(client: Client) -> None:
    await publish(client, 25)
    await client.redis.execute_command("HSET", stream_meta(STREAM), "schemas", "{")
    found = await judged(client)
    assert [one[:2] for one in found.places] == [("s.0.0", 0)]
    assert "restore key sl:{s.0.0}:meta" in found.message


async def test_of_many_streams_those_that_wait_longest_are_looked_at(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction_check, "MOST_STREAMS", 1)
    await client.create_space("later", ["later/#"], compact_after_ms=60_000)
    await publish(client, 2)
    await damage_an_id(client)
    await publish(client, 12)
    await merge(client)
    await publish(client, 25, "later")
    found = await judged(client)
    assert [one.stream for one in found.places] == ["s.0.0"]
    assert "1 of 2 streams" in found.message


async def test_entries_that_wait_for_nobody_are_named(client: Client) -> None:
    await publish(client, 25)
    assert (await judged(client)).level == "ok"
    await leadership.resign(client.redis, CLAIM, "one", 1)
    found = await judged(client)
    assert (found.level, found.message) == (
        "warn",
        "nobody merges the small entries of 1 stream: s.0.0",
    )
    assert "streamlease serve" in found.remedy


async def test_who_may_only_look_is_told_as_well(client: Client, real_redis_url: str, tmp_path: Path) -> None:
    await publish(client, 2)
    await damage_an_id(client)
    await publish(client, 12)
    await merge(client)
    redis: Any = client.redis
    await redis.execute_command("ACL", "SETUSER", "looker", *OBSERVER.rules(), ">secret")
    try:
        other = real_redis_url.replace("//", "//looker:secret@")
        async with Client(other) as looker:
            assert (await judged(looker)).level == "warn"
    finally:
        await redis.execute_command("ACL", "DELUSER", "looker")
