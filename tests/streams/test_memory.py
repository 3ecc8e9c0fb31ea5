"""Memory of readers: batches are bounded by bytes, whatever the codec made of them."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamlease.agent import blocking
from streamlease.protocol.ids import StreamId
from streamlease.streams.entries.columnar import ENOUGH_BYTES, ENOUGH_ROWS
from streamlease.streams.entries.entries import encode_batch
from streamlease.streams.log.joining import BATCH_BYTES, BATCH_ROWS, gather
from streamlease.streams.log.keys import stream_log, stream_meta
from streamlease.streams.log.segments import read_range
from streamlease.streams.redis.connection import ask, connect_blocking, run_blocking

STREAM = StreamId("s", 0, 0)
MIB = 1024 * 1024


def batch_of(rows: int, size: int) -> pa.RecordBatch:
    """Rows of `size` bytes each, their offsets in column ``n``; all share one buffer with others like it."""
    return pa.record_batch({"n": pa.array(range(rows), pa.int64()), "payload": large(rows, size)})


def large(rows: int, size: int) -> pa.Array:
    if (rows, size) not in _LARGE:
        _LARGE[rows, size] = pa.array([b"x" * size] * rows, pa.binary())
    return _LARGE[rows, size]


_LARGE: dict[tuple[int, int], pa.Array] = {}


@pytest.mark.parametrize("enough", [BATCH_ROWS, ENOUGH_ROWS])
def test_more_than_arrow_can_join_in_few_rows(enough: int) -> None:
    """Above 2 GiB in fewer rows than a batch has: 70 batches of 40 MiB, of 40 rows each."""
    batches = [batch_of(40, MIB) for _ in range(70)]
    seen: list[int] = []
    waiting: list[pa.RecordBatch] = []
    for number, batch in enumerate(batches):
        last = number == len(batches) - 1
        ready, waiting = gather([*waiting, batch], last=last, enough=enough)
        for one in ready:
            assert one.nbytes <= BATCH_BYTES
            seen += one.column("n").to_pylist()
        assert sum(one.nbytes for one in waiting) <= BATCH_BYTES
    assert seen == [*range(40)] * 70
    assert not waiting


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 80), st.sampled_from([0, 10, 30_000, MIB])), max_size=12),
    st.booleans(),
)
@pytest.mark.slow
def test_gathering_keeps_all_rows_in_order_and_within_bounds(
    parts: list[tuple[int, int]], last: bool
) -> None:
    batches = [batch_of(rows, size) for rows, size in parts]
    ready, waiting = gather(batches, last=last, enough=50, enough_bytes=ENOUGH_BYTES)
    rows = [n for one in [*ready, *waiting] for n in one.column("n").to_pylist()]
    assert rows == [n for count, _ in parts for n in range(count)]
    assert all(one.num_rows == 1 or one.nbytes <= BATCH_BYTES for one in ready)
    assert not (last and waiting)
    assert sum(one.nbytes for one in waiting) <= ENOUGH_BYTES


def test_dictionaries_count_as_they_become() -> None:
    topic = "t/" + "x" * 60_000
    names = pa.DictionaryArray.from_arrays(pa.array([0] * 5000, pa.int32()), pa.array([topic]))
    ready, _ = gather([pa.record_batch({"topic": names})], last=True)
    assert sum(one.num_rows for one in ready) == 5000
    assert max(one.num_rows for one in ready) * len(topic) <= BATCH_BYTES


@pytest.fixture
def compressible(embedded_redis_url: str) -> Iterator[str]:
    """A stream of 300 small messages, and behind them 64 entries of 8 MiB that take a few KiB each."""
    with blocking.connect(embedded_redis_url) as client:
        client.create_space("s", ["t/#"], streams=1)
    payloads = pa.array([b"\0" * 8192] * 1024, pa.binary())
    topics = pa.array(["t/a"] * 1024, pa.string())
    encoded = encode_batch(pa.record_batch({"topic": topics, "payload": payloads}), "zstd")
    assert sum(map(len, encoded.fields)) < 100_000
    log, offset = stream_log(STREAM), 300
    with connect_blocking(embedded_redis_url) as redis:
        for n in range(300):
            run_blocking(ask(redis, [("XADD", log, f"{n}-1", "t", "t/a", "p", "x", "a", "1")]))
        for _ in range(64):
            offset += encoded.rows
            id = f"{offset - 1}-{encoded.rows}"
            run_blocking(ask(redis, [("XADD", log, id, *encoded.fields, "a", "1")]))
        run_blocking(ask(redis, [("HSET", stream_meta(STREAM), "next", offset)]))
    yield embedded_redis_url


def test_memory_of_a_reader_is_bounded_whatever_the_codec_made_of_it(compressible: str) -> None:
    most = rows = 0
    pool = pa.default_memory_pool()
    with connect_blocking(compressible) as redis:
        end = 300 + 64 * 1024
        before = pool.bytes_allocated()
        for batch in read_range(redis, STREAM, 0, end, columns=frozenset({"topic", "payload"})):
            rows += batch.num_rows
            most = max(most, pool.bytes_allocated() - before)
            assert batch.nbytes <= BATCH_BYTES
    assert rows == end
    assert most < 64 * MIB
