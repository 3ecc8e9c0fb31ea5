"""What runs in Spark's executor tasks: a borrower for the time of one slot's part of one cut.

Connections stay in the Python worker between micro-batches, whichever slots its tasks embody. No message is
needed before the first row. A task that reads the same part again, because Spark retries it or runs it twice,
reads the same rows.

A query that reads one group by two readers, as in a join of a frame with itself, is refused at its start.
Spark makes a reader for each side of such a join, in a process of its own. Each is a member of the group,
which divides its messages between them: each side has some, and of the pairs most are missing. No process can
know of the other: they see the same options, and no query. Its id and its run are known to *tasks*, so
the first micro-batch of each reader has a task, also where there is nothing to read, and its tasks say which
session reads for this run before they read a row. The second session of a run is refused (`admit`).

Different queries of one application have different ids, and share a group as they like. A union of a frame
with itself has one reader, whose rows it reads twice.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import TaskContext

from streamlease.borrower.reading import Reading, SlotWork
from streamlease.protocol import log_lines as logs
from streamlease.protocol.cuts import CutRange
from streamlease.protocol.errors import (
    HistoryTruncated,
    Indefinite,
    InvalidOption,
    StoreUnavailable,
    StreamleaseError,
)
from streamlease.protocol.ids import StreamId
from streamlease.protocol.messages import CutRead
from streamlease.registry.mail import mailbox
from streamlease.registry.runs import reader_of_run
from streamlease.spark.connections import RETRY_SECONDS, check_still_there, connection
from streamlease.spark.options import SourceOptions
from streamlease.spark.reading.small_ranges import read_small
from streamlease.spark.schema import FrameColumns
from streamlease.streams.entries.message_rows import filter_batch
from streamlease.streams.log.segments import read_range
from streamlease.streams.log.state import Wanted
from streamlease.streams.redis.connection import BlockingRedis, run_blocking
from streamlease.streams.rows.together import Shared

if TYPE_CHECKING:
    from streamlease.streams.epochs.boundary_reading import Vouched

log = logging.getLogger(__name__)

GO_ON = "start the query again: it goes on with what is there now"


def admit(redis: str, group: str, session: str, patience: float) -> None:
    """Take note that `session` reads `group` for the query of this task; does nothing outside of a query.

    Args:
        patience: how long (s) to wait for a Redis that is away.

    Raises:
        InvalidOption: another session does.
        StoreUnavailable, StoreRefused.
    """
    context = TaskContext.get()
    query = context.getLocalProperty("sql.streaming.queryId") if context is not None else None
    if context is None or query is None:
        return
    # The run, unless the user's function has a job group of its own; then the checkpoint keeps the session.
    run = context.getLocalProperty("spark.jobGroup.id") or ""
    give_up = time.monotonic() + patience
    while True:
        try:
            first = reader_of_run(connection(redis), group, f"{query}/{run}", session)
            break
        except (StoreUnavailable, Indefinite):  # safe to repeat
            if time.monotonic() >= give_up:
                raise
            time.sleep(RETRY_SECONDS)
    if first != session:
        raise InvalidOption(
            f"option 'subscribe' names group '{group}' in two readers of one query, as in a join of a frame "
            f"with itself; the group would divide its messages between them: give one side a group of its own"
        )


def read(
    work: SlotWork, options: SourceOptions, columns: FrameColumns, vouched: Vouched | None = None
) -> Iterator[pa.RecordBatch]:
    """All messages of the slot's part of the cut that the filter matches, stream by stream; streams with
    a few messages share batches.

    Args:
        vouched: the boundary at which a cut of whole epochs ends; None: it has none, or none that is known.

    Raises:
        EpochsLost: Redis lost that boundary meanwhile, as in a failover: others may have come in its place.
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

    pieces = [*work.pieces]
    # The same on every delivery of these rows, by whichever query: an idempotency key for sinks.
    cuts = [f"{whole.stream}@{whole.start}-{whole.end}" for _, whole in pieces]
    for found in read_small(redis, [_wanted(part, columns) for part, _ in pieces]):
        batches: Iterable[Shared]
        if isinstance(found, Shared):
            for place, rows in found.lengths.items():
                part = pieces[place].part
                reading.read(part.stream, part.start, part.start + rows - 1)
            batches = [found]
        else:
            alone = _batches(redis, pieces[found].part, reading, options, columns)
            batches = (Shared(batch, {found: batch.num_rows}) for batch in alone)
        for batch, lengths in batches:
            bytes_read += batch.nbytes
            named = columns.with_cuts(batch, [cuts[place] for place in lengths], [*lengths.values()])
            chosen = filter_batch(named, options.subscription.filter)
            if chosen.num_rows:
                yield columns.shape(chosen)
    if vouched is not None:
        check_still_there(options.redis, vouched, GO_ON, options.redis_timeout_ms / 1000)
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


def _wanted(part: CutRange, columns: FrameColumns) -> Wanted:
    stream = StreamId.parse(part.stream)
    return Wanted(stream, part.start, part.end, columns.wanted(stream.space), columns.fixed)


def _batches(
    redis: BlockingRedis, part: CutRange, reading: Reading, options: SourceOptions, columns: FrameColumns
) -> Iterator[pa.RecordBatch]:
    """The rows of one range. Waits for a Redis that is away, and skips what is lost if that is allowed."""
    stream, position, end, schema, fixed = _wanted(part, columns)
    answered = time.monotonic()
    while position < part.end:
        try:
            for batch in read_range(redis, stream, position, end, schema=schema, columns=fixed):
                reading.read(part.stream, position, position + batch.num_rows - 1)
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
            skipped = min(error.oldest, part.end) - 1
            log.warning(
                "%s; offsets %d to %d are skipped", error, position, skipped, extra={"stream": part.stream}
            )
            reading.skip(part.stream, error.oldest)
            position = error.oldest
