"""``df.writeStream.format("streamlease")`` and ``df.write.format("streamlease")``: topics written from Spark.

A micro-batch is delivered exactly once, also when Spark makes it again: rows are staged by the tasks, and
the driver's commit decides the batch and appends it (``streams.publish.staged``). The sink is named by the
query's id, which stands in its checkpoint; the number of the batch is Spark's.

A batch write is one job with a name of its own, so writing again appends again; with ``txnAppId`` and
``txnVersion``, as Delta Lake has them, a version is written once into each *target*: for ``foreachBatch``. A
target is what a table is there: the topic of option ``topic``, or else each space that rows go to.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from streamlease.catalog.sink_rows import end_sink, show_batch
from streamlease.protocol.errors import StreamleaseError, Unsupported
from streamlease.protocol.ids import StreamId, random_token
from streamlease.spark.connections import connection
from streamlease.spark.placing import Placer
from streamlease.spark.sink_options import SinkOptions, check_columns
from streamlease.streams.epochs.batch_epochs import BatchEpochs
from streamlease.streams.publish.staged.batch_plan import Staged
from streamlease.streams.publish.staged.delivery import Delivery
from streamlease.streams.publish.staged.staging import Stager, abandon, forget
from streamlease.streams.redis.connection import AsyncRedis, connect, run_blocking
from streamlease.streams.spaces.spaces import SpaceStore

log = logging.getLogger(__name__)

FIRST_WAIT, LONGEST_WAIT = 0.1, 2.0


@dataclass(frozen=True, slots=True)
class Sinks:
    """Which sink each row of a write belongs to: what has numbered batches, each delivered once.

    Args:
        kind: ``query``, ``job``, or ``transaction``, which is a sink for each target.
        name: the query's id, the job's name, or ``txnAppId``.
        topic: option ``topic``.
    """

    kind: Literal["query", "job", "transaction"]
    name: str
    topic: str | None = None

    def of(self, stream: StreamId) -> str:
        """The sink of a row that goes to `stream`."""
        if self.kind != "transaction":
            return self.name
        return f"txn-{self.name}:{stream.space}" if self.topic is None else f"txn-{self.name}/{self.topic}"

    def publisher(self, sink: str) -> str:
        """The id under which streams remember batches of `sink`; nobody repeats a job, so it is forgotten."""
        return f"~spark-{sink}" if self.kind == "job" else f"spark-{sink}"


class Written(WriterCommitMessage):
    """What one task staged."""

    def __init__(self, sinks: Sinks, batch: int, staged: Sequence[Staged], topics: Mapping[str, str]) -> None:
        self.sinks = sinks
        self.batch = batch
        self.staged = list(staged)
        self.topics = dict(topics)


class Gathered:
    """What all tasks staged, sink by sink, the first partition first."""

    def __init__(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        written = [message for message in messages if isinstance(message, Written)]
        self.sinks = written[0].sinks if written else None
        self.batch = written[0].batch if written else 0
        self.staged: dict[str, list[Staged]] = {}
        self.topics: dict[str, str] = {}
        """With their spaces."""
        for message in written:
            self.topics.update(message.topics)
            if message.sinks.kind != "transaction":
                self.staged.setdefault(message.sinks.name, [])  # also a batch without rows counts
            for one in message.staged:
                self.staged.setdefault(message.sinks.of(one.stream), []).append(one)


def stage(
    rows: Iterator[pa.RecordBatch], options: SinkOptions, sinks: Sinks, batch: int, partition: int = 0
) -> Written:
    """Stage the rows of one task; runs in an executor's Python worker.

    Args:
        partition: the number of its partition.

    Raises:
        InvalidInput, UnknownSpace, SchemaMismatch: a row belongs into no space, or not so.
        StoreUnavailable, StoreRefused, Indefinite, Lost.
    """
    redis = connection(options.redis)
    stager = Stager(redis, sinks.of, batch, random_token(), patience=options.redis_timeout_ms / 1000)
    try:
        known = run_blocking(SpaceStore(redis).look())
        placer = Placer(
            known.spaces,
            stager,
            options.topic,
            options.space,
            options.compression,
            epochs=options.epochs,
            suffix=f".{partition}" if options.per_worker else "",
        )
        for some in rows:
            placer.add(some)
        placer.finish()
        return Written(sinks, batch, stager.finish(), placer.topics)
    except BaseException:
        with contextlib.suppress(StreamleaseError):  # what stays there expires
            stager.discard()
        raise


def deliver(messages: Sequence[WriterCommitMessage | None], options: SinkOptions) -> None:
    """Append what tasks staged; runs beside Spark's driver.

    Raises:
        Fenced: another run of the query is ahead, or the checkpoint is older than the sink.
        As ``Delivery.deliver``.
    """
    gathered = Gathered(messages)
    sinks = gathered.sinks
    if sinks is None:
        return

    async def run(sinks: Sinks) -> None:
        seconds = options.redis_timeout_ms / 1000
        shown = f"{sinks.kind} {sinks.name}"
        async with connect(options.redis) as redis:
            await _patiently(lambda: show_batch(redis, shown, gathered.topics), seconds)
            for sink, staged in gathered.staged.items():
                if options.epochs:
                    await _as_epoch(redis, options, sinks.publisher(sink), gathered.batch, staged)
                else:
                    delivery = Delivery(redis, sink, sinks.publisher(sink))
                    await _in_streams(delivery, gathered.batch, staged, sinks, seconds)
            if sinks.kind == "job":
                await _patiently(lambda: end_sink(redis, shown), seconds)

    asyncio.run(run(sinks))
    if options.epochs:
        with contextlib.suppress(StreamleaseError):  # the staged logs have it now; what stays there expires
            _abandon(messages, options)


async def _patiently(act: Callable[[], Awaitable[None]], seconds: float) -> None:
    """Do what is safe to repeat, again and again while Redis does not answer."""
    loop = asyncio.get_running_loop()
    deadline, wait = loop.time() + seconds, FIRST_WAIT
    while True:
        try:
            await act()
            return
        except StreamleaseError as error:
            if not error.retriable or loop.time() > deadline:
                raise
        await asyncio.sleep(wait)
        wait = min(LONGEST_WAIT, 2 * wait)


async def _as_epoch(
    redis: AsyncRedis, options: SinkOptions, sink: str, batch: int, staged: Sequence[Staged]
) -> None:
    """Deliver one batch as an epoch."""
    assert options.space is not None
    name, seconds = options.space, options.redis_timeout_ms / 1000

    async def attempt() -> None:
        space = await SpaceStore(redis).get(name)
        await BatchEpochs(redis, space, sink, seconds).deliver(batch, staged)

    await _patiently(attempt, seconds)


async def _in_streams(
    delivery: Delivery, batch: int, staged: Sequence[Staged], sinks: Sinks, seconds: float
) -> None:
    """Deliver one batch of one sink."""
    first = True

    async def attempt() -> None:
        nonlocal first
        own, first = first, False
        done = await delivery.deliver(batch, staged, skip_past=sinks.kind == "transaction")
        if sinks.kind == "job":
            await delivery.forget()
        if sinks.kind == "transaction" and own and done.repeated and not done.rows:
            _tell_skipped(sinks, batch, staged[0].stream)

    await _patiently(attempt, seconds)


def _tell_skipped(sinks: Sinks, version: int, stream: StreamId) -> None:
    target = f"topic {sinks.topic}" if sinks.topic is not None else f"space {stream.space}"
    log.warning(
        "txnVersion %d of txnAppId %s was skipped for %s, which has it, or a later one, already",
        version,
        sinks.name,
        target,
    )


def _abandon(messages: Sequence[WriterCommitMessage | None], options: SinkOptions) -> None:
    """Remove what was staged, but not what a decision names, if there can be a repetition to finish it."""
    gathered = Gathered(messages)
    if gathered.sinks is None:
        return
    remove = forget if gathered.sinks.kind == "job" else abandon
    for sink, staged in gathered.staged.items():
        remove(connection(options.redis), sink, gathered.batch, staged)


def _partition() -> int:
    context = TaskContext.get()
    return 0 if context is None else context.partitionId()


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
        return stage(iterator, self._options, Sinks("query", query), int(batch), _partition())

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Append the micro-batch, or finish what an earlier attempt decided."""
        deliver(messages, self._options)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Remove what was staged and is not decided."""
        _abandon(messages, self._options)


class BatchWriter(DataSourceArrowWriter):
    """Writes the rows of one job."""

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise Unsupported("mode 'overwrite' is not possible, topics are appended to: use .mode('append')")
        check_columns(schema, options)
        self._options = options
        if options.transaction is None:
            self._sinks, self._batch = Sinks("job", f"job-{random_token()}"), 0
        else:
            app, self._batch = options.transaction
            self._sinks = Sinks("transaction", app, options.topic)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Stage one task's rows."""
        return stage(iterator, self._options, self._sinks, self._batch, _partition())

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Append the job's rows, except into targets that have its transaction's version already."""
        deliver(messages, self._options)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remove what was staged and is not decided."""
        _abandon(messages, self._options)


def stream_writer(schema: StructType, options: Mapping[str, Any]) -> StreamWriter:
    """The writer of a stream; see `SinkOptions` and `check_columns` for what it raises."""
    return StreamWriter(SinkOptions.parse(options, stream=True), schema)


def batch_writer(schema: StructType, overwrite: bool, options: Mapping[str, Any]) -> BatchWriter:
    """The writer of a job; see `SinkOptions` and `check_columns` for what it raises."""
    return BatchWriter(SinkOptions.parse(options, stream=False), schema, overwrite)
