"""The columns that every message has, as Spark's types."""

from __future__ import annotations

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])

_COLUMNS = [
    StructField("topic", StringType()),
    StructField("key", BinaryType()),
    StructField("payload", BinaryType()),
    StructField("headers", ArrayType(_HEADER)),
    StructField("stream", StringType()),
    StructField("offset", LongType()),
    StructField("timestamp", TimestampType()),
    StructField("append_timestamp", TimestampType()),
    StructField("epoch", ArrayType(LongType())),
]


def message_fields(*, headers: bool = True, cut: bool = False) -> list[StructField]:
    """The columns of every message: those of the contract, with or without ``headers`` and ``cut``."""
    columns = [column for column in _COLUMNS if headers or column.name != "headers"]
    return [*columns, StructField("cut", StringType())] if cut else columns
