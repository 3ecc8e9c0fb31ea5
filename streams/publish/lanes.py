"""What a publisher has yet to send: parts, each of which becomes one entry, in one lane per stream.

A lane's parts go out in order and one at a time, each with the next sequence of the lane's incarnation. When
it stays unknown whether a part was written, the lane goes on under the next incarnation: should the part
still arrive late, it is fenced then.

A stream that is sealed or pending refuses a part for certain: what was appended before, with its answer
lost, is answered as a duplicate also by a sealed stream. The refused part goes back to the front of its lane,
which holds still until it is known where its messages belong now.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from streamlease.protocol.errors import StreamleaseError
from streamlease.protocol.ids import StreamId
from streamlease.streams.entries.entries import Codec, Row
from streamlease.streams.entries.epoch_fields import Stamp
from streamlease.streams.entries.schemas import Schema
from streamlease.streams.log.keys import stream_meta
from streamlease.streams.log.log import Append
from streamlease.streams.log.stencils import Stencil
from streamlease.streams.publish.epoch_staging import Incarnation
from streamlease.streams.publish.parts import Part
from streamlease.streams.redis.durability import MEMORY, Durability
from streamlease.streams.spaces.spaces import Space

SILENCE_SECONDS = 3600.0
"""After so long the server may have forgotten the sequence, so a lane starts a new incarnation."""


class Lane:
    """The parts that wait for one stream, and where its sequence stands."""

    __slots__ = (
        "durability",
        "incarnation",
        "known",
        "meta",
        "open",
        "queue",
        "refusal",
        "repeated",
        "sequence",
        "stencil",
        "stream",
        "used",
    )

    def __init__(self, stream: StreamId, incarnation: int, durability: Durability = MEMORY) -> None:
        self.stream = stream
        self.meta = stream_meta(stream)
        self.durability = durability
        self.incarnation = incarnation
        self.sequence = 0
        self.known = 0
        """Up to where answers said that the stream is written."""
        self.stencil: Stencil | None = None
        """Packs messages of the present incarnation that are sent alone; made once there are any."""
        self.queue: deque[Part] = deque()
        self.open: Part | None = None
        """The last of the queue, while it may take more messages."""
        self.used = 0.0
        self.refusal: StreamleaseError | None = None
        """Why the stream took the first part of the queue not; the lane holds still then."""
        self.repeated = False
        """Whether something was sent again: a copy of it may still come."""

    def put(self, part: Part, *, open: bool) -> None:
        """Add a part at the end."""
        self.queue.append(part)
        self.open = part if open else None

    def take(self) -> Part:
        """Remove the first part, which takes no more messages from now on."""
        part = self.queue.popleft()
        if part is self.open:
            self.open = None
        return part

    def renew(self) -> None:
        """Go on under the next incarnation."""
        self.incarnation += 1
        self.sequence = 0
        self.stencil = None

    def appended(self, end: int) -> None:
        """What was in flight is appended: the stream is written up to `end`."""
        self.sequence += 1
        self.known = max(self.known, end)

    def use(self, now: float, *, repeats: bool = False) -> None:
        """Something is to be sent with the present sequence.

        Args:
            repeats: an attempt with that sequence may have been written.
        """
        if self.used and now - self.used > SILENCE_SECONDS and not repeats:
            self.renew()
        self.repeated |= repeats
        self.used = now

    def append_of(self, part: Part, publisher: str, now: float) -> Append:
        """The append that sends `part` with the lane's present sequence."""
        self.use(now, repeats=part.maybe)
        return Append(
            self.stream,
            publisher,
            self.incarnation,
            self.sequence,
            part.encoded(),
            durability=self.durability,
            known=self.known,
        )

    def cut_stencil(self, publisher: str) -> Stencil:
        """What packs messages of the present incarnation that are sent alone."""
        self.stencil = Stencil(self.stream, publisher, self.incarnation)
        return self.stencil


