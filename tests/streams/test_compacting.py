"""Compaction on servers: one entry in the place of many, and nobody who reads sees a difference."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from unittest.mock import ANY

import pyarrow as pa
import pytest

from streamlease.protocol.errors import HistoryTruncated
from streamlease.protocol.ids import StreamId
from streamlease.streams.entries.entries import Row
from streamlease.streams.log import compacting, merging
from streamlease.streams.log.compacting import (
    Compacted,
    FirstRun,
    compact,
    first_run,
    replace,
    small_entries,
)
from streamlease.streams.log.keys import stream_log, stream_merged, stream_meta
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.log.many import read_all
from streamlease.streams.log.merging import merged
from streamlease.streams.log.ranges import RangeReader
from streamlease.streams.log.segments import read_range
from streamlease.streams.log.state import MissingOffsets
from streamlease.streams.log.times import EPOCH, MICROSECOND, append_times, first_after, waiting
from streamlease.streams.redis.connection import AsyncRedis, BlockingRedis, ask
from streamlease.streams.spaces.retention import Retention, Trim, trim
from tests.streams.helpers import append, offsets, payloads, rows

STREAM = StreamId("space", 0, 0)
EVER = 2**60
"""A moment that has not come."""


@pytest.fixture(autouse=True)
def few_messages_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run is whole with ten messages, so that a short log has several."""
    monkeypatch.setattr(merging, "ENOUGH_ROWS", 10)
    monkeypatch.setattr(compacting, "LEAST_ENTRIES", 4)


async def fill(log: AsyncLog, sizes: Sequence[int], first: int = 0) -> list[tuple[int, int]]:
    """Entries of these sizes; offset and append time of each message."""
    found: list[tuple[int, int]] = []
    for sequence, size in enumerate(sizes):
        done = await log.append(append(STREAM, first + sequence, rows(first + len(found), size)))
        found += [(done.first + row, done.append_time) for row in range(size)]
    return found


async def compacted(redis: AsyncRedis) -> list[Compacted]:
    """All that can be merged now."""
    done: list[Compacted] = []
    while isinstance(one := await compact(redis, STREAM, EVER), Compacted):
        done.append(one)
    return done


def read(redis: BlockingRedis, start: int, end: int) -> list[pa.RecordBatch]:
    return [*read_range(redis, STREAM, start, end)]


def times(batches: Sequence[pa.RecordBatch]) -> list[int]:
    return [at for batch in batches for at in batch.column("append_timestamp").cast(pa.int64()).to_pylist()]


async def ids(redis: AsyncRedis, key: str) -> list[str]:
    return [id.decode() for id, _ in await redis.xrange(key)]


@pytest.mark.slow
async def test_single_messages_become_entries_of_many(
    redis: AsyncRedis, blocking: BlockingRedis, log: AsyncLog, stream: StreamId
) -> None:
    appended = await fill(log, [1] * 25)
    assert await small_entries(redis, [stream]) == {stream: 25}
    assert await compacted(redis) == [Compacted(stream, 10, 10)] * 2
    assert await ids(redis, stream_merged(stream)) == ["9-10", "19-10"]
    assert await ids(redis, stream_log(stream)) == [f"{n}-1" for n in range(20, 25)]
    for start in range(25):
        for end in range(start + 1, 26):
            batches = read(blocking, start, end)
            assert offsets(batches) == list(range(start, end))
            assert payloads(batches) == [b"message %d" % n for n in range(start, end)]
            assert times(batches) == [at for _, at in appended[start:end]]
    assert offsets(await log.read(stream, 3)) == list(range(3, 25))


async def test_a_stream_of_large_entries_is_left_alone(
    redis: AsyncRedis, log: AsyncLog, stream: StreamId, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compacting, "SMALL_ROWS", 5)
    await fill(log, [6] * 8)
    assert await small_entries(redis, [stream, StreamId("none", 0, 0)]) == {}


