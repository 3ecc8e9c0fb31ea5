"""What runs in Spark's executor tasks: a borrower for the time of one slot's part of one cut.

Connections stay in the Python worker between micro-batches, whichever slots its tasks embody. No message is
needed before the first row. A task that reads the same part again, because Spark retries it or runs it twice,
reads the same rows.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import InputPartition

from streamlease.borrower.reading import Reading, SlotWork, Span
from streamlease.protocol import log_lines as logs
from streamlease.protocol.errors import HistoryTruncated, StoreUnavailable, StreamleaseError
from streamlease.protocol.ids import StreamId
from streamlease.protocol.messages import CutRead
from streamlease.registry import mailbox
from streamlease.spark.connections import connection
from streamlease.spark.options import SourceOptions
from streamlease.spark.schema import FrameColumns
from streamlease.streams.entries.messages import filter_batch
from streamlease.streams.log.segments import read_range
from streamlease.streams.redis.connection import BlockingRedis, run_blocking

log = logging.getLogger(__name__)

RETRY_SECONDS = 0.2


@dataclass
class SlotPartition(InputPartition):
    """One slot's part of a cut, or a piece of it, on its way to a task."""

    work: SlotWork
    first: bool
    """Whether it is of its reader's first micro-batch; then it may have nothing to read. See ``twins``."""

    def __init__(self, work: SlotWork, *, first: bool = False) -> None:
        self.work = work
        self.first = first


def read(work: SlotWork, options: SourceOptions, columns: FrameColumns) -> Iterator[pa.RecordBatch]:
    """All messages of the slot's part of the cut that the filter matches, stream by stream.

    Raises:
        HistoryTruncated: part of the cut is no longer there, and ``failOnDataLoss`` is set.
        StoreUnavailable: Redis does not answer within ``redis.timeout``; Spark repeats the task.
        StoreRefused: Redis answers with an error; Spark repeats the task.
        SchemaMismatch: the space has other columns now.
    """
    logs.begin(group=work.group, borrower=f"{work.session}/{work.slot}")
    began = time.monotonic_ns()
    redis = connection(options.redis)
    reading = Reading(work)
    bytes_read = 0

    for span in work.spans:
        # The same on every delivery of these rows, by whichever query: an idempotency key for sinks.
        first, end = span.cut or (span.start, span.end)
        cut = f"{span.stream}@{first}-{end}"
        for batch in _batches(redis, span, reading, options, columns):
            bytes_read += batch.nbytes
            chosen = filter_batch(batch, options.subscription.filter)
            if chosen.num_rows:
                yield columns.shape(chosen, {"cut": cut})
    reading.finish()
    context = TaskContext.get()
    report = CutRead(
        group=work.group,
        session=work.session,
        cut=work.cut,
        slot=work.slot,
        attempt=context.attemptNumber() if context is not None else 0,
        messages=reading.messages,
        bytes=bytes_read,
        milliseconds=(time.monotonic_ns() - began) // 1_000_000,
    )
    try:
        run_blocking(mailbox.send(redis, "", [(work.agent, report)]))
    except StreamleaseError as error:
        log.warning("the report of cut %d, which was read whole, is lost: %s", work.cut, error)


def _batches(
    redis: BlockingRedis, span: Span, reading: Reading, options: SourceOptions, columns: FrameColumns
) -> Iterator[pa.RecordBatch]:
    """The rows of one span. Waits for a Redis that is away, and skips what is lost if that is allowed."""
    stream = StreamId.parse(span.stream)
    wanted = columns.wanted(stream.space)
    position, answered = span.start, time.monotonic()
    while position < span.end:
        try:
            for batch in read_range(redis, stream, position, span.end, schema=wanted, columns=columns.fixed):
                reading.read(span.stream, position, position + batch.num_rows - 1)
                position += batch.num_rows
                yield batch
                answered = time.monotonic()
        except StoreUnavailable:
            if time.monotonic() - answered >= options.redis_timeout_ms / 1000:
                raise
            time.sleep(RETRY_SECONDS)
        except HistoryTruncated as error:
            if options.fail_on_data_loss:
                raise error.with_remedy(
                    "every start reads this micro-batch again, so start the query with option "
                    "'failOnDataLoss' 'false' to go on without them"
                ) from None
            skipped = min(error.oldest, span.end) - 1
            log.warning(
                "%s; offsets %d to %d are skipped", error, position, skipped, extra={"stream": span.stream}
            )
            reading.skip(span.stream, error.oldest)
            position = error.oldest
