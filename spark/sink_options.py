"""Options of the sink, read once and checked whole, and the columns that it takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from streamlease.protocol.errors import InvalidInput, InvalidOption
from streamlease.protocol.ids import check_name
from streamlease.protocol.topics import check_topic
from streamlease.spark import option_values as read
from streamlease.streams.entries.entries import CODECS, Codec

NAMES = (
    "redis",
    "topic",
    "space",
    "compression",
    "txnAppId",
    "txnVersion",
    "redis.timeout",
    "epochs",
    "partition",
)
_SPARK_S_OWN = ("checkpointlocation", "queryname")
"""Spark hands these to the writer of a stream."""

_OF_A_TABLE = "; if a table has it, say it in the query too, INSERT INTO NAME WITH (redis='...') ..."


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The options of a writer, checked."""

    redis: str
    topic: str | None = None
    """The topic of all rows; else each row has one in its column ``topic``."""
    space: str | None = None
    """The only space to which the topics may belong; None for any."""
    compression: Codec = "lz4"
    transaction: tuple[str, int] | None = None
    """``txnAppId`` and ``txnVersion``."""
    redis_timeout_ms: int = 60_000
    epochs: bool = False
    """Whether the number of a micro-batch is the epoch of its rows, in `space`."""
    per_worker: bool = False
    """Whether each partition has topics of its own: ``NAME.0``, ``NAME.1``, and so on."""

    @classmethod
    def parse(cls, options: Mapping[str, str], *, stream: bool) -> SinkOptions:
        """Read the options that Spark hands over; their names are not case-sensitive.

        Raises:
            InvalidOption: one is unknown, missing, or has a value that it cannot have.
            InvalidTopic: ``topic`` is malformed.
        """
        given = read.named({k: v for k, v in options.items() if k.lower() not in _SPARK_S_OWN}, NAMES)
        topic = given.get("topic")
        codec = given.get("compression", "lz4")
        if codec not in CODECS:
            raise InvalidOption(f"option 'compression' is {codec!r}: use {', '.join(CODECS)}")
        app, version = given.get("txnappid"), read.optional_number("txnVersion", given, 0)
        if (app is None) != (version is None):
            raise InvalidOption("options 'txnAppId' and 'txnVersion' go together: give both, or neither")
        if stream and app is not None:
            raise InvalidOption("option 'txnAppId' is for batch writes: a stream is exactly once without it")
        epochs = given.get("epochs", "off")
        if epochs not in ("off", "batch"):
            raise InvalidOption(f"option 'epochs' is {read.shown(epochs)}: use 'off' or 'batch'")
        if epochs == "batch" and not stream:
            raise InvalidOption("option 'epochs' 'batch' is for streams: a batch write has one batch only")
        if epochs == "batch" and "space" not in given:
            raise InvalidOption("option 'epochs' is 'batch': name the space with option 'space'")
        partition = given.get("partition", "merge")
        if partition not in ("merge", "perWorker"):
            raise InvalidOption(f"option 'partition' is {read.shown(partition)}: use 'merge' or 'perWorker'")
        return cls(
            redis=read.redis_url(given, remedy="" if stream else _OF_A_TABLE),
            topic=None if topic is None else check_topic(topic),
            space=given.get("space"),
            compression=codec,
            transaction=(
                None if app is None or version is None else (check_name("option 'txnAppId'", app), version)
            ),
            redis_timeout_ms=read.duration("redis.timeout", given.get("redis.timeout", "60s")),
            epochs=epochs == "batch",
            per_worker=partition == "perWorker",
        )


_TEXT = (StringType, BinaryType)
_WANTED: dict[str, tuple[type[DataType], ...]] = {
    "topic": (StringType,),
    "key": _TEXT,
    "payload": _TEXT,
    "timestamp": (TimestampType,),
}


def check_columns(schema: StructType, options: SinkOptions) -> None:
    """Refuse a DataFrame that cannot be written to any space, before the first task starts.

    Raises:
        InvalidInput: no column ``topic``, or a column of every message has a wrong type.
    """
    names = [field.name for field in schema.fields]
    if "topic" not in names and options.topic is None:
        raise InvalidInput(
            f"the columns {', '.join(names) or '(none)'} have no topic: "
            f"add a column 'topic', or give option 'topic'"
        )
    for field in schema.fields:
        wanted = _WANTED.get(field.name)
        if field.name == "topic" and options.topic is not None:
            continue
        if wanted is not None and not isinstance(field.dataType, wanted):
            types = " or ".join(one.typeName() for one in wanted)
            hint = ", such as by to_timestamp" if isinstance(field.dataType, TimestampNTZType) else ""
            raise InvalidInput(
                f"column {field.name} is {field.dataType.simpleString()}, not {types}: cast it first{hint}"
            )
        if field.name == "headers" and not _is_headers(field.dataType):
            raise InvalidInput(
                f"column headers is {field.dataType.simpleString()}: "
                f"make it array<struct<key:string,value:binary>>"
            )


def _is_headers(type: DataType) -> bool:
    if not isinstance(type, ArrayType) or not isinstance(type.elementType, StructType):
        return False
    fields = {field.name: field.dataType for field in type.elementType.fields}
    return (
        fields.keys() == {"key", "value"}
        and isinstance(fields["key"], StringType)
        and isinstance(fields["value"], _TEXT)
    )
