"""Compaction by leader hosts: which spaces, which host, and what consumers get meanwhile."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from streamlease.agent.client import Client, connect
from streamlease.hosts import compactor
from streamlease.hosts.compactor import CLAIM, Compactor
from streamlease.hosts.host import HostConfig, LeaderHost
from streamlease.protocol.errors import InvalidOption, SpaceConflict
from streamlease.protocol.ids import StreamId
from streamlease.registry import keys
from streamlease.streams.log import compacting, merging
from streamlease.streams.log.compacting import Compacted
from streamlease.streams.log.keys import stream_log, stream_merged, stream_meta
from streamlease.streams.log.merging import NotMerged
from streamlease.streams.redis.connection import AsyncRedis

STREAM = StreamId("s", 0, 0)
OTHER = StreamId("other", 0, 0)


@pytest.fixture(autouse=True)
def few_messages_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run is whole with ten messages, so that a short log has several."""
    monkeypatch.setattr(merging, "ENOUGH_ROWS", 10)
    monkeypatch.setattr(compacting, "LEAST_ENTRIES", 4)


@dataclass
class Rig:
    client: Client
    now: int = 0
    """The clock of the hosts."""
    later: int = 3600_000_000
    """How much later it is for the server, in microseconds."""
    offered: list[StreamId] = field(default_factory=list)
    """The streams whose logs were read."""

    def compactor(self, host: str = "h1") -> Compactor:
        return Compactor(self.client.redis, host, lambda: self.now)

    async def publish(self, messages: int, topic: str = "a/b") -> None:
        async with self.client.publisher() as publisher:
            for number in range(messages):
                await publisher.send(topic, b"%d" % number)  # awaited: an entry each


@pytest.fixture
async def rig(real_redis_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rig]:
    async with connect(real_redis_url) as client:
        rig = Rig(client)
        server_time, compact = compactor.server_time, compactor.compact

        async def later(redis: AsyncRedis) -> int:
            return await server_time(redis) + rig.later

        async def noted(redis: AsyncRedis, stream: StreamId, before: int) -> object:
            rig.offered.append(stream)
            return await compact(redis, stream, before)

        monkeypatch.setattr(compactor, "server_time", later)
        monkeypatch.setattr(compactor, "compact", noted)
        yield rig


async def test_only_spaces_that_want_it_are_compacted(rig: Rig) -> None:
    await rig.client.create_space("s", ["a/#"], compact_after_ms=60_000)
    await rig.client.create_space("other", ["b/#"])
    await rig.publish(25)
    await rig.publish(25, "b/c")
    assert await rig.compactor().round() == [Compacted(STREAM, 10, 10)] * 2
    assert await rig.client.redis.xlen(stream_log(STREAM)) == 5
    assert await rig.client.redis.xlen(stream_merged(STREAM)) == 2
    assert await rig.client.redis.xlen(stream_log(OTHER)) == 25


@pytest.mark.parametrize(
    "damage", [("HSET", "next", "junk"), ("HSET", "merged", "junk")], ids=["next", "merged"]
)
async def test_a_stream_that_cannot_be_read_holds_up_no_other(
    rig: Rig, damage: tuple[str, str, str], caplog: pytest.LogCaptureFixture
) -> None:
    await rig.client.create_space("other", ["b/#"], compact_after_ms=60_000)
    await rig.client.create_space("s", ["a/#"], compact_after_ms=60_000)
    await rig.publish(12)
    await rig.publish(12, "b/c")
    command, name, value = damage
    await rig.client.redis.execute_command(command, stream_meta(OTHER), name, value)
    one = rig.compactor()
    assert await one.round() == [Compacted(STREAM, 10, 10)]
    assert await one.round() == []
    (told,) = caplog.messages
    assert told.startswith(f"compaction of {OTHER}: ")
    assert "\n" not in told


async def test_where_no_space_wants_it_nobody_claims_anything(rig: Rig) -> None:
    await rig.client.create_space("other", ["b/#"])
    await rig.publish(25, "b/c")
    assert await rig.compactor().round() == []
    assert not await rig.client.redis.exists(keys.leader(CLAIM))


async def test_young_messages_stay_until_they_are_old_enough(rig: Rig) -> None:
    await rig.client.create_space("s", ["a/#"], compact_after_ms=60_000)
    await rig.publish(25)
    one, rig.later = rig.compactor(), 0
    assert await one.round() == []
    rig.later = 61_000_000
    assert len(await one.round()) == 2


async def test_a_log_without_a_run_is_not_read_again_before_it_may_have_one(rig: Rig) -> None:
    await rig.client.create_space("s", ["a/#"], compact_after_ms=60_000)
    await rig.publish(7)
    one = rig.compactor()
    for more, offered in ((0, 1), (2, 0), (1, 2)):
        rig.offered.clear()
        await rig.publish(more)
        await one.round()
        assert len(rig.offered) == offered
    assert await rig.client.redis.xlen(stream_merged(STREAM)) == 1


async def test_one_host_compacts_until_it_lets_go(rig: Rig) -> None:
    await rig.client.create_space("s", ["a/#"], compact_after_ms=60_000)
    await rig.publish(12)
    first, second = rig.compactor("h1"), rig.compactor("h2")
    assert len(await first.round()) == 1
    await rig.publish(12)
    assert await second.round() == []
    await first.close()
    assert len(await second.round()) == 1


