"""Messages of a space, found by topic, key, text, time or offset, newest or oldest first, within bounds.

All streams of the space are gone through together, in the order of append times, without reading more of any
than is needed: the next message is always in the stream that may have the newest (or oldest) one left. What
may come next of a stream is known without reading it, from the time of its last append, or of the message at
its position; so among thousands of streams only those are read that have something to show::

    found = await find(client, MessageQuestion("flights", filter="flights/JFK/#", text="delayed"))
    more = await find(client, replace(question, cursor=found.cursor))      # while not found.done

A question looks at a bounded number of messages (`MOST_MESSAGES`, `MOST_BYTES`), and then says how far it
came: the answer to the same question with its cursor goes on there. What retention took away meanwhile, what
Redis lost and what cannot be decoded is passed over and told.
"""

from __future__ import annotations

import base64
import heapq
import json
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from streamlease.protocol.errors import HistoryTruncated, InvalidInput, InvalidOption, StreamleaseError
from streamlease.protocol.ids import StreamId
from streamlease.protocol.plain_values import plain
from streamlease.protocol.topics import check_filter
from streamlease.streams.entries.decoding import DamagedEntry
from streamlease.streams.entries.delivered import Message, to_messages
from streamlease.streams.entries.message_rows import filter_batch
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.log.times import append_times, offsets_after

if TYPE_CHECKING:
    import pyarrow as pa

    from streamlease.agent.client import Client
    from streamlease.streams.log.state import LogState
    from streamlease.streams.redis.connection import AsyncRedis
    from streamlease.streams.spaces.spaces import Space

MOST_MESSAGES = 50_000
"""Messages that one question looks at."""

MOST_BYTES = 32 * 1024 * 1024
"""Bytes of payloads, keys and topics that one question looks at, about."""

MOST_SECONDS = 4.0
FIRST_PIECE, LARGEST_PIECE = 64, 2048
"""Offsets of one stream that are read at once; twice as many each time."""

MOST_NOTES = 20
LONGEST_CURSOR = 1 << 20
Order = Literal["newest", "oldest"]
Place = tuple[int, int]
"""An offset, and the time (us since 1970) that the message there can have at most, or at least."""

_LATEST = 1 << 62


@dataclass(frozen=True, slots=True)
class MessageQuestion:
    """Which messages are wanted.

    Args:
        stream: only of this one.
        filter: only of topics that it matches.
        key: only with this one.
        text: only with this text, in the key, the payload, a header or a typed column; upper and lower case
            are alike.
        moment: microseconds since 1970: only what was appended until then (newest first), or from then on.
        offset: of a stream: only what is below (newest first), or from there on.
        cursor: where a former answer ended.
        limit: so many messages at most.
    """

    space: str
    order: Order = "newest"
    stream: str | None = None
    filter: str | None = None
    key: bytes | None = None
    text: str | None = None
    moment: int | None = None
    offset: int | None = None
    cursor: Mapping[str, Place] | None = None
    limit: int = 100


@dataclass(slots=True)
class FoundMessages:
    """An answer."""

    messages: list[Message]
    cursor: dict[str, Place]
    """Where the streams that have more go on."""
    looked: int
    """Messages that were looked at."""
    reached: int | None
    """Append time (us since 1970) of the last message that was looked at."""
    done: bool
    """There is nothing more."""
    notes: list[str] = field(default_factory=list)
    """What could not be read."""


async def find(client: Client, question: MessageQuestion) -> FoundMessages:
    """What there is of it.

    Raises:
        UnknownSpace, InvalidTopic, InvalidInput, InvalidOption.
        StoreUnavailable, StoreRefused.
    """
    space = await client.spaces.get(question.space)
    if question.filter is not None:
        check_filter(question.filter)
    states = await AsyncLog(client.redis).states(_streams(space, question))
    places = await _places(client, question, states)
    return await _Search(client.redis, question, places, states).run()


