"""``df.writeStream.format("streamlease")`` and ``df.write.format("streamlease")``: topics written from Spark.

A micro-batch is delivered exactly once, also when Spark makes it again: rows are staged by the tasks, and
the driver's commit decides the batch and appends it (``streams.staging``). The sink is named by the query's
id, which stands in its checkpoint; the number of the batch is Spark's.

A batch write is one job with a name of its own, so writing again appends again; with ``txnAppId`` and
``txnVersion``, as Delta Lake has them, a version is written once: for ``foreachBatch``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from streamlease.protocol.errors import InvalidInput, InvalidOption, StreamleaseError, Unsupported
from streamlease.protocol.ids import check_name, random_token
from streamlease.protocol.topics import check_topic
from streamlease.spark import option_values as read
from streamlease.spark.connections import connection
from streamlease.spark.placing import Placer
from streamlease.streams.connection import connect
from streamlease.streams.delivery import Delivery
from streamlease.streams.entries import CODECS, Codec
from streamlease.streams.spaces import read_spaces_blocking
from streamlease.streams.staging import Staged, Stager, discard

NAMES = ("redis", "topic", "space", "compression", "txnAppId", "txnVersion", "redis.timeout")
_SPARK_S_OWN = ("checkpointlocation", "queryname")
"""Spark hands these to the writer of a stream."""

FIRST_WAIT, LONGEST_WAIT = 0.1, 2.0


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
        return cls(
            redis=read.redis_url(given),
            topic=None if topic is None else check_topic(topic),
            space=given.get("space"),
            compression=codec,
            transaction=(
                None if app is None or version is None else (check_name("option 'txnAppId'", app), version)
            ),
            redis_timeout_ms=read.duration("redis.timeout", given.get("redis.timeout", "60s")),
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


class Written(WriterCommitMessage):
    """What one task staged."""

    def __init__(self, sink: str, batch: int, staged: Sequence[Staged]) -> None:
        self.sink = sink
        self.batch = batch
        self.staged = list(staged)


def stage(rows: Iterator[pa.RecordBatch], options: SinkOptions, sink: str, batch: int) -> Written:
    """Stage the rows of one task; runs in an executor's Python worker.

    Raises:
        InvalidInput, UnknownSpace, SchemaMismatch: a row belongs into no space, or not so.
        StoreUnavailable, StoreRefused.
    """
    redis = connection(options.redis)
    stager = Stager(redis, sink, batch, random_token(), patience=options.redis_timeout_ms / 1000)
    try:
        placer = Placer(
            read_spaces_blocking(redis), stager, options.topic, options.space, options.compression
        )
        for some in rows:
            placer.add(some)
        placer.finish()
        return Written(sink, batch, stager.finish())
    except BaseException:
        with contextlib.suppress(StreamleaseError):  # what stays there expires
            stager.discard()
        raise


def deliver(
    messages: Sequence[WriterCommitMessage | None],
    options: SinkOptions,
    publisher: str,
    *,
    skip_past: bool = False,
    once: bool = False,
) -> None:
    """Append what tasks staged, the first partition first; runs beside Spark's driver.

    Raises:
        Fenced: another run of the query is ahead, or the checkpoint is older than the sink.
        As ``Delivery.deliver``.
    """
    written = [message for message in messages if isinstance(message, Written)]
    if not written:
        return
    sink, batch = written[0].sink, written[0].batch
    staged = [one for message in written for one in message.staged]

    async def run() -> None:
        async with connect(options.redis) as redis:
            loop = asyncio.get_running_loop()
            deadline, wait = loop.time() + options.redis_timeout_ms / 1000, FIRST_WAIT
            while True:
                try:
                    delivery = Delivery(redis, sink, publisher)
                    await delivery.deliver(batch, staged, skip_past=skip_past)
                    if once:
                        await delivery.forget()
                    return
                except StreamleaseError as error:
                    if not error.retriable or loop.time() > deadline:
                        raise
                await asyncio.sleep(wait)
                wait = min(LONGEST_WAIT, 2 * wait)

    asyncio.run(run())


def _abandon(messages: Sequence[WriterCommitMessage | None], options: SinkOptions) -> None:
    for message in messages:
        if isinstance(message, Written):
            discard(connection(options.redis), message.sink, message.batch, message.staged)


def _property(name: str) -> str:
    context = TaskContext.get()
    value = None if context is None else context.getLocalProperty(name)
    if value is None:
        raise Unsupported(f"the task has no property {name}: this sink needs Spark 4.3's micro-batches")
    return value


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes micro-batches; every output mode appends what the batch has, as Spark's Kafka sink does."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        check_columns(schema, options)
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Stage one task's rows."""
        query, batch = _property("sql.streaming.queryId"), _property("streaming.sql.batchId")
        return stage(iterator, self._options, query, int(batch))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Append the micro-batch, or finish what an earlier attempt decided."""
        sinks = {message.sink for message in messages if isinstance(message, Written)}
        deliver(messages, self._options, f"spark-{min(sinks, default='')}")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Remove what was staged."""
        _abandon(messages, self._options)


class BatchWriter(DataSourceArrowWriter):
    """Writes the rows of one job."""

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise Unsupported("mode 'overwrite' is not possible, topics are appended to: use .mode('append')")
        check_columns(schema, options)
        self._options = options
        transaction = options.transaction
        self._sink = f"job-{random_token()}" if transaction is None else f"txn-{transaction[0]}"
        self._batch = 0 if transaction is None else transaction[1]

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Stage one task's rows."""
        return stage(iterator, self._options, self._sink, self._batch)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Append the job's rows, unless its transaction was written before."""
        if self._options.transaction is None:
            deliver(messages, self._options, f"~spark-{self._sink}", once=True)
        else:
            deliver(messages, self._options, f"spark-{self._sink}", skip_past=True)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remove what was staged."""
        _abandon(messages, self._options)


def stream_writer(schema: StructType, options: Mapping[str, Any]) -> StreamWriter:
    """The writer of a stream; see `SinkOptions` and `check_columns` for what it raises."""
    return StreamWriter(SinkOptions.parse(options, stream=True), schema)


def batch_writer(schema: StructType, overwrite: bool, options: Mapping[str, Any]) -> BatchWriter:
    """The writer of a job; see `SinkOptions` and `check_columns` for what it raises."""
    return BatchWriter(SinkOptions.parse(options, stream=False), schema, overwrite)
