"""Options of the source: each bad value is refused by name, in one line."""

from __future__ import annotations

import pytest
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
)
from pyspark.sql.types import LongType, StructField, StructType

from streamlease.agent import blocking
from streamlease.protocol.errors import (
    InvalidInput,
    InvalidOption,
    InvalidTopic,
    SchemaMismatch,
    StreamleaseError,
    UnknownSpace,
)
from streamlease.spark.core.limits import Limits
from streamlease.spark.options import NAMES, SourceOptions
from streamlease.spark.reading.batch_read import BatchOptions
from streamlease.spark.schema import BATCH_NAMES, stream_columns
from streamlease.spark.sink_options import SinkOptions
from streamlease.spark.source import NO_LIMIT, StreamleaseSource, StreamReader
from tests.spark.refusals import one_line

GOOD = {"redis": "redis://127.0.0.1:1", "subscribe": "$shared/g/t/#"}


@pytest.fixture(autouse=True)
def _no_redis_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STREAMLEASE_REDIS_URL", raising=False)


def test_the_defaults() -> None:
    options = SourceOptions.parse(GOOD)
    assert options.starting_offsets == "latest"
    assert options.limits == Limits(None, None, None, 900_000)
    assert (options.min_partitions, options.max_records_per_partition) == (None, None)
    assert options.fail_on_data_loss
    assert options.redis_timeout_ms == 60_000
    assert options.columns == ()
    assert (options.slots, options.query_name) == (2, "")
    assert options.session_timeout_ms == 10_000
    assert (options.include_headers, options.include_cut, options.embedded_leader) == (True, False, True)


def test_names_are_not_case_sensitive_and_values_are_read() -> None:
    options = SourceOptions.parse(
        {
            "REDIS": "redis://h:1",
            "Subscribe": "$queue/g/#",
            "startingoffsets": "earliest",
            "MAXOFFSETSPERTRIGGER": "7",
            "Slots": "1024",
            "sessiontimeoutms": "2000",
            "includeheaders": "FALSE",
            "includeCut": "True",
            "embeddedLeader": "false",
            "path": "Spark adds this one",
        }
    )
    assert options.redis == "redis://h:1"
    assert str(options.subscription) == "$queue/g/#"
    assert options.starting_offsets == "earliest"
    assert (options.limits.max_rows, options.slots, options.session_timeout_ms) == (7, 1024, 2000)
    assert (options.include_headers, options.include_cut, options.embedded_leader) == (False, True, False)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("startingOffsets", "first"),
        ("startingOffsets", ""),
        ("startingOffsets", '{"t":{"0":23}}'),
        ("startingOffsets", '{"s.0.1":-3}'),
        ("startingOffsets", '{"s.0.1":true}'),
        ("startingOffsets", "{}"),
        *[("startingTimestamp", value) for value in ("-1", "2024-02-29", "")],
        *[("minOffsetsPerTrigger", value) for value in ("0", "few")],
        *[("maxBytesPerTrigger", value) for value in ("0", "much", "1XiB", "")],
        *[("maxTriggerDelay", value) for value in ("15", "soon")],
        *[("minPartitions", value) for value in ("0", "x")],
        *[("maxRecordsPerPartition", value) for value in ("0", "x")],
        *[("redis.timeout", value) for value in ("0s", "60")],
        *[("columns", value) for value in ("topic,", "topic,topic")],
        *[("maxOffsetsPerTrigger", value) for value in ("0", "-1", "1.5", "many", "")],
        *[("slots", value) for value in ("0", "-2", "1025", "two", "")],
        *[("sessionTimeoutMs", value) for value in ("1999", "86400001", "10s", "")],
        *[
            (flag, value)
            for flag in ("includeHeaders", "includeCut", "embeddedLeader", "failOnDataLoss")
            for value in ("1", "")
        ],
    ],
)
def test_a_bad_value_is_refused_with_its_option_and_itself(name: str, value: str) -> None:
    with pytest.raises(InvalidOption) as refused:
        SourceOptions.parse({**GOOD, name.lower(): value})
    text = one_line(refused.value)
    assert f"'{name}'" in text
    assert value in text