def _streams(space: Space, question: MessageQuestion) -> list[StreamId]:
    """The streams in which such messages can be."""
    streams = space.streams()
    if question.stream is not None:
        found = [one for one in streams if str(one) == question.stream]
        if not found:
            raise InvalidInput(
                f"space {space.name} has no stream {ascii(question.stream)[:80]}: "
                f"they are {streams[0]} to {streams[-1]}"
            )
        return found
    if question.offset is not None:
        raise InvalidOption("an offset is one of a stream: name the stream as well")
    topic = question.filter
    if topic is None or "+" in topic or "#" in topic or not space.covers(topic):
        return streams
    if space.shard_by == "topic" or question.key is not None:
        one = {space.stream_for(topic, question.key, generation) for generation in space.generations}
        # A message without a key goes by its topic, also where keys decide.
        return [stream for stream in streams if stream in one]
    return streams


async def _places(
    client: Client, question: MessageQuestion, states: Mapping[StreamId, LogState]
) -> dict[StreamId, int]:
    """Where each stream is begun: the first offset that is wanted, or, newest first, the one behind it."""
    newest = question.order == "newest"
    if question.cursor is not None:
        known = {str(stream): stream for stream in states}
        return {known[name]: place for name, (place, _) in question.cursor.items() if name in known}
    if question.offset is not None:
        return dict.fromkeys(states, question.offset)
    if question.moment is None:
        return {stream: state.next if newest else state.floor for stream, state in states.items()}
    floors = {stream: state.floor for stream, state in states.items() if state.next > state.floor}
    first = await append_times(client.redis, floors)
    # Of a stream that begins later, all is wanted, or nothing; the others are searched.
    early = {stream: question.moment for stream, at in first.items() if at <= question.moment}
    if newest:
        # Of a stream that says no time, `_wanted` looks at each message.
        unknown = {stream: states[stream].next for stream in floors if stream not in first}
        return {**floors, **unknown, **await offsets_after(client.redis, early)}
    # "From then on" includes what was appended at that very moment.
    exact = {stream: question.moment - 1 for stream, at in first.items() if at < question.moment}
    return {**floors, **await offsets_after(client.redis, exact)}


@dataclass(slots=True)
class _Stream:
    stream: StreamId
    place: int
    state: LogState
    piece: int = FIRST_PIECE
    read: list[Message] = field(default_factory=list)
    """What was read and is wanted, the next one last."""


