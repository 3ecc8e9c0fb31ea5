"""Bringing messages in from a source that has positions, such as a file or a Redis stream, exactly once.

Theory of operation. Each message has a position in its source, and positions rise. What is appended to a
stream carries, as publisher the name of the source, and as incarnation and sequence the position of its
last message; so the server itself keeps, in the very script that appends, how far the source is in this
stream. Each append names the position that it follows and is refused if that is not what is there
(``Append.after``). So whatever is killed, repeated, late, or runs twice, every message is appended once: a
message is left out just if its stream is at its position or beyond.

A space may get another generation, and then a message's stream is another one. All streams of former
generations are sealed before the newest one takes anything, so their positions are final when they are
read, and a message is left out if its stream of *any* generation is beyond it. This holds because the
messages handed to one ``put`` are all appended before the next ones are looked at, so a stream is never
beyond a message that is missing.

Not promised: exactness across the end of a generation whose streams were dropped in between, beyond what
the source itself remembers (``resume``).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from streamlease.protocol.errors import (
    Fenced,
    Indefinite,
    InvalidInput,
    NotDurable,
    SchemaMismatch,
    StoreRefused,
    StoreUnavailable,
    StreamleaseError,
    StreamSealed,
    UnknownSpace,
    Unsupported,
)
from streamlease.protocol.ids import StreamId
from streamlease.streams.entries.entries import Codec, Encoded, encode_rows, encode_typed_rows
from streamlease.streams.entries.message_rows import Headers, Row, check_beside, check_payload
from streamlease.streams.entries.typed import check_size
from streamlease.streams.entries.values import check_values, value_size
from streamlease.streams.log.log import Append, Appended, AsyncLog, Position, ProgressMoved, StreamPending
from streamlease.streams.publish.inputs import change_of
from streamlease.streams.redis.connection import AsyncRedis
from streamlease.streams.spaces.epoch_settings import check_plain
from streamlease.streams.spaces.spaces import Space, SpaceStore

MAX_MESSAGES = 1000
MAX_BYTES = 1024 * 1024
ITEM_BYTES = 64
FIRST_WAIT = 0.05
LONGEST_WAIT = 2.0
MOST_TOPICS = 100_000
"""How many topics are remembered with their space."""

_PASSING = (StoreUnavailable, StoreRefused, Indefinite, NotDurable, ProgressMoved)
_CHANGED = (StreamSealed, StreamPending, UnknownSpace, SchemaMismatch)


class Item(NamedTuple):
    """One message of a source. In a space with a schema `payload` is a mapping from column to value."""

    position: Position
    topic: str
    payload: bytes | dict[str, Any]
    key: bytes | None = None
    headers: Headers | None = None
    timestamp: int | None = None
    where: str = ""
    """Where it stands in its source, for messages."""
    diff: int | None = None
    """In a collection; None: +1."""


class _Placed(NamedTuple):
    item: Item
    row: Row
    stream: StreamId


class Transfer:
    """Appends the messages of one source. One ``put`` at a time.

    Args:
        publisher: the name of the source; it must not begin with ``~``.
        space: the only space to which the messages may belong; None for any.
        patience: seconds without any success after which an error comes out.
        alone: incarnations are processes, of which the newest counts: where a later one has appended, a
            message of this one is `Fenced` rather than taken for one that is there.
    """

    def __init__(
        self,
        redis: AsyncRedis,
        publisher: str,
        *,
        spaces: SpaceStore | None = None,
        space: str | None = None,
        codec: Codec = "zstd",
        patience: float = 30.0,
        alone: bool = False,
    ) -> None:
        self._publisher = publisher
        self._alone = alone
        self._log = AsyncLog(redis)
        self._spaces = spaces or SpaceStore(redis)
        self._only = space
        self._codec: Codec = codec
        self._patience = patience
        self._known: dict[str, Space] = {}
        self._positions: dict[StreamId, Position] = {}
        self._stuck = False
        """Whether a stream was pending: its space is settled once more, in case a failover lost that."""
        self._of_topic: dict[str, Space] = {}

    async def put(self, items: Sequence[Item]) -> int:
        """Append those of `items` that are not there yet, in order; returns when they are written.

        Returns:
            how many were not there yet.

        Raises:
            InvalidTopic, InvalidInput, MessageTooLarge, SchemaMismatch: an item cannot be published; those
                before it are.
            UnknownSpace: no space covers a topic, or not the one space that may.
            StreamSealed: the space was sealed for good.
            StoreUnavailable, StoreRefused, Indefinite, NotDurable, Fenced: nothing succeeded for `patience`
                seconds; safe to repeat.
        """
        loop = asyncio.get_running_loop()
        deadline, wait, added = loop.time() + self._patience, FIRST_WAIT, 0
        bad: StreamleaseError | None = None
        while True:
            try:
                missing, bad = await self._missing(items)
                done, trouble = await self._append(missing)
            except (StoreUnavailable, StoreRefused, Indefinite) as error:
                done, trouble = 0, error
            added += done
            if trouble is None:
                if bad is not None:
                    raise bad
                return added
            if done:
                deadline, wait = loop.time() + self._patience, FIRST_WAIT
            if loop.time() >= deadline or not isinstance(trouble, (*_PASSING, *_CHANGED)):
                raise trouble
            if isinstance(trouble, (*_CHANGED, ProgressMoved)):
                self._stuck = isinstance(trouble, StreamPending)
                self._forget()
            await asyncio.sleep(wait * random.uniform(0.5, 1.0))
            wait = min(LONGEST_WAIT, 2 * wait)

    async def check(self, item: Item) -> None:
        """Whether `item` can be published, as far as its space and its form go.

        Raises:
            As ``put``.
        """
        _row(self._of_topic.get(item.topic) or await self._space(item), item)

    async def newest(self, space: str) -> Position:
        """The highest position of this source in any stream of that space; (0, 0) if there is none.

        Raises:
            UnknownSpace, StreamSealed, StoreUnavailable, StoreRefused, Indefinite.
        """
        self._forget()
        await self._load(space)
        return max([(0, 0), *self._positions.values()])

    def _forget(self) -> None:
        self._known.clear()
        self._positions.clear()
        self._of_topic.clear()
        self._spaces.forget()

    # ------------------------------------------------------------------------------------- where to

    async def _missing(
        self, items: Sequence[Item]
    ) -> tuple[dict[StreamId, list[_Placed]], StreamleaseError | None]:
        """What is not there yet, by stream; up to the first item that cannot be published, and why."""
        found: dict[StreamId, list[_Placed]] = {}
        for item in items:
            try:
                space = self._of_topic.get(item.topic) or await self._space(item)
                stream = self._open_place(space, item)
                if stream is not None:
                    placed = _Placed(item, _row(space, item), stream)
                    found.setdefault(stream, []).append(placed)
            except (InvalidInput, SchemaMismatch, UnknownSpace) as error:
                return found, error
        return found, None

    def _open_place(self, space: Space, item: Item) -> StreamId | None:
        """The stream that takes `item`; None if it is in its stream of any generation."""
        place = None
        for generation in space.generations:
            place = space.stream_for(item.topic, item.key, generation)
            there = self._positions.get(place)
            if there is not None and there >= item.position:
                if self._alone and there[0] > item.position[0]:
                    raise Fenced(f"{self._publisher} was started again elsewhere: end one of the two")
                return None
        return place

    async def _space(self, item: Item) -> Space:
        try:
            space = await self._spaces.for_topic(item.topic)
        except Unsupported as error:
            if self._only is None:
                raise
            raise UnknownSpace(str(error)) from None  # not in the one that may be
        if self._only is not None and space.name != self._only:
            raise UnknownSpace(
                f"topic {ascii(item.topic)[:80]} of {item.where or 'a message'} belongs to space "
                f"{space.name}, not to {self._only}: choose another --topic or --space"
            )
        check_plain(space)
        known = self._known.get(space.name)
        if known is None:
            known = await self._load(space.name)
        if len(self._of_topic) >= MOST_TOPICS:
            self._of_topic.clear()
        self._of_topic[item.topic] = known
        return known

    async def _load(self, name: str) -> Space:
        """The space as it is, with all former generations sealed, and the positions in its streams."""
        space = await self._spaces.get(name)
        if self._stuck or not space.settled:
            space = await self._spaces.generations.settle(name, again=self._stuck)
            self._stuck = False
        if space.ended:
            raise SpaceEnded(f"space {name} is sealed and takes no more messages: use another space")
        await self._spaces.generations.tell_schemas(space)
        self._positions.update(await self._log.positions(self._publisher, space.streams()))
        self._known[name] = space
        return space

    # ----------------------------------------------------------------------------------- appending

    async def _append(self, missing: dict[StreamId, list[_Placed]]) -> tuple[int, StreamleaseError | None]:
        """Append as much as goes; how many, and what went wrong first."""
        done, trouble = 0, None
        while missing:
            parts = {stream: _first_part(placed) for stream, placed in missing.items()}
            appends = [self._append_of(stream, part) for stream, part in parts.items()]
            outcomes = await self._log.append_many(appends)
            for append, outcome in zip(appends, outcomes, strict=True):
                if isinstance(outcome, Appended):
                    part = parts[append.stream]
                    self._positions[append.stream] = part[-1].item.position
                    done += len(part)
                    del missing[append.stream][: len(part)]
                else:
                    missing[append.stream].clear()
                    trouble = trouble or outcome
            missing = {stream: placed for stream, placed in missing.items() if placed}
        return done, trouble

    def _append_of(self, stream: StreamId, part: list[_Placed]) -> Append:
        incarnation, sequence = part[-1].item.position
        space = self._known[stream.space]
        return Append(
            stream,
            self._publisher,
            incarnation,
            sequence,
            self._encoded(space, [placed.row for placed in part]),
            durability=space.promised,
            after=self._positions.get(stream),
        )

    def _encoded(self, space: Space, rows: list[Row]) -> Encoded:
        schema = space.newest_schema
        try:
            if schema is None:
                return encode_rows(rows, self._codec)
            return encode_typed_rows(schema, rows, self._codec)
        except (pa.ArrowException, TypeError, ValueError) as error:
            if isinstance(error, StreamleaseError):
                raise
            raise InvalidInput(f"a message cannot be stored: {error}") from None


class SpaceEnded(StreamSealed):
    """The whole space was sealed: no later attempt can succeed."""


def _first_part(placed: Sequence[_Placed]) -> list[_Placed]:
    size = 0
    part: list[_Placed] = []
    for one in placed[:MAX_MESSAGES]:
        size += weight(one.item)
        if part and size > MAX_BYTES:
            break
        part.append(one)
    return part


def weight(item: Item) -> int:
    """About how many bytes an item takes."""
    return ITEM_BYTES + (len(item.payload) if isinstance(item.payload, bytes) else value_size(item.payload))


def _row(space: Space, item: Item) -> Row:
    schema, payload = space.newest_schema, item.payload
    try:
        check_beside(item.key, item.headers)
        diff = 1 if item.diff is None else change_of(space, item.diff)
        if schema is None:
            if not isinstance(payload, bytes):
                raise SchemaMismatch(f"space {space.name} has no schema: give payloads")
            check_payload(payload)
            return Row(item.topic, payload, item.key, item.headers, item.timestamp, None, diff)
        if isinstance(payload, bytes):
            raise SchemaMismatch(f"space {space.name} has a schema: give values by column, as JSON objects")
        values = check_values(schema, payload, text=True)
        check_size(values)
        return Row(item.topic, b"", item.key, item.headers, item.timestamp, values, diff)
    except StreamleaseError as error:
        if item.where:
            error.args = (f"{item.where}: {error}",)
        raise
