"""``format("streamlease")``: the data source that Spark loads.

The reader is made anew wherever Spark needs one, in the query's own Python process and in every worker, so it
connects to nothing until it is asked for an offset.

Spark loads this module in each of its Python processes, of which every one does a single job: tell the
columns, plan, be a query's session, read, write. What only one of these jobs needs is imported where that job
begins (`docs/decisions/0260-the-first-row-of-a-query.md`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from streamlease.borrower.reading import Pieces, SlotWork
from streamlease.protocol.cuts import NO_RANGES
from streamlease.protocol.topics import is_of_catalog
from streamlease.spark.core.checkpoint import CutOffset
from streamlease.spark.core.limits import Limits
from streamlease.spark.core.pieces import divided
from streamlease.spark.options import SourceOptions
from streamlease.spark.schema import FrameColumns, readable, stream_columns
from streamlease.spark.setup import source_process

if TYPE_CHECKING:
    import pyarrow as pa

    from streamlease.spark.collections.catalog_reading import CatalogStream, CatalogTable
    from streamlease.spark.collections.change_stream import ChangeStream
    from streamlease.spark.collections.item_table import ItemTable
    from streamlease.spark.query.query import QuerySession
    from streamlease.spark.reading.batch_read import BatchReader
    from streamlease.spark.sink import BatchWriter, StreamWriter
    from streamlease.streams.epochs.boundary_reading import Vouched

NO_LIMIT = ReadMaxRows(2**63 - 1)
"""What a source without limits asks for. So ``ReadAllAvailable`` comes with the trigger ``once`` alone, which
asks for one offset and takes "not yet" for "nothing"."""


class StreamleaseSource(DataSource):
    """Streams of a shared subscription as a streaming DataFrame; options as of `SourceOptions`."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "streamlease"

    def schema(self) -> StructType:
        """The columns: those of every message, and those of the schemas of the spaces.

        Raises:
            InvalidOption, InvalidTopic: an option is unknown or unacceptable.
            UnknownSpace, SchemaMismatch, StoreUnavailable, StoreRefused: see ``spark.schema``.
        """
        if self._is_of_catalog():
            from streamlease.spark.collections.catalog_frame import catalog_columns

            return catalog_columns(self.options)
        if self._is_of_collection():
            from streamlease.spark.collections.collection_options import columns_of

            return columns_of(self.options)
        return readable(self.options)

    def _is_of_catalog(self) -> bool:
        return any(
            name.lower() == "subscribe" and is_of_catalog(value) for name, value in self.options.items()
        )

    def _is_of_collection(self) -> bool:
        return any(name.lower() == "collection" for name in self.options)

    def streamReader(self, schema: StructType) -> StreamReader | ChangeStream | CatalogStream:
        """A reader of the shared subscription, with the columns `schema`, some or all of the source's.

        Raises:
            SchemaMismatch: a column is not there, or is of another type.
        """
        if self._is_of_catalog():
            from streamlease.spark.collections.catalog_reading import catalog_stream

            return catalog_stream(schema, self.options)
        if self._is_of_collection():
            from streamlease.spark.collections.change_stream import change_stream

            return change_stream(schema, self.options)
        options = SourceOptions.parse(self.options)
        return StreamReader(options, stream_columns(options, schema))

    def reader(self, schema: StructType) -> BatchReader | ItemTable | CatalogTable:
        """A reader of a part of the history, or of the items of a collection; see ``batch_read``."""
        if self._is_of_catalog():
            from streamlease.spark.collections.catalog_reading import catalog_table

            return catalog_table(schema, self.options)
        if self._is_of_collection():
            from streamlease.spark.collections.item_table import item_table

            return item_table(schema, self.options)
        from streamlease.spark.reading.batch_read import batch_reader

        return batch_reader(schema, self.options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        """A writer of micro-batches; see ``spark.sink``."""
        from streamlease.spark.sink import stream_writer

        return stream_writer(schema, self.options)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """A writer of one job's rows; see ``spark.sink``."""
        from streamlease.spark.sink import batch_writer

        return batch_writer(schema, overwrite, self.options)


@dataclass
class SlotPartition(InputPartition):
    """One slot's part of a cut, or a piece of it, on its way to a task."""

    work: SlotWork
    first: bool
    """Whether it is of its reader's first micro-batch; then it may have nothing to read. See `task.admit`."""
    vouched: Vouched | None
    """The boundary at which its cut of whole epochs ends."""

    def __init__(self, work: SlotWork, *, first: bool = False, vouched: Vouched | None = None) -> None:
        self.work = work
        self.first = first
        self.vouched = vouched


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """What Spark's driver and workers call."""

    def __init__(self, options: SourceOptions, columns: FrameColumns | None = None) -> None:
        self._options = options
        self._columns = columns if columns is not None else stream_columns(options)
        self._query: QuerySession | None = None
        self._given: list[tuple[dict[str, Any], CutOffset]] = []
        """The newest offsets that Spark was given: it hands them back as they are."""
        self._first: dict[str, Any] | None = None
        """Where the first micro-batch of this process ends."""
        self._last: dict[str, Any] | None = None
        """Where its newest one ends."""
        self._logged: dict[str, Any] | None = None
        """The newest end of a micro-batch that Spark has in its checkpoint, as far as it said so."""

    def __getstate__(self) -> dict[str, Any]:
        # Spark pickles the reader for its workers, which only call `read`.
        return vars(StreamReader(self._options, self._columns))

    def _session(self) -> QuerySession:
        if self._query is None:
            from streamlease.spark.query.query import QuerySession, leave_at_the_end

            self._query = QuerySession(self._options)
            leave_at_the_end(self.stop)
        return self._query

    def _offset(self, data: dict[str, Any]) -> CutOffset:
        for given, offset in self._given:
            if given == data:
                return offset
        return CutOffset.from_json(data, self._options.subscription.id)

    def _give(self, offset: CutOffset) -> dict[str, Any]:
        if not self._given or self._given[-1][1] is not offset:
            self._given = [*self._given[-1:], (offset.to_json(), offset)]
        return dict(self._given[-1][0])

    def initialOffset(self) -> dict[str, Any]:
        """Where a query without a checkpoint begins: a new identity, and cut 0."""
        return self._session().initial().to_json()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The next cut, fixed durably; `start` if there is nothing new."""
        if isinstance(limit, ReadAllAvailable):
            self._session().prepare_once()
        cut = self._session().next_cut(self._offset(start), self.limits(limit))
        source_process.begun()
        return self._give(cut)

    def limits(self, limit: ReadLimit) -> Limits:
        """The query's own limits where Spark asks for the usual; else what it asks for, as with ``once``."""
        own = self._options.limits
        if limit == self.getDefaultReadLimit():
            return own
        match limit:
            case ReadMaxRows():
                return Limits(limit.max_rows)
            case ReadMaxBytes():
                return Limits(None, limit.max_bytes)
            case ReadMinRows():
                return Limits(None, None, limit.min_rows, own.max_delay_ms)
            case _:
                return Limits()

    def getDefaultReadLimit(self) -> ReadLimit:
        """The first that is set of ``max...PerTrigger`` and ``minOffsetsPerTrigger``, or ``NO_LIMIT``.

        Spark knows one limit at a time; the session keeps all of them.
        """
        own = self._options.limits
        if own.max_rows is not None:
            return ReadMaxRows(own.max_rows)
        if own.max_bytes is not None:
            return ReadMaxBytes(own.max_bytes)
        if own.min_rows is not None:
            return ReadMinRows(own.min_rows)
        return NO_LIMIT

    def prepareForTriggerAvailableNow(self) -> None:
        """Offer nothing that comes later than now."""
        self._session().prepare_available_now()

    def reportLatestOffset(self) -> dict[str, Any]:
        """What ``StreamingQueryProgress`` shows: ends of the streams held, how many, and the lag."""
        return self._session().report()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """One partition per slot that has something to read, or as many as the options ask for.

        The first micro-batch of a reader has one at least: see `task.admit`.
        """
        if self._first is None:
            self._first = dict(end)
        first = end == self._first
        if start != end and start == self._last != self._logged:
            self._session().note_late()
        self._last = dict(end)
        if start == end and not first:
            return []
        cut, options, query = self._offset(end), self._options, self._session()
        ranges = query.ranges_of(cut) if start != end else NO_RANGES
        slots = query.by_slot(ranges)
        least, most_rows = options.min_partitions, options.max_records_per_partition
        if least is None and most_rows is None:
            work = [(slot, Pieces(part, part)) for slot, part in slots.items()]
        else:
            work = divided(slots, least, most_rows)
        if first and not work:
            work = [(0, Pieces())]
        mailbox = query.mailbox()
        vouched = query.vouched(cut) if options.whole_epochs else None
        source_process.begun()
        return [
            SlotPartition(
                SlotWork(cut.group, cut.session, mailbox, cut.cut, slot, pieces),
                first=first,
                vouched=vouched,
            )
            for slot, pieces in work
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition; runs in an executor's Python worker."""
        from streamlease.spark.reading.task import admit, read

        assert isinstance(partition, SlotPartition)
        work, options = partition.work, self._options
        if partition.first:
            admit(options.redis, work.group, work.session, options.redis_timeout_ms / 1000)
        return read(work, options, self._columns, partition.vouched) if work.pieces else iter(())

    def commit(self, end: dict[str, Any]) -> None:
        """Take note of how far the checkpoint is; that the batch went through, `latestOffset` heard already.

        Spark calls this before it plans the next micro-batch that has something, unless it tracks progress
        asynchronously: then later, and for some micro-batches only.
        """
        self._logged = dict(end)

    def stop(self) -> None:
        """Give all streams back."""
        if self._query is not None:
            self._query.stop()
            self._query = None
