"""Many messages that are handed over at once: they stay columns, from the caller to the entry.

All topics of a call draw their turns together. The rows are divided by stream, and each piece becomes a part
of its stream's lane as it is, without a look at single rows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from streamlease.protocol.errors import InvalidInput, SchemaMismatch
from streamlease.protocol.ids import StreamId
from streamlease.streams.entries.entries import HeadersInput, normalized
from streamlease.streams.entries.message_rows import topics_of
from streamlease.streams.entries.schemas import Schema
from streamlease.streams.entries.splitting import split
from streamlease.streams.entries.typed import normalized_typed
from streamlease.streams.publish import traces
from streamlease.streams.publish.buffer import ROW_BYTES, Gate
from streamlease.streams.publish.following import Following
from streamlease.streams.publish.inputs import Payload, batch_of
from streamlease.streams.publish.lanes import Lanes
from streamlease.streams.publish.parts import PlacedRange
from streamlease.streams.publish.routes import Route, Routes
from streamlease.streams.publish.turns import Turn, Turns
from streamlease.streams.spaces.spaces import Space

MANY = 16_384
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
        self._traces = tracing
        self._timeout = timeout

    async def take_many(
        self,
        topics: str | Sequence[str],
        payloads: Sequence[Payload],
        keys: Sequence[bytes | str | None] | None,
        headers: Sequence[HeadersInput | None] | None,
        timestamps: Sequence[datetime | int | None] | None,
        watched: bool,
    ) -> list[asyncio.Future[list[PlacedRange]]]:
        """Take messages that are given column by column; see ``Publisher.send_many``.

        Args:
            watched: somebody waits for every future, so that an error needs no other way to be seen.
        """
        rows = len(payloads)
        columns: dict[str, Any] = {"keys": keys, "headers": headers, "timestamps": timestamps}
        if not isinstance(topics, str):
            columns["topics"] = topics
        for name, column in columns.items():
            if column is not None and len(column) != rows:
                raise InvalidInput(f"there are {len(column)} {name} for {rows} payloads: give one for each")
        self._gate.check_open()
        names = dict.fromkeys([topics] if isinstance(topics, str) else topics)
        with self._turns.draw(names) as turn:
            routes = await self._routes_of(names)
            schema = _one_schema(routes.values())
            spaces = {name: route.space for name, route in routes.items()}
            futures = []
            for first in range(0, rows, MANY):
                part = slice(first, first + MANY)
                batch = batch_of(
                    topics if isinstance(topics, str) else topics[part],
                    payloads[part],
                    keys and keys[part],
                    headers and headers[part],
                    timestamps and timestamps[part],
                    schema,
                    spaces,
                )
                futures += await self._take_rows(batch, routes, watched, turn)
        return futures

    async def take_batch(
        self, topic: str, batch: pa.RecordBatch, watched: bool
    ) -> list[asyncio.Future[list[PlacedRange]]]:
        """Take all rows of `batch`; see ``Publisher.send_batch``."""
        self._gate.check_open()
        if topic in batch.schema.names:
            names = ["topic" if name == topic else name for name in batch.schema.names]
            titled = pa.RecordBatch.from_arrays(batch.columns, names=names)
        elif "topic" in batch.schema.names:
            raise InvalidInput("the batch has a column topic: name it as the topic, or leave it out")
        else:
            titled = batch.append_column("topic", pa.repeat(topic, batch.num_rows))
        names = pc.unique(topics_of(titled)).to_pylist()
        with self._turns.draw(names) as turn:
            return await self._take_rows(titled, await self._routes_of(names), watched, turn)

    async def _routes_of(self, topics: Iterable[str]) -> dict[str, Route]:
        deadline = asyncio.get_running_loop().time() + self._timeout
        return {name: await self._routes.of(name, deadline) for name in topics}

    async def _take_rows(
        self, batch: pa.RecordBatch, routes: Mapping[str, Route], watched: bool, turn: Turn
    ) -> list[asyncio.Future[list[PlacedRange]]]:
        if self._traces is not None:
            batch = self._traces.carried_rows(batch)
        by_key = any(route.lane is None for route in routes.values())
        schema = _one_schema(routes.values())
        rows = normalized(batch) if schema is None else normalized_typed(batch, schema)
        homes: dict[StreamId, Space] = {}
        await turn.come()
        self._gate.check_open()

        def place(name: str, key: bytes | None) -> StreamId:
            space = routes[name].space
            stream = space.stream_for(name, key)
            homes[stream] = space
            return stream

        futures = []
        for stream, piece in split(rows, place, by_key, self._lanes.max_bytes):
            size = piece.nbytes + ROW_BYTES
            await self._gate.reserve(size)
            lane = self._lanes.get(homes[stream], stream)
            part = self._lanes.add_batch(lane, piece, size, schema)
            part.watched_batch = watched
            if self._traces is not None:
                self._traces.join(part)
            assert part.whole is not None
            futures.append(part.whole)
            space = self._routes.current.get(stream.space)
            if space is not None and stream.generation < space.newest.number:
                self._following.move(lane, space)  # split before the space got another generation
        return futures


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
