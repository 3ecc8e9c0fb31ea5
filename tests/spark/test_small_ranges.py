"""Small ranges of many streams give together what each gives alone; whatever is unusual is read alone."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator

import pyarrow as pa
import pytest

from streamlease.protocol.errors import HistoryTruncated, SchemaMismatch
from streamlease.protocol.ids import StreamId
from streamlease.spark.reading.small_ranges import Pace, read_small
from streamlease.streams.entries.entries import Row, encode_rows
from streamlease.streams.log import merging
from streamlease.streams.log.appends import Append
from streamlease.streams.log.compacting import Compacted, compact
from streamlease.streams.log.keys import stream_log, stream_meta
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.log.ranges import CHUNK_BYTES, FIRST_COUNT, MOST_COUNT, Taken
from streamlease.streams.log.segments import read_range
from streamlease.streams.log.state import Wanted
from streamlease.streams.redis.connection import BlockingRedis, ask, connect, connect_blocking, run_blocking
from streamlease.streams.rows.together import FEW_ROWS, Shared
from streamlease.streams.spaces.spaces import SpaceStore

STREAMS = 40


def stream(number: int) -> StreamId:
    return StreamId("s", 0, number)


@pytest.fixture
async def redis(embedded_redis_url: str) -> AsyncIterator[BlockingRedis]:
    """A server with a space of streams, which have nothing yet."""
    there = connect(embedded_redis_url)
    await SpaceStore(there).create("s", ["t/#"], streams=STREAMS)
    await there.aclose()
    with connect_blocking(embedded_redis_url) as blocking:
        yield blocking


def fill(redis: BlockingRedis, entries: dict[int, list[int]]) -> None:
    """Append entries of so many messages to streams."""
    log = AsyncLog(redis)
    for number, sizes in entries.items():
        for sequence, size in enumerate(sizes):
            rows = [Row(f"t/{one % 3}", b"%d.%d.%d" % (number, sequence, one), b"k") for one in range(size)]
            run_blocking(log.append(Append(stream(number), "~w", 1, sequence, encode_rows(rows))))


def wanted(number: int, start: int, end: int) -> Wanted:
    return Wanted(stream(number), start, end)


def alone(redis: BlockingRedis, one: Wanted) -> list[pa.RecordBatch]:
    return [*read_range(redis, *one[:3])]


def rows_of(batches: list[pa.RecordBatch]) -> list[dict[str, object]]:
    return [row for batch in batches for row in batch.to_pylist()]


def read(redis: BlockingRedis, ranges: list[Wanted]) -> tuple[list[dict[str, object]], list[int], list[int]]:
    """All rows, those read alone as well; the places that were read together, and those that were not."""
    found: list[dict[str, object]] = []
    shared: list[int] = []
    left: list[int] = []
    for one in read_small(redis, ranges):
        if isinstance(one, Shared):
            one.batch.validate(full=True)
            assert sum(one.lengths.values()) == one.batch.num_rows
            shared += one.lengths
            rows = one.batch.to_pylist()
            first = 0
            for place, length in one.lengths.items():
                mine = {row["stream"] for row in rows[first : first + length]}
                assert mine == {str(ranges[place].stream)}
                first += length
            found += rows
        else:
            left.append(one)
            found += rows_of(alone(redis, ranges[one]))
    assert sorted(shared + left) == [*range(len(ranges))]
    return found, shared, left


def by_stream(rows: list[dict[str, object]]) -> dict[object, list[dict[str, object]]]:
    streams: dict[object, list[dict[str, object]]] = {}
    for row in rows:
        streams.setdefault(row["stream"], []).append(row)
    return streams


@pytest.mark.parametrize(("seed", "least"), [(0, 30), (1, 25), (2, 10), (3, 15)])
async def test_all_messages_of_all_ranges_each_once(redis: BlockingRedis, seed: int, least: int) -> None:
    drawn = random.Random(seed)
    sizes = [[1], [1] * 6, [3, 1, 4], [200], [1] * 100, [300], [5] * 40]
    entries = {number: drawn.choice(sizes[: 3 if seed < 2 else None]) for number in range(STREAMS)}
    fill(redis, entries)
    ranges = []
    for number, some in entries.items():
        whole = sum(some)
        start = drawn.choice([0, 0, 0, whole // 2])
        ranges.append(wanted(number, start, drawn.choice([whole, whole, max(start + 1, whole - 1)])))
    found, shared, _ = read(redis, ranges)
    expected = rows_of([batch for one in ranges for batch in alone(redis, one)])
    assert by_stream(found) == by_stream(expected)
    assert len(shared) >= least, "as many as these have few messages"


async def test_merged_entries_are_read_together_too(
    redis: BlockingRedis, embedded_redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merging, "ENOUGH_ROWS", 10)
    numbers = range(20)
    fill(redis, {number: [1] * 40 for number in numbers})
    there = connect(embedded_redis_url)
    for number in numbers:
        while isinstance(await compact(there, stream(number), 2**60), Compacted):
            pass
    states = await AsyncLog(there).states([stream(number) for number in numbers])
    assert all(state.merged for state in states.values())
    await there.aclose()
    ranges = [wanted(number, 0, states[stream(number)].merged) for number in numbers]
    found, shared, left = read(redis, ranges)
    assert by_stream(found) == by_stream(rows_of([batch for one in ranges for batch in alone(redis, one)]))
    assert left == [0, 1], "only the first round does not know where to look"
    assert shared == [*numbers][2:]


async def test_what_is_unusual_is_read_alone(redis: BlockingRedis) -> None:
    fill(redis, {number: [2, 2] for number in range(8)})
    run_blocking(ask(redis, [("DEL", stream_log(stream(2)))]))
    run_blocking(ask(redis, [("HSET", stream_meta(stream(3)), "floor", 2)]))
    ranges = [wanted(number, 0, 4) for number in range(8)]
    ranges[5] = wanted(5, 0, 9)  # it ends before that
    together: list[int] = []
    left: list[int] = []
    for one in read_small(redis, ranges):
        if isinstance(one, Shared):
            together += one.lengths
        else:
            left.append(one)
    assert (together, left) == ([0, 1, 4, 6, 7], [2, 3, 5])
    for place in left:
        with pytest.raises(HistoryTruncated):
            alone(redis, ranges[place])


async def test_a_damaged_entry_is_told_by_who_reads_it_alone(redis: BlockingRedis) -> None:
    fill(redis, {number: [2] for number in range(6)})
    ((_, fields),) = run_blocking(ask(redis, [("XRANGE", stream_log(stream(3)), "-", "+")]))[0]
    place = fields.index(b"b") + 1
    fields[place] = fields[place][:-7]
    run_blocking(
        ask(redis, [("DEL", stream_log(stream(3))), ("XADD", stream_log(stream(3)), "1-2", *fields)])
    )
    ranges = [wanted(number, 0, 2) for number in range(6)]
    left = [one for one in read_small(redis, ranges) if not isinstance(one, Shared)]
    assert 3 in left
    with pytest.raises(SchemaMismatch):
        alone(redis, ranges[3])


def test_without_a_server_each_is_read_alone() -> None:
    with connect_blocking("redis://127.0.0.1:1") as nobody:
        assert [*read_small(nobody, [wanted(number, 0, 2) for number in range(5)])] == [0, 1, 2, 3, 4]


def came(entries: int, rows: int, size: int) -> Taken:
    """A step that brought so much."""
    return Taken([(b"", [])] * entries, 0, rows, None, [size // entries] * entries)


def test_few_entries_are_asked_for_until_their_size_is_known() -> None:
    pace = Pace()
    ones = [wanted(number, 0, 1) for number in range(500)]
    assert pace.counts(ones, 0) == [1] * FIRST_COUNT
    pace.saw([came(8, 8, 800)])
    assert sum(pace.counts(ones, 8)) == MOST_COUNT
    pace.saw([came(MOST_COUNT, MOST_COUNT, 4 * CHUNK_BYTES)])
    assert sum(pace.counts(ones, 136)) <= MOST_COUNT // 4
    pace.saw([came(8, 8, 16 * CHUNK_BYTES)])
    assert sum(pace.counts(ones, 168)) <= 1, "one of them is enough, as for any reader"


def test_it_is_asked_for_as_many_entries_as_others_had() -> None:
    pace = Pace()
    ranges = [wanted(number, 0, 100) for number in range(100)]
    assert pace.counts(ranges, 0) == [4, 4]
    pace.saw([came(2, 200, 1000)])
    assert pace.counts(ranges, 2) == [2] * 64, "the first entry of a range may begin before it"
    pace.saw([came(128, 128, 1000)])
    assert pace.counts(ranges, 66) == [100], (
        "each message is an entry, and 28 more are not enough for the next"
    )


def test_much_is_read_alone_and_neighbours_want_the_same_columns() -> None:
    pace = Pace()
    pace.saw([came(1, 500, 1000)])
    large = wanted(0, 0, FEW_ROWS + 1)
    assert pace.counts([large, wanted(1, 0, 1)], 0) == []
    assert pace.counts([wanted(1, 0, 1), large, wanted(2, 0, 1)], 0) == [1]
    assert pace.counts([wanted(1, 3, 3), wanted(2, 0, 1)], 0) == [], "nothing is wanted of it"
