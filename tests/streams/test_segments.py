"""One history over several segments: two servers of Redis, and a file of Arrow batches."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamlease.protocol.errors import HistoryTruncated, StreamleaseError
from streamlease.protocol.ids import StreamId
from streamlease.streams.log import ranges
from streamlease.streams.log.keys import stream_log, stream_meta, stream_publishers
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.log.many import read_all
from streamlease.streams.log.ranges import RangeReader
from streamlease.streams.log.segments import Batches, History, RedisSegment, Segment, read_range
from streamlease.streams.log.state import MissingOffsets, Wanted
from streamlease.streams.log.times import waiting
from streamlease.streams.redis.connection import (
    AsyncRedis,
    BlockingRedis,
    ask,
    connect_blocking,
    run_blocking,
)
from streamlease.streams.spaces.retention import kept
from tests.conftest import MakeServer
from tests.streams.helpers import append, offsets, payloads, rows

STREAM = StreamId("space", 0, 0)


class FileSegment:
    """Messages of streams as Arrow batches in a file for each, as an archive has them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.asked: list[Wanted] = []

    def write(self, stream: StreamId, batches: Sequence[pa.RecordBatch]) -> None:
        with pa.ipc.new_file(self._folder / f"{stream}.arrow", batches[0].schema) as file:
            for batch in batches:
                file.write_batch(batch)

    def read(self, wanted: Wanted, /) -> Batches:
        self.asked.append(wanted)
        path, position = self._folder / f"{wanted.stream}.arrow", wanted.start
        if not path.exists():
            raise HistoryTruncated(str(wanted.stream), position, wanted.end)
        with pa.ipc.open_file(path) as file:
            for batch in map(file.get_batch, range(file.num_record_batches)):
                begin = batch.column("offset")[0].as_py()
                if position == wanted.end:
                    return
                if begin > position:
                    gone = HistoryTruncated if position == wanted.start else MissingOffsets
                    raise gone(str(wanted.stream), position, min(begin, wanted.end))
                part = batch.slice(position - begin, max(0, wanted.end - position))
                if part.num_rows:
                    position += part.num_rows
                    yield part


def fill(redis: BlockingRedis, first: int, sizes: Sequence[int], stream: StreamId = STREAM) -> int:
    """A stream of which a server has entries of these sizes, from offset `first` on; its end."""
    log, meta = stream_log(stream), stream_meta(stream)
    run_blocking(ask(redis, [("DEL", log, meta, stream_publishers(stream))]))
    run_blocking(
        ask(redis, [("HSET", meta, "next", first, "state", "open", "floor", first, "last_append", 0)])
    )
    for sequence, size in enumerate(sizes):
        run_blocking(AsyncLog(redis).append(append(stream, sequence, rows(first, size))))
        first += size
    return first


def trim(redis: BlockingRedis, floor: int, stream: StreamId = STREAM) -> None:
    run_blocking(ask(redis, [("XTRIM", stream_log(stream), "MINID", f"{floor}-0")]))
    run_blocking(ask(redis, [("HSET", stream_meta(stream), "floor", floor)]))


@pytest.fixture
def archive(tmp_path: Path, blocking: BlockingRedis) -> FileSegment:
    """Offsets 3 to 12 of the stream in a file; 8 to 19 are in memory."""
    file = FileSegment(tmp_path)
    fill(blocking, 0, [20])
    whole = [*read_range(blocking, STREAM, 3, 13)]
    file.write(STREAM, [whole[0].slice(0, 4), whole[0].slice(4)])
    fill(blocking, 8, [2, 1, 4, 5])
    run_blocking(ask(blocking, [("HSET", stream_meta(STREAM), "exists", 3)]))
    return file


@pytest.mark.slow
def test_a_range_over_the_seam_has_each_row_once_and_in_order(
    blocking: BlockingRedis, archive: FileSegment
) -> None:

    for start, end in itertools.combinations(range(3, 21), 2):
        batches = [*read_range(blocking, STREAM, start, end, older=[archive])]
        assert offsets(batches) == list(range(start, end))
        assert payloads(batches) == [b"message %d" % n for n in range(start, end)]
    assert all(one.end <= 8 for one in archive.asked), "memory is read from memory"


