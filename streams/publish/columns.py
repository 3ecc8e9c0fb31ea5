"""Many messages that are handed over at once: they stay columns, from the caller to the entry.

All topics of a call draw their turns together. The rows are divided by stream, and each piece becomes a part
of its stream's lane as it is, without a look at single rows. Where streams get few rows each, a part for
every piece would cost more than its rows: those join what waits in their lanes, as single messages do; a
list of such rows does not become columns at all, if it need not wait (``spread``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence, Sized
from datetime import datetime
from typing import Any

import pyarrow as pa

from streamlease.protocol.errors import InvalidInput, SchemaMismatch
from streamlease.protocol.ids import StreamId
from streamlease.protocol.topics import check_topic
from streamlease.streams.collecting import collector_at_rest
from streamlease.streams.entries import kernels as pc
from streamlease.streams.entries.entries import HeadersInput, normalized
from streamlease.streams.entries.layout import check_diffs
from streamlease.streams.entries.message_rows import topics_of
from streamlease.streams.entries.schemas import Schema
from streamlease.streams.entries.splitting import Run, by_stream, pieces_of
from streamlease.streams.entries.typed import normalized_typed
from streamlease.streams.publish import traces
from streamlease.streams.publish.buffer import ROW_BYTES
from streamlease.streams.publish.following import Following
from streamlease.streams.publish.gate import Gate
from streamlease.streams.publish.inputs import Payload, batch_of, check_has_diffs
from streamlease.streams.publish.lanes import Lane, Lanes
from streamlease.streams.publish.parts import FIELDS
from streamlease.streams.publish.receipts import Bundle, Receipts
from streamlease.streams.publish.routes import Route, Routes
from streamlease.streams.publish.spread import FEW, FEW_BYTES, Spread
from streamlease.streams.publish.turns import Turn, Turns
from streamlease.streams.spaces.spaces import Space

MANY = 65_536
"""So many messages of a list become columns at once."""


class Columns:
    """Puts record batches and lists of messages into the lanes of a publisher.

    Args:
        timeout: seconds for which the space of a topic is looked up.
    """

    def __init__(
        self,
        gate: Gate,
        turns: Turns,
        routes: Routes,
        lanes: Lanes,
        following: Following,
        tracing: traces.Traces | None,
        timeout: float,
    ) -> None:
        self._gate = gate
        self._turns = turns
        self._routes = routes
        self._lanes = lanes
        self._following = following
        # With tracing on, and where parts linger, every list becomes columns.
        quick = routes.quick if tracing is None and not lanes.lingers else {}
        self._spread = Spread(gate, lanes, quick, turns.queues)
        self._traces = tracing
        self._timeout = timeout

    async def take_many(
        self,
        topics: str | Sequence[str],
        payloads: Sequence[Payload],
        keys: Sequence[bytes | str | None] | None,
        headers: Sequence[HeadersInput | None] | None,
        timestamps: Sequence[datetime | int | None] | None,
        diffs: Sequence[int] | None,
        watched: bool,
    ) -> Receipts:
        """Take messages that are given column by column; see ``Publisher.send_many``.

        Args:
            watched: somebody waits for every piece, so that an error needs no other way to be seen.
        """
        _check_column("payloads", payloads)
        rows = len(payloads)
        columns: dict[str, Any] = {"keys": keys, "headers": headers, "timestamps": timestamps, "diffs": diffs}
        if not isinstance(topics, str):
            columns["topics"] = topics
        for name, column in columns.items():
            if column is None:
                continue
            _check_column(name, column)
            if len(column) != rows:
                raise InvalidInput(f"there are {len(column)} {name} for {rows} payloads: give one for each")
        self._gate.check_open()
        if headers is None and diffs is None and not isinstance(topics, str):
            spread = self._spread.take(topics, payloads, keys, timestamps, watched)
            if spread is not None:
                return Receipts(spread)
        names = dict.fromkeys([topics] if isinstance(topics, str) else topics)
        with self._drawn(names) as turn:
            routes = await self._routes_of(names)
            schema = _one_schema(routes.values())
            spaces = {name: route.space for name, route in routes.items()}
            pieces: list[Bundle] = []
            for first in range(0, rows, MANY):
                part = slice(first, first + MANY)
                batch = batch_of(
                    topics if isinstance(topics, str) else topics[part],
                    payloads[part],
                    keys and keys[part],
                    headers and headers[part],
                    timestamps and timestamps[part],
                    diffs and diffs[part],
                    schema,
                    spaces,
                )
                pieces += await self._take_rows(batch, routes, watched, turn)
        return Receipts(pieces)

    async def take_batch(self, topic: str, batch: pa.RecordBatch, watched: bool) -> Receipts:
        """Take all rows of `batch`; see ``Publisher.send_batch``."""
        if not isinstance(batch, pa.RecordBatch):
            raise InvalidInput(f"the batch is {ascii(batch)[:80]}: give a pyarrow.RecordBatch")
        if not isinstance(topic, str) or topic not in batch.schema.names:
            topic = check_topic(topic)
        self._gate.check_open()
        if topic in batch.schema.names:
            names = ["topic" if name == topic else name for name in batch.schema.names]
            titled = pa.RecordBatch.from_arrays(batch.columns, names=names)
        elif "topic" in batch.schema.names:
            raise InvalidInput("the batch has a column topic: name it as the topic, or leave it out")
        else:
            titled = batch.append_column("topic", pa.repeat(topic, batch.num_rows))
        names = pc.unique(topics_of(titled)).to_pylist()
        with self._drawn(names) as turn:
            return Receipts(await self._take_rows(titled, await self._routes_of(names), watched, turn))

    def _drawn(self, topics: Sequence[str] | Mapping[str, None]) -> Turn:
        with collector_at_rest(len(topics)):
            return self._turns.draw(topics)

    async def _routes_of(self, topics: Iterable[str]) -> dict[str, Route]:
        deadline = asyncio.get_running_loop().time() + self._timeout
        return {name: self._routes.known(name) or await self._routes.of(name, deadline) for name in topics}

    async def _take_rows(
        self, batch: pa.RecordBatch, routes: Mapping[str, Route], watched: bool, turn: Turn
    ) -> list[Bundle]:
        if self._traces is not None:
            batch = self._traces.carried_rows(batch)
        by_key = any(route.lane is None for route in routes.values())
        schema = _one_schema(routes.values())
        rows = normalized(batch) if schema is None else normalized_typed(batch, schema)
        if "diff" in rows.schema.names and (schema is None or schema.named("diff") is None):
            for route in routes.values():
                check_has_diffs(route.space)
            kind = batch.schema.field("diff").type
            if not pa.types.is_integer(kind):
                raise InvalidInput(f"column diff of the batch has the type {kind}: give whole numbers, int64")
            check_diffs(rows.column("diff"))
        homes: dict[StreamId, Space] = {}
        await turn.come()
        self._gate.check_open()

        def place(name: str, key: bytes | None) -> StreamId:
            space, lane = routes[name]
            stream = space.stream_for(name, key) if lane is None else lane.stream
            homes[stream] = space
            return stream

        with collector_at_rest(len(routes)):
            rows, runs = by_stream(rows, place, by_key)
            small = rows.num_rows <= FEW * len(runs) and rows.nbytes <= FEW_BYTES * len(runs)
            few = FewRows.of(rows) if small and self._traces is None else None
        pieces: list[Bundle] = []
        at = 0
        while at < len(runs):
            if few is not None:
                with collector_at_rest(len(runs) - at):
                    at = self._join_parts(runs, at, few, homes, watched, pieces)
                if at == len(runs):
                    break
            stream, begin, end = runs[at]
            if few is not None and self._joins(few, runs[at]):
                await self._gate.room(few.size(begin, end))
                continue
            at += 1
            for piece in pieces_of(rows.slice(begin, end - begin), self._lanes.max_bytes):
                size = piece.nbytes + ROW_BYTES
                await self._gate.reserve(size)
                lane = self._lanes.get(homes[stream], stream)
                part = self._lanes.add_batch(lane, piece, size, schema, watched=watched)
                if self._traces is not None:
                    self._traces.join(part)
                pieces.append((part, 0, part.count))
                self._follow(lane)
        return pieces

    def _join_parts(
        self,
        runs: Sequence[Run],
        at: int,
        few: FewRows,
        homes: Mapping[StreamId, Space],
        watched: bool,
        pieces: list[Bundle],
    ) -> int:
        """Let the rows of the streams from `at` on join what waits there; the first of which they do not.

        It has many rows, or there is no room for them yet.
        """
        for place in range(at, len(runs)):
            stream, begin, end = runs[place]
            size = few.size(begin, end)
            if not self._joins(few, runs[place]) or not self._gate.enters(size):
                return place
            lane = self._lanes.get(homes[stream], stream)
            pieces.append(self._lanes.add_rows(lane, few.rows(begin, end), end - begin, size, watched))
            self._follow(lane)
        return len(runs)

    def _joins(self, few: FewRows, run: Run) -> bool:
        """Whether the rows of one stream are so few that they join the messages that wait for it."""
        count, size = run.end - run.begin, few.size(run.begin, run.end)
        return count <= min(FEW, self._lanes.max_messages) and size <= self._lanes.max_bytes

    def _follow(self, lane: Lane) -> None:
        """What was put into `lane` was divided before its space got another generation, perhaps."""
        space = self._routes.current.get(lane.stream.space)
        if space is not None and lane.stream.generation < space.newest.number:
            self._following.move(lane, space)


class FewRows:
    """The rows of a batch as they stand in parts of single messages: several for each of many streams."""

    def __init__(self, flat: list[Any], ends: list[int]) -> None:
        self._flat = flat
        self._ends = ends

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> FewRows | None:
        """Those of `batch`; None if it has more than payloads, keys and event times."""
        names = batch.schema.names
        if not {*names} <= {"topic", "payload", "key", "timestamp"}:
            return None
        flat: list[Any] = [None] * (FIELDS * batch.num_rows)
        lengths = pc.binary_length(batch.column("payload"))
        for place, name in enumerate(("topic", "payload", "key", "timestamp")):
            if name in names:
                flat[place::FIELDS] = batch.column(name).to_pylist()
        if "key" in names:
            lengths = pc.add(lengths, pc.fill_null(pc.binary_length(batch.column("key")), 0))
        sizes = pc.add(lengths.cast(pa.int64()), ROW_BYTES)
        return cls(flat, [0, *pc.cumulative_sum(sizes).to_pylist()])

    def rows(self, begin: int, end: int) -> list[Any]:
        """The values of the rows ``begin <= row < end``."""
        return self._flat[FIELDS * begin : FIELDS * end]

    def size(self, begin: int, end: int) -> int:
        """What these rows count for in the buffer."""
        return self._ends[end] - self._ends[begin]


def _check_column(name: str, column: Any) -> None:
    """Raises:
    InvalidInput: it is not one for each payload: no list, or a text, whose letters are not meant.
    """
    sliced = isinstance(column, Sized) and not isinstance(column, Mapping | str | bytes | bytearray)
    try:
        sliced = sliced and len(column[:0]) == 0
    except TypeError:  # a set or a deque, say
        sliced = False
    if not sliced:
        raise InvalidInput(f"{name} is {ascii(column)[:80]}: give a list, with one for each payload")


def _one_schema(routes: Iterable[Route]) -> Schema | None:
    """The schema that all these routes have.

    Raises:
        SchemaMismatch: they have different ones.
    """
    schemas = (route.space.newest_schema for route in routes)
    found = {schema.fingerprint if schema else "": schema for schema in schemas}
    if len(found) > 1:
        raise SchemaMismatch("the rows of a batch belong to spaces of different schemas: send them apart")
    return next(iter(found.values()), None)
