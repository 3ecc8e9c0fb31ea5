"""The batch reader without Java: ranges, partitions, filters, typed columns, and what is refused."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from dataclasses import FrozenInstanceError
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import DataSourceReader
from pyspark.sql.types import LongType, StructField, StructType

from streamlease.agent import blocking
from streamlease.agent.client import Client
from streamlease.protocol.errors import HistoryTruncated, InvalidOption, SchemaMismatch, StreamleaseError
from streamlease.protocol.ids import StreamId
from streamlease.protocol.offsets import OffsetRange
from streamlease.spark.core.batch_tasks import divide, worth_a_task
from streamlease.spark.options import SourceOptions
from streamlease.spark.reading.batch_read import BatchReader, batch_reader
from streamlease.spark.schema import readable, stream_columns
from streamlease.streams.entries.schemas import Schema
from streamlease.streams.redis.connection import ask, connect_blocking, run_blocking
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


def reader(url: str, **options: Any) -> BatchReader:
    named = {"redis": url, "subscribe": "t/#", **{name: str(value) for name, value in options.items()}}
    return batch_reader(readable(named), named)


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
        (keys,) = run_blocking(ask(redis, [("KEYS", "*g*t*progress*")]))
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


@pytest.mark.parametrize(
    ("mean_bytes", "rows"), [(0.0, 50_000), (20.0, 1_000_000), (1024.0, 131_072), (1_000_000.0, 50_000)]
)
def test_a_task_has_enough_to_read(mean_bytes: float, rows: int) -> None:
    assert worth_a_task(mean_bytes) == rows
    ranges = {StreamId("s", 0, 0): OffsetRange(0, 1_999_999)}
    parts = divide(ranges, worth=worth_a_task(mean_bytes))
    assert len(parts) == min(8, -(-1_999_999 // rows))


def test_topics_narrow_what_is_read_and_spare_streams(url: str) -> None:
    whole = rows(reader(url))
    for topics, wanted in (
        ("t/3", {"t/3"}),
        ("t/3, t/4,t/never", {"t/3", "t/4"}),
        ('["t/3", "t/1"]', {"t/3", "t/1"}),
        ("+/2", {"t/2"}),
        ("t/#", {f"t/{n}" for n in range(5)}),
    ):
        read = rows(reader(url, topics=topics))
        assert sorted(map(str, read)) == sorted(str(row) for row in whole if row["topic"] in wanted), topics
    within = rows(reader(url, subscribe="t/3", topics="t/+"))
    assert {row["topic"] for row in within} == {"t/3"}
    places = {row["stream"] for row in whole if row["topic"] == "t/3"}
    assert {stream for stream, *_ in planned(reader(url, topics="t/3"))} == places
    assert len(places) == 1
    # Several spaces; and a topic is not looked for in the space that cannot have it.
    assert {row["n"] for row in rows(reader(url, subscribe="#", topics="u/a"))} == set(range(50))
    assert {stream[0] for stream, *_ in planned(reader(url, subscribe="#", topics="u/a"))} == {"u"}


def planned(made: BatchReader) -> list[tuple[str, int, int]]:
    parts: list[Any] = made.partitions()
    return [one for part in parts for one in part.ranges]


def test_topics_of_a_space_that_is_sharded_by_key(embedded_redis_url: str) -> None:
    with blocking.connect(embedded_redis_url) as client:
        client.create_space("k", ["k/#"], streams=3, shard_by="key")
        with client.publisher() as publisher:
            for n in range(60):
                publisher.submit(f"k/{n % 2}", b"%d" % n, key=b"%d" % n)
            publisher.flush()
    found = rows(reader(embedded_redis_url, subscribe="k/#", topics="k/1"))
    assert sorted(int(row["payload"]) for row in found) == list(range(1, 60, 2))
    assert len({row["stream"] for row in found}) == 3


def test_streams_narrow_what_is_read(url: str) -> None:
    whole = rows(reader(url))
    read = rows(reader(url, streams="t.0.0, t.0.2"))
    assert sorted(map(str, read)) == sorted(str(row) for row in whole if row["stream"] != "t.0.1")
    # Offsets of streams that are left out are checked, and do not count.
    places = sorted({row["stream"] for row in whole})
    every = json.dumps(dict.fromkeys(places, 2))
    both = reader(url, streams=places[0], startingOffsets=every)
    assert {(stream, start) for stream, start, _ in planned(both)} == {(places[0], 2)}


def test_a_reader_is_told_no_filters_and_cannot_change(url: str) -> None:
    made = reader(url)
    # Spark 4.3 shares one planned read among all places where a query uses a frame.
    assert type(made).pushFilters is DataSourceReader.pushFilters
    with pytest.raises(FrozenInstanceError):
        made.options = made.options  # type: ignore[misc]
    assert not [name for name in vars(made) if name not in ("options", "columns", "spaces")]


def test_the_beginning_of_time_is_a_time(url: str) -> None:
    assert len(rows(reader(url, startingTimestamp=0))) == 200
    assert rows(reader(url, endingTimestamp=0)) == []


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
        more = {"columns": [*TYPED["columns"], {"name": "more", "type": "int64"}]}
        await client.alter_space("u", schema=more)
        async with client.publisher() as publisher:
            await publisher.send_batch("u/a", pa.record_batch({"n": [50], "more": [1]}))
        assert sorted(row["n"] for row in rows(made)) == list(range(51))
        assert "more" in reader(url, subscribe="u/#").columns.arrow.names
        await client.spaces.delete("u")
        await client.create_space("u", ["u/#"], schema={"columns": [{"name": "n", "type": "string"}]})
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


def test_columns_that_spark_takes_for_one(embedded_redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def typed(*names: str) -> dict[str, Any]:
        return {"columns": [{"name": name, "type": "int64"} for name in names]}

    with blocking.connect(embedded_redis_url) as client:
        for names, other in ((["Offset"], "offset"), (["PAYLOAD"], "payload"), (["speed", "Speed"], "Speed")):
            with pytest.raises(InvalidOption, match=f"columns {other} and \\w+ differ in case only"):
                client.create_space("w", ["w/#"], schema=typed(*names))
        with monkeypatch.context() as patch:  # as an earlier version let it be made
            patch.setattr(Schema, "check_case", lambda self, before=None: None)
            client.create_space("v", ["v/#"], schema=typed("Offset"))
        assert client.create_space("v", ["v/#"], schema=typed("Offset")).name == "v"
    with pytest.raises(SchemaMismatch) as refused:
        reader(embedded_redis_url, subscribe="v/#")
    assert "columns offset and Offset differ in case only" in one_line(refused.value)
    assert reader(embedded_redis_url, subscribe="v/#", columns="Offset,topic").columns.arrow.names == [
        "Offset",
        "topic",
    ]


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
        ({"startingOffsets": "[" * 100_000}, "option 'startingOffsets' is '["),
        ({"startingOffsets": '{"\\ud800": 1}'}, r"names '\ud800', which is no stream of the subscription"),
        (
            {"startingTimestamp": 1704067200 * 10**9},
            "option 'startingTimestamp' is '1704067200000000000', after",
        ),
        (
            {"endingTimestamp": 1704067200 * 10**6},
            "is '1704067200000000', after the year 9999: give milliseconds",
        ),
        ({"startingTimestamp": -1}, "option 'startingTimestamp' is -1: it must be at least 0"),
        ({"minPartitions": 2**64}, "it must be from 1 to 9223372036854775807"),
        ({"maxRecordsPerPartition": "9" * 9999}, "option 'maxRecordsPerPartition' is '9999"),
        (
            {"streams": "t.0.0,t.0.9"},
            "option 'streams' names 't.0.9', which is no stream of the subscription",
        ),
        ({"streams": "t.0.0,,"}, "give different names with commas between them"),
        (
            {"topics": "u/a"},
            "option 'topics' names 'u/a', and no topic matches both that and the filter 't/#'",
        ),
        ({"topics": "t/#/x"}, "option 'topics': filter 't/#/x' has '#' where it may not stand"),
        ({"topics": "t/a,"}, "option 'topics' is 't/a,': give different names with commas between them"),
        (
            {"topics": "[1]"},
            "option 'topics' is '[1]': give topic filters with commas between them, or a list",
        ),
        ({"topics": "[" * 100_000}, "or a list in JSON"),
        ({"topics": '["\\ud800"]'}, "cannot be encoded as UTF-8 (lone surrogate)"),
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
            (kept,) = run_blocking(ask(redis, [("HGET", f"sl:{{{name}}}:meta", "next")]))
            if int(kept) > 20:
                stream = name
        run_blocking(
            ask(
                redis,
                [
                    ("XTRIM", f"sl:{{{stream}}}:log", "MINID", "15-0"),
                    ("HSET", f"sl:{{{stream}}}:meta", "floor", "15"),
                ],
            )
        )
    text = f'{{"{stream}": 2}}'
    with pytest.raises(HistoryTruncated) as truncated:
        reader(url, startingOffsets=text).partitions()
    assert "no longer has offset 2" in one_line(truncated.value)
    read = rows(reader(url, startingOffsets=text, failOnDataLoss="false"))
    assert min(row["offset"] for row in read if row["stream"] == stream) >= 15