def test_below_what_exists_the_oldest_floor_is_told(blocking: BlockingRedis, archive: FileSegment) -> None:
    with pytest.raises(HistoryTruncated) as caught:
        [*read_range(blocking, STREAM, 2, 20, older=[archive])]
    assert (caught.value.asked, caught.value.oldest) == (2, 3)
    with pytest.raises(HistoryTruncated) as caught:
        [*read_range(blocking, STREAM, 3, 20)]
    assert (caught.value.asked, caught.value.oldest) == (3, 8)
    with pytest.raises(HistoryTruncated) as caught:
        [*read_range(blocking, STREAM, 1, 2)]
    assert (caught.value.asked, caught.value.oldest) == (1, 3), "not the end of what was asked for"
    run_blocking(ask(blocking, [("HDEL", stream_meta(STREAM), "exists")]))
    with pytest.raises(HistoryTruncated) as caught:
        [*read_range(blocking, STREAM, 3, 5)]
    assert (caught.value.asked, caught.value.oldest) == (3, 8)
    run_blocking(ask(blocking, [("HSET", stream_meta(STREAM), "exists", 3)]))
    assert run_blocking(AsyncLog(blocking).floors([STREAM])) == {STREAM: 3}


async def test_programs_read_over_the_seam_within_their_limits(
    redis: AsyncRedis, archive: FileSegment
) -> None:
    log = AsyncLog(redis, [archive])
    assert offsets(await log.read(STREAM, 3)) == list(range(3, 20))
    assert offsets(await log.read(STREAM, 5, 11)) == list(range(5, 11))
    assert offsets(await log.read(STREAM, 4, enough=3)) == [4, 5, 6], "one batch of the file"
    assert offsets(await log.read(STREAM, 4, enough=8)) == list(range(4, 15)), "up to the end of an entry"
    assert offsets(await log.read(STREAM, 4, max_bytes=1)) == [4, 5, 6], "one batch of the file"
    with pytest.raises(HistoryTruncated) as caught:
        await log.read(STREAM, 2)
    assert (caught.value.asked, caught.value.oldest) == (2, 3)


async def test_one_streams_seam_is_not_anothers(
    redis: AsyncRedis, blocking: BlockingRedis, archive: FileSegment
) -> None:
    other, third = StreamId("space", 0, 1), StreamId("space", 0, 2)
    fill(blocking, 8, [4], other)
    fill(blocking, 0, [2], third)
    readers = [RangeReader(one, 3 if one != third else 0) for one in (STREAM, other, third)]
    joined, gone, plain = await read_all(redis, readers, [archive])
    assert isinstance(joined, list)
    assert offsets(joined) == list(range(3, 20))
    assert isinstance(gone, HistoryTruncated)
    assert gone.oldest == 8, "the file has nothing of it: what is in memory is the oldest"
    assert isinstance(plain, list)
    assert offsets(plain) == [0, 1]


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_two_servers_are_one_history(
    embedded_pair: tuple[BlockingRedis, BlockingRedis], data: st.DataObject
) -> None:
    """Entries of any size on both, cut anywhere, trimmed while they are read."""
    new, old = embedded_pair
    entries = st.lists(st.integers(1, 9), min_size=1, max_size=12)
    first = data.draw(st.integers(0, 5))
    until = fill(old, first, data.draw(entries))
    memory = data.draw(st.integers(first, until))
    next = fill(new, memory, data.draw(entries))
    history = History([RedisSegment(new), RedisSegment(old)])
    start = data.draw(st.integers(first, next - 1))
    end = data.draw(st.integers(start + 1, next))
    assert _read(history, start, end) == list(range(start, end))
    got: list[int] = []
    trim_at = data.draw(st.integers(memory, max(memory, until)))
    with closing(history.read(Wanted(STREAM, start, end))) as batches:
        for batch in batches:
            got += offsets([batch])
            trim(new, trim_at)
    assert got == list(range(start, end))
    if start < trim_at:
        assert _read(history, start, end) == list(range(start, end)), "what is trimmed is read from the other"


