"""Dead letters: messages that a group could not process, kept in a topic of their own.

A dead letter of group G stands in topic ``$dead/G/ORIGINAL-TOPIC`` (`GroupOptions.dead_letters` may say
another prefix), in the space that covers it; if none does, the space ``dead-letters`` (``$dead/#``, one
stream) is made. It has the key, the payload, the event time and the headers of the original, and behind
those headers its own (`HEADERS`). Typed columns of a space with a schema stand in the payload as one
Arrow IPC stream.

Once for each (group, stream, offset), whoever writes it and however often: the publisher id is that of the
group and the stream, the sequence is the offset. The append script knows the last sequence only. When a group
was reset, or Redis lost writes, a lower offset may follow a higher one; then the dead letters are searched
for it before it is written, under the next incarnation.

It is written whatever became of the original: of one that Redis lost, or that cannot be decoded, it says what
can be told. Else the stream would stand still for good.

A replay publishes the original to its topic, once: the publisher id is that of the dead letter, and a mark
(`registry/keys.py`, ``replayed``) stays for as long as the dead letter.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from streamlease.protocol.errors import (
    HistoryTruncated,
    InvalidTopic,
    MessageTooLarge,
    SchemaMismatch,
    SpaceConflict,
    StreamleaseError,
    UnknownSpace,
)
from streamlease.protocol.group_options import DEAD, GroupOptions
from streamlease.protocol.ids import StreamId
from streamlease.protocol.topics import SharedSubscription, check_topic
from streamlease.registry import keys
from streamlease.streams.entries.decoding import DAMAGE
from streamlease.streams.entries.delivered import Message, to_messages
from streamlease.streams.entries.entries import encode_message, encode_typed_rows
from streamlease.streams.entries.message_rows import MESSAGE_SCHEMA, Headers, Row, check_payload, filter_batch
from streamlease.streams.log.log import Append, AsyncLog, OutOfSequence
from streamlease.streams.log.state import MissingOffsets
from streamlease.streams.log.times import microseconds
from streamlease.streams.redis.connection import AsyncRedis, ask
from streamlease.streams.redis.damaged import parsing
from streamlease.streams.spaces.epoch_settings import check_plain
from streamlease.streams.spaces.spaces import Space, SpaceStore

SPACE = "dead-letters"
"""The space of dead letters that no other space covers."""

PAGE = 1000

MARK = "dead-letter-"
"""Headers of a dead letter begin with this: ``-group`` (GROUP/FILTER), ``-stream``, ``-offset``,
``-lease-epoch`` (of the last failure), ``-failures`` (how many), ``-cause``, ``-borrower``, ``-topic`` (the
original one), ``-payload`` (``arrow`` if it holds typed columns, ``lost`` if the original was gone,
``unreadable`` if it could not be taken over), ``-lost`` or ``-unreadable`` (why)."""


@dataclass(frozen=True, slots=True)
class Poisoned:
    """A message that failed as often as its group allows."""

    subscription: SharedSubscription
    options: GroupOptions
    stream: StreamId
    offset: int
    lease_epoch: int
    failures: int
    borrower: str
    cause: str

    @property
    def publisher(self) -> str:
        """The publisher id of the dead letters of this group and stream."""
        return f"dead/{self.subscription.id}/{self.stream}"


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A dead letter as it stands in its stream."""

    message: Message
    facts: dict[str, str]
    """Its own headers, without ``dead-letter-``."""
    replayed: dict[str, Any] | None
    """When (ISO-8601), by whom and where to it was replayed."""

    @property
    def place(self) -> str:
        """``STREAM@OFFSET`` of the dead letter itself: what commands call it."""
        return f"{self.message.stream}@{self.message.offset}"

    @property
    def original(self) -> Headers:
        """The headers of the original message."""
        return tuple(pair for pair in self.message.headers if not pair[0].startswith(MARK))


