"""What Redis remembers of a source that sends again what was not acknowledged, such as an MQTT broker.

Theory of operation. Such a source has no positions of its own, so each message gets one when it comes: the
incarnation of the process, which rises with each start, and a sequence. Before messages are appended they are
noted here: identifier, digest and sequence. Whether a noted message *was* appended is not said here but in
the streams, by the very script that appends (``transfer``): a process that follows looks, at its start and
before it appends anything, where its predecessor stood in each stream (`SourceStanding`). What comes again
with the identifier and the digest of a note, and at or below that, is there already.

Notes are a ring: as many as the source may have sent without an acknowledgement, twice.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from streamlease.protocol.ids import StreamId
from streamlease.streams.log.keys import source_state
from streamlease.streams.log.log import AsyncLog, Position
from streamlease.streams.redis.connection import Argument, AsyncRedis, ask
from streamlease.streams.redis.damaged import parsing
from streamlease.streams.redis.scripts import load_script
from streamlease.streams.spaces.spaces import Space

_SLOT = "noted:"


class Note(NamedTuple):
    """One message as it was noted."""

    position: Position
    packet: int
    digest: bytes


class DeliveryMemory:
    """The memory of one source. Made by :meth:`begin`."""

    def __init__(self, redis: AsyncRedis, source: str, slots: int, incarnation: int) -> None:
        self._redis = redis
        self._key = source_state(source)
        self._slots = slots
        self.incarnation = incarnation
        """That of this process."""
        self.sequence = 0
        """That of the last message that was noted."""
        self.notes: tuple[Note, ...] = ()
        """What processes before this one noted last, in order."""
        self.counted = (0, 0)
        """How the source counts its identifiers, as far as it has shown; see ``gateway.mqtt.core``."""
        self.filters: tuple[str, ...] | None = None
        """What the session at the source subscribes to; None if that is not known."""

    @classmethod
    async def begin(cls, redis: AsyncRedis, source: str, slots: int, above: Position) -> DeliveryMemory:
        """Take over; whoever worked at `source` before is fenced where this process appends.

        Args:
            slots: how many notes to keep.
            above: the highest position of the source in any stream.

        Raises:
            Unsupported: what is remembered of it cannot be read.
            StoreUnavailable, StoreRefused, Indefinite: safe to repeat.
        """
        script = load_script("streamlease.streams.imports", "source_begin")
        incarnation, *flat = await script.run(redis, [source_state(source)], [above[0] + 1])
        memory = cls(redis, source, slots, int(incarnation))
        notes = []
        with parsing(f"what is known of {source}", source_state(source)):
            for name, value in zip(flat[::2], flat[1::2], strict=True):
                if name.startswith(_SLOT.encode()):
                    before, sequence, packet, digest = value.split()
                    note = Note((int(before), int(sequence)), int(packet), bytes.fromhex(digest.decode()))
                    notes.append(note)
                elif name == b"counted":
                    risen, last = value.split()
                    memory.counted = (int(risen), int(last))
                elif name == b"filters":
                    memory.filters = tuple(json.loads(value))
        memory.notes = tuple(sorted(notes, key=lambda note: note.position[1])[-slots:])
        memory.sequence = max((note.position[1] for note in notes), default=0)
        return memory

    async def is_newest(self) -> bool:
        """Whether no later process has begun at the source.

        Raises:
            StoreUnavailable, StoreRefused.
        """
        (newest,) = await ask(self._redis, [("HGET", self._key, "incarnation")])
        return newest is None or int(newest) <= self.incarnation

    def position(self) -> Position:
        """The position of the next message."""
        self.sequence += 1
        return (self.incarnation, self.sequence)

    async def note(self, notes: Sequence[Note], counted: tuple[int, int]) -> None:
        """These messages are about to be appended.

        Args:
            counted: as the attribute, by now.

        Raises:
            StoreUnavailable, StoreRefused, Indefinite: safe to repeat.
        """
        fields: list[Argument] = ["counted", f"{counted[0]} {counted[1]}"]
        for (incarnation, sequence), packet, digest in notes:
            fields += (
                f"{_SLOT}{sequence % self._slots}",
                f"{incarnation} {sequence} {packet} {digest.hex()}",
            )
        await ask(self._redis, [("HSET", self._key, *fields)])

    async def subscribed(self, filters: Sequence[str]) -> None:
        """The session at the source subscribes to just these.

        Raises:
            StoreUnavailable, StoreRefused, Indefinite: safe to repeat.
        """
        await ask(self._redis, [("HSET", self._key, "filters", json.dumps(list(filters)))])
        self.filters = tuple(filters)


class SourceStanding:
    """Where a source stood in its streams when this was made."""

    def __init__(self, positions: dict[StreamId, Position]) -> None:
        self._positions = positions

    @classmethod
    async def look(cls, redis: AsyncRedis, source: str, spaces: Iterable[Space]) -> SourceStanding:
        """Look into all streams of `spaces`.

        Raises:
            StoreUnavailable, StoreRefused.
        """
        streams = [stream for space in spaces for stream in space.streams()]
        return cls(await AsyncLog(redis).positions(source, streams))

    @property
    def newest(self) -> Position:
        """The highest position."""
        return max(self._positions.values(), default=(0, 0))

    def has(self, space: Space, topic: str, position: Position) -> bool:
        """Whether the message at `position` was appended then, as far as that can still be seen.

        Where a later incarnation has appended, it cannot.
        """
        for generation in space.generations:
            there = self._positions.get(space.stream_for(topic, None, generation))
            if there is not None and there[0] == position[0] and there[1] >= position[1]:
                return True
        return False
