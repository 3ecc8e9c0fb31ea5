"""Publishing with batches, bounded memory, retries, and nothing twice.

Theory of operation. Each stream has a lane of parts (``lanes``); a part becomes one entry (``parts``). While
a lane has nothing in flight, its first part goes out at once; what is submitted meanwhile gathers in the next
part, and what nobody waits for some ms more behind a round of many parts (``ready_lanes``). So batches grow
with the load. One task sends and retries (``sender``). What is held is bounded (``buffer``): beyond that,
``submit`` waits. When a space gets a new generation, what waits goes to its new streams (``following``).

Messages of one topic are written in the order in which they were sent or submitted, also by calls side by
side (``turns``). Many messages at once stay columns (``columns``). Behind a part that failed, others go out.

``submit`` is called once per message, so the usual case, a payload of bytes for a known topic, touches only
the open part of its lane, or begins one; ``_place`` handles everything else.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from datetime import datetime
from types import TracebackType

import pyarrow as pa

from streamlease.protocol.errors import StreamleaseError
from streamlease.protocol.ids import Token, random_token
from streamlease.streams.entries.entries import MAX_MESSAGE_BYTES, Codec, HeadersInput
from streamlease.streams.entries.epoch_fields import Stamp
from streamlease.streams.entries.message_rows import FIRST_TIME, LAST_TIME
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.publish import traces
from streamlease.streams.publish.buffer import ROW_BYTES, Buffer
from streamlease.streams.publish.columns import Columns
from streamlease.streams.publish.entering import Entering
from streamlease.streams.publish.epoch_staging import EpochStaging
from streamlease.streams.publish.following import Following
from streamlease.streams.publish.gate import Gate
from streamlease.streams.publish.inputs import Payload, check_batching, check_positive
from streamlease.streams.publish.lanes import Lanes
from streamlease.streams.publish.parts import Placed, PlacedRange
from streamlease.streams.publish.receipts import Receipt, Receipts, all_places
from streamlease.streams.publish.routes import Routes, Seen, unseen
from streamlease.streams.publish.sending.converting import converting
from streamlease.streams.publish.sending.duty import Duty
from streamlease.streams.publish.sending.endings import Endings
from streamlease.streams.publish.sending.ready_lanes import ReadyLanes
from streamlease.streams.publish.sending.sender import LEAST_ATTEMPT, Sender
from streamlease.streams.publish.sending.singles import Singles
from streamlease.streams.publish.turns import Turns
from streamlease.streams.redis.connection import ANSWER_SECONDS, AsyncRedis, check_loop, is_cluster
from streamlease.streams.redis.lines.direct_lines import DirectLines
from streamlease.streams.spaces.epoch_settings import check_plain
from streamlease.streams.spaces.spaces import SpaceStore

__all__ = ["Payload", "Placed", "PlacedRange", "Publisher", "Receipt"]

NO_ROOM = 2**63
"""More than any part has room for."""


class Publisher:
    """Sends messages to the streams of their topics. Made and used on one event loop; close it.

    Args:
        redis: a client of :func:`streamlease.streams.redis.connection.connect`.
        spaces: shared lookups of definitions; own ones if None.
        max_buffer_bytes: how much may wait to be sent; ``submit`` waits beyond it.
        max_batch_messages, max_batch_bytes: where a part is full.
        delivery_timeout: seconds for which the space of a topic is looked up, and for which a part is tried.
        linger_ms: for how many milliseconds a part that is not full waits for more messages; 0 for none: a
            part waits behind one in flight and, if nobody awaits it, up to 4 ms behind a round of many.
        compression: ``zstd``, ``lz4`` or ``none``; readers need not know it.
        token: gives the random id of this publisher.
        staging: how an epoch publisher stages what it is given; None for any other.
        shown: told of each new topic, and its space.

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
        staging: EpochStaging | None = None,
        shown: Seen = unseen,
    ) -> None:
        check_positive(
            max_buffer_bytes=max_buffer_bytes,
            max_batch_messages=max_batch_messages,
            max_batch_bytes=max_batch_bytes,
            delivery_timeout=delivery_timeout,
        )
        check_batching(linger_ms, max_batch_bytes, compression)
        check_loop(redis)
        self.id = f"~{token()}" if staging is None else staging.publisher
        self.lends = linger_ms == 0 and not is_cluster(redis) and staging is None
        """Whether a thread may be lent the sending of single messages."""
        self.answer_seconds = min(ANSWER_SECONDS, max(LEAST_ATTEMPT, delivery_timeout))
        """How long the reply to a single message may take."""
        self._log = AsyncLog(redis)
        self._staging = staging
        self._spaces = spaces or SpaceStore(redis)
        self._max_messages = max_batch_messages
        self.forgotten = staging is None  # whether the streams forget its id when it is closed
        self._buffer = Buffer(max_buffer_bytes)
        self._timeout = delivery_timeout
        self._turns = Turns()
        self._busy = self._turns.queues
        self._loop = asyncio.get_running_loop()
        self._traces = traces.active()
        # The lambdas name what is made below.
        self._endings = Endings(
            self._buffer,
            self._traces,
            lambda: self._routes.forget_definitions(),  # noqa: PLW0108
            staging,
        )
        duty = Duty()
        self._ready = ReadyLanes(
            duty, self._loop.time, linger=linger_ms / 1000, round_bytes=self._buffer.round_bytes
        )
        self._sender = Sender(
            self._log if staging is None else staging.log,
            self.id,
            duty,
            self._ready,
            self._endings,
            delivery_timeout=delivery_timeout,
            follow=lambda held: self._following.follow(held),  # noqa: PLW0108
            mend=lambda stream, part: self._following.mend(stream, part),  # noqa: PLW0108
        )
        self._gate = Gate(self._buffer, self._ready, self._sender)
        self._lanes = Lanes(
            self._sender.offer,
            self._loop.time,
            max_messages=max_batch_messages,
            max_bytes=min(max_batch_bytes, MAX_MESSAGE_BYTES, self._buffer.round_bytes),
            codec=compression,
            lingers=linger_ms > 0,
            who=None if staging is None else staging.who,
            wanted=self._ready.nudge,
        )
        self._routes = Routes(self._spaces, self._lanes, staging.check if staging else check_plain, shown)
        self._entering = Entering(
            self._gate, self._turns, self._routes, self._lanes, self._buffer, self._traces, self._timeout
        )
        # With tracing on, every message goes through `Entering`; with tracing off, it costs nothing.
        self._quick = self._routes.quick if self._traces is None else {}
        self.singles = Singles(
            self.id,
            DirectLines(redis, self._sender.tasks, self.answer_seconds),
            duty,
            self._ready,
            self._endings,
            self._buffer,
            quick=self._quick,
            enter=self._entering.entered,
            busy=self._busy,
            resume=self._sender.resume,
            codec=compression,
            lingers=linger_ms > 0 or staging is not None,
        )
        """Sends the messages that are awaited one by one."""
        self._following = Following(
            self._log, self._spaces, self._routes, self._lanes, self._buffer, self._sender.held
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
        """Whether a payload of bytes to `topic` needs no look into Redis. From any thread."""
        route = self._routes.known(topic)
        return self._traces is None and route is not None and route.space.newest_schema is None

    def stamp(self, stamp: Stamp) -> None:
        """What comes in from now on is of an epoch; once a former call has put its messages into parts."""
        self._lanes.stamp(stamp)

    async def send(
        self,
        topic: str,
        payload: Payload,
        key: bytes | str | None = None,
        headers: HeadersInput | None = None,
        timestamp: datetime | int | None = None,
        diff: int | None = None,
    ) -> Placed:
        """Publish one message and wait until it is written; its stream and offset.

        Args:
            payload: bytes or text; in a space with a schema, a mapping from its columns to values.
            timestamp: event time in the years 1 to 9999, an aware datetime or microseconds since 1970;
                None for the append time.
            diff: in a collection, how many of the item come (+1 if not given), or, below 0, go.

        Raises:
            InvalidTopic, InvalidInput, MessageTooLarge: the message cannot be published.
            UnknownSpace: no space covers the topic.
            SchemaMismatch: the payload or values are not of the schema of the space.
            StreamSealed, Fenced, StoreUnavailable, StoreRefused: it was not written.
            NotDurable: it was written, but less durably than the space demands; it may still exist.
            Indefinite: it was written, or it was not.
        """
        alone = self.singles.write(topic, payload, key, headers, timestamp) if diff is None else None
        if alone is not None:
            future: asyncio.Future[Placed] = self._loop.create_future()
            alone.tell(future)
            return await future
        part, place = await self._entering.place(topic, payload, key, headers, timestamp, diff, sent=True)
        placed = await part.future(place)
        if part.count == 1 and topic in self._quick:
            self.singles.want_line(placed[0])
        return placed

    async def submit(
        self,
        topic: str,
        payload: Payload,
        key: bytes | str | None = None,
        headers: HeadersInput | None = None,
        timestamp: datetime | int | None = None,
        diff: int | None = None,
    ) -> Receipt:
        """Hand over one message, waiting only while the buffer is full; the receipt gives what ``send`` does.

        An error also comes out of the next ``flush`` or ``close``, so the receipt may be dropped.

        Raises:
            InvalidTopic, InvalidInput, MessageTooLarge, UnknownSpace, SchemaMismatch: it cannot be published.
        """
        try:
            lane = self._quick.get(topic)
        except TypeError:  # no text: `place` says so
            lane = None
        if (
            lane is not None
            and type(payload) is bytes
            and headers is None
            and diff is None
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
        part, place = await self._entering.place(topic, payload, key, headers, timestamp, diff, sent=False)
        return Receipt(part, place)

    async def send_many(
        self,
        topics: str | Sequence[str],
        payloads: Sequence[Payload],
        *,
        keys: Sequence[bytes | str | None] | None = None,
        headers: Sequence[HeadersInput | None] | None = None,
        timestamps: Sequence[datetime | int | None] | None = None,
        diffs: Sequence[int] | None = None,
    ) -> list[PlacedRange]:
        """Publish many messages, given column by column, and wait until they are written.

        Args:
            topics: the topic of all messages, or one for each.
            payloads: bytes or texts; in a space with a schema, mappings from its columns to values.
            keys, headers, timestamps: None, or one for each message, which may be None.
            diffs: None, or one for each message; see `send`.

        Returns: where they stand; per stream they keep their order.
        Raises:
            As ``send``, for the first piece that failed; others may have been written.
        """
        await converting.ready()
        return await all_places(
            await self._columns.take_many(topics, payloads, keys, headers, timestamps, diffs, True)
        )

    async def submit_many(
        self,
        topics: str | Sequence[str],
        payloads: Sequence[Payload],
        *,
        keys: Sequence[bytes | str | None] | None = None,
        headers: Sequence[HeadersInput | None] | None = None,
        timestamps: Sequence[datetime | int | None] | None = None,
        diffs: Sequence[int] | None = None,
    ) -> Receipts:
        """Hand over many messages, waiting only while the buffer is full; see ``send_many``.

        Of what is returned each future gives one place, or several if the space got a new generation
        meanwhile. An error also comes out of the next ``flush`` or ``close``, so all of it may be dropped.
        """
        await converting.ready()
        return await self._columns.take_many(topics, payloads, keys, headers, timestamps, diffs, False)

    async def send_batch(self, topic: str, batch: pa.RecordBatch) -> list[PlacedRange]:
        """Publish all rows of an Arrow record batch and wait until they are written.

        Args:
            topic: the topic of all rows; or the name of a column of `batch` that has their topics.
            batch: column payload, or the columns of the space's schema; and, if wanted, key, headers,
                timestamp; in a collection diff.

        Returns: where the rows stand; per stream they keep their order.

        Raises:
            As ``send``, for the first piece that failed; others may have been written.
        """
        return await all_places(await self._columns.take_batch(topic, batch, True))

    async def submit_batch(self, topic: str, batch: pa.RecordBatch) -> Receipts:
        """Hand over all rows of `batch`, waiting only while the buffer is full; see ``submit_many``."""
        return await self._columns.take_batch(topic, batch, False)

    async def flush(self) -> None:
        """Wait until all that was submitted before is written or has failed.

        Raises:
            StreamleaseError: the first error since the last flush of a message that was only submitted.
        """
        with self._ready.hurried():
            for part in [
                *self._sender.in_flight,
                *self.singles.in_flight,
                *(part for lane in self._lanes.by_stream.values() for part in lane.queue),
            ]:
                await part.finished()
        self.singles.count()
        error = self._endings.take_error()
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
            await self.singles.close()
        if self.forgotten:  # a name would be taken for a new one, and its fence with it
            # Where a copy of a message may still come, the server is to know it; it forgets by itself later.
            with contextlib.suppress(StreamleaseError):
                await self._log.forget(self.id, self._lanes.settled())
