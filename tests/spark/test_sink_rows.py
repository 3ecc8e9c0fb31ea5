"""What the sink takes and refuses, without Java: options, columns, and the way of rows into entries."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
)

from streamlease.agent import blocking
from streamlease.protocol.errors import StreamleaseError
from streamlease.spark.placing import ENTRY_ROWS, Placer
from streamlease.spark.sink import BatchWriter, StreamWriter
from streamlease.spark.sink_options import SinkOptions, check_columns
from streamlease.streams.entries.entries import HEADERS
from streamlease.streams.publish.staged.staging import Stager
from streamlease.streams.redis.connection import BlockingRedis, ask, connect_blocking, run_blocking
from streamlease.streams.spaces.spaces import SpaceStore
from tests.spark.refusals import one_line

TYPED = {
    "columns": [{"name": "number", "type": "int64", "nullable": False}, {"name": "value", "type": "string"}]
}
GOOD = {"redis": "redis://localhost"}


def frame(**types: Any) -> StructType:
    return StructType([StructField(name, type) for name, type in types.items()])


TEXT = frame(topic=StringType(), payload=StringType())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"topics": "a"}, "option 'topics' is unknown: did you mean 'topic'?"),
        ({"compression": "gzip"}, "option 'compression' is 'gzip': use zstd, lz4, none"),
        ({"topic": "a/#"}, "topic 'a/#' contains a wildcard"),
        ({"txnAppId": "a"}, "options 'txnAppId' and 'txnVersion' go together: give both, or neither"),
        ({"txnAppId": "a/b", "txnVersion": "1"}, "option 'txnAppId' 'a/b' is not a name"),
        ({"txnAppId": "a", "txnVersion": "-1"}, "option 'txnVersion' is -1: it must be at least 0"),
        ({"redis.timeout": "soon"}, "option 'redis.timeout'"),
        ({"partition": "perworker"}, "option 'partition' is 'perworker': use 'merge' or 'perWorker'"),
    ],
)
def test_options_that_are_refused(options: dict[str, str], said: str) -> None:
    with pytest.raises(StreamleaseError) as refused:
        SinkOptions.parse({**GOOD, **options}, stream=False)
    assert said in one_line(refused.value)


def test_options_that_are_taken() -> None:
    given = {
        "TOPIC": "a/b",
        "txnAppId": "app",
        "txnVersion": "7",
        "compression": "zstd",
        "redis.timeout": "5s",
    }
    options = SinkOptions.parse({**GOOD, **given}, stream=False)
    assert (options.topic, options.transaction, options.compression) == ("a/b", ("app", 7), "zstd")
    assert options.redis_timeout_ms == 5000
    SinkOptions.parse({**GOOD, "checkpointLocation": "there", "path": "x"}, stream=True)


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (frame(payload=StringType()), "the columns payload have no topic"),
        (frame(topic=StringType(), payload=IntegerType()), "column payload is int, not string or binary"),
        (frame(topic=IntegerType(), payload=StringType()), "column topic is int, not string"),
        (frame(topic=StringType(), key=IntegerType()), "column key is int, not string or binary"),
        (
            frame(topic=StringType(), timestamp=TimestampNTZType()),
            "column timestamp is timestamp_ntz, not timestamp: cast it first, such as by to_timestamp",
        ),
        (
            frame(topic=StringType(), headers=ArrayType(StringType())),
            "column headers is array<string>: make it array<struct<key:string,value:binary>>",
        ),
    ],
)
def test_columns_that_are_refused_before_a_task_starts(schema: StructType, said: str) -> None:
    with pytest.raises(StreamleaseError) as refused:
        check_columns(schema, SinkOptions.parse(GOOD, stream=True))
    assert said in one_line(refused.value)


def test_writers_that_are_refused() -> None:
    options = SinkOptions.parse(GOOD, stream=True)
    with pytest.raises(StreamleaseError, match=r"use \.mode\('append'\)"):
        BatchWriter(options, TEXT, overwrite=True)
    with pytest.raises(StreamleaseError, match="this sink needs Spark"):
        StreamWriter(options, TEXT).write(iter(()))
    check_columns(frame(value=BinaryType()), SinkOptions.parse({**GOOD, "topic": "a"}, stream=True))


@pytest.fixture
def redis(embedded_redis_url: str) -> Iterator[BlockingRedis]:
    """A Redis with a space of payloads and one of typed columns."""
    with blocking.connect(embedded_redis_url) as client:
        client.create_space("plain", ["plain/#"], streams=2)
        client.create_space("typed", ["typed/#"], streams=2, schema=TYPED)
    with connect_blocking(embedded_redis_url) as connected:
        yield connected


def placer(redis: BlockingRedis, **options: Any) -> tuple[Placer, Stager]:
    stager = Stager(redis, lambda _: "q", 0, "token")
    return Placer(run_blocking(SpaceStore(redis).look()).spaces, stager, **options), stager


PLAIN = {"topic": ["plain/a"], "payload": [b"p"]}


@pytest.mark.parametrize(
    ("rows", "options", "said"),
    [
        ({**PLAIN, "topic": pa.array([None], pa.string())}, {}, "column topic of the batch has 1 nulls"),
        ({**PLAIN, "payload": pa.array([None], pa.string())}, {}, "column payload of the batch has 1 nulls"),
        ({**PLAIN, "topic": ["plain/+"]}, {}, "topic 'plain/+' contains a wildcard"),
        ({**PLAIN, "topic": ["nowhere/a"]}, {}, "no space has topics that match 'nowhere/a'; create one"),
        (PLAIN, {"space": "typed"}, "topic 'plain/a' belongs to space plain, not to typed"),
        (PLAIN, {"space": "nope"}, "option 'space' is 'nope', and there is none of that name"),
        ({**PLAIN, "value": ["p"]}, {}, "these rows have payload, value: select one"),
        ({"topic": ["plain/a"]}, {}, "these rows have none: select one"),
        (
            {**PLAIN, "headers": pa.array([[{"key": None, "value": b"v"}]], HEADERS)},
            {},
            "column headers has a header without a key in row 0: give it one, or leave it out",
        ),
        (
            {"topic": ["typed/a"], "number": [1], "headers": pa.array([[None]], HEADERS)},
            {},
            "column headers has a header that is null in row 0: leave it out",
        ),
        ({**PLAIN, "amount": [1]}, {}, "these rows have payload, amount: select one"),
        (
            {"topic": ["typed/a"], "number": [1], "what": [1]},
            {},
            "unknown column 'what': the schema has number",
        ),
        ({"topic": ["typed/a"], "value": ["a"]}, {}, "column number is null in row 0, and is not nullable"),
        (
            {"topic": ["typed/a"], "number": ["1"]},
            {},
            "column number is int64, and the batch has string there",
        ),
        (
            {"topic": ["typed/a"], "payload": [b"p"]},
            {},
            "space typed has a schema, and the rows have a payload",
        ),
        ({**PLAIN, "payload": [b"p" * (17 << 20)]}, {}, "is larger than 16777216"),
    ],
)
def test_rows_that_are_refused(
    redis: BlockingRedis, rows: dict[str, Any], options: dict[str, Any], said: str
) -> None:
    with pytest.raises(StreamleaseError) as refused:
        placing, _ = placer(redis, **options)
        placing.add(pa.record_batch(rows))
        placing.finish()
    assert said in one_line(refused.value)


def test_a_topic_that_no_space_has_with_the_number_of_its_partition(redis: BlockingRedis) -> None:
    made, _ = placer(redis, topic="lonely", suffix=".1")
    with pytest.raises(StreamleaseError, match=r"no space has topics that match 'lonely\.1'"):
        made.add(pa.record_batch({"payload": [b"1"]}))


def test_small_batches_are_gathered_and_what_was_read_is_left_out(redis: BlockingRedis) -> None:
    placing, stager = placer(redis, topic="plain/fixed")
    for number in range(20):
        some = pa.record_batch(
            {
                "value": ["x"] * 1000,
                "topic": [None] * 1000,
                "stream": ["other.0.0"] * 1000,
                "offset": range(1000),
                "cut": ["c"] * 1000,
                "timestamp": pa.array([number] * 1000, pa.timestamp("us", tz="Europe/Berlin")),
            }
        )
        placing.add(some)
    placing.finish()
    (staged,) = stager.finish()
    assert staged.rows == 20_000
    (entries,) = run_blocking(
        ask(redis, [("XRANGE", f"sl:{{{staged.stream}}}:staged:{staged.token}", "-", "+")])
    )
    assert len(entries) == -(-20_000 // (ENTRY_ROWS // 1000 * 1000))
    stager.discard()
    (left,) = run_blocking(ask(redis, [("KEYS", "*staged*")]))
    assert left == []