@pytest.mark.parametrize("value", ["a\tb", "n" * 201])
def test_a_name_that_cannot_be_shown_is_refused(value: str) -> None:
    with pytest.raises(InvalidOption, match=r"option 'queryName' is .*up to 200 characters"):
        SourceOptions.parse({**GOOD, "queryName": value})
    assert SourceOptions.parse({**GOOD, "queryname": "Züge, 8 h"}).query_name == "Züge, 8 h"


@pytest.mark.parametrize("name", ["startingOffset", "kafka.bootstrap.servers", "topic", "subscribePattern"])
def test_an_unknown_option_is_refused_by_name(name: str) -> None:
    with pytest.raises(InvalidOption) as refused:
        SourceOptions.parse({**GOOD, name: "x"})
    text = one_line(refused.value)
    assert f"'{name}'" in text
    assert "startingOffsets" in text


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("startingOffset", "startingOffsets"),
        ("maxOffsetPerTrigger", "maxOffsetsPerTrigger"),
        ("slot", "slots"),
    ],
)
def test_an_unknown_option_is_refused_with_the_nearest(name: str, meant: str) -> None:
    with pytest.raises(InvalidOption, match=f"did you mean '{meant}'"):
        SourceOptions.parse({**GOOD, name: "x"})


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"startingOffsets": "earliest", "startingTimestamp": "5"}, "startingTimestamp"),
        ({"maxTriggerDelay": "1m"}, "minOffsetsPerTrigger"),
        ({"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "maxOffsetsPerTrigger"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options: dict[str, str], named: str) -> None:
    with pytest.raises(InvalidOption, match=named) as refused:
        SourceOptions.parse({**GOOD, **options})
    one_line(refused.value)


def test_limits_and_starts_are_read() -> None:
    options = SourceOptions.parse(
        {
            **GOOD,
            "startingOffsets": '{"s.0.0": 7, "s.0.1": -1, "s.0.2": -2}',
            "maxOffsetsPerTrigger": "100",
            "maxBytesPerTrigger": "64KiB",
            "minOffsetsPerTrigger": "10",
            "maxTriggerDelay": "1m30s",
            "minPartitions": "4",
            "maxRecordsPerPartition": "9",
            "failOnDataLoss": "false",
            "redis.timeout": "5s",
        }
    )
    assert options.starting_offsets == {"s.0.0": 7, "s.0.1": -1, "s.0.2": -2}
    assert options.limits == Limits(100, 65_536, 10, 90_000)
    assert (options.min_partitions, options.max_records_per_partition) == (4, 9)
    assert not options.fail_on_data_loss
    assert options.redis_timeout_ms == 5000
    assert SourceOptions.parse({**GOOD, "startingTimestamp": "17"}).starting_timestamp == 17


@pytest.mark.parametrize(
    ("options", "own"),
    [
        ({}, NO_LIMIT),
        ({"maxOffsetsPerTrigger": "7"}, ReadMaxRows(7)),
        ({"maxBytesPerTrigger": "7"}, ReadMaxBytes(7)),
        ({"minOffsetsPerTrigger": "7"}, ReadMinRows(7)),
        (
            {"minOffsetsPerTrigger": "7", "maxOffsetsPerTrigger": "9", "maxBytesPerTrigger": "5"},
            ReadMaxRows(9),
        ),
    ],
)
def test_spark_s_limit_is_honoured(options: dict[str, str], own: ReadLimit) -> None:
    parsed = SourceOptions.parse({**GOOD, **options})
    reader = StreamReader(parsed)
    assert reader.getDefaultReadLimit() == own
    assert reader.limits(own) == parsed.limits
    assert reader.limits(ReadAllAvailable()) == Limits()
    assert reader.limits(ReadMaxRows(3)) == Limits(3)
    assert reader.limits(ReadMaxBytes(3)) == Limits(None, 3)


def test_columns_are_chosen_in_their_order_and_unknown_ones_refused() -> None:
    chosen = SourceOptions.parse({**GOOD, "columns": "payload, topic"})
    assert stream_columns(chosen).arrow.names == ["payload", "topic"]
    with pytest.raises(InvalidOption, match=r"'value'.*payload") as refused:
        stream_columns(SourceOptions.parse({**GOOD, "columns": "value"}))
    one_line(refused.value)


def test_an_unknown_name_over_two_lines_is_refused_in_one() -> None:
    with pytest.raises(InvalidOption) as refused:
        SourceOptions.parse({**GOOD, "two\nlines": "x"})
    one_line(refused.value)


@pytest.mark.parametrize("name", ["startingOffsets", "slots", "includeCut"])
def test_a_bad_value_over_two_lines_is_refused_in_one(name: str) -> None:
    with pytest.raises(InvalidOption) as refused:
        SourceOptions.parse({**GOOD, name: "two\nlines"})
    one_line(refused.value)


def test_the_redis_comes_from_the_environment_if_no_option_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidOption, match="option 'redis' is missing") as refused:
        SourceOptions.parse({"subscribe": GOOD["subscribe"]})
    one_line(refused.value)
    with pytest.raises(InvalidOption, match=r"if a table has it.*INSERT INTO NAME WITH ") as refused:
        SinkOptions.parse({"topic": "a"}, stream=False)
    one_line(refused.value)
    monkeypatch.setenv("STREAMLEASE_REDIS_URL", "redis://elsewhere:2")
    assert SourceOptions.parse({"subscribe": GOOD["subscribe"]}).redis == "redis://elsewhere:2"
    assert SourceOptions.parse(GOOD).redis == GOOD["redis"]


def test_a_subscription_is_needed() -> None:
    with pytest.raises(InvalidOption, match="option 'subscribe' is missing") as refused:
        SourceOptions.parse({"redis": GOOD["redis"]})
    one_line(refused.value)


@pytest.mark.parametrize(
    "text", ["", "t/#", "$share/g/t", "$shared", "$shared/g", "$shared//t", "$shared/+/t", "$shared/g/t/#/x"]
)
def test_a_malformed_subscription_is_refused(text: str) -> None:
    with pytest.raises(InvalidTopic) as refused:
        SourceOptions.parse({**GOOD, "subscribe": text})
    one_line(refused.value)


def test_spark_s_own_calls_refuse_the_same(embedded_redis_url: str) -> None:
    source = StreamleaseSource({**GOOD, "nonsense": "1"})
    with pytest.raises(InvalidInput, match="nonsense"):
        source.schema()
    good = StreamleaseSource({**GOOD, "redis": embedded_redis_url})
    with pytest.raises(UnknownSpace) as unknown:
        good.schema()
    one_line(unknown.value)
    with blocking.connect(embedded_redis_url) as client:
        client.create_space("t", ["t/#"])
    assert isinstance(good.streamReader(good.schema()), StreamReader)
    assert isinstance(good.streamReader(StructType(good.schema().fields[:2])), StreamReader)
    with pytest.raises(SchemaMismatch, match=r"leave \.schema") as refused:
        good.streamReader(StructType([StructField("topic", LongType())]))
    one_line(refused.value)


NASTY = [
    *("\ud800", "a\ud800b", "", " ", "\0", "\n", "a\nb", "9" * 5000, "-1", "1e9", "nan", "0x10", "5d5"),
    *(
        "[" * 100_000,
        '{"a":' * 50_000,
        '{"\\ud800": 1}',
        '{"a": 1e400}',
        '{"a": true}',
        '["\\ud800"]',
        "null",
    ),
    *("x" * 100_000, "1704067200000000000", "true\n", "9" * 400 + "d", "9" * 20 + "GiB", "{}", "[]"),
]


@pytest.mark.parametrize("value", NASTY, ids=lambda value: ascii(value)[:20])
def test_no_value_of_an_option_causes_anything_but_one_line(value: str) -> None:
    good = {"redis": "redis://127.0.0.1:1", "subscribe": "$shared/g/t/#"}
    for parse, names in ((SourceOptions.parse, NAMES), (BatchOptions.parse, BATCH_NAMES)):
        for given in (*({name: value} for name in names), {value: "1"}):
            try:
                parse({**good, **given})
            except StreamleaseError as error:
                text = one_line(error)
                text.encode()  # no lone surrogate
                assert len(text) < 1000
