"""``spark.read`` with ``collection`` ``items``: what is there now, or was when an epoch was completed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from streamlease.protocol.ids import StreamId
from streamlease.spark.collections.collection_options import ITEMS, CollectionFrame
from streamlease.spark.collections.content import items_at, shaped, then_there
from streamlease.spark.connections import connection
from streamlease.spark.epoch_ranges import EpochRange, epoch_ends
from streamlease.streams.collections.points import newest_point
from streamlease.streams.collections.snapshots import StoredSnapshot
from streamlease.streams.epochs.boundary_reading import Vouched
from streamlease.streams.redis.connection import run_blocking


class ItemsPartition(InputPartition):
    """What one task adds up: streams with the ends of their parts.

    Args:
        vouched: the boundary by which the ends were chosen.
    """

    def __init__(
        self,
        ends: Mapping[StreamId, int],
        noted: Mapping[StreamId, StoredSnapshot] | None = None,
        vouched: Vouched | None = None,
    ) -> None:
        self.ends = dict(ends)
        self.noted = dict(noted or {})
        self.vouched = vouched

    def rows(self, frame: CollectionFrame, count: str) -> Iterator[pa.RecordBatch]:
        """The items, with how many there are of each in column `count`.

        Raises:
            EpochsLost: Redis lost the boundary at which they were to be read.
        """
        return then_there(frame, self._rows(frame, count), self.vouched)

    def _rows(self, frame: CollectionFrame, count: str) -> Iterator[pa.RecordBatch]:
        table = items_at(frame, self.ends, self.noted)
        names = [count if name == "diff" else name for name in table.schema.names]
        for batch in table.rename_columns(names).to_batches(max_chunksize=65_536):
            if batch.num_rows:
                yield shaped(frame, batch)


def item_tasks(
    ends: Mapping[StreamId, int],
    noted: Mapping[StreamId, StoredSnapshot],
    vouched: Vouched | None,
) -> list[ItemsPartition]:
    """A task for each stream; one for all if an item may be in several of them, as after ``alter``."""
    there = {stream: end for stream, end in ends.items() if end}
    if len({stream.generation for stream in there}) > 1:
        return [ItemsPartition(there, noted, vouched)]
    return [ItemsPartition({stream: end}, noted, vouched) for stream, end in there.items()]


@dataclass(frozen=True)
class ItemTable(DataSourceReader):
    """Plans and reads."""

    frame: CollectionFrame

    def partitions(self) -> list[InputPartition]:
        """Fixes the point, and divides the streams over tasks.

        Raises:
            InvalidOption: the epoch is none of the collection, or is not completed.
            EpochsTruncated, StoreUnavailable, StoreRefused.
        """
        options, space = self.frame.options, self.frame.space
        redis = connection(options.redis)
        # First the boundary: else others might stand already where the ends say.
        point = run_blocking(newest_point(redis, space))
        vouched = None if point.bound is None else Vouched.of(space.name, point.bound)
        ends: Mapping[StreamId, int] = point.ends
        if options.as_of is not None:
            _, ends = epoch_ends(redis, options.filter, [space], EpochRange(at=options.as_of))
        return [*item_tasks(ends, {}, vouched)] or [ItemsPartition({})]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The items of some streams; runs in an executor's Python worker."""
        assert isinstance(partition, ItemsPartition)
        return partition.rows(self.frame, "count") if partition.ends else iter(())


def item_table(schema: StructType, given: Mapping[str, str]) -> ItemTable:
    """A reader of the columns `schema`; see `CollectionFrame.of` for what it raises."""
    return ItemTable(CollectionFrame.of(given, schema, ITEMS))