async def test_young_entries_stay_in_the_log(redis: AsyncRedis, log: AsyncLog, stream: StreamId) -> None:
    appended = await fill(log, [1] * 30)
    waits = await compact(redis, stream, appended[9][1])
    assert isinstance(waits, FirstRun) and waits.run is None and waits.end == 10
    assert await compact(redis, stream, appended[10][1]) == Compacted(stream, 10, 10)
    assert isinstance(await compact(redis, stream, appended[10][1]), FirstRun)


async def test_a_large_entry_between_small_ones_is_moved_as_it_is(
    redis: AsyncRedis, blocking: BlockingRedis, log: AsyncLog, stream: StreamId
) -> None:
    await fill(log, [1, 1, 1, 12, 1, 4, 6])
    assert await compacted(redis) == [Compacted(stream, n, m) for n, m in ((3, 3), (1, 12), (3, 11))]
    assert await ids(redis, stream_merged(stream)) == ["2-3", "14-12", "25-11"]
    assert offsets(read(blocking, 0, 26)) == list(range(26))


async def test_messages_keep_all_that_they_say(
    redis: AsyncRedis, blocking: BlockingRedis, log: AsyncLog, stream: StreamId
) -> None:
    given = [
        Row("a", b"", None, None, None),
        Row("b", b"\0x", b"", (("n", b"\xff"), ("n", b"")), 7),
        Row("c", b"y" * 500, b"k", None, -5),
        Row("a", b"z", None, (("m", b"1"),), 2**50),
    ] * 5
    for sequence, row in enumerate(given):
        await log.append(append(stream, sequence, [row]))
    before = pa.Table.from_batches(read(blocking, 0, 20))
    assert len(await compacted(redis)) == 2
    assert pa.Table.from_batches(read(blocking, 0, 20)).equals(before)


async def test_a_run_that_is_not_there_any_more_is_not_replaced(
    redis: AsyncRedis, blocking: BlockingRedis, log: AsyncLog, stream: StreamId
) -> None:
    await fill(log, [1] * 30)
    found = await first_run(redis, stream, EVER)
    assert found.run is not None
    run, fields = merged(stream, found.run, None)
    assert await replace(redis, stream, run, "another mark", fields) is None
    await trim(redis, Trim(stream, Retention(messages=28), 30))
    assert await replace(redis, stream, run, found.mark, fields) is None, "it was trimmed"
    again = await first_run(redis, stream, EVER)
    assert again.run is not None
    run, fields = merged(stream, again.run, None)
    assert await replace(redis, stream, run, again.mark, fields) == Compacted(stream, 10, 10)
    assert await replace(redis, stream, run, again.mark, fields) is None, "its repetition does nothing"
    assert offsets(read(blocking, 2, 30)) == list(range(2, 30))
    await redis.delete(stream_meta(stream))
    assert await replace(redis, stream, run, again.mark, fields) is None, "the stream is gone"
    assert await first_run(redis, stream, EVER) == again._replace(run=None, end=0, mark=ANY)


class _Failover:
    """A replica that has half of a run takes the place of its master, before the read number `at`.

    The offsets that it lost are given out again, at the very same times, and the last message is the same.
    """

    def __init__(self, redis: AsyncRedis, at: int) -> None:
        self._redis, self._at, self._reads, self._read = redis, at, 0, compacting._READ
        self.replica: dict[bytes, bytes] = {}
        self.lost: list[tuple[int, int]] = []

    async def run(self, *args: Any) -> Any:
        self._reads += 1
        if self._reads == self._at:
            await self.happens()
        return await self._read.run(*args)

    async def happens(self) -> None:
        await self._redis.flushall()
        for key, value in self.replica.items():
            await self._redis.restore(key, 0, value)
        for offset, at in self.lost:
            payload = b"reissued" if offset < 9 else b"message 9"
            fields = {"a": at, "t": "flights/JFK", "p": payload}
            await self._redis.xadd(stream_log(STREAM), fields, id=f"{offset}-1")
        await self._redis.hset(stream_meta(STREAM), "next", 10)


