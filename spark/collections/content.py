"""What tasks read of a collection: what is there at a point, added up, and the changes between two points.

What is there at a point is one multiset, however it is computed: of any snapshot that is not ahead of it, and
the changes behind that. So a task that reads it again, from another snapshot, reads the same items.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from streamlease.protocol.errors import HistoryTruncated, StoreUnavailable
from streamlease.protocol.ids import StreamId
from streamlease.spark.collections.collection_options import CollectionFrame
from streamlease.spark.connections import check_still_there, connection
from streamlease.streams.collections.change_reading import no_items, table_of
from streamlease.streams.collections.core.tables import summed
from streamlease.streams.collections.snapshots import (
    SnapshotGone,
    StoredSnapshot,
    newest_snapshots,
    snapshot_tables,
)
from streamlease.streams.entries.message_rows import filter_batch
from streamlease.streams.entries.schemas import Versions
from streamlease.streams.epochs.boundary_reading import Vouched
from streamlease.streams.log.segments import read_range
from streamlease.streams.log.state import MissingOffsets
from streamlease.streams.redis.connection import BlockingRedis, run_blocking
from streamlease.streams.spaces.spaces import SpaceStore

log = logging.getLogger(__name__)

RETRY_SECONDS = 0.2
ATTEMPTS = 5
"""So often what is there at a point is read anew because a snapshot, or retention, went on meanwhile."""

BEGIN_ANEW = "read again; a stream begins with a new checkpoint"

_READ = frozenset({"key", "payload", "diff", "offset"})


def items_at(
    frame: CollectionFrame, ends: Mapping[StreamId, int], noted: Mapping[StreamId, StoredSnapshot]
) -> pa.Table:
    """What some streams hold up to `ends`, added up: topic, key, payload or columns, and diff.

    Args:
        noted: snapshots not ahead of it that were there when the point was chosen.

    Raises:
        HistoryTruncated: changes were removed that no such snapshot has.
        UnknownSpace, SchemaMismatch, StoreUnavailable, StoreRefused.
    """
    redis = connection(frame.options.redis)
    for attempt in range(1, ATTEMPTS + 1):
        try:
            newest = run_blocking(newest_snapshots(redis, list(ends)))
            tables: list[pa.Table] = []
            for stream, end in ends.items():
                fitting = [one for one in (newest[stream], noted.get(stream)) if one and one.upto <= end]
                tables += _stream_at(frame, redis, stream, end, (fitting or [StoredSnapshot()])[0])
            return summed(pa.concat_tables(tables))
        except (HistoryTruncated, SnapshotGone) as error:
            if attempt == ATTEMPTS:
                raise error
            log.info("%s; reading again", error)
    raise AssertionError("unreachable")


def _stream_at(
    frame: CollectionFrame, redis: BlockingRedis, stream: StreamId, end: int, stored: StoredSnapshot
) -> Iterator[pa.Table]:
    space = run_blocking(SpaceStore(redis).get(stream.space))
    versions = Versions(space.schemas) if space.schemas else None
    wanted, filter = frame.typed, frame.options.filter

    async def snapshot() -> list[pa.Table]:
        found = snapshot_tables(redis, stream, stored, versions, wanted, filter)
        return [table async for table in found]

    for asked, oldest in stored.lost:
        _lost(frame, MissingOffsets(str(stream), asked, oldest))
    yield no_items(wanted)
    yield from run_blocking(snapshot())
    for batch in _read(frame, redis, stream, stored.upto, end, _READ, whole=True):
        yield table_of(batch, wanted)


def changes_between(
    frame: CollectionFrame, ranges: Sequence[tuple[str, int, int]]
) -> Iterator[pa.RecordBatch]:
    """The changes of ranges of streams, as rows of the frame.

    Raises:
        HistoryTruncated: retention was faster, or Redis lost some.
        UnknownSpace, SchemaMismatch, StoreUnavailable, StoreRefused.
    """
    redis = connection(frame.options.redis)
    for name, start, end in ranges:
        for batch in _read(frame, redis, StreamId.parse(name), start, end, frozenset(_CHANGE)):
            if batch.num_rows:
                yield shaped(frame, batch)


_CHANGE = (*_READ, "stream", "epoch")


def _read(
    frame: CollectionFrame,
    redis: BlockingRedis,
    stream: StreamId,
    start: int,
    end: int,
    columns: frozenset[str],
    *,
    whole: bool = False,
) -> Iterator[pa.RecordBatch]:
    """Changes that the filter matches. Waits for a Redis that is away, and skips what is lost if it may.

    Args:
        whole: what retention removed is never skipped: it is in another snapshot.
    """
    position, answered = start, time.monotonic()
    while position < end:
        try:
            for batch in read_range(redis, stream, position, end, schema=frame.typed, columns=columns):
                position += batch.num_rows
                yield filter_batch(batch, frame.options.filter)
                answered = time.monotonic()
        except StoreUnavailable:
            if time.monotonic() - answered >= frame.options.redis_timeout_ms / 1000:
                raise
            time.sleep(RETRY_SECONDS)
        except HistoryTruncated as error:
            if whole and not isinstance(error, MissingOffsets):
                raise error.with_remedy(
                    "a later snapshot has what was there: begin with a new checkpoint, or read a newer point"
                ) from None
            _lost(frame, error)
            position = error.oldest


def then_there(
    frame: CollectionFrame, rows: Iterator[pa.RecordBatch], vouched: Vouched | None
) -> Iterator[pa.RecordBatch]:
    """`rows`, and behind them a look whether the boundary by which they were chosen is still there.

    Who takes them must take all of them, or nothing: as Spark does with what a task hands on.

    Raises:
        EpochsLost: it is not: others may have come where they were read.
        StoreUnavailable, StoreRefused.
    """
    yield from rows
    if vouched is None:
        return
    patience = frame.options.redis_timeout_ms / 1000
    check_still_there(frame.options.redis, vouched, BEGIN_ANEW, patience)


def _lost(frame: CollectionFrame, error: HistoryTruncated) -> None:
    if frame.options.fail_on_data_loss:
        raise error.with_remedy(
            "begin with a new checkpoint, or read what is left with option 'failOnDataLoss' 'false'"
        ) from None
    log.warning("%s", error, extra={"stream": error.stream})


def shaped(frame: CollectionFrame, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Rows with just the columns of the frame; what they lack is null."""
    wanted = frame.arrow
    columns = [
        rows.column(field.name).cast(field.type)
        if field.name in rows.schema.names
        else pa.nulls(rows.num_rows, field.type)
        for field in wanted
    ]
    return pa.RecordBatch.from_arrays(columns, schema=wanted)