class _Search:
    """Goes through the streams."""

    def __init__(
        self,
        redis: AsyncRedis,
        question: MessageQuestion,
        places: Mapping[StreamId, int],
        states: Mapping[StreamId, LogState],
    ) -> None:
        self._redis = redis
        self._log = AsyncLog(redis)
        self._question = question
        self._newest = question.order == "newest"
        self._text = None if question.text is None else question.text.casefold()
        self._looked = self._bytes = 0
        self._reached: int | None = None
        self._notes: list[str] = []
        self._messages: list[Message] = []
        self._streams = [
            _Stream(stream, min(max(place, states[stream].floor), states[stream].next), states[stream])
            for stream, place in places.items()
        ]
        self._until = time.monotonic() + MOST_SECONDS

    async def run(self) -> FoundMessages:
        """Look until enough is found, or looked at."""
        due: list[tuple[int, int]] = []
        first, moment = await self._first(), self._question.moment or 0
        for number, one in enumerate(self._streams):
            if self._left(one):
                due.append((self._key(first.get(one.stream, moment)), number))
        heapq.heapify(due)
        while due and len(self._messages) < self._question.limit and not self._has_enough:
            _, number = heapq.heappop(due)
            one = self._streams[number]
            if one.read:
                message = one.read.pop()
                self._messages.append(message)
                at = self._key(message.append_timestamp_us)
            else:
                at = await self._read(one)
            self._reached = abs(at)
            if one.read:
                at = self._key(one.read[-1].append_timestamp_us)
            if one.read or self._left(one):
                heapq.heappush(due, (at, number))
        return FoundMessages(
            messages=self._messages,
            cursor={
                str(self._streams[n].stream): (self._position(self._streams[n]), abs(at)) for at, n in due
            },
            looked=self._looked,
            reached=self._reached,
            done=not due,
            notes=self._notes,
        )

    @property
    def _has_enough(self) -> bool:
        return self._looked >= MOST_MESSAGES or self._bytes >= MOST_BYTES or time.monotonic() > self._until

    def _key(self, at: int) -> int:
        """What comes next has the smallest."""
        return -at if self._newest else at

    def _left(self, one: _Stream) -> bool:
        return one.place > one.state.floor if self._newest else one.place < one.state.next

    def _position(self, one: _Stream) -> int:
        """Where the next answer goes on: what was read and not shown is read again."""
        if not one.read:
            return one.place
        return one.read[-1].offset + 1 if self._newest else one.read[-1].offset

    async def _first(self) -> dict[StreamId, int]:
        """What the time of the next message of each stream can be at most, or at least."""
        moment, cursor = self._question.moment, self._question.cursor
        if cursor is not None:
            return {one.stream: cursor[str(one.stream)][1] for one in self._streams}
        if self._newest:
            lasts = {one.stream: one.state.last_append or _LATEST for one in self._streams}
            return {stream: last if moment is None else min(last, moment) for stream, last in lasts.items()}
        if len(self._streams) == 1 or moment is not None:
            return {}
        return await append_times(self._redis, {one.stream: one.place for one in self._streams})

    async def _read(self, one: _Stream) -> int:
        """Read the next piece of a stream; what the time of what is next can be."""
        floor, next = one.state.floor, one.state.next
        if self._newest:
            begin, end = max(floor, one.place - one.piece), one.place
        else:
            begin, end = one.place, min(next, one.place + one.piece)
        one.piece = min(LARGEST_PIECE, one.piece * 2)
        reached: int | None = None
        found: list[Message] = []
        place, hole = begin, end
        while place < end:
            try:
                batches = await self._log.read(one.stream, place, hole)
            except HistoryTruncated as error:
                if isinstance(error.asked, int) and error.asked > place:
                    hole = error.asked  # what is before it comes first
                    continue
                self._note(error)
                place, hole = max(place + 1, error.oldest), end
                continue
            except DamagedEntry as error:
                self._note(error)
                place = max(place + 1, error.end)
                continue
            if not batches:
                break
            for batch in batches:
                place += batch.num_rows
                hole = hole if place < hole else end
                self._looked += batch.num_rows
                self._bytes += batch.nbytes
                seen = self._time_of(batch)
                reached = seen if reached is None or not self._newest else reached
                found += self._wanted(batch)
        one.place = begin if self._newest else end
        one.read = found if self._newest else found[::-1]
        return self._key(reached if reached is not None else 0 if not self._newest else _LATEST)

    def _time_of(self, batch: pa.RecordBatch) -> int:
        """When the last message of a batch that is gone through was appended."""
        place = 0 if self._newest else batch.num_rows - 1
        at = batch.column("append_timestamp")[place].value
        return int(at)

    def _wanted(self, batch: pa.RecordBatch) -> list[Message]:
        question = self._question
        if question.filter is not None:
            batch = filter_batch(batch, question.filter)
        messages = to_messages(batch) if batch.num_rows else []
        if self._newest and question.moment is not None:
            messages = [one for one in messages if one.append_timestamp_us <= question.moment]
        if question.key is not None:
            messages = [one for one in messages if one.key == question.key]
        if self._text is not None:
            messages = [one for one in messages if self._text in _text_of(one)]
        return messages

    def _note(self, error: StreamleaseError) -> None:
        if len(self._notes) < MOST_NOTES:
            self._notes.append(str(error))


def _text_of(message: Message) -> str:
    """All that can be looked for in a message."""
    parts: list[str] = [message.topic, message.payload.decode("utf-8", "replace")]
    if message.key is not None:
        parts.append(message.key.decode("utf-8", "replace"))
    parts += [f"{name} {value.decode('utf-8', 'replace')}" for name, value in message.headers]
    if message.values is not None:
        parts.append(json.dumps(plain(message.values), ensure_ascii=False))
    return "\n".join(parts).casefold()


def cursor_text(cursor: Mapping[str, Place]) -> str:
    """A cursor as it goes to a browser."""
    data = zlib.compress(json.dumps(cursor, separators=(",", ":")).encode())
    return base64.urlsafe_b64encode(data).decode()


def parse_cursor(text: str) -> dict[str, Place]:
    """The cursor of an answer.

    Raises:
        InvalidInput: it is none.
    """
    try:
        opened = zlib.decompressobj()
        data = opened.decompress(base64.urlsafe_b64decode(text), LONGEST_CURSOR)
        found = json.loads(data)
        return {str(name): (max(0, int(place)), int(at)) for name, (place, at) in found.items()}
    except (ValueError, TypeError, AttributeError, zlib.error):
        raise InvalidInput("the cursor is none: use that of an answer, as it is") from None
