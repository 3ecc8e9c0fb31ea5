"""A range as a task of Spark reads it: each row once and in order, or an error that says what is missing."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamlease.protocol.errors import HistoryTruncated
from streamlease.protocol.ids import StreamId
from streamlease.streams.log import ranges
from streamlease.streams.log.keys import stream_log, stream_meta, stream_publishers
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.log.ranges import MissingOffsets
from streamlease.streams.log.read_ahead import read_range
from streamlease.streams.log.times import waiting
from streamlease.streams.redis.connection import AsyncRedis, BlockingRedis, ask, run_blocking
from streamlease.streams.spaces.retention import kept
from tests.streams.helpers import append, offsets, rows

STREAM = StreamId("space", 0, 0)


def fill(redis: BlockingRedis, first: int, sizes: Sequence[int]) -> int:
    """A stream that has entries of these sizes left, from offset `first` on; its end."""
    log, meta = stream_log(STREAM), stream_meta(STREAM)
    begin = ("HSET", meta, "next", first, "state", "open", "floor", first, "last_append", 0)
    run_blocking(ask(redis, [("DEL", log, meta, stream_publishers(STREAM)), begin]))
    for sequence, size in enumerate(sizes):
        run_blocking(AsyncLog(redis).append(append(STREAM, sequence, rows(first, size))))
        first += size
    return first


def trim(redis: BlockingRedis, floor: int) -> None:
    run_blocking(
        ask(
            redis,
            [
                ("XTRIM", stream_log(STREAM), "MINID", f"{floor}-0"),
                ("HSET", stream_meta(STREAM), "floor", floor),
            ],
        )
    )


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A question to Redis for every entry or two, so that much can happen in between."""
    monkeypatch.setattr(ranges, "CHUNK_BYTES", 64)
    monkeypatch.setattr(ranges, "FIRST_COUNT", 1)


def read(redis: BlockingRedis, start: int, end: int) -> list[int]:
    return offsets([*read_range(redis, STREAM, start, end)])


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_what_is_trimmed_while_it_is_read_ends_the_reading_and_is_told(
    blocking: BlockingRedis, small_steps: None, data: st.DataObject
) -> None:
    first = data.draw(st.integers(0, 5))
    next = fill(blocking, first, data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=12)))
    start = data.draw(st.integers(first, next - 1))
    end = data.draw(st.integers(start + 1, next))
    assert read(blocking, start, end) == [*range(start, end)]
    floor = data.draw(st.integers(first, next))
    got: list[int] = []
    try:
        for batch in read_range(blocking, STREAM, start, end):
            got += offsets([batch])
            trim(blocking, floor)
    except HistoryTruncated as truncated:
        assert (truncated.asked, truncated.oldest) == (start + len(got), floor)
        assert start + len(got) < floor
    else:
        assert len(got) == end - start
    assert got == [*range(start, start + len(got))]


def test_below_what_is_left_the_floor_is_told(blocking: BlockingRedis) -> None:
    fill(blocking, 8, [5, 7])
    with pytest.raises(HistoryTruncated) as caught:
        read(blocking, 3, 20)
    assert (caught.value.asked, caught.value.oldest) == (3, 8)
    assert run_blocking(AsyncLog(blocking).floors([STREAM])) == {STREAM: 8}


@pytest.mark.parametrize(("start", "end", "told"), [(4, 7, "5 to 5"), (4, 9, "5 to 5"), (6, 9, "7 to 8")])
def test_what_redis_lost_is_told_and_not_passed_over(
    blocking: BlockingRedis, small_steps: None, start: int, end: int, told: str
) -> None:
    fill(blocking, 4, [1, 1, 1])
    run_blocking(ask(blocking, [("XDEL", stream_log(STREAM), "5-1")]))
    with pytest.raises(MissingOffsets, match=f"nothing at offsets {told}"):
        read(blocking, start, end)


async def test_what_waits_is_counted_from_what_is_left(redis: AsyncRedis, blocking: BlockingRedis) -> None:
    fill(blocking, 8, [5, 7])
    seen = await waiting(redis, [(STREAM, offset) for offset in (0, 8, 19, 20)])
    assert {offset: (one.next, one.floor, one.since is not None) for (_, offset), one in seen.items()} == {
        0: (20, 8, True),
        8: (20, 8, True),
        19: (20, 8, True),
        20: (20, 8, False),
    }
    assert seen[STREAM, 0].since == seen[STREAM, 8].since, "that of the first message left"
    held = (await kept(redis, [STREAM]))[STREAM]
    assert (held.state.floor, held.state.next) == (8, 20)
    assert held.bytes_ever == held.state.bytes * 20 // 12, "bytes are of what is left"