@pytest.mark.parametrize("at", [1, 2, 3, 4])
async def test_what_was_read_before_a_failover_that_lost_writes_is_not_written(
    redis: AsyncRedis, log: AsyncLog, stream: StreamId, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """Before the first page, between two, or behind all three of them."""
    monkeypatch.setattr(compacting, "FIRST_COUNT", 4)
    monkeypatch.setattr(compacting, "MOST_COUNT", 4)
    failover = _Failover(redis, at)
    await fill(log, [1] * 5)
    failover.replica = {key: await redis.dump(key) for key in await redis.keys()}
    failover.lost = await fill(log, [1] * 5, first=5)
    monkeypatch.setattr(compacting, "_READ", failover)
    found = await first_run(redis, stream, EVER)
    assert (found.run is None) is (at in (2, 3))
    if found.run is not None:
        if at == 4:
            await failover.happens()
        run, fields = merged(stream, found.run, None)
        assert (await replace(redis, stream, run, found.mark, fields) is None) is (at == 4)
    batches = await log.read(stream, 0)
    assert payloads(batches)[5:] == [b"reissued"] * 4 + [b"message 9"]


async def test_two_that_compact_one_stream_do_it_once(
    redis: AsyncRedis, blocking: BlockingRedis, log: AsyncLog, stream: StreamId
) -> None:
    await fill(log, [1] * 200)
    done = await asyncio.gather(*(compacted(redis) for _ in range(4)))
    done.append(await compacted(redis))
    assert sum(one.messages for some in done for one in some) == 200
    assert offsets(read(blocking, 0, 200)) == list(range(200))
    assert await ids(redis, stream_merged(stream)) == [f"{n}-10" for n in range(9, 200, 10)]


class _Between:
    """A client that lets something happen between the meta and the entries of one step."""

    def __init__(self, reader: RangeReader, redis: AsyncRedis) -> None:
        self.reader, self.redis = reader, redis

    async def step(self, happens: bool) -> list[pa.RecordBatch]:
        meta, entries = self.reader.commands
        first = await self.redis.execute_command(*meta)
        if happens:
            await compact(self.redis, STREAM, EVER)
        return self.reader.feed([first, [[*one] for one in await _flat(self.redis, entries)]])


async def _flat(redis: AsyncRedis, command: Sequence[object]) -> list[list[object]]:
    (reply,) = await ask(redis, [tuple(command)])  # type: ignore[list-item]
    return reply


@pytest.mark.parametrize("count", [1, 3, 8, 100])
@pytest.mark.slow
async def test_a_reader_in_the_middle_of_what_is_merged_goes_on(
    redis: AsyncRedis, log: AsyncLog, stream: StreamId, count: int
) -> None:
    """At each step, between its two answers, the entries that it is about to get are merged."""
    for happens_at in range(12):
        await redis.flushall()
        await log.open([stream])
        await fill(log, [1] * 37)
        reader = RangeReader(stream, 4, count=count)
        between, found, steps = _Between(reader, redis), [], 0
        while not reader.done:
            found += await between.step(happens=steps >= happens_at)
            steps += 1
        assert offsets(found) == list(range(4, 37))
        assert payloads(found) == [b"message %d" % n for n in range(4, 37)]


async def test_who_goes_on_behind_a_reader_of_merged_entries_asks_for_them_at_once(
    redis: AsyncRedis, log: AsyncLog, stream: StreamId
) -> None:
    await fill(log, [1] * 40)
    await compacted(redis)
    first = RangeReader(stream, 0, enough=10)
    await read_all(redis, [first])
    assert (first.position, first.in_merged) == (10, True)
    second = RangeReader(stream, first.position, enough=10, merged=first.in_merged)
    assert offsets(
        second.feed(
            [(await redis.execute_command(*second.commands[0])), await _flat(redis, second.commands[1])]
        )
    ) == list(range(10, 20))


async def test_what_is_missing_is_told_in_merged_entries_and_in_the_log(
    redis: AsyncRedis, blocking: BlockingRedis, log: AsyncLog, stream: StreamId
) -> None:
    await fill(log, [1] * 35)
    await redis.xdel(stream_log(stream), "12-1", "33-1")
    assert [one.messages for one in await compacted(redis)] == [10, 2, 10, 10]
    for start, hole, goes_on in ((0, 12, 13), (12, 12, 13), (13, 33, 34)):
        with pytest.raises(MissingOffsets) as lost:
            read(blocking, start, 35)
        assert (lost.value.asked, lost.value.oldest) == (hole, goes_on)
    await redis.delete(stream_merged(stream))
    with pytest.raises(MissingOffsets) as lost:
        read(blocking, 0, 35)
    assert (lost.value.asked, lost.value.oldest) == (0, 33)


async def test_moments_are_found_inside_of_merged_entries(
    redis: AsyncRedis, log: AsyncLog, stream: StreamId
) -> None:
    appended = await fill(log, [1] * 33)
    await compacted(redis)
    for offset, at in appended:
        for moment, expected in ((at - 1, offset), (at, offset + 1)):
            assert await log.since(stream, EPOCH + timedelta(microseconds=moment)) == expected
    assert [(await append_times(redis, {stream: offset}))[stream] for offset, _ in appended] == [
        at for _, at in appended
    ]
    seen = await waiting(redis, [(stream, 0), (stream, 33)])
    assert [(one.next, one.since) for one in seen.values()] == [(33, appended[0][1]), (33, None)]


async def test_a_moment_is_found_while_entries_are_merged(
    redis: AsyncRedis, log: AsyncLog, stream: StreamId
) -> None:
    appended = await fill(log, [1] * 64)
    for offset, at in appended[::7]:
        steps = first_after({stream: at})
        commands = next(steps)
        try:
            while True:
                replies = []
                for command in commands:
                    replies.append(await _flat(redis, command))
                await compact(redis, stream, EVER)
                commands = steps.send(replies)
        except StopIteration as found:
            assert found.value == {stream: offset + 1}


async def test_retention_removes_merged_entries_first(
    redis: AsyncRedis, blocking: BlockingRedis, log: AsyncLog, stream: StreamId
) -> None:
    appended = await fill(log, [1] * 35)
    await compacted(redis)
    done = await trim(redis, Trim(stream, Retention(messages=20), 35))
    assert (done.floor, done.entries, done.messages) == (10, 1, 10), "an entry goes whole"
    assert await ids(redis, stream_merged(stream)) == ["19-10", "29-10"]
    with pytest.raises(HistoryTruncated) as gone:
        read(blocking, 9, 35)
    assert (gone.value.asked, gone.value.oldest) == (9, 10)
    with pytest.raises(HistoryTruncated):
        await log.since(stream, EPOCH + (appended[9][1] - 1) * MICROSECOND)
    assert await log.since(stream, EPOCH + appended[9][1] * MICROSECOND) == 10
    done = await trim(redis, Trim(stream, Retention(messages=3), 33))
    assert (done.floor, done.messages) == (32, 22)
    assert (await ids(redis, stream_merged(stream)), await ids(redis, stream_log(stream))) == (
        [],
        ["32-1", "33-1", "34-1"],
    )
    await fill(log, [1] * 10, first=35)
    assert await compacted(redis) == [Compacted(stream, 10, 10)]
    assert offsets(read(blocking, 32, 45)) == list(range(32, 45))


async def test_the_bytes_of_a_stream_are_those_of_its_entries(
    redis: AsyncRedis, log: AsyncLog, stream: StreamId
) -> None:
    await fill(log, [1] * 35)
    await compacted(redis)
    stored = 0
    for key in (stream_log(stream), stream_merged(stream)):
        stored += sum(len(n) + len(v) for _, fields in await redis.xrange(key) for n, v in fields.items())
    assert (await log.states([stream]))[stream].bytes == stored
    assert (await log.states([stream]))[stream].merged == 30
