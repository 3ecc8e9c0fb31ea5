"""What came right after an offset or a moment, and never silently less."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta, timezone

import pytest

from streamlease.protocol.errors import HistoryTruncated, InvalidInput, SchemaMismatch, UnknownSpace
from streamlease.protocol.ids import StreamId
from streamlease.streams.log.keys import stream_log, stream_meta
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.log.times import (
    EPOCH,
    MICROSECOND,
    first_after,
    microseconds,
    offsets_after,
)
from streamlease.streams.redis.connection import AsyncRedis, BlockingRedis, run_blocking
from streamlease.streams.spaces.retention import Retention, Trim, trim
from tests.streams.helpers import append, offsets, rows


def moment(microseconds: int) -> datetime:
    return EPOCH + microseconds * MICROSECOND


async def fill(log: AsyncLog, stream: StreamId, sizes: list[int]) -> list[tuple[int, int]]:
    """Entries of these sizes; (append time, offset behind it) of each."""
    placed, first = [], 0
    for sequence, size in enumerate(sizes):
        result = await log.append(append(stream, sequence, rows(first, size)))
        first += size
        placed.append((result.append_time, first))
    return placed


async def test_after_a_moment_comes_the_first_message_that_is_later(
    log: AsyncLog, blocking: BlockingRedis, stream: StreamId
) -> None:
    placed = await fill(log, stream, [1, 5, 1, 1, 30, 2, 1])
    assert len({at for at, _ in placed}) == 7, "each entry has a time of its own"
    behind = 0
    for at, end in placed:
        assert await log.since(stream, moment(at - 1)) == behind
        assert await log.since(stream, moment(at)) == end
        assert run_blocking(AsyncLog(blocking).since(stream, moment(at))) == end
        behind = end
    assert await log.since(stream, EPOCH) == 0
    assert await log.since(stream, datetime(2100, 1, 1, tzinfo=UTC)) == 41


@pytest.mark.slow
async def test_messages_of_one_millisecond_are_told_apart(
    redis: AsyncRedis, log: AsyncLog, stream: StreamId
) -> None:
    """The clock stands still: append times rise all the same, by a microsecond."""
    now = (microseconds(datetime.now(UTC)) // 1000 + 3_600_000) * 1000
    await redis.hset(stream_meta(stream), "last_append", now)
    placed = await fill(log, stream, [1] * 50)
    assert [at for at, _ in placed] == list(range(now + 1, now + 51))
    for at, end in placed:
        assert await log.since(stream, moment(at)) == end
        assert offsets(await log.read(stream, await log.since(stream, moment(at)))) == list(range(end, 50))


async def test_after_an_offset_comes_the_next_one(
    log: AsyncLog, blocking: BlockingRedis, stream: StreamId
) -> None:
    await fill(log, stream, [3, 3])
    assert [await log.since(stream, offset) for offset in (-1, 0, 4, 5)] == [0, 1, 5, 6]
    assert run_blocking(AsyncLog(blocking).since(stream, 4)) == 5
    for offset in (6, 100, -2):
        with pytest.raises(InvalidInput, match=f"never had offset {offset}, its next one is 6"):
            await log.since(stream, offset)


async def test_what_retention_passed_is_said_exactly(
    redis: AsyncRedis, log: AsyncLog, stream: StreamId
) -> None:
    placed = await fill(log, stream, [2, 2, 2, 2])
    await trim(redis, Trim(stream, Retention(messages=4), 8))
    (_, (newest_gone, _), (kept_at, _), _) = placed
    for at in (0, placed[0][0], newest_gone - 1):
        with pytest.raises(HistoryTruncated, match="no longer has all messages since") as error:
            await log.since(stream, moment(at))
        assert (error.value.oldest, error.value.asked) == (4, moment(at))
        assert pickle.loads(pickle.dumps(error.value)).args == error.value.args
    assert await log.since(stream, moment(newest_gone)) == 4, "all after it is there"
    assert await log.since(stream, moment(kept_at)) == 6
    with pytest.raises(HistoryTruncated) as truncated:
        await log.since(stream, 2)
    assert (truncated.value.asked, truncated.value.oldest) == (3, 4)
    assert await log.since(stream, 3) == 4


async def test_a_trim_in_the_middle_of_a_search_is_seen(
    redis: AsyncRedis, log: AsyncLog, stream: StreamId
) -> None:
    placed = await fill(log, stream, [1] * 9)
    steps = first_after({stream: placed[1][0]})
    commands = next(steps)
    with pytest.raises(HistoryTruncated) as error:
        for turn in range(20):
            replies = [await redis.execute_command(*command) for command in commands]
            if turn == 1:
                await trim(redis, Trim(stream, Retention(messages=4), 9))
            commands = steps.send(_flat(replies))
    assert error.value.oldest == 5


def _flat(replies: list[object]) -> list[object]:
    """redis-py hands XRANGE out with dictionaries; the exchange of this project does not."""
    flat: list[object] = []
    for reply in replies:
        if isinstance(reply, list) and reply and isinstance(reply[0], tuple):
            flat.append([[id, [part for pair in fields.items() for part in pair]] for id, fields in reply])
        else:
            flat.append(reply)
    return flat


async def test_many_streams_are_searched_in_step(redis: AsyncRedis, log: AsyncLog, stream: StreamId) -> None:
    other = StreamId("space", 0, 1)
    await log.open([other])
    mine, theirs = await fill(log, stream, [1] * 20), await fill(log, other, [4] * 3)
    found = await offsets_after(redis, {stream: mine[7][0], other: theirs[1][0]})
    assert found == {stream: 8, other: 8}
    assert await offsets_after(redis, {}) == {}


async def test_bad_questions_have_an_answer(redis: AsyncRedis, log: AsyncLog, stream: StreamId) -> None:
    for point in (0, EPOCH):
        with pytest.raises(UnknownSpace, match=r"no stream gone\.0\.0"):
            await log.since(StreamId("gone", 0, 0), point)
    with pytest.raises(InvalidInput, match="has no zone"):
        await log.since(stream, datetime(2026, 1, 1))
    await redis.xadd(stream_log(stream), {"p": "x"}, id="0-1")
    await redis.hset(stream_meta(stream), "next", 1)
    with pytest.raises(SchemaMismatch, match=r"entry 0-1 of stream space\.0\.0 has no append time"):
        await log.since(stream, EPOCH)


def test_moments_are_exact_in_any_zone() -> None:
    here = datetime(2026, 2, 28, 23, 59, 59, 999_999, tzinfo=timezone(timedelta(hours=-7)))
    assert microseconds(here) == microseconds(here.astimezone(UTC))
    assert moment(microseconds(here)) == here