def _read(segment: Segment, start: int, end: int) -> list[int]:
    return offsets([*segment.read(Wanted(STREAM, start, end))])


@pytest.fixture
def embedded_pair(
    make_redis_server: MakeServer, monkeypatch: pytest.MonkeyPatch
) -> tuple[BlockingRedis, ...]:
    monkeypatch.setattr(ranges, "CHUNK_BYTES", 64)
    monkeypatch.setattr(ranges, "FIRST_COUNT", 1)
    return tuple(connect_blocking(make_redis_server().url) for _ in range(2))


def test_a_hole_between_segments_is_told_and_not_passed_over(
    embedded_pair: tuple[BlockingRedis, BlockingRedis],
) -> None:
    new, old = embedded_pair
    fill(old, 2, [3])
    fill(new, 7, [3])
    with pytest.raises(MissingOffsets, match="nothing at offsets 5 to 6"):
        _read(History([RedisSegment(new), RedisSegment(old)]), 2, 10)


def test_what_a_server_lost_is_told_whatever_an_older_segment_has(
    embedded_pair: tuple[BlockingRedis, BlockingRedis],
) -> None:
    new, old = embedded_pair
    fill(old, 0, [9])
    fill(new, 4, [1, 1, 1])
    run_blocking(ask(new, [("XDEL", stream_log(STREAM), "5-1")]))
    with pytest.raises(MissingOffsets, match="nothing at offsets 5 to 5"):
        _read(History([RedisSegment(new), RedisSegment(old)]), 0, 7)


class Failing:
    """A source that cannot be reached."""

    def read(self, wanted: Wanted, /) -> Batches:
        raise StreamleaseError(f"no way to {wanted.stream}")
        yield


async def test_a_source_that_fails_is_that_streams_error(redis: AsyncRedis, archive: FileSegment) -> None:
    with pytest.raises(StreamleaseError, match=r"no way to space\.0\.0"):
        await AsyncLog(redis, [Failing()]).read(STREAM, 3)
    assert offsets(await AsyncLog(redis, [Failing()]).read(STREAM, 8)) == list(range(8, 20))


def test_a_segment_that_ends_early_is_a_hole(blocking: BlockingRedis, archive: FileSegment) -> None:
    class Short:
        def read(self, wanted: Wanted, /) -> Batches:
            yield from archive.read(wanted._replace(end=wanted.end - 1))

    with pytest.raises(MissingOffsets, match="nothing at offsets 7 to 7"):
        [*read_range(blocking, STREAM, 3, 20, older=[Short()])]


async def test_what_waits_is_counted_from_what_exists_and_its_age_known_of_what_is_in_memory(
    redis: AsyncRedis, archive: FileSegment
) -> None:
    seen = await waiting(redis, [(STREAM, offset) for offset in (0, 5, 8, 20)])
    assert {offset: (one.next, one.floor, one.since is not None) for (_, offset), one in seen.items()} == {
        0: (20, 3, False),
        5: (20, 3, False),
        8: (20, 3, True),
        20: (20, 3, False),
    }
    held = (await kept(redis, [STREAM]))[STREAM]
    assert (held.state.floor, held.state.memory) == (3, (8, 20))
    assert held.bytes_ever == held.state.bytes * 20 // 12, "bytes are of what is in memory"


async def test_without_another_source_an_age_is_that_of_the_first_message_left(
    redis: AsyncRedis, blocking: BlockingRedis
) -> None:
    fill(blocking, 0, [2, 2])
    trim(blocking, 2)
    seen = await waiting(redis, [(STREAM, 0), (STREAM, 2)])
    assert [(one.next, one.floor) for one in seen.values()] == [(4, 2), (4, 2)]
    assert seen[STREAM, 0].since == seen[STREAM, 2].since is not None
