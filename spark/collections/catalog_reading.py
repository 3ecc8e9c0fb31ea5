"""A collection of the catalog in Spark: as a table of what there is, and as a stream of what changes.

::

    nothing |== items at the first point, diff = their count ==| changes | changes | ...

An offset is a cursor, as ``client.catalog`` gives it, and Spark keeps it in its checkpoint. What there was at
a cursor, and what changed between two, is the same whenever it is asked; so a micro-batch that is made again
has the same rows. Where a cursor is not kept any more, or Redis lost it, the query fails and says so.

The driver follows, and reads the rows of a micro-batch; they go to a task as they are, for they are few.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from streamlease.agent.client import Client
from streamlease.agent.loop import LoopThread
from streamlease.catalog.catalog_cursors import point_of
from streamlease.catalog.followed import Catalog, source_of
from streamlease.protocol.errors import (
    CatalogTruncated,
    InvalidOption,
    StoreRefused,
    StoreUnavailable,
)
from streamlease.spark.collections.catalog_frame import CatalogFrame, Counted
from streamlease.spark.collections.collection_options import CHANGES, ITEMS
from streamlease.spark.query.query import leave_at_the_end
from streamlease.spark.setup import source_process

WAIT_SECONDS = 0.5
"""How long Spark waits for a change before it is told that there is none."""

RENEWED_SECONDS = 60.0
"""After so long an offset is renewed though nothing changed: others' changes push it out of what is kept."""

RETRY_SECONDS = 0.2
MOST_ROWS = 10_000
"""In a task."""

log = logging.getLogger(__name__)

_Offset = dict[str, Any]
T = TypeVar("T")


@dataclass
class RowsPartition(InputPartition):
    """Rows on their way to a task."""

    rows: pa.RecordBatch

    def __init__(self, rows: pa.RecordBatch) -> None:
        self.rows = rows


@dataclass(frozen=True)
class CatalogTable(DataSourceReader):
    """What there is when the frame is first used."""

    frame: CatalogFrame

    def partitions(self) -> list[InputPartition]:
        """Reads all items; raises as `Catalog` does when it is entered."""
        driver = CatalogDriver(self.frame)
        try:
            return [*_partitions(self.frame, driver.items())]
        finally:
            driver.close()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a partition; runs in an executor's Python worker."""
        assert isinstance(partition, RowsPartition)
        if partition.rows.num_rows:
            yield partition.rows


class CatalogStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """What Spark's driver and workers call."""

    def __init__(self, frame: CatalogFrame) -> None:
        self._frame = frame
        self._driver: CatalogDriver | None = None
        self._last: _Offset | None = None
        """Beyond which nothing is offered; None: everything is."""

    def __getstate__(self) -> dict[str, Any]:
        # Spark pickles the reader for its workers, which only call `read`.
        return vars(CatalogStream(self._frame))

    def _beside(self) -> CatalogDriver:
        if self._driver is None:
            self._driver = CatalogDriver(self._frame)
            leave_at_the_end(self.stop)
        return self._driver

    def initialOffset(self) -> _Offset:
        """Nothing was read."""
        return {"catalog": self._frame.collection, "at": None}

    def latestOffset(self, start: _Offset, limit: ReadLimit) -> _Offset:
        """The newest point; `start` if nothing changed.

        Raises:
            InvalidOption: `start` is of something else.
            CatalogTruncated: what came behind `start` is not kept any more, or Redis lost it.
            StoreUnavailable, StoreRefused: Redis did not answer for ``redis.timeout``.
        """
        self._check(start)
        newest = self._last or self._beside().newest(start)
        source_process.begun()
        return newest

    def getDefaultReadLimit(self) -> ReadLimit:
        """None: a micro-batch has all that is new."""
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Offer nothing that comes later than now."""
        self._last = self._beside().newest(self.initialOffset())

    def partitions(self, start: _Offset, end: _Offset) -> Sequence[InputPartition]:
        """The items of the first point, or the changes from one to another."""
        if start == end:
            return []
        return _partitions(self._frame, self._beside().between(start, end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a partition; runs in an executor's Python worker."""
        assert isinstance(partition, RowsPartition)
        if partition.rows.num_rows:
            yield partition.rows

    def commit(self, end: _Offset) -> None:
        """Nobody but the checkpoint keeps how far the query is."""

    def stop(self) -> None:
        """Close what is open."""
        if self._driver is not None:
            self._driver.close()
            self._driver = None

    def _check(self, start: _Offset) -> None:
        name = self._frame.collection
        if start.get("catalog") != name or not isinstance(start.get("at"), str | None):
            raise InvalidOption(f"the checkpoint is not of a stream of $catalog/{name}: use a new checkpoint")


