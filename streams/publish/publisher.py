"""Publishing with batches, bounded memory, retries, and nothing twice.

Theory of operation. Each stream has a lane of parts (``lanes``); a part becomes one entry (``parts``). While
a lane has nothing in flight, its first part goes out at once; what is submitted meanwhile gathers in the next
part, so batches grow with the load and no one waits for a timer. One task sends and retries (``sender``).
What is held is bounded (``buffer``): beyond the bound, ``submit`` waits. When a space gets a new generation,
what waits goes to its new streams (``following``).

Messages of one topic are written in the order in which they were sent or submitted, also by calls that wait
side by side (``turns``). Many messages at once stay columns (``columns``). Not promised: after a part failed,
the later ones still go out.

``submit`` is called once per message, so the usual case, a payload of bytes for a known topic, touches only
the open part of its lane, or begins one; ``_place`` handles everything else.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, NamedTuple

import pyarrow as pa

from streamlease.protocol.errors import (
    InvalidOption,
    StreamleaseError,
    StreamSealed,
    UnknownSpace,
)
from streamlease.protocol.ids import StreamId, Token, random_token
from streamlease.protocol.topics import check_topic
from streamlease.streams.entries.entries import (
    CODECS,
    MAX_MESSAGE_BYTES,
    Codec,
    HeadersInput,
    Row,
    encode_message,
)
from streamlease.streams.entries.message_rows import FIRST_TIME, LAST_TIME
from streamlease.streams.log.log import Append, Appended, AsyncLog
from streamlease.streams.publish import metrics, traces
from streamlease.streams.publish.buffer import ROW_BYTES, Buffer, Gate, size_of
from streamlease.streams.publish.columns import Columns
from streamlease.streams.publish.following import Following
from streamlease.streams.publish.inputs import Payload, row_of
from streamlease.streams.publish.lanes import Lane, Lanes
from streamlease.streams.publish.parts import Part, Placed, PlacedRange
from streamlease.streams.publish.receipts import Receipt
from streamlease.streams.publish.routes import Routes
from streamlease.streams.publish.sender import LEAST_ATTEMPT, Sender, converting
from streamlease.streams.publish.turns import Turns
from streamlease.streams.redis.connection import ANSWER_SECONDS, AsyncRedis, is_cluster
from streamlease.streams.redis.durability import MEMORY
from streamlease.streams.spaces.spaces import SpaceStore

__all__ = ["Payload", "Placed", "PlacedRange", "Publisher", "Receipt", "check_batching"]

MAX_LINGER_MS = 10_000
MAX_BATCH_BYTES = 256 * 1024 * 1024
"""Redis takes no value above 512 MiB."""

MOST_AT_ONCE = 16 * 1024
"""Bytes of a message that may be sent in the turn of its caller."""

NO_ROOM = 2**63
"""More than any part has room for."""


def check_batching(linger_ms: float, max_batch_bytes: int, compression: str) -> None:
    """Whether a publisher can batch so.

    Raises:
        InvalidOption: a value is out of range.
    """
    if not 0 <= linger_ms <= MAX_LINGER_MS:
        raise InvalidOption(f"linger_ms is {linger_ms}: give 0 to {MAX_LINGER_MS} milliseconds")
    if not 1 <= max_batch_bytes <= MAX_BATCH_BYTES:
        raise InvalidOption(f"max_batch_bytes is {max_batch_bytes}: give 1 to {MAX_BATCH_BYTES}")
    if compression not in CODECS:
        raise InvalidOption(f"compression {ascii(compression)[:40]} is unknown: use {', '.join(CODECS)}")


class Alone(NamedTuple):
    """One message that a thread appends by itself."""

    lane: Lane
    part: Part
    append: Append


class Publisher:
    """Sends messages to the streams of their topics. Made and used on one event loop; close it.

    Args:
        redis: a client of :func:`streamlease.streams.redis.connection.connect`.
        spaces: shared lookups of definitions; own ones if None.
        max_buffer_bytes: how much may wait to be sent; ``submit`` waits beyond it.
        max_batch_messages, max_batch_bytes: where a part is full.
        delivery_timeout: seconds for which the space of a topic is looked up, and for which a part is tried.
        linger_ms: for how many milliseconds a part that is not full waits for more messages; 0 for none: a
            part waits only while one is in flight before it.
        compression: ``zstd``, ``lz4`` or ``none``; readers need not know it.
        token: gives the random id of this publisher.

    Raises:
        InvalidOption: a limit is not positive, or the compression unknown.
    """

    def __init__(
        self,
        redis: AsyncRedis,
        *,
        spaces: SpaceStore | None = None,
        max_buffer_bytes: int = 64 * 1024 * 1024,
        max_batch_messages: int = 4096,
        max_batch_bytes: int = 1024 * 1024,
        delivery_timeout: float = 30.0,
        linger_ms: float = 0.0,
        compression: Codec = "zstd",
        token: Token = random_token,
    ) -> None:
        for name, value in (
            ("max_buffer_bytes", max_buffer_bytes),
            ("max_batch_messages", max_batch_messages),
            ("max_batch_bytes", max_batch_bytes),
            ("delivery_timeout", delivery_timeout),
        ):
            if not value > 0:  # nor is what is no number
                raise InvalidOption(f"{name} is {value}: it must be above 0")
        check_batching(linger_ms, max_batch_bytes, compression)
        self.id = f"~{token()}"
        self._codec = compression
        self.lends = linger_ms == 0 and not is_cluster(redis)
        """Whether a thread may be lent the sending of single messages."""
        self.answer_seconds = min(ANSWER_SECONDS, max(LEAST_ATTEMPT, delivery_timeout))
        """How long the reply to a single message may take."""
        self._log = AsyncLog(redis)
        self._spaces = spaces or SpaceStore(redis)
        self._max_messages = max_batch_messages
        self._buffer = Buffer(max_buffer_bytes)
        self._timeout = delivery_timeout
        self._turns = Turns()
        self._busy = self._turns.queues
        self._first_error: StreamleaseError | None = None
        self._loop = asyncio.get_running_loop()
        self._sender = Sender(
            redis,
            self._log,
            self.id,
            delivery_timeout=delivery_timeout,
            finished=self._part_finished,
            follow=self._follow,
            mend=self._mend,
            round_bytes=self._buffer.round_bytes,
            linger=linger_ms / 1000,
            answer_seconds=self.answer_seconds,
        )
        self._gate = Gate(self._buffer, self._sender)
        self._lanes = Lanes(
            self._sender.offer,
            self._loop.time,
            max_messages=max_batch_messages,
            max_bytes=min(max_batch_bytes, MAX_MESSAGE_BYTES, self._buffer.round_bytes),
            codec=compression,
            lingers=linger_ms > 0,
        )
        self._routes = Routes(self._spaces, self._lanes)
        self._traces = traces.active()
        # With tracing on, every message goes through `_place`; with tracing off, it costs nothing.
        self._quick = self._routes.quick if self._traces is None else {}
        self._following = Following(
            self._log, self._spaces, self._routes, self._lanes, self._buffer, self._sender
        )
        self._columns = Columns(
            self._gate, self._turns, self._routes, self._lanes, self._following, self._traces, self._timeout
        )

    async def __aenter__(self) -> Publisher:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.close()
        except StreamleaseError:
            if error is None:
                raise

    @property
    def buffered_bytes(self) -> int:
        """How much waits for an answer; at most `max_buffer_bytes`, or one message or batch above that.

        Counted are content, 128 bytes for each message, and the copies that a connection makes of what it
        sends: twice as much, but at most a quarter of the limit.
        """
        return self._buffer.bytes

    def knows(self, topic: str) -> bool:
        """Whether a payload of bytes to `topic` needs no look into Redis, and can only be too large.

        From any thread.
        """
        route = self._routes.known(topic)
        return self._traces is None and route is not None and route.space.newest_schema is None

    def can_send_at_once(self, topic: str) -> bool:
        """Whether `send_at_once` is worth a try for a small payload of bytes to `topic`. From any thread."""
        lane = self._quick.get(topic)
        return lane is not None and self._sender.can_send_at_once(lane)

    # ------------------------------------------------------------------------------------- submitting

    async def send(
        self,
        topic: str,
        payload: Payload,
        key: bytes | str | None = None,
        headers: HeadersInput | None = None,
        timestamp: datetime | int | None = None,
    ) -> Placed:
        """Publish one message and wait until it is written; its stream and offset.

        Args:
            payload: bytes or text; in a space with a schema, a mapping from its columns to values.
            timestamp: event time in the years 1 to 9999, an aware datetime or microseconds since 1970;
                None for the append time.

        Raises:
            InvalidTopic, InvalidInput, MessageTooLarge: the message cannot be published.
            UnknownSpace: no space covers the topic.
            SchemaMismatch: the payload or values are not of the schema of the space.
            StreamSealed, Fenced: the stream takes nothing from this publisher.
            StoreUnavailable, StoreRefused: it was not written.
            NotDurable: it was written, but less durably than the space demands; it may still exist.
            Indefinite: it was written, or it was not.
        """
        alone = self.send_at_once(topic, payload, key, headers, timestamp)
        if alone is not None:
            future: asyncio.Future[Placed] = self._loop.create_future()
            alone.tell(0, future)
            return await future
        part, place = await self._place(topic, payload, key, headers, timestamp, sent=True)
        placed = await part.future(place)
        if part.count == 1 and topic in self._quick:
            self._sender.want_line(placed[0])
        return placed

    def send_at_once(
        self,
        topic: str,
        payload: Payload,
        key: bytes | str | None = None,
        headers: HeadersInput | None = None,
        timestamp: datetime | int | None = None,
    ) -> Part | None:
        """Write a message now, as a part of its own; None if it has to go the way of all others."""
        if type(topic) is not str:
            return None
        lane = self._quick.get(topic)
        if lane is None and self._traces is None and not self._gate.closed:
            lane = self._routes.entered(topic)
        line = self._sender.line_for(lane) if lane is not None else None
        if lane is None or line is None:
            return None
        size = self._size_alone(topic, payload, key, headers, timestamp)
        if not size:
            return None
        entry = encode_message(Row(topic, payload, key, None, timestamp))  # type: ignore[arg-type]  # as `size` says
        self._sender.write(lane, entry, line)  # and all else while Redis is at work
        part = self._lanes.part_of(entry, size)
        self._sender.wrote(lane, part)
        self._buffer.held += size
        return part

    def _size_alone(
        self,
        topic: str,
        payload: Payload,
        key: bytes | str | None,
        headers: HeadersInput | None,
        timestamp: datetime | int | None,
    ) -> int:
        """The size of a message to a known topic with which nothing can be wrong; 0 for any other."""
        if (
            type(payload) is bytes
            and (key is None or type(key) is bytes)
            and headers is None
            and topic not in self._busy
            and (timestamp is None or (type(timestamp) is int and FIRST_TIME <= timestamp < LAST_TIME))
            and (size := ROW_BYTES + len(payload) + (len(key) if key else 0)) <= MOST_AT_ONCE
            and not self._buffer.is_full_for(size)
        ):
            return size
        return 0

    # ------------------------------------------------------------------------ for a thread with a loan

    def lend(self, wanted: Callable[[], None]) -> int:
        """See ``Sender.lend``. On the event loop, as all but `begin_alone` and `appended_alone`."""
        return self._sender.lend(wanted)

    def take_back(self, loan: int) -> None:
        """See ``Sender.take_back``."""
        self._sender.take_back(loan)

    def begin_alone(
        self,
        topic: str,
        payload: Payload,
        key: bytes | str | None,
        headers: HeadersInput | None,
        timestamp: datetime | int | None,
    ) -> Alone | None:
        """What the thread that has the loan is to append; None if the message has to go another way."""
        lane = self._quick.get(topic) if type(topic) is str else None
        if lane is None or lane.durability.kind != MEMORY.kind:
            return None
        size = self._size_alone(topic, payload, key, headers, timestamp)
        if not size:
            return None
        entry = encode_message(Row(topic, payload, key, None, timestamp))  # type: ignore[arg-type]  # as `size` says
        part = self._lanes.part_of(entry, size)
        return Alone(lane, part, lane.append_of(part, self.id, part.born))

    def appended_alone(self, alone: Alone, outcome: Appended) -> Placed:
        """The thread that has the loan appended this; where the message stands."""
        alone.lane.appended(outcome)
        self._count(alone.part, self._loop.time() - alone.part.born)
        return outcome.stream, outcome.first

    def take_over(self, loan: int, alone: Alone, reply: Any) -> Part | None:
        """The thread that has the loan got another `reply`; the part, or None if nobody goes on with it."""
        self._buffer.held += alone.part.size
        if self._sender.take_over(loan, alone.lane, alone.part, alone.append, reply):
            return alone.part
        self._buffer.release(alone.part.size)
        return None

    async def submit(
        self,
        topic: str,
        payload: Payload,
        key: bytes | str | None = None,
        headers: HeadersInput | None = None,
        timestamp: datetime | int | None = None,
    ) -> Receipt:
        """Hand over one message, waiting only while the buffer is full; the receipt gives what ``send`` does.

        An error also comes out of the next ``flush`` or ``close``, so the receipt may be dropped.

        Raises:
            InvalidTopic, InvalidInput, MessageTooLarge, UnknownSpace, SchemaMismatch: it cannot be published.
        """
        lane = self._quick.get(topic)
        if (
            lane is not None
            and type(payload) is bytes
            and headers is None
            and topic not in self._busy
            and (timestamp is None or (type(timestamp) is int and FIRST_TIME <= timestamp < LAST_TIME))
        ):
            if key is None:
                size = ROW_BYTES + len(payload)
            elif type(key) is bytes:
                size = ROW_BYTES + len(payload) + len(key)
            else:
                size = NO_ROOM
            buffer = self._buffer
            if buffer.held + size <= buffer.limit:
                part = lane.open
                if part is None and not lane.queue and size <= self._lanes.max_bytes:
                    self._gate.check_open()
                    part = self._lanes.begin(lane)
                if part is not None and size <= part.room and (place := part.count) < self._max_messages:
                    part.room -= size
                    buffer.held += size
                    part.count = place + 1
                    part.rows += (topic, payload, key, timestamp)
                    return Receipt(part, place)
        part, place = await self._place(topic, payload, key, headers, timestamp, sent=False)
        return Receipt(part, place)

    async def _place(
        self,
        topic: str,
        payload: Payload,
        key: bytes | str | None,
        headers: HeadersInput | None,
        timestamp: datetime | int | None,
        *,
        sent: bool,
    ) -> tuple[Part, int]:
        """Put a message into a part, whatever it is; the part, and the place in it."""
        self._gate.check_open()
        if self._traces is not None:
            headers = self._traces.carried(headers)
        if type(topic) is not str:
            topic = check_topic(topic)
        with self._turns.draw((topic,)) as turn:
            route = await self._routes.of(topic, self._loop.time() + self._timeout)
            row = row_of(route.space, topic, payload, key, headers, timestamp)
            await turn.come()
            self._gate.check_open()
            size = size_of(row)
            await self._gate.reserve(size)
            lane = self._routes.lane_of(route, topic, row.key)
            schema = route.space.newest_schema
            if lane.queue and not self._lanes.has_room(lane, size, schema):
                await self._let_sender_run(size)
                lane = self._routes.lane_of(route, topic, row.key)
            part, place = self._lanes.add(lane, row, size, schema, sent=sent)
        if self._traces is not None:
            self._traces.join(part)
        return part, place

    async def _let_sender_run(self, reserved: int) -> None:
        try:
            await asyncio.sleep(0)
            self._gate.check_open()
        except BaseException:
            self._buffer.release(reserved)
            raise

    # ------------------------------------------------------------------------------ many messages at once

    async def send_many(
        self,
        topics: str | Sequence[str],
        payloads: Sequence[Payload],
        *,
        keys: Sequence[bytes | str | None] | None = None,
        headers: Sequence[HeadersInput | None] | None = None,
        timestamps: Sequence[datetime | int | None] | None = None,
    ) -> list[PlacedRange]:
        """Publish many messages, given column by column, and wait until they are written.

        Args:
            topics: the topic of all messages, or one for each.
            payloads: bytes or texts; in a space with a schema, mappings from its columns to values.
            keys, headers, timestamps: None, or one for each message, which may be None.

        Returns:
            where they stand; per stream they keep their order.

        Raises:
            As ``send``, for the first piece that failed; others may have been written.
        """
        await converting.ready()
        return await _all(await self._columns.take_many(topics, payloads, keys, headers, timestamps, True))

    async def submit_many(
        self,
        topics: str | Sequence[str],
        payloads: Sequence[Payload],
        *,
        keys: Sequence[bytes | str | None] | None = None,
        headers: Sequence[HeadersInput | None] | None = None,
        timestamps: Sequence[datetime | int | None] | None = None,
    ) -> list[asyncio.Future[list[PlacedRange]]]:
        """Hand over many messages, waiting only while the buffer is full; see ``send_many``.

        Each future gives one place, or several if the space got a new generation meanwhile.
        """
        await converting.ready()
        return await self._columns.take_many(topics, payloads, keys, headers, timestamps, False)

    async def send_batch(self, topic: str, batch: pa.RecordBatch) -> list[PlacedRange]:
        """Publish all rows of an Arrow record batch and wait until they are written.

        Args:
            topic: the topic of all rows; or the name of a column of `batch` that has their topics.
            batch: column payload, or the columns of the space's schema; and, if wanted, key, headers,
                timestamp.

        Returns:
            where the rows stand; per stream they keep their order.

        Raises:
            As ``send``, for the first piece that failed; others may have been written.
        """
        return await _all(await self._columns.take_batch(topic, batch, True))

    async def submit_batch(
        self, topic: str, batch: pa.RecordBatch
    ) -> list[asyncio.Future[list[PlacedRange]]]:
        """Hand over all rows of `batch`, waiting only while the buffer is full; see ``send_batch``.

        Each future gives one place, or several if the space got a new generation meanwhile.
        """
        return await self._columns.take_batch(topic, batch, False)

    # ------------------------------------------------------------------------- what the sender calls back

    def _part_finished(self, part: Part, error: StreamleaseError | None) -> None:
        self._buffer.release(part.size)
        seconds = self._loop.time() - part.born
        if self._traces is not None:
            self._traces.sent(part.stream, part, error, seconds)
        if error is None:
            self._loop.call_soon(
                self._count, part, seconds
            )  # behind those who were told: they need not wait for it
            return
        metrics.PUBLISH_SECONDS.observe(seconds)
        metrics.PUBLISH_FAILURES.labels(type(error).__name__).inc(part.count)
        if not part.watched and self._first_error is None:
            self._first_error = error
        if isinstance(error, UnknownSpace | StreamSealed):
            self._routes.forget_definitions()

    def _count(self, part: Part, seconds: float) -> None:
        metrics.PUBLISH_SECONDS.observe(seconds)
        metrics.PUBLISHED_MESSAGES.inc(part.count)
        metrics.PUBLISHED_BYTES.inc(part.size)

    async def _follow(self, held: Sequence[Lane]) -> None:
        await self._following.follow(held)

    async def _mend(self, stream: StreamId, part: Part) -> bool:
        return await self._following.mend(stream, part)

    # --------------------------------------------------------------------------------------- finishing

    async def flush(self) -> None:
        """Wait until all that was submitted before is written or has failed.

        Raises:
            StreamleaseError: the first error since the last flush of a message that was only submitted.
        """
        with self._sender.hurried():
            for part in [
                *self._sender.in_flight,
                *(part for lane in self._lanes.by_stream.values() for part in lane.queue),
            ]:
                await part.finished()
        error, self._first_error = self._first_error, None
        if error is not None:
            raise error

    async def close(self) -> None:
        """Flush, then end. A second call does nothing.

        Raises:
            StreamleaseError: as ``flush``.
        """
        if self._gate.closed:
            return
        self._gate.closed = True
        self._routes.forget()  # so that `submit` looks whether it is closed
        self._buffer.wake()
        try:
            await self.flush()
        finally:
            await self._sender.close()
        with contextlib.suppress(StreamleaseError):  # the server forgets by itself, only later
            await self._log.forget(self.id, self._lanes.left.union(self._lanes.by_stream))


async def _all(futures: Sequence[asyncio.Future[list[PlacedRange]]]) -> list[PlacedRange]:
    places: list[PlacedRange] = []
    for result in await asyncio.gather(*futures, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
        places += result
    return places
