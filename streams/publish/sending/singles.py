"""Messages that are sent alone, one after the other: written in the turn of their caller.

A single message that somebody awaits, while nobody sends, is a round by itself. It is written at once, on a
line (``direct_lines``), and the reply wakes its caller. For a blocking client, the thread that sends one
message after the other is lent this work, and appends its messages itself.

Whoever waits for one after the other waits for the server, and for what is done here between a reply and the
next write. So before the write only the bytes of the append are made (``stencils``), and as long as all goes
well, the message becomes no part. Unless the answer is that it was appended just now, it becomes one, and
rounds go on with it: they repeat the same append, with the same sequence, and judge the answer to that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from streamlease.protocol.errors import Indefinite
from streamlease.protocol.ids import StreamId
from streamlease.streams.entries.entries import Codec, HeadersInput, Row, encode_message
from streamlease.streams.entries.message_rows import FIRST_TIME, LAST_TIME
from streamlease.streams.log.keys import stream_meta
from streamlease.streams.log.stencils import appended_at
from streamlease.streams.publish import metrics
from streamlease.streams.publish.buffer import ROW_BYTES, Buffer
from streamlease.streams.publish.inputs import Payload
from streamlease.streams.publish.lanes import Lane
from streamlease.streams.publish.metrics import Tally
from streamlease.streams.publish.parts import AnyFuture, Part, Placed
from streamlease.streams.publish.sending.duty import Duty, Who
from streamlease.streams.publish.sending.endings import Endings, no_answer
from streamlease.streams.publish.sending.ready_lanes import ReadyLanes
from streamlease.streams.redis.durability import MEMORY
from streamlease.streams.redis.lines.direct_lines import DirectLines

MOST_AT_ONCE = 16 * 1024
"""Bytes of a message that may be sent in the turn of its caller."""


class Alone:
    """One message that is sent alone.

    Args:
        payload: bytes, as `size` says, and so is `key`, unless it is None.
        size: what it counts for in the buffer.
        born: when it was written, on the clock of the event loop.
    """

    __slots__ = ("_future", "_part", "born", "key", "lane", "payload", "size", "timestamp", "topic")

    def __init__(
        self, lane: Lane, topic: str, payload: Any, key: Any, timestamp: Any, size: int, born: float
    ) -> None:
        self.lane = lane
        self.topic = topic
        self.payload = payload
        self.key = key
        self.timestamp = timestamp
        self.size = size
        self.born = born
        self._future: AnyFuture | None = None
        self._part: Part | None = None

    def tell(self, future: AnyFuture) -> None:
        """Have `future` told, on the event loop, where it stands; in the turn in which it was written."""
        self._future = future

    def succeed(self, placed: Placed) -> None:
        """Tell everybody that it is written."""
        if self._part is not None:
            self._part.succeed(*placed)
        elif self._future is not None and not self._future.done():
            self._future.set_result(placed)

    def part(self, codec: Codec) -> Part:
        """The part that it becomes, and that tells everybody from now on."""
        if self._part is None:
            self._part = part = Part(self.born, None, codec, self.size)
            part.entry = encode_message(Row(self.topic, self.payload, self.key, None, self.timestamp))
            part.count = part.sent = 1
            part.room = 0
            if self._future is not None:
                part.tell(0, self._future)
        return self._part


class Singles:
    """Sends the messages of one publisher that are sent alone.

    Args:
        publisher: its id.
        quick: the lanes of topics whose messages are payloads without a schema and need no look at the key.
        enter: the lane of another topic, if it becomes `quick` without a look into Redis.
        busy: topics whose messages have to wait for others.
        resume: makes a round of a part that is to be appended once more.
    """

    def __init__(
        self,
        publisher: str,
        lines: DirectLines,
        duty: Duty,
        ready: ReadyLanes,
        endings: Endings,
        buffer: Buffer,
        *,
        quick: Mapping[str, Lane],
        enter: Callable[[str], Lane | None],
        busy: Mapping[str, object],
        resume: Callable[[Lane, Part], None],
        codec: Codec,
        lingers: bool,
    ) -> None:
        self._publisher = publisher
        self._lines = lines
        self._duty = duty
        self._ready = ready
        self._endings = endings
        self._buffer = buffer
        self._quick = quick
        self._enter = enter
        self._busy = busy
        self._resume = resume
        self._codec: Codec = codec
        self._lingers = lingers
        self._loop = asyncio.get_running_loop()
        self._on_line: Alone | None = None
        self._tally = Tally()

    # ------------------------------------------------------------ on a line

    def can_write(self, topic: str) -> bool:
        """Whether `write` is worth a try for a small payload of bytes to `topic`. From any thread."""
        lane = self._quick.get(topic)
        return lane is not None and self._duty.who is Who.NOBODY and self._takes(lane)

    def write(
        self,
        topic: str,
        payload: Payload,
        key: bytes | str | None,
        headers: HeadersInput | None,
        timestamp: datetime | int | None,
    ) -> Alone | None:
        """Write a message now; None if it has to go the way of all others.

        Raises:
            InvalidTopic: `topic` is malformed.
        """
        if self._duty.who is not Who.NOBODY or type(topic) is not str:
            return None
        lane = self._quick.get(topic) or self._enter(topic)
        if lane is None or not self._takes(lane):
            return None
        size = self._size(topic, payload, key, headers, timestamp)
        line = self._lines.to(lane.meta) if size else None
        if line is None:
            return None
        now = self._loop.time()
        line.ask_packed(self._packed(lane, topic, payload, key, timestamp, now), self._heard)
        # All else while Redis is at work.
        self._duty.begin_line()
        self._buffer.held += size
        self._on_line = alone = Alone(lane, topic, payload, key, timestamp, size, now)
        self._tally.count_some()
        return alone

    def want_line(self, stream: StreamId) -> None:
        """Messages for `stream` are sent one by one: have a line for the next."""
        if self._duty.who is not Who.ENDED and not self._lingers:
            self._lines.want(stream_meta(stream))

    @property
    def in_flight(self) -> list[Part]:
        """What is on a line, as a part."""
        return [] if self._on_line is None else [self._on_line.part(self._codec)]

    def count(self) -> None:
        """From now on, the metrics have all that was written on lines."""
        self._tally.count()

    async def close(self) -> None:
        """Send no more; the duty has ended. What is still on a line fails as ``Indefinite``."""
        alone, self._on_line = self._on_line, None
        await self._lines.close()
        self.count()
        if alone is not None:
            why = "the publisher was closed before an answer came: it was written, or it was not"
            self._endings.failed(alone.lane, alone.part(self._codec), Indefinite(why))

    def _heard(self, reply: Any) -> None:
        """What came of a message on a line."""
        alone, self._on_line = self._on_line, None
        if alone is None:
            return
        offset = appended_at(reply)
        self._duty.end_line(rounds=offset is None or bool(self._ready))
        if offset is None:
            self._go_on(alone, reply)
        else:
            lane = alone.lane
            lane.appended(offset + 1)
            alone.succeed((lane.stream, offset))
            self._buffer.release(alone.size)
            self._tally.add(alone.size, self._loop.time() - alone.born)

    def _go_on(self, alone: Alone, reply: Any) -> None:
        """Rounds go on with a message that was not appended, or of which nobody knows."""
        part = alone.part(self._codec)
        if reply is None:
            part.maybe, part.error = True, no_answer()
        self._resume(alone.lane, part)

    # ------------------------------------------------------------ by a thread

    def lend(self, wanted: Callable[[], None]) -> int:
        """See ``Duty.lend``. On the event loop, as all but `begin` and `appended`."""
        return 0 if self._lingers else self._duty.lend(wanted)

    def take_back(self, loan: int) -> None:
        """The loan ends, and what waits is sent; does nothing if it has ended."""
        if self._duty.has(loan):
            self._duty.end_loan(rounds=bool(self._ready))

    def begin(
        self,
        topic: str,
        payload: Payload,
        key: bytes | str | None,
        headers: HeadersInput | None,
        timestamp: datetime | int | None,
    ) -> tuple[Alone, bytes] | None:
        """What the thread that has the loan is to write; None if the message has to go another way."""
        lane = self._quick.get(topic) if type(topic) is str else None
        size = self._size(topic, payload, key, headers, timestamp) if lane is not None else 0
        if lane is None or not size or lane.durability.kind != MEMORY.kind:
            return None
        now = self._loop.time()
        packed = self._packed(lane, topic, payload, key, timestamp, now)
        return Alone(lane, topic, payload, key, timestamp, size, now), packed

    def appended(self, alone: Alone, offset: int) -> Placed:
        """The thread that has the loan appended this; where the message stands."""
        alone.lane.appended(offset + 1)
        metrics.count([(1, alone.size, self._loop.time() - alone.born)])
        return alone.lane.stream, offset

    def take_over(self, loan: int, alone: Alone, reply: Any) -> Part | None:
        """The thread that has the loan got another `reply`; the part, or None if nobody goes on with it."""
        if not self._duty.has(loan):
            return None
        self._buffer.held += alone.size
        self._duty.end_loan(rounds=True)
        self._go_on(alone, reply)
        return alone.part(self._codec)

    # ------------------------------------------------------------ both

    def _takes(self, lane: Lane) -> bool:
        """Whether messages to `lane` may be sent alone."""
        return lane.durability.kind == MEMORY.kind and not self._lingers

    def _size(
        self, topic: str, payload: object, key: object, headers: object | None, timestamp: object | None
    ) -> int:
        """What a message to a quick topic, with which nothing can be wrong, counts for; 0 for any other."""
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

    def _packed(self, lane: Lane, topic: str, payload: Any, key: Any, timestamp: Any, now: float) -> bytes:
        lane.use(now)
        stencil = lane.stencil or lane.cut_stencil(self._publisher)
        return stencil.packed(lane.sequence, lane.known, topic, payload, key, timestamp)