class Lanes:
    """All lanes of a publisher, and how their parts are filled.

    Args:
        offer: told of each lane that has something to send.
        wanted: called when somebody begins to wait for a message of a part.
        clock: seconds on the event loop.
        max_messages, max_bytes: where a part is full.
        lingers: a part that is not full waits for more messages, unless it was handed over as columns.
        who: whose incarnation a lane begins with; None for 1.
    """

    def __init__(
        self,
        offer: Callable[[Lane], None],
        clock: Callable[[], float],
        *,
        max_messages: int,
        max_bytes: int,
        codec: Codec,
        lingers: bool,
        wanted: Callable[[], None],
        who: Incarnation | None = None,
    ) -> None:
        self._offer = offer
        self._wanted = wanted
        self._clock = clock
        self.max_messages = max_messages
        self._codec: Codec = codec
        self.lingers = lingers
        self._who = who
        self._stamp: Stamp | None = None
        self.max_bytes = max_bytes
        self.by_stream: dict[StreamId, Lane] = {}
        self._left: dict[StreamId, bool] = {}
        """Streams of former generations that may remember this publisher."""

    def get(self, space: Space, stream: StreamId) -> Lane:
        """The lane of a stream of `space`."""
        lane = self.by_stream.get(stream)
        if lane is None:
            lane = self.by_stream[stream] = Lane(
                stream, 1 if self._who is None else self._who.first_incarnation
            )
        lane.durability = space.promised
        return lane

    @property
    def stamped(self) -> Stamp | None:
        """The epoch of messages that come now, and who stages them; None: they have none."""
        return self._stamp

    def stamp(self, stamp: Stamp) -> None:
        """Messages that come from now on are of another epoch: no part that is there takes any of them."""
        self._stamp = stamp
        for lane in self.by_stream.values():
            lane.open = None

    def leave(self, lane: Lane) -> None:
        """`lane` is of a former generation, and empty."""
        del self.by_stream[lane.stream]
        self._left[lane.stream] = lane.repeated or self._left.get(lane.stream, False)

    def settled(self) -> list[StreamId]:
        """The streams of all lanes, former ones too, in which nothing was sent twice."""
        now = {stream: lane.repeated or self._left.get(stream) for stream, lane in self.by_stream.items()}
        return [stream for stream, repeated in {**self._left, **now}.items() if not repeated]

    def has_room(self, lane: Lane, size: int, schema: Schema | None) -> bool:
        """Whether the last part of `lane` takes a message of `size` bytes under `schema`."""
        part = lane.open
        return (
            part is not None
            and (part.schema is schema or _alike(part.schema, schema))
            and part.count < self.max_messages
            and size <= part.room
        )

    def begin(self, lane: Lane, schema: Schema | None = None) -> Part:
        """A new part at the end of `lane`, which takes messages under `schema`."""
        part = Part(self._clock(), schema, self._codec, self.max_bytes)
        part.stamp = self._stamp
        part.wanted = self._wanted
        lane.put(part, open=True)
        self._offer(lane)
        return part

    def add(self, lane: Lane, row: Row, size: int, schema: Schema | None, *, sent: bool) -> tuple[Part, int]:
        """Put a message at the end of `lane`; its part, and the place in it.

        Args:
            sent: whether somebody waits for it.
        """
        part = lane.open
        if part is None or not self.has_room(lane, size, schema):
            part = self.begin(lane, schema)
        return part, part.add(row, size, sent)

    def add_rows(
        self, lane: Lane, rows: Sequence[Any], count: int, size: int, watched: bool
    ) -> tuple[Part, int, int]:
        """Put a few payloads without a schema at the end of `lane`: their part, place and number.

        See ``Part.add_rows``.
        """
        part = lane.open
        if (
            part is None
            or part.schema is not None
            or part.count + count > self.max_messages
            or size > part.room
        ):
            part = Part(self._clock(), None, self._codec, max(size, self.max_bytes))
            part.stamp = self._stamp
            part.wanted = self._wanted
            lane.put(part, open=True)
            self._offer(lane)
        if self.lingers:
            lane.open = None
        return part, part.add_rows(rows, count, size, watched), count

    def add_batch(
        self, lane: Lane, batch: pa.RecordBatch, size: int, schema: Schema | None, *, watched: bool
    ) -> Part:
        """Put a piece of a record batch, which counts as `size` bytes, at the end of `lane`; its part."""
        part = Part.of_batch(batch, size, self._clock(), schema, self._codec, watched)
        part.stamp = self._stamp
        lane.put(part, open=False)
        self._offer(lane)
        return part


def _alike(one: Schema | None, other: Schema | None) -> bool:
    return one is not None and other is not None and one.fingerprint == other.fingerprint
