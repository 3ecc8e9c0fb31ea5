"""The batch reader without Java: ranges, partitions, filters, typed columns, and what is refused."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)
from pyspark.sql.types import LongType, StructField, StructType

from streamlease.agent import blocking
from streamlease.agent.client import Client
from streamlease.protocol.errors import HistoryTruncated, SchemaMismatch, StreamleaseError
from streamlease.protocol.ids import StreamId
from streamlease.protocol.offsets import OffsetRange
from streamlease.spark.batch import BatchReader, PushingReader, batch_reader, divide
from streamlease.spark.options import SourceOptions
from streamlease.spark.schema import readable, stream_columns
from streamlease.streams.connection import ask_blocking, connect_blocking
from streamlease.streams.spaces import SpaceStore
from tests.spark.refusals import one_line

TYPED: dict[str, Any] = {
    "columns": [{"name": "n", "type": "int64", "nullable": False}, {"name": "s", "type": "string"}]
}
MOMENT = datetime(2024, 1, 1, tzinfo=UTC)


@pytest.fixture
def url(embedded_redis_url: str) -> Iterator[str]:
    """200 messages in space ``t`` of three streams, of five topics, and 50 in the typed space ``u``."""
    with blocking.connect(embedded_redis_url) as client:
        client.create_space("t", ["t/#"], streams=3)
        client.create_space("u", ["u/#"], streams=2, schema=TYPED)
        with client.publisher() as publisher:
            for part in range(4):
                numbers = range(part * 50, part * 50 + 50)
                rows = {
                    "topic": [f"t/{n % 5}" for n in numbers],
                    "key": [b"%d" % n for n in numbers],
                    "payload": [b"%d" % n for n in numbers],
                    "timestamp": pa.array(
                        [MOMENT + timedelta(seconds=n) for n in numbers], pa.timestamp("us", tz="UTC")
                    ),
                }
                publisher.send_batch("topic", pa.record_batch(rows))
                publisher.flush()
            typed = {"topic": ["u/a"] * 50, "n": range(50), "s": [f"s{n}" for n in range(50)]}
            publisher.send_batch("topic", pa.record_batch(typed))
            publisher.flush()
    yield embedded_redis_url


def reader(url: str, filters: list[Filter] | None = None, **options: Any) -> BatchReader:
    named = {"redis": url, "subscribe": "t/#", **{name: str(value) for name, value in options.items()}}
    made = batch_reader(readable(named), named)
    if filters is not None:
        made = PushingReader(made.options, made.columns, made.spaces)
        assert made.pushFilters(filters) is filters
    return made


def rows(made: BatchReader) -> list[dict[str, Any]]:
    """All rows, read as Spark does: with partitions and a reader that were pickled."""
    found: list[dict[str, Any]] = []
    for partition in pickle.loads(pickle.dumps(made.partitions())):
        for batch in pickle.loads(pickle.dumps(made)).read(partition):
            batch.validate(full=True)
            assert batch.schema == made.columns.arrow
            found += batch.to_pylist()
    return found


def numbers(made: BatchReader) -> list[int]:
    return sorted(int(row["payload"]) for row in rows(made))


@pytest.mark.parametrize("subscribe", ["t/#", "$shared/g/t/#", "$queue/g/t/#", "t/+"])
def test_all_of_a_filter_is_read(url: str, subscribe: str) -> None:
    read = rows(reader(url, subscribe=subscribe))
    assert sorted(int(row["payload"]) for row in read) == list(range(200))
    for row in read:
        number = int(row["payload"])
        assert (row["topic"], row["key"]) == (f"t/{number % 5}", b"%d" % number)
        assert row["timestamp"] == MOMENT + timedelta(seconds=number)
    with connect_blocking(url) as redis:
        (keys,) = ask_blocking(redis, [("KEYS", "*g*t*progress*")])
        assert keys == []


def test_a_part_of_the_history_by_offsets(url: str) -> None:
    whole = rows(reader(url))
    streams = sorted({row["stream"] for row in whole})
    first = streams[0]
    tail = rows(reader(url, startingOffsets=f'{{"{first}": 3}}', endingOffsets=f'{{"{first}": 5}}'))
    wanted = [row for row in whole if row["stream"] != first or 3 <= row["offset"] < 5]
    assert sorted(map(str, tail)) == sorted(map(str, wanted))
    none = dict.fromkeys(streams, -1)
    text = str(none).replace("'", '"')
    assert rows(reader(url, startingOffsets=text)) == []
    assert (
        rows(reader(url, startingOffsets=text.replace("-1", "-2"), endingOffsets=text.replace("-1", "0")))
        == []
    )


def test_a_part_of_the_history_by_time(url: str) -> None:
    whole = rows(reader(url))
    times = sorted({row["append_timestamp"] for row in whole})
    middle = times[len(times) // 2]
    milliseconds = int(middle.timestamp() * 1000) + 1
    edge = datetime.fromtimestamp(milliseconds / 1000, UTC)
    before = rows(reader(url, endingTimestamp=milliseconds))
    after = rows(reader(url, startingTimestamp=milliseconds))
    assert all(row["append_timestamp"] < edge for row in before)
    assert all(row["append_timestamp"] >= edge for row in after)
    assert len(before) + len(after) == 200


@pytest.mark.parametrize(
    "options", [{"minPartitions": 7}, {"maxRecordsPerPartition": 9}, {"minPartitions": 300}]
)
def test_partitions_are_as_many_as_asked_for(url: str, options: dict[str, int]) -> None:
    made = reader(url, **options)
    parts: list[Any] = made.partitions()
    sizes = [sum(end - start for _, start, end in part.ranges) for part in parts]
    assert sum(sizes) == 200
    assert len(sizes) >= options.get("minPartitions", 0) or max(sizes) == 1
    assert max(sizes) <= options.get("maxRecordsPerPartition", 200)
    assert numbers(made) == list(range(200))


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=6),
    st.none() | st.integers(1, 20),
    st.none() | st.integers(1, 20),
)
def test_dividing_loses_and_repeats_nothing(
    lengths: list[tuple[int, int]], least: int | None, most: int | None
) -> None:
    ranges = {
        StreamId("s", 0, n): OffsetRange(start, start + size) for n, (start, size) in enumerate(lengths)
    }
    parts = divide(ranges, least, most)
    read = [(stream, offset) for part in parts for stream, low, high in part for offset in range(low, high)]
    assert read == [(str(s), offset) for s, (low, high) in ranges.items() for offset in range(low, high)]
    for part in parts:
        assert 0 < sum(high - low for _, low, high in part) <= (most or 10**9)


COMPARISONS: list[Any] = [EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual]


def passes(filter: Filter, row: dict[str, Any]) -> bool:
    """What Spark makes of a filter."""
    if isinstance(filter, Not):
        return not passes(filter.child, row)
    value: Any = row[filter.attribute[0]]  # type: ignore[attr-defined]
    match filter:
        case EqualTo():
            return bool(value == filter.value)
        case GreaterThan():
            return bool(value > filter.value)
        case GreaterThanOrEqual():
            return bool(value >= filter.value)
        case LessThan():
            return bool(value < filter.value)
        case LessThanOrEqual():
            return bool(value <= filter.value)
        case In():
            return value in filter.value
        case StringStartsWith():
            return bool(value.startswith(filter.value))
        case _:
            return value is not None


def test_filters_leave_out_only_what_spark_would_leave_out(url: str) -> None:
    whole = rows(reader(url))
    streams = sorted({row["stream"] for row in whole})
    times = sorted({row["append_timestamp"] for row in whole})
    middle = times[len(times) // 2]
    event = MOMENT + timedelta(seconds=100)
    single: list[Filter] = [
        *(
            kind(("offset",), 20)
            for kind in (EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)
        ),
        *(kind(("append_timestamp",), middle) for kind in (EqualTo, GreaterThan, LessThan, LessThanOrEqual)),
        *(kind(("timestamp",), event) for kind in (EqualTo, GreaterThanOrEqual, LessThan)),
        EqualTo(("topic",), "t/3"),
        In(("topic",), ("t/3", "t/4", "x")),
        StringStartsWith(("topic",), "t/2"),
        EqualTo(("stream",), streams[0]),
        In(("stream",), (streams[0], "nowhere.0.0")),
        EqualTo(("payload",), b"7"),
        In(("offset",), (3, 9)),
    ]
    ignored: list[Filter] = [
        Not(EqualTo(("topic",), "t/3")),
        IsNotNull(("key",)),
        EqualTo(("headers", "key"), "x"),
    ]
    for filter in single:
        wanted = [row for row in whole if passes(filter, row)]
        read = rows(reader(url, [filter, *ignored]))
        assert sorted(map(str, read)) == sorted(map(str, wanted)), filter
    both = [EqualTo(("topic",), "t/3"), GreaterThan(("offset",), 10)]
    wanted = [row for row in whole if all(passes(filter, row) for filter in both)]
    assert sorted(map(str, rows(reader(url, both)))) == sorted(map(str, wanted))
    assert rows(reader(url, [EqualTo(("topic",), "t/1"), EqualTo(("topic",), "t/2")])) == []


@pytest.mark.parametrize(
    ("filter", "wanted"),
    [
        (EqualTo(("n",), 7), {7}),
        (GreaterThanOrEqual(("n",), 48), {48, 49}),
        (In(("s",), ("s3", "s4", "x")), {3, 4}),
        (StringStartsWith(("s",), "s4"), {4, *range(40, 50)}),
        (EqualTo(("s",), None), set(range(50))),
    ],
)
def test_filters_on_typed_columns_spare_rows(url: str, filter: Filter, wanted: set[int]) -> None:
    assert {row["n"] for row in rows(reader(url, [filter], subscribe="u/#"))} == wanted


def test_filters_spare_streams_and_offsets(url: str) -> None:
    def planned(*filters: Filter) -> list[tuple[str, int, int]]:
        parts: list[Any] = reader(url, list(filters)).partitions()
        return [one for part in parts for one in part.ranges]

    assert len(planned(EqualTo(("topic",), "t/3"))) == 1
    assert all(start >= 11 for _, start, _ in planned(GreaterThan(("offset",), 10)))
    assert planned(GreaterThan(("append_timestamp",), datetime.now(UTC) + timedelta(days=1))) == []


def test_columns_that_are_not_wanted_are_not_handed_on(url: str) -> None:
    def size(**options: Any) -> int:
        made = reader(url, **options)
        return sum(batch.nbytes for part in made.partitions() for batch in made.read(part))

    assert size(columns="offset") == 200 * 8
    assert size(columns="offset,payload") < size() / 3
    assert size(includeHeaders="false") < size()


def test_typed_columns_and_only_those_that_are_wanted(url: str) -> None:
    whole = rows(reader(url, subscribe="u/#"))
    assert sorted((row["n"], row["s"]) for row in whole) == [(n, f"s{n}") for n in range(50)]
    some = reader(url, subscribe="u/#", columns="s,offset")
    assert some.columns.arrow.names == ["s", "offset"]
    assert len(rows(some)) == 50
    given = StructType([StructField("n", LongType())])
    made = batch_reader(given, {"redis": url, "subscribe": "u/#"})
    assert sorted(row["n"] for row in rows(made)) == list(range(50))
    mixed = rows(reader(url, subscribe="#", columns="n,payload"))
    assert sorted(row["n"] for row in mixed if row["n"] is not None) == list(range(50))
    assert sum(row["payload"] is not None for row in mixed) == 200


async def test_a_schema_that_grows_and_one_that_no_longer_fits(url: str) -> None:
    made = reader(url, subscribe="u/#")
    named = {"redis": url, "subscribe": "$shared/g/u/#"}
    assert stream_columns(SourceOptions.parse(named), readable(named)).arrow == made.columns.arrow
    async with Client(url, embedded=False) as client:
        store = SpaceStore(client.redis)
        await store.alter_schema("u", {"columns": [*TYPED["columns"], {"name": "more", "type": "int64"}]})
        async with client.publisher() as publisher:
            await publisher.send_batch("u/a", pa.record_batch({"n": [50], "more": [1]}))
        assert sorted(row["n"] for row in rows(made)) == list(range(51))
        assert "more" in reader(url, subscribe="u/#").columns.arrow.names
        await store.delete("u")
        await store.create("u", ["u/#"], schema={"columns": [{"name": "n", "type": "string"}]})
        with pytest.raises(SchemaMismatch) as refused:
            stream_columns(SourceOptions.parse(named), StructType([StructField("n", LongType())]))
        assert "the query has column n bigint, and it is string" in one_line(refused.value)
        async with Client(url, embedded=False) as other, other.publisher() as publisher:
            await publisher.send_batch("u/a", pa.record_batch({"n": ["x"]}))
        fresh = reader(url, subscribe="u/#")
        stale = BatchReader(fresh.options, made.columns, fresh.spaces)
        with pytest.raises(SchemaMismatch) as changed:
            rows(stale)
        one_line(changed.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"slots": 3}, "option 'slots' is unknown"),
        ({"endingOffset": "latest"}, "option 'endingOffset' is unknown: did you mean 'endingOffsets'?"),
        ({"startingOffsets": "latest"}, "option 'startingOffsets' is 'latest', so nothing would be read"),
        ({"endingOffsets": "earliest"}, "option 'endingOffsets' is 'earliest', so nothing would be read"),
        ({"startingOffsets": "{}"}, "option 'startingOffsets' is '{}'"),
        ({"startingOffsets": '{"t.0.9": 1}'}, "names 't.0.9', which is no stream of the subscription"),
        ({"endingOffsets": '{"t.0.0": 9999}'}, "has offset 9999 for stream t.0.0, which ends at"),
        ({"startingOffsets": '{"t.0.0": 1}', "startingTimestamp": 1}, "contradict each other: give one"),
        ({"minPartitions": 0}, "option 'minPartitions' is 0: it must be at least 1"),
        ({"subscribe": "t/#/x"}, "'#'"),
        ({"subscribe": "nowhere/#"}, "no space has topics that match the filter 'nowhere/#'"),
        ({"columns": "topics"}, "option 'columns' names 'topics': the columns are topic, key"),
    ],
)
def test_what_is_refused(url: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(StreamleaseError) as refused:
        reader(url, **options).partitions()
    assert said in one_line(refused.value)


def test_what_retention_removed(url: str) -> None:
    with connect_blocking(url) as redis:
        stream = "t.0.0"
        for name in ("t.0.0", "t.0.1", "t.0.2"):
            (kept,) = ask_blocking(redis, [("HGET", f"sl:{{{name}}}:meta", "next")])
            if int(kept) > 20:
                stream = name
        ask_blocking(
            redis,
            [
                ("XTRIM", f"sl:{{{stream}}}:log", "MINID", "15-0"),
                ("HSET", f"sl:{{{stream}}}:meta", "floor", "15"),
            ],
        )
    text = f'{{"{stream}": 2}}'
    with pytest.raises(HistoryTruncated) as truncated:
        reader(url, startingOffsets=text).partitions()
    assert "no longer has offset 2" in one_line(truncated.value)
    read = rows(reader(url, startingOffsets=text, failOnDataLoss="false"))
    assert min(row["offset"] for row in read if row["stream"] == stream) >= 15