class DeadLetters:
    """Writes, lists and replays dead letters."""

    def __init__(self, redis: AsyncRedis, spaces: SpaceStore | None = None) -> None:
        self._redis = redis
        self._spaces = spaces or SpaceStore(redis)
        self._log = AsyncLog(redis)

    # ------------------------------------------------------------ writing

    async def write(self, poisoned: Poisoned) -> tuple[StreamId, int]:
        """Put a message among the dead letters of its group; where it stands. Safe to repeat.

        Raises:
            UnknownSpace, SpaceConflict, SchemaMismatch, StreamSealed: the space of the dead letters is
                missing or takes no such messages.
            NotDurable, StoreUnavailable, StoreRefused, Indefinite: repeat.
        """
        row = await self._row(poisoned)
        space = await self._space_of(row.topic)
        known = await self._known(poisoned, space)
        if known is not None:
            return known
        stream = space.stream_for(row.topic, row.key)
        positions = await self._log.positions(poisoned.publisher, [stream])
        incarnation, last = positions.get(stream, (0, -1))
        if last > poisoned.offset or incarnation:
            found = await self._search(poisoned, space)
            if found is not None:
                return found
        if last > poisoned.offset:
            incarnation += 1
        append = Append(
            stream,
            poisoned.publisher,
            incarnation,
            poisoned.offset,
            encode_message(row),
            gaps=True,
            durability=space.promised,
        )
        return stream, (await self._log.append(append)).first

    async def _known(self, poisoned: Poisoned, space: Space) -> tuple[StreamId, int] | None:
        """Where the dead letter stands if it was the last one of its publisher, in any generation."""
        streams = space.streams()
        for stream, (_, last) in (await self._log.positions(poisoned.publisher, streams)).items():
            if last == poisoned.offset:
                return await self._search(poisoned, space, [stream])
        return None

    async def _space_of(self, topic: str) -> Space:
        try:
            space = await self._spaces.for_topic(topic)
        except UnknownSpace:
            if not topic.startswith(f"{DEAD}/"):
                raise
            return await self._spaces.create(SPACE, [f"{DEAD}/#"])
        if space.epochs:
            raise SpaceConflict(
                f"dead letters cannot go to {topic!a}, which belongs to space {space.name} with epochs: "
                f"name another topic for them"
            )
        return space

    async def _row(self, poisoned: Poisoned) -> Row:
        """The dead letter of a message."""
        group, options = poisoned.subscription.group, poisoned.options
        facts = {
            "group": poisoned.subscription.id,
            "stream": str(poisoned.stream),
            "offset": str(poisoned.offset),
            "lease-epoch": str(poisoned.lease_epoch),
            "failures": str(poisoned.failures),
            "cause": poisoned.cause,
            "borrower": poisoned.borrower,
        }
        try:
            batches = await self._log.read(poisoned.stream, poisoned.offset, poisoned.offset + 1)
            if not batches:  # it was there, or it could not have failed
                raise MissingOffsets(str(poisoned.stream), poisoned.offset, poisoned.offset + 1)
            return self._whole(poisoned, batches[0], facts)
        except HistoryTruncated as error:
            facts |= {"payload": "lost", "lost": str(error)}
        except (SchemaMismatch, MessageTooLarge) as error:
            facts |= {"payload": "unreadable", "unreadable": str(error)}
        except DAMAGE as error:
            facts |= {"payload": "unreadable", "unreadable": f"{type(error).__name__}: {error}"}
        return Row(options.prefix_of(group), b"", headers=_headers(facts))

    @staticmethod
    def _whole(poisoned: Poisoned, batch: pa.RecordBatch, facts: dict[str, str]) -> Row:
        """The dead letter of a message that can be read."""
        group, options = poisoned.subscription.group, poisoned.options
        (message,) = to_messages(batch)
        payload = message.payload
        if message.values is not None:
            payload = _to_arrow(batch)
            facts = facts | {"payload": "arrow"}
        check_payload(payload)
        topic = options.topic_of(group, message.topic)
        try:
            check_topic(topic)
        except InvalidTopic:  # the original is as long as a topic may be
            topic = options.prefix_of(group)
        headers = (*message.headers, *_headers(facts | {"topic": message.topic}))
        return Row(
            topic, payload, message.key, headers, batch.column("timestamp").cast(pa.int64())[0].as_py()
        )

    async def _search(
        self, poisoned: Poisoned, space: Space, streams: Sequence[StreamId] | None = None
    ) -> tuple[StreamId, int] | None:
        """Where the dead letter of that very message stands."""
        wanted = {
            "group": poisoned.subscription.id,
            "stream": str(poisoned.stream),
            "offset": str(poisoned.offset),
        }
        for message in await self._read(
            space, poisoned.options.prefix_of(poisoned.subscription.group), streams
        ):
            facts = _facts(message)
            if all(facts.get(name) == value for name, value in wanted.items()):
                return StreamId.parse(message.stream), message.offset
        return None

    # ------------------------------------------------------------ listing

    async def of(self, subscription: SharedSubscription, options: GroupOptions) -> list[DeadLetter]:
        """All dead letters of a group that are left, in the order of their streams and offsets.

        Raises:
            Unsupported: the marks of what was replayed cannot be read.
            StoreUnavailable, StoreRefused.
        """
        prefix = options.prefix_of(subscription.group)
        try:
            spaces = await self._spaces.for_filter(f"{prefix}/#")
        except UnknownSpace:
            return []
        key = keys.replayed(subscription.id)
        (marks,) = await ask(self._redis, [("HGETALL", key)])
        with parsing("which dead letters were replayed", key):
            replayed = {
                place.decode(): dict(json.loads(mark))
                for place, mark in zip(marks[::2], marks[1::2], strict=True)
            }
        letters = []
        for space in spaces:
            for message in await self._read(space, prefix):
                facts = _facts(message)
                if facts.get("group") == subscription.id:
                    mark = replayed.pop(f"{message.stream}@{message.offset}", None)
                    letters.append(DeadLetter(message, facts, mark))
        return letters

    async def forget_lost(self, subscription: SharedSubscription, letters: Iterable[DeadLetter]) -> None:
        """Remove the marks of dead letters that retention removed.

        Args:
            letters: all that are left, as `of` gave them.

        Raises:
            StoreUnavailable, StoreRefused.
        """
        key = keys.replayed(subscription.id)
        (marked,) = await ask(self._redis, [("HKEYS", key)])
        left = {letter.place for letter in letters}
        if lost := [place for place in marked if place.decode() not in left]:
            await ask(self._redis, [("HDEL", key, *lost)])

    async def _read(
        self, space: Space, prefix: str, streams: Sequence[StreamId] | None = None
    ) -> list[Message]:
        messages: list[Message] = []
        for stream, state in (await self._log.states(streams or space.streams())).items():
            position = state.floor
            while position < state.next:
                batches = await self._log.read(stream, position, state.next, enough=PAGE)
                if not batches:
                    break
                for batch in batches:
                    position += batch.num_rows
                    messages += to_messages(filter_batch(batch, f"{prefix}/#"))
        return messages

    # ------------------------------------------------------------ replaying

    async def replay(
        self, subscription: SharedSubscription, letter: DeadLetter, who: str
    ) -> tuple[StreamId, int]:
        """Publish the original again to its topic, for all groups; where it stands. Once, if repeated.

        Raises:
            UnknownSpace, StreamSealed, SchemaMismatch: its topic takes it no more.
            InvalidInput: the space of its topic has epochs.
            StreamleaseError: the original was lost before it became a dead letter.
            NotDurable, StoreUnavailable, StoreRefused, Indefinite: repeat.
        """
        if letter.facts.get("payload") in ("lost", "unreadable") or "topic" not in letter.facts:
            why = letter.facts.get("lost") or letter.facts.get("unreadable", "")
            raise StreamleaseError(f"dead letter {letter.place} has no message: {why}")
        topic = letter.facts["topic"]
        space = await self._spaces.for_topic(topic)
        check_plain(space)
        message = letter.message
        row = Row(
            topic, message.payload, message.key, letter.original or None, microseconds(message.timestamp)
        )
        if letter.facts.get("payload") == "arrow":
            schema = space.newest_schema
            values = _from_arrow(message.payload)
            if schema is None:
                raise StreamleaseError(
                    f"space {space.name} has no typed columns any more: read {letter.place}"
                )
            row = row._replace(payload=b"", values={name: values.get(name) for name in schema.arrow.names})
            entry = encode_typed_rows(schema, [row])
        else:
            entry = encode_message(row)
        stream = space.stream_for(topic, row.key)
        publisher = f"~replay/{subscription.id}/{letter.place}"
        append = Append(stream, publisher, 0, 0, entry, gaps=True, durability=space.promised)
        try:
            first = (await self._log.append(append)).first
        except OutOfSequence as error:
            raise StreamleaseError(f"dead letter {letter.place} was replayed otherwise: {error}") from error
        mark = json.dumps(
            {
                "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                "by": who,
                "stream": str(stream),
                "offset": first,
            }
        )
        await ask(self._redis, [("HSET", keys.replayed(subscription.id), letter.place, mark)])
        return stream, first


def _headers(facts: dict[str, str]) -> Headers:
    return tuple(
        (f"{MARK}{name}", value.encode("utf-8", "backslashreplace")) for name, value in facts.items()
    )


def _facts(message: Message) -> dict[str, str]:
    """The newest facts: a dead letter of a dead letter has those of both."""
    return {
        name.removeprefix(MARK): value.decode("utf-8", "replace")
        for name, value in message.headers
        if name.startswith(MARK)
    }


def _to_arrow(batch: pa.RecordBatch) -> bytes:
    """The typed columns of a message as an Arrow IPC stream."""
    typed = batch.select(range(len(MESSAGE_SCHEMA), batch.num_columns))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, typed.schema) as writer:
        writer.write_batch(typed)
    return bytes(sink.getvalue().to_pybytes())


def _from_arrow(payload: bytes) -> dict[str, Any]:
    with pa.ipc.open_stream(payload) as reader:
        values: dict[str, Any] = reader.read_all().to_pylist()[0]
    return values
