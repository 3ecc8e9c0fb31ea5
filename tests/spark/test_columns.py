"""Three descriptions of the same columns agree: Spark's, ours in Arrow, and what Spark derives."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from streamlease.protocol.ids import StreamId
from streamlease.spark.options import SourceOptions
from streamlease.spark.schema import message_fields, stream_columns
from streamlease.streams.entries.entries import Row, encode_rows
from streamlease.streams.entries.epoch_fields import with_epoch
from streamlease.streams.entries.message_rows import MESSAGE_SCHEMA
from streamlease.streams.log.log import Append, AsyncLog
from streamlease.streams.log.segments import read_range
from streamlease.streams.redis.connection import connect, connect_blocking, run_blocking
from streamlease.streams.spaces.spaces import SpaceStore

NAMES = ["topic", "key", "payload", "headers", "stream", "offset", "timestamp", "append_timestamp", "epoch"]


def options(headers: bool, cut: bool) -> SourceOptions:
    return SourceOptions.parse(
        {
            "redis": "redis://127.0.0.1:1",
            "subscribe": "$shared/g/t/#",
            "includeHeaders": str(headers),
            "includeCut": str(cut),
        }
    )


ALL = [options(*flags) for flags in itertools.product((True, False), repeat=2)]
IDS = [f"headers={one.include_headers} cut={one.include_cut}" for one in ALL]


@pytest.mark.parametrize("chosen", ALL, ids=IDS)
def test_the_columns_are_those_of_the_contract(chosen: SourceOptions) -> None:
    names = [name for name in NAMES if chosen.include_headers or name != "headers"]
    assert stream_columns(chosen).arrow.names == names + ["cut"] * chosen.include_cut


@pytest.mark.parametrize("chosen", ALL, ids=IDS)
def test_arrow_and_spark_have_the_same_columns(chosen: SourceOptions) -> None:
    ours = stream_columns(chosen).arrow
    for name, type in zip(ours.names, ours.types, strict=True):
        if name not in ("headers", "epoch", "cut"):  # lists have other names inside
            assert MESSAGE_SCHEMA.field(name).type == type
    fields = message_fields(headers=chosen.include_headers, cut=chosen.include_cut)
    assert ours == to_arrow_schema(StructType(fields), timezone="UTC")


@pytest.mark.parametrize("chosen", ALL, ids=IDS)
async def test_what_is_read_fits_the_schema(chosen: SourceOptions, embedded_redis_url: str) -> None:
    redis = connect(embedded_redis_url)
    await SpaceStore(redis).create("s", ["t/#"], streams=1)
    await redis.aclose()
    blocking = connect_blocking(embedded_redis_url)
    try:
        log = AsyncLog(blocking)
        stream = StreamId("s", 0, 0)
        when = datetime(2024, 2, 29, 12, 30, 15, 123456, tzinfo=UTC)
        rows = [
            Row("t/a", b"first", b"k", (("h", b"1"), ("h", b"2")), int(when.timestamp() * 1_000_000)),
            Row("t/b", b""),
        ]
        run_blocking(log.append(Append(stream, "~p", 1, 0, encode_rows(rows))))
        run_blocking(log.append(Append(stream, "~p", 1, 1, with_epoch(encode_rows(rows[:1]), (4, 5)))))
        batches = list(read_range(blocking, stream, 0, 3))
    finally:
        blocking.close()
    columns = stream_columns(chosen)
    (batch,) = [columns.shape(columns.with_cuts(batch, ["s.0.0@0-2"], [3])) for batch in batches]
    assert batch.schema == columns.arrow
    batch.validate(full=True)
    first, second, third = batch.to_pylist()
    assert (first["topic"], first["key"], first["payload"]) == ("t/a", b"k", b"first")
    assert (first["stream"], first["offset"], first["timestamp"]) == ("s.0.0", 0, when)
    assert (second["key"], second["payload"], second["offset"], second["epoch"]) == (None, b"", 1, None)
    assert (third["payload"], third["offset"], third["epoch"]) == (b"first", 2, [4, 5])
    assert second["timestamp"] == second["append_timestamp"]
    if chosen.include_headers:
        assert first["headers"] == [{"key": "h", "value": b"1"}, {"key": "h", "value": b"2"}]
        assert not second["headers"]
    if chosen.include_cut:
        assert {first["cut"], second["cut"]} == {"s.0.0@0-2"}


def test_a_batch_without_rows_keeps_its_columns() -> None:
    columns = stream_columns(ALL[0])
    empty = pa.RecordBatch.from_pylist([], schema=MESSAGE_SCHEMA)
    assert columns.shape(columns.with_cuts(empty, ["c"], [0])).schema == columns.arrow