class CatalogDriver:
    """The client beside Spark's driver, and what it follows."""

    def __init__(self, frame: CatalogFrame) -> None:
        self._frame = frame
        self._thread = LoopThread("streamlease-catalog")
        self._client: Client | None = None
        self._followed: Catalog | None = None
        self._given: _Offset | None = None
        """The newest offset that Spark was given; what is followed comes behind it."""
        self._given_at = 0.0

    def items(self) -> list[Counted]:
        """All that there is."""

        async def listed() -> list[Counted]:
            async with (await self._connected()).catalog(self._frame.collection) as found:
                return [*found.items.items()]

        return self._thread.call(self._patiently(listed))

    def newest(self, start: _Offset) -> _Offset:
        """The newest point, or `start` if nothing changed behind it."""
        return self._thread.call(self._patiently(lambda: self._newest(start)))

    async def _newest(self, start: _Offset) -> _Offset:
        followed = self._followed
        if followed is None or self._given != start:
            if followed is not None:
                self._followed = None
                await followed.__aexit__(None, None, None)
            opened = (await self._connected()).catalog(self._frame.collection, start=start["at"])
            self._followed = followed = await opened.__aenter__()
            self._given_at = time.monotonic()
            changed = start["at"] is None or bool(followed.ready())
        else:
            changed = bool(followed.ready())
        if not changed:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(WAIT_SECONDS):
                    await anext(followed)
                    changed = True
            followed.ready()
        if changed or time.monotonic() >= self._given_at + RENEWED_SECONDS:
            self._given_at = time.monotonic()
            self._given = {"catalog": self._frame.collection, "at": followed.at}
        else:
            self._given = start
        return self._given

    def between(self, start: _Offset, end: _Offset) -> list[Counted]:
        """What changed from one offset to another, or all items at `end`.

        Raises:
            CatalogTruncated: one of them is not kept any more.
        """
        return self._thread.call(self._patiently(lambda: self._between(start["at"], end["at"])))

    async def _between(self, start: str | None, end: str) -> list[Counted]:
        name = self._frame.collection
        source = source_of((await self._connected()).redis, name)
        if start is None:
            return [(item, 1) for item in (await source.as_of(point_of(name, end))).values()]
        changes = await source.between(point_of(name, start), point_of(name, end))
        return [
            (item, diff)
            for change in changes
            if change.former != change.item
            for item, diff in ((change.former, -1), (change.item, 1))
            if item is not None
        ]

    async def _connected(self) -> Client:
        if self._client is None:
            client = Client(self._frame.redis, embedded=False)
            await client.__aenter__()
            self._client = client
        return self._client

    async def _patiently(self, work: Callable[[], Awaitable[T]]) -> T:
        give_up = time.monotonic() + self._frame.redis_timeout_ms / 1000
        while True:
            try:
                return await work()
            except CatalogTruncated as error:
                raise CatalogTruncated(error.collection, "begin with a new checkpoint") from None
            except (StoreUnavailable, StoreRefused) as error:
                if time.monotonic() >= give_up:
                    raise
                log.info("catalog %s: %s", self._frame.collection, error)
            await asyncio.sleep(RETRY_SECONDS)

    def close(self) -> None:
        """Close the client. A second call does nothing."""
        if self._thread.runs:
            if self._client is not None:
                self._thread.call(self._client.close())
            self._thread.stop()


def _partitions(frame: CatalogFrame, counted: Sequence[Counted]) -> list[InputPartition]:
    return [
        RowsPartition(frame.batch(counted[first : first + MOST_ROWS]))
        for first in range(0, max(1, len(counted)), MOST_ROWS)
    ]


def catalog_stream(schema: StructType, given: Mapping[str, str]) -> CatalogStream:
    """A stream of the columns `schema`; see `CatalogFrame.of` for what it raises."""
    return CatalogStream(CatalogFrame.of(given, schema, CHANGES))


def catalog_table(schema: StructType, given: Mapping[str, str]) -> CatalogTable:
    """A table of the columns `schema`; see `CatalogFrame.of` for what it raises."""
    return CatalogTable(CatalogFrame.of(given, schema, ITEMS))
