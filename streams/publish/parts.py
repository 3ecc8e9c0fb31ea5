"""Parts, each of which becomes one entry.

A part gathers messages column by column: its list ``rows`` has topic, content, key and event time of each
message in turn, which is the cheapest that Python can keep, and its columns are slices of that. When it is
encoded, the entry replaces what it was made from; should the messages have to go elsewhere, or
become rows of a newer schema, they are taken out of the entry again. So a message is held once.

Each message costs only its receipt (`receipts`), which names the part and the place in it. A future is made
only when somebody waits for the receipt.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import copy
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from streamlease.protocol.errors import NotDurable, StreamleaseError
from streamlease.protocol.ids import StreamId
from streamlease.protocol.offsets import OffsetRange
from streamlease.streams.entries import kernels as pc
from streamlease.streams.entries.entries import (
    Codec,
    Encoded,
    Headers,
    Row,
    encode_columns,
    encode_normalized,
    normalized,
    reopened,
    topics_in,
)
from streamlease.streams.entries.epoch_fields import Stamp
from streamlease.streams.entries.schemas import Schema
from streamlease.streams.entries.typed import normalized_typed
from streamlease.streams.publish.inputs import row_again

Placed = tuple[StreamId, int]
"""Where one message stands: its stream and offset."""

PlacedRange = tuple[StreamId, OffsetRange]
"""Where neighbours of a record batch stand."""

AnyFuture = asyncio.Future[Placed] | concurrent.futures.Future[Placed | None]
"""What is told where a message stands, on the event loop or from it in another thread."""

FIELDS = 4


class Part:
    """Messages that become one entry: single ones, or a piece of a record batch.

    Args:
        born: when it was made, on the clock of the event loop.
        room: how many bytes of single messages it takes.
    """

    __slots__ = (
        "_done",
        "_failure",
        "_first",
        "_moved",
        "_moved_rows",
        "_pieces",
        "_stream",
        "_waiting",
        "batch",
        "born",
        "capacity",
        "codec",
        "columnar",
        "count",
        "diffs",
        "ended",
        "entry",
        "error",
        "headers",
        "maybe",
        "origins",
        "room",
        "rows",
        "schema",
        "sent",
        "stamp",
        "wanted",
    )

    def __init__(
        self, born: float, schema: Schema | None = None, codec: Codec = "zstd", room: int = 0
    ) -> None:
        self.born = born
        self.schema = schema
        self.codec: Codec = codec
        self.rows: list[Any] = []
        """Topic, content, key and event time of each message in turn."""
        self.count = 0
        self.headers: dict[int, Headers] = {}
        self.diffs: dict[int, int] = {}  # of the messages that have another than +1
        self.capacity = self.room = room
        self.sent = 0
        """How many messages somebody waits for anyway, so that an error needs no other way to be seen."""
        self.batch: pa.RecordBatch | None = None
        self.columnar = False
        """Whether it is a piece of a record batch."""
        self.maybe = False
        """Whether an attempt may have been written without an answer."""
        self.error: StreamleaseError | None = None
        self.entry: Encoded | None = None
        self.ended = False
        self.stamp: Stamp | None = None
        """The epoch of its messages, in a space that has some."""
        self.origins: tuple[Any, ...] = ()
        """Span contexts in which its messages were published, where the program traces."""
        self.wanted = _not_told
        """Called when somebody begins to wait for one of its messages."""
        self._stream: StreamId | None = None
        self._first = 0
        self._failure: StreamleaseError | None = None
        self._waiting: list[tuple[int, AnyFuture]] = []
        self._done: asyncio.Future[None] | None = None
        self._moved: list[Part] = []
        self._moved_rows: list[tuple[Part, int]] = []
        self._pieces: list[tuple[int, int, asyncio.Future[list[PlacedRange]]]] = []
        """First place, number of messages, and what is told where they stand."""

    @classmethod
    def of_batch(
        cls, batch: pa.RecordBatch, size: int, born: float, schema: Schema | None, codec: Codec, watched: bool
    ) -> Part:
        """A part of all rows of `batch`, which is normalized and counts as `size` bytes.

        Args:
            watched: somebody waits for what becomes of them.
        """
        part = cls(born, schema, codec)
        part.columnar, part.batch, part.count, part.capacity = True, batch, batch.num_rows, size
        part.sent = part.count if watched else 0
        return part

    @property
    def size(self) -> int:
        """How many bytes it counts for in the buffer."""
        return self.capacity - self.room

    @property
    def is_awaited(self) -> bool:
        """Whether somebody waits for what becomes of a message, or may do so."""
        return bool(self._waiting or self._pieces)

    @property
    def watched(self) -> bool:
        """Whether somebody waits for every result."""
        return self.sent == self.count

    @property
    def written(self) -> bool:
        """Whether it is known to be in its stream, though perhaps not durably."""
        return isinstance(self.error, NotDurable)

    def add(self, row: Row, size: int, sent: bool) -> int:
        """Take a message of `size` bytes; its place."""
        place = self.count
        self.count = place + 1
        self.room -= size
        self.sent += sent
        self.rows += (row.topic, row.payload if row.values is None else row.values, row.key, row.timestamp)
        if row.headers:
            self.headers[place] = row.headers
        if row.diff != 1:
            self.diffs[place] = row.diff
        return place

    def add_rows(self, rows: Sequence[Any], count: int, size: int, watched: bool) -> int:
        """Take `count` messages of `size` bytes, as they stand in ``rows``; the place of the first one.

        Args:
            watched: somebody waits for what becomes of them.
        """
        place = self.count
        self.count = place + count
        self.room -= size
        if watched:
            self.sent += count
        self.rows += rows
        return place

    def encoded(self) -> Encoded:
        """The entry, made once; a retry sends the very same."""
        if self.entry is None:
            if self.batch is not None:
                self.entry = encode_normalized(self.batch, self.codec, self.schema)
            else:
                columns = [self.rows[place::FIELDS] for place in range(FIELDS)]
                topics, contents, keys, times = columns
                self.entry = encode_columns(
                    topics,
                    contents,
                    keys,
                    times,
                    self.headers,
                    self.diffs,
                    codec=self.codec,
                    schema=self.schema,
                )
            if self.stamp is not None:
                self.entry = self.stamp.on(self.entry)
            self.batch, self.rows, self.headers = None, [], {}
        return self.entry

    def raise_to(self, schema: Schema) -> None:
        """Be written under a newer version of the schema; its new columns are null."""
        if self.batch is not None or self.entry is not None:
            self.batch, self.entry = normalized_typed(self._columns(), schema), None
        self.schema = schema

    def topics(self) -> set[str]:
        """The topics of its messages."""
        if self.entry is not None:
            return topics_in(self.entry)
        if self.batch is not None:
            return {*pc.unique(self.batch.column("topic")).to_pylist()}
        return {*self.rows[::FIELDS]}

    def record_batch(self) -> pa.RecordBatch:
        """Its messages as a normalized record batch."""
        columns = self._columns()
        return normalized(columns) if self.schema is None else normalized_typed(columns, self.schema)

    def messages(self) -> list[Row]:
        """Its messages one by one."""
        if self.entry is not None or self.batch is not None:
            return [row_again(one, self.schema) for one in self._columns().to_pylist()]
        return [
            Row(
                topic,
                b"" if self.schema else content,
                key,
                self.headers.get(place),
                time,
                content if self.schema else None,
                self.diffs.get(place, 1),
            )
            for place, (topic, content, key, time) in enumerate(zip(*[iter(self.rows)] * FIELDS, strict=True))
        ]

    def _columns(self) -> pa.RecordBatch:
        return self.batch if self.batch is not None else reopened(self.encoded(), self.schema)

    # ---------------------------------------------------------------------------------------- its end

    @property
    def stream(self) -> StreamId | None:
        """Where it was written; None if it was not, or is not yet."""
        return self._stream

    def succeed(self, stream: StreamId, first: int) -> None:
        """Tell everybody where the messages stand."""
        self._stream, self._first = stream, first
        self._finish()

    def fail(self, error: StreamleaseError) -> None:
        """Tell everybody that it went wrong, each with an error of their own."""
        self._failure = error
        self._finish()

    def moved(self, parts: Sequence[Part], rows: Sequence[tuple[Part, int]] = ()) -> None:
        """Its messages go on in `parts`: that of each place at a place of another one, or all pieces."""
        self._moved = [*parts]
        self._moved_rows = [*rows]
        self._finish()

    def piece(self, place: int, count: int) -> asyncio.Future[list[PlacedRange]]:
        """A new future of what becomes of `count` neighbours from `place` on."""
        future: asyncio.Future[list[PlacedRange]] = asyncio.get_running_loop().create_future()
        if self.ended:
            self._tell_piece(place, count, future)
        else:
            self._pieces.append((place, count, future))
            self.wanted()
        return future

    def outcome(self, place: int) -> Placed | StreamleaseError | None:
        """Where the message at `place` stands, or why it does not; None while that is open."""
        part = self
        while part._moved_rows:
            part, place = part._moved_rows[place]
        if part._stream is not None:
            return part._stream, part._first + place
        if part._failure is None:
            return None
        own = copy.copy(part._failure)
        if isinstance(own, NotDurable) and own.offset is not None:
            own.offset += place
        return own

    def future(self, place: int) -> asyncio.Future[Placed]:
        """A new future of what becomes of the message at `place`."""
        future: asyncio.Future[Placed] = asyncio.get_running_loop().create_future()
        self.tell(place, future)
        return future

    def tell(self, place: int, future: AnyFuture) -> None:
        """Have `future` told, on this event loop, what becomes of the message at `place`."""
        part = self
        while part._moved_rows:
            part, place = part._moved_rows[place]
        if part.ended:
            part._tell(place, future)
        else:
            part._waiting.append((place, future))
            part.wanted()

    async def finished(self) -> None:
        """Wait until it, and what became of it, succeeded or failed."""
        if not self.ended:
            if self._done is None:
                self._done = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._done)
        for part in self._moved:
            await part.finished()

    def _finish(self) -> None:
        self.ended = True
        self.batch, self.entry, self.rows, self.headers = None, None, [], {}
        for place, future in self._waiting:
            self._tell(place, future)
        self._waiting = []
        for place, count, piece in self._pieces:
            self._tell_piece(place, count, piece)
        self._pieces = []
        if self._done is not None:
            self._done.set_result(None)

    def _tell(self, place: int, future: AnyFuture) -> None:
        if self._moved_rows:
            part, there = self._moved_rows[place]
            part._waiting.append((there, future))
            return
        outcome = self.outcome(place)
        if future.done() or outcome is None:
            return
        if isinstance(outcome, StreamleaseError):
            future.set_exception(outcome)
            future.exception()  # whoever dropped the future learns it from flush()
        else:
            future.set_result(outcome)

    def _tell_piece(self, place: int, count: int, piece: asyncio.Future[list[PlacedRange]]) -> None:
        if piece.done():
            return
        if self._moved:
            _join(piece, self._moved_pieces(place, count))
            return
        outcome = self.outcome(place)
        if isinstance(outcome, StreamleaseError):
            piece.set_exception(outcome)
            piece.exception()  # as in `_tell`
        elif outcome is not None:
            stream, first = outcome
            piece.set_result([(stream, OffsetRange(first, first + count))])

    def _moved_pieces(self, place: int, count: int) -> list[asyncio.Future[list[PlacedRange]]]:
        if not self._moved_rows:
            return [part.piece(0, part.count) for part in self._moved]
        runs: list[tuple[Part, int, int]] = []
        for part, there in self._moved_rows[place : place + count]:
            if runs and runs[-1][0] is part and sum(runs[-1][1:]) == there:
                runs[-1] = (part, runs[-1][1], runs[-1][2] + 1)
            else:
                runs.append((part, there, 1))
        return [part.piece(first, many) for part, first, many in runs]


def _not_told() -> None:
    """Nobody sends it later because nobody waits for it."""


def _join(
    whole: asyncio.Future[list[PlacedRange]], pieces: Sequence[asyncio.Future[list[PlacedRange]]]
) -> None:
    """Once all `pieces` ended: have `whole` told the places of all of them, or the first error among them."""

    def look(_: object) -> None:
        if whole.done() or not all(piece.done() for piece in pieces):
            return
        error = next((found for piece in pieces if (found := piece.exception()) is not None), None)
        if error is not None:
            whole.set_exception(error)
            whole.exception()  # as in `_tell`
        else:
            whole.set_result([place for piece in pieces for place in piece.result()])

    for piece in pieces:
        piece.add_done_callback(look)