async def test_a_round_ends_in_time_and_the_next_goes_on(rig: Rig) -> None:
    await rig.client.create_space("s", ["a/#"], compact_after_ms=60_000, streams=3)
    for topic in range(30):
        await rig.publish(12, f"a/{topic}")
    compact, rests = compactor.compact, []

    async def slow(redis: AsyncRedis, stream: StreamId, before: int) -> object:
        rig.now += 2000
        return await compact(redis, stream, before)

    async def rest(seconds: float) -> None:
        rests.append(seconds)

    one = Compactor(rig.client.redis, "h1", lambda: rig.now, rest)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(compactor, "compact", slow)
        done = await one.round()
    assert (len(done), rests) == (3, [2.0] * 3), "it rests for as long as it worked"
    assert {each.stream for each in done} == {StreamId("s", 0, shard) for shard in range(3)}, "in turns"
    ends = await rig.client.next_offsets(StreamId("s", 0, shard) for shard in range(3))
    assert len(await one.round()) == sum(end // 10 for end in ends.values()) - 3


async def test_what_cannot_be_merged_is_told_once(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await rig.client.create_space("s", ["a/#"], compact_after_ms=60_000)
    await rig.client.create_space("other", ["b/#"], compact_after_ms=60_000)
    await rig.publish(12)
    await rig.publish(12, "b/c")
    merged = compacting.merged

    def fails(stream: StreamId, *args: object) -> object:
        if stream == STREAM:
            raise NotMerged(f"offsets 0 to 9 of stream {stream} are not the same in one entry")
        return merged(stream, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(compacting, "merged", fails)
    one = rig.compactor()
    with caplog.at_level(logging.ERROR):
        assert await one.round() == [Compacted(OTHER, 10, 10)]
        assert await one.round() == []
    assert [record.getMessage() for record in caplog.records] == [
        "compaction: offsets 0 to 9 of stream s.0.0 are not the same in one entry; they stay as they are"
    ]
    assert await rig.client.redis.xlen(stream_log(STREAM)) == 12


async def test_an_id_at_which_it_stops_is_told_once(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    await rig.client.create_space("s", ["a/#"], compact_after_ms=60_000)
    await rig.publish(3)
    await rig.client.redis.execute_command("XADD", stream_log(STREAM), "3-0", "x", "y")  # type: ignore[union-attr]
    await rig.client.redis.hset(stream_meta(STREAM), "next", 4)
    await rig.publish(12)
    one = rig.compactor()
    with caplog.at_level(logging.ERROR):
        assert await one.round() == [Compacted(STREAM, 3, 3)]
        assert await one.round() == []
        assert [record.getMessage() for record in caplog.records] == [
            "compaction of s.0.0 stopped at entry 3-0, whose id says no offsets; see 'streamlease doctor'"
        ]
        await rig.client.redis.xdel(stream_log(STREAM), "3-0")
        assert await one.round() == [Compacted(STREAM, 10, 10)], "it goes on without it"
    assert len(caplog.records) == 1


async def test_a_damaged_stream_does_not_stop_the_others(rig: Rig) -> None:
    await rig.client.create_space("s", ["a/#"], compact_after_ms=60_000)
    await rig.client.create_space("other", ["b/#"], compact_after_ms=60_000)
    await rig.publish(12)
    await rig.publish(12, "b/c")
    await rig.client.redis.hset(stream_meta(STREAM), "schemas", "{")
    assert await rig.compactor().round() == [Compacted(OTHER, 10, 10)]


async def test_a_host_compacts_while_a_group_consumes(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real host, and a consumer that is in the middle of what is merged."""
    monkeypatch.setattr(compactor, "INTERVAL_SECONDS", 0.05)
    await rig.client.create_space("s", ["a/#"], compact_after_ms=1000)
    await rig.publish(60)
    host = LeaderHost(rig.client.redis, HostConfig(registered=False))
    await host.start()
    got: list[int] = []
    try:
        async with (
            asyncio.timeout(60),
            rig.client.subscribe("$shared/g/a/#", start="earliest", max_batch=7) as reader,
        ):
            async for batch in reader:
                got += [message.offset for message in batch.messages]
                await batch.commit()
                if len(got) >= 300 and await rig.client.redis.xlen(stream_merged(STREAM)) >= 20:
                    break
                await rig.publish(5)
    finally:
        await host.close()
    assert got == list(range(len(got)))


async def test_the_age_is_a_second_at_least_and_part_of_the_definition(rig: Rig) -> None:
    for bad in ("60000", 1500.5, True):
        with pytest.raises(InvalidOption, match=f"after {bad!r} ms: give a second or more"):
            await rig.client.create_space("s", ["a/#"], compact_after_ms=bad)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="999 ms: give a second or more"):
        await rig.client.create_space("s", ["a/#"], compact_after_ms=999)
    await rig.client.create_space("s", ["a/#"], compact_after_ms=1000)
    assert (await rig.client.create_space("s", ["a/#"])).compact_after_ms == 1000
    with pytest.raises(SpaceConflict, match="merges small entries that are older than 1s"):
        await rig.client.create_space("s", ["a/#"], compact_after_ms=2000)
