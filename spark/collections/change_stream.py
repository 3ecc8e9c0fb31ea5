"""``spark.readStream`` with ``collection`` ``changes``: what is there at one point, and then all changes.

::

    nothing |== items at the first point, diff = their count ==| changes | changes | ...

An offset is a point: where each stream ends. Spark keeps it in its checkpoint, which says all that there is
to know; so a micro-batch that is made again has the same rows, as a multiset. In a space with epochs each
point is a boundary, so a micro-batch has all of an epoch or nothing of it. The offset names that boundary,
and what was read up to it counts if it is still there then. There is no group, and nothing else is kept of
the query: retention does not wait for it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from streamlease.agent.client import Client
from streamlease.agent.loop import LoopThread
from streamlease.protocol.errors import EpochsTruncated, InvalidOption, StoreRefused, StoreUnavailable
from streamlease.protocol.ids import StreamId
from streamlease.protocol.offsets import OffsetRange
from streamlease.spark.collections.collection_options import CHANGES, CollectionFrame
from streamlease.spark.collections.content import BEGIN_ANEW, RETRY_SECONDS, changes_between, then_there
from streamlease.spark.collections.item_table import ItemsPartition, item_tasks
from streamlease.spark.collections.limited_points import limited, limited_by_epochs
from streamlease.spark.core.batch_tasks import divide
from streamlease.spark.query.query import leave_at_the_end
from streamlease.spark.reading.batch_read import RangesPartition
from streamlease.spark.setup import source_process
from streamlease.streams.collections.points import newest_point
from streamlease.streams.collections.snapshots import StoredSnapshot, newest_snapshots
from streamlease.streams.epochs.boundary_reading import Vouched, check_there
from streamlease.streams.epochs.core.boundaries import Boundary

log = logging.getLogger(__name__)

_Offset = dict[str, Any]
T = TypeVar("T")


class ChangeStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """What Spark's driver and workers call."""

    def __init__(self, frame: CollectionFrame) -> None:
        self._frame = frame
        self._driver: CollectionClient | None = None
        self._last: _Offset | None = None
        """Beyond which nothing is offered; None: everything is."""

    def __getstate__(self) -> dict[str, Any]:
        # Spark pickles the reader for its workers, which only call `read`.
        return vars(ChangeStream(self._frame))

    def _beside(self) -> CollectionClient:
        if self._driver is None:
            self._driver = CollectionClient(self._frame)
            leave_at_the_end(self.stop)
        return self._driver

    def initialOffset(self) -> _Offset:
        """Nothing was read."""
        return {"space": self._frame.space.name, "ends": {}}

    def latestOffset(self, start: _Offset, limit: ReadLimit) -> _Offset:
        """The newest point; `start` if there is nothing new.

        Raises:
            InvalidOption: `start` is of another collection, or of one that was there before under this name.
            EpochsLost: Redis lost the boundary at which the query was.
            StoreUnavailable, StoreRefused: Redis did not answer for ``redis.timeout``.
        """
        self._check(start)
        newest = self._last or self._beside().newest(fresh=not start["ends"])
        source_process.begun()
        behind = [stream for stream, end in start["ends"].items() if newest["ends"].get(stream, 0) < end]
        if behind and self._last is None:
            raise InvalidOption(
                f"stream {behind[0]} ends before {start['ends'][behind[0]]}, where the query was: its space "
                f"was made anew, or Redis lost what was read, as in a failover; begin with a new checkpoint"
            )
        if behind or newest["ends"] == start["ends"]:
            return start
        self._beside().check(_vouched(start), _vouched(newest))
        # With a limit, only the trigger 'once' asks for all that there is.
        whole = not start["ends"] or isinstance(limit, ReadAllAvailable)
        return newest if whole else self._beside().limited(start, newest)

    def getDefaultReadLimit(self) -> ReadLimit:
        """None without an option; how many changes or epochs, the reader knows better than Spark."""
        options = self._frame.options
        limited = options.max_changes is not None or options.max_epochs is not None
        return ReadMaxRows(options.max_changes or 2**63 - 1) if limited else ReadAllAvailable()

    def _check(self, start: _Offset) -> None:
        name = self._frame.space.name
        if start.get("space") != name or not isinstance(start.get("ends"), dict):
            raise InvalidOption(
                f"the checkpoint is not of a stream of the changes of space {name}: use a new checkpoint"
            )

    def prepareForTriggerAvailableNow(self) -> None:
        """Offer nothing that comes later than now."""
        self._last = self._beside().newest(fresh=True)

    def partitions(self, start: _Offset, end: _Offset) -> Sequence[InputPartition]:
        """The items of the first point, or the changes from one to another."""
        ends = {StreamId.parse(stream): offset for stream, offset in end["ends"].items()}
        if not start["ends"]:
            noted = {
                StreamId.parse(stream): StoredSnapshot(*stored)
                for stream, stored in end.get("snapshots", {}).items()
            }
            return item_tasks(ends, noted, _vouched(end))
        ranges = {
            stream: OffsetRange(start["ends"].get(str(stream), 0), offset)
            for stream, offset in ends.items()
            if offset > start["ends"].get(str(stream), 0)
        }
        vouched = _vouched(end)
        return [RangesPartition(part, [vouched] if vouched else ()) for part in divide(ranges)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition; runs in an executor's Python worker."""
        if isinstance(partition, ItemsPartition):
            return partition.rows(self._frame, "diff")
        assert isinstance(partition, RangesPartition)
        rows = changes_between(self._frame, partition.ranges)
        return then_there(self._frame, rows, next(iter(partition.vouched), None))

    def commit(self, end: _Offset) -> None:
        """Nobody but the checkpoint keeps how far the query is."""

    def stop(self) -> None:
        """Close what is open."""
        if self._driver is not None:
            self._driver.close()
            self._driver = None


class CollectionClient:
    """The client beside Spark's driver; with epochs, it sees that there is a keeper."""

    def __init__(self, frame: CollectionFrame) -> None:
        self._frame = frame
        self._thread = LoopThread("streamlease-collection")
        self._client: Client | None = None

    def newest(self, *, fresh: bool) -> _Offset:
        """The newest point.

        Args:
            fresh: whether a query begins there, so that the snapshots are noted.

        Raises:
            StoreUnavailable, StoreRefused.
        """
        return self._thread.call(self._patiently(lambda: self._newest(fresh=fresh)))

    async def _newest(self, *, fresh: bool) -> _Offset:
        client = await self._connected()
        space = await client.spaces.get(self._frame.space.name)
        # The snapshots first: what is read later ends behind them.
        stored = await newest_snapshots(client.redis, space.streams()) if fresh else {}
        point = await newest_point(client.redis, space)
        there = _offset(space.name, point.ends, point.bound)
        noted = {str(stream): [*one] for stream, one in stored.items() if one.number}
        return there | ({"snapshots": noted} if noted else {})

    def limited(self, start: _Offset, newest: _Offset) -> _Offset:
        """As far from `start` to `newest` as one micro-batch may go.

        Raises:
            StoreUnavailable, StoreRefused.
        """
        options = self._frame.options
        if options.max_changes is None and options.max_epochs is None:
            return newest
        return self._thread.call(self._patiently(lambda: self._limited(start, newest)))

    async def _limited(self, start: _Offset, newest: _Offset) -> _Offset:
        options, space = self._frame.options, self._frame.space
        before, there = _by_stream(start), _by_stream(newest)
        if options.max_changes is not None:
            return _offset(space.name, limited(before, there, options.max_changes))
        redis = (await self._connected()).redis
        try:
            ends, bound = await limited_by_epochs(redis, space, before, there, options.max_epochs or 1)
        except EpochsTruncated as error:
            log.warning("collection %s: %s; this micro-batch has no limit", options.filter, error)
            return newest
        return start if bound is None else _offset(space.name, ends, bound)

    def check(self, reached: Vouched | None, newest: Vouched | None) -> None:
        """Whether the boundary at which a query was is still there.

        Raises:
            EpochsLost: Redis lost it.
            StoreUnavailable, StoreRefused.
        """
        if reached is not None and reached != newest:
            self._thread.call(self._patiently(lambda: self._look(reached)))

    async def _look(self, reached: Vouched) -> None:
        await check_there((await self._connected()).redis, reached, BEGIN_ANEW)

    async def _connected(self) -> Client:
        if self._client is None:
            options = self._frame.options
            client = Client(options.redis, embedded=options.embedded_leader)
            await client.__aenter__()
            self._client = client
            if self._frame.space.epochs:
                (await client.agent()).need_keepers()
        return self._client

    async def _patiently(self, work: Callable[[], Awaitable[T]]) -> T:
        give_up = time.monotonic() + self._frame.options.redis_timeout_ms / 1000
        while True:
            try:
                return await work()
            except (StoreUnavailable, StoreRefused) as error:
                if time.monotonic() >= give_up:
                    raise
                log.info("collection %s: %s", self._frame.options.filter, error)
            await asyncio.sleep(RETRY_SECONDS)

    def close(self) -> None:
        """Close the client. A second call does nothing."""
        if self._thread.runs:
            if self._client is not None:
                self._thread.call(self._client.close())
            self._thread.stop()


def _offset(space: str, ends: Mapping[StreamId, int], bound: Boundary | None = None) -> _Offset:
    made: _Offset = {"space": space, "ends": {str(one): end for one, end in ends.items() if end}}
    return made if bound is None else made | {"bound": [*Vouched.of(space, bound)[1:]]}


def _vouched(offset: _Offset) -> Vouched | None:
    """The boundary that an offset names; None: it names none, as without epochs or of an earlier version."""
    return Vouched(offset["space"], *offset["bound"]) if "bound" in offset else None


def _by_stream(offset: _Offset) -> dict[StreamId, int]:
    return {StreamId.parse(stream): end for stream, end in offset["ends"].items()}


def change_stream(schema: StructType, given: Mapping[str, str]) -> ChangeStream:
    """A reader of the columns `schema`; see `CollectionFrame.of` for what it raises."""
    return ChangeStream(CollectionFrame.of(given, schema, CHANGES))
