"""What a topic space is: its definition, its generations, and which of their streams follow which. Pure.

A definition is one JSON document; `streams/spaces/spaces.py` keeps those of all spaces, and
`docs/decisions/0020-generations.md` says how one gets another generation.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from hashlib import blake2b, sha256
from typing import Literal
from weakref import WeakValueDictionary

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from streamlease.protocol.epochs.order import MOST_DIMENSIONS
from streamlease.protocol.errors import (
    InvalidInput,
    InvalidOption,
    SchemaMismatch,
    SpaceConflict,
    UnknownSpace,
    Unsupported,
)
from streamlease.protocol.ids import StreamId, check_name
from streamlease.protocol.nearest import nearest
from streamlease.protocol.quantities import MOST, format_duration
from streamlease.protocol.topics import check_filter, intersect, matches
from streamlease.streams.entries.schemas import Schema
from streamlease.streams.redis.durability import Durability
from streamlease.streams.spaces.archive_settings import ArchiveSettings, check_same_archive
from streamlease.streams.spaces.collection_settings import check_collection, check_same_kind
from streamlease.streams.spaces.epoch_settings import LEAST_TIMEOUT_MS, TIMEOUT_MS, EpochSettings, OnLoss
from streamlease.streams.spaces.retention import Retention

MAX_STREAMS = 4096

LEAST_COMPACT_AFTER_MS = 1000
"""Younger entries are never merged: who reads at the end of a stream would look into both of its keys."""

ShardBy = Literal["topic", "key"]
ShardHash = Literal["blake2b", "sha256"]


class Generation(BaseModel):
    """The N streams that a space uses from one moment on, numbers ``0 <= shard < streams``."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    number: int
    streams: int
    sealed: bool = False
    """All its streams are sealed."""


class Space(BaseModel):
    """The definition of one topic space. `generations` go from the oldest to the newest, never empty."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str
    topics: tuple[str, ...]
    generations: tuple[Generation, ...]
    shard_by: ShardBy = "topic"
    shard_hash: ShardHash = "blake2b"
    """By which hash; the same in all generations."""
    version: int = 1
    retention: Retention = Retention()
    compact_after_ms: int | None = None
    """Small entries are merged when they are so old; None: never."""
    schemas: tuple[Schema, ...] = ()
    """All versions of the schema, the oldest first; none in a space of plain payloads."""
    durability: str = "memory"
    ended: bool = False
    """The space takes no more messages: its newest generation is to be sealed too."""
    dropping: tuple[Generation, ...] = ()
    """Generations that do not belong to the space any more, whose keys may still be there."""
    born: int = 0
    """The first generation: tells a space from an earlier one of the same name."""
    epochs: int = 0
    """Of how many dimensions its epochs are; 0: it has none."""
    epochs_timeout_ms: int = TIMEOUT_MS
    """An epoch publisher that is silent for so long is lost."""
    epochs_on_loss: OnLoss = "abort"
    collection: bool = False
    """Its messages are changes of a multiset."""
    archive: ArchiveSettings | None = None
    """Where its older messages go; None: nowhere."""

    @field_validator("durability")
    @classmethod
    def _known_durability(cls, text: str) -> str:
        return str(Durability.parse(text))

    @field_validator("compact_after_ms")
    @classmethod
    def _some_time(cls, age: int | None) -> int | None:
        if age is not None and not LEAST_COMPACT_AFTER_MS <= age <= MOST:
            raise ValueError(f"compact_after_ms is {age}, it must be at least {LEAST_COMPACT_AFTER_MS}")
        return age

    @field_validator("epochs")
    @classmethod
    def _some_dimensions(cls, dimensions: int) -> int:
        if not 0 <= dimensions <= MOST_DIMENSIONS:
            raise ValueError(f"epochs have {dimensions} dimensions, and at most {MOST_DIMENSIONS} may be")
        return dimensions

    @field_validator("epochs_timeout_ms")
    @classmethod
    def _some_silence(cls, silence: int) -> int:
        if not LEAST_TIMEOUT_MS <= silence <= MOST:
            raise ValueError(f"epochs_timeout_ms is {silence}, it must be at least {LEAST_TIMEOUT_MS}")
        return silence

    @property
    def promised(self) -> Durability:
        """How safe a message must be before its publisher is told that it is written."""
        return Durability.parse(self.durability)

    @property
    def newest(self) -> Generation:
        """The generation that takes new messages."""
        return self.generations[-1]

    @property
    def settled(self) -> bool:
        """Whether all that this definition says is done."""
        former_sealed = all(generation.sealed for generation in self.generations[:-1])
        return former_sealed and self.newest.sealed is self.ended and not self.dropping

    def predecessors(self) -> dict[StreamId, tuple[StreamId, ...]]:
        """The streams of all generations, each with those of the one before that may share a key with it.

        With N streams before and N' after, a key is in shard i = h mod N and then in j = h mod N', so i and j
        are congruent modulo gcd(N, N'), and each such pair has keys.
        """
        found: dict[StreamId, tuple[StreamId, ...]] = {}
        before: Generation | None = None
        for generation in self.generations:
            found |= self.between(before, generation)
            before = generation
        return found

    def between(self, before: Generation | None, after: Generation) -> dict[StreamId, tuple[StreamId, ...]]:
        """The streams of `after`, each with those of `before` that may share a key with it."""
        step = math.gcd(before.streams, after.streams) if before else 1
        found: dict[StreamId, tuple[StreamId, ...]] = {}
        for shard in range(after.streams):
            shards = range(shard % step, before.streams, step) if before else range(0)
            number = before.number if before else 0
            found[StreamId(self.name, after.number, shard)] = tuple(
                StreamId(self.name, number, one) for one in shards
            )
        return found

    def heirs(self) -> dict[StreamId, list[StreamId]]:
        """The streams that follow those that are being dropped, each with the latter."""
        found: dict[StreamId, list[StreamId]] = {}
        for gone in self.dropping:
            after = next((one for one in self.generations if one.number > gone.number), None)
            if after is not None:
                for heir, streams in self.between(gone, after).items():
                    found.setdefault(heir, []).extend(streams)
        return found

    @property
    def newest_schema(self) -> Schema | None:
        """The typed columns that new messages have; None in a space of plain payloads."""
        return self.schemas[-1] if self.schemas else None

    def with_schema(self, wanted: Schema) -> Space:
        """This definition with the next version of its schema.

        Raises:
            SchemaMismatch: the space has no schema, or the change is not compatible.
        """
        now = self.newest_schema
        if now is None:
            raise SchemaMismatch(
                f"space {self.name} holds payloads without a schema and cannot get one: create another space"
            )
        if wanted.fingerprint == now.fingerprint:
            return self
        now.check_successor(wanted)
        check_collection(self.name, self.collection, (wanted,), None)
        return self.model_copy(update={"schemas": (*self.schemas, wanted)})

    def stream_for(
        self, topic: str, key: bytes | None = None, generation: Generation | None = None
    ) -> StreamId:
        """The stream of a generation, None for the newest, that holds a message.

        Always the same for a topic or key.

        The shard is a big-endian number modulo the number of streams: BLAKE2b of 8 bytes, or the first 4 of
        SHA-256. (The low bits of a CRC would put similar topics, such as ``a/1`` and ``a/2``, onto few
        streams.)
        """
        hashed = key if self.shard_by == "key" and key is not None else topic.encode()
        if self.shard_hash == "blake2b":
            digest = blake2b(hashed, digest_size=8).digest()
        else:
            digest = sha256(hashed).digest()[:4]
        of = self.newest if generation is None else generation
        return StreamId(self.name, of.number, int.from_bytes(digest, "big") % of.streams)

    def streams(self) -> list[StreamId]:
        """The streams of all generations, oldest first."""
        return streams_of(self.name, self.generations)

    def covers(self, topic: str) -> bool:
        """Whether messages of `topic` belong into this space."""
        return any(matches(filter, topic) for filter in self.topics)

    def intersects(self, filter: str) -> bool:
        """Whether some topic of this space is matched by `filter`."""
        return any(intersect(own, filter) for own in self.topics)


Spaces = list[Space]


def streams_of(name: str, generations: Iterable[Generation]) -> list[StreamId]:
    return [StreamId(name, one.number, shard) for one in generations for shard in range(one.streams)]


def check_streams(name: str, streams: int) -> None:
    if isinstance(streams, bool) or not isinstance(streams, int) or not 1 <= streams <= MAX_STREAMS:
        raise InvalidOption(f"space {name} cannot have {streams!r} streams: choose 1 to {MAX_STREAMS}")


def follows(space: Space, former: int, streams: int) -> bool:
    """Whether the newest generation has `streams` streams and came right after `former`."""
    before = [one.number for one in space.generations[:-1]]
    return space.newest.streams == streams and (before[-1] if before else former) == former


_PARSED: WeakValueDictionary[tuple[str, bytes], Space] = WeakValueDictionary()
"""What somebody in this process still has of what was read."""


def parse_definition(name: str, text: bytes) -> Space:
    """The space whose definition stands under `name`; one that somebody still has is the same object.

    Raises:
        Unsupported: it is damaged, or was written by another version; the message says where.
    """
    if (space := _PARSED.get((name, text))) is None:
        space = _PARSED[name, text] = _parse(name, text)
    return space


def _parse(name: str, text: bytes) -> Space:
    try:
        space = Space.model_validate_json(text)
        _check_whole(name, space)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(str(part) for part in problem["loc"])
        raise Unsupported(f"{where}: {problem['msg']}" if where else problem["msg"]) from None
    except (InvalidInput, SchemaMismatch) as error:
        raise Unsupported(str(error)) from None
    return space


def _check_whole(name: str, space: Space) -> None:
    """What a definition that Streamlease wrote always satisfies, and its types do not say.

    Raises:
        InvalidInput: it does not.
    """
    if check_name("space", space.name) != name:
        raise InvalidInput(f"it is that of space {space.name}")
    for filter in space.topics:
        check_filter(filter)
    numbers = [one.number for one in space.generations]
    if not space.topics or not numbers:
        raise InvalidInput("it has no topics" if not space.topics else "it has no generations")
    if numbers != sorted(set(numbers)) or numbers[0] < 0:
        raise InvalidInput(f"its generations have the numbers {', '.join(map(str, numbers))[:80]}")
    for one in (*space.dropping, *space.generations):
        check_streams(name, one.streams)
    for schema in space.schemas:
        schema.arrow  # noqa: B018 - each of its types is one that exists


def check_same(
    existing: Space,
    filters: tuple[str, ...],
    streams: int,
    shard_by: ShardBy,
    shard_hash: ShardHash | None,
    retention: Retention | None,
    durability: Durability,
    typed: tuple[Schema, ...],
    compact_after_ms: int | None,
    epochs: EpochSettings,
    collection: bool,
    archive: ArchiveSettings | None,
) -> Space:
    epochs.check_same(existing)
    check_same_kind(existing, collection)
    check_same_archive(existing.name, existing.archive, archive)
    if compact_after_ms not in (None, existing.compact_after_ms):
        raise SpaceConflict(
            f"space {existing.name} exists and {compaction_of(existing)}: "
            f"change it: streamlease space alter {existing.name} --compact-after ..."
        )
    have = (set(existing.topics), existing.newest.streams, existing.shard_by, existing.promised)
    hash = existing.shard_hash
    if have == (set(filters), streams, shard_by, durability) and shard_hash in (None, hash):
        if retention is None or retention == existing.retention:
            return _same_schema(existing, typed)
        raise SpaceConflict(
            f"space {existing.name} exists and keeps {existing.retention}, not {retention}: "
            f"change it: streamlease space alter {existing.name} --retention ..."
        )
    raise SpaceConflict(
        f"space {existing.name} exists with topics {' '.join(existing.topics)}, "
        f"{existing.newest.streams} streams, sharded by {hash} of the {existing.shard_by}, "
        f"durability {existing.durability}: "
        f"use it as it is, choose another name, or delete it first"
    )


def compaction_of(space: Space) -> str:
    """When its small entries are merged, for people."""
    age = space.compact_after_ms
    if age is None:
        return "leaves small entries as they are"
    return f"merges small entries that are older than {format_duration(age)}"


def check_compact_after(age_ms: int | None) -> None:
    """Whether entries may be merged at that age.

    Raises:
        InvalidOption: it is no whole number, or they would be too young.
    """
    if age_ms is None:
        return
    if type(age_ms) is not int or not LEAST_COMPACT_AFTER_MS <= age_ms <= MOST:
        raise InvalidOption(
            f"entries cannot be merged after {ascii(age_ms)[:80]} ms: give a second or more, such as 1m"
        )


def _same_schema(existing: Space, typed: tuple[Schema, ...]) -> Space:
    if existing.schemas[-1:] == typed:
        return existing
    raise SpaceConflict(
        f"space {existing.name} exists with {'another' if existing.schemas else 'no'} schema: "
        f"use it as it is, add columns with 'streamlease space alter {existing.name} --schema FILE', "
        f"or choose another name"
    )


def check_disjoint(name: str, filters: tuple[str, ...], others: Iterable[Space]) -> None:
    for other in others:
        for filter in filters:
            for theirs in other.topics:
                if intersect(filter, theirs):
                    raise SpaceConflict(
                        f"topics {filter} of space {name} overlap {theirs} of space {other.name}: "
                        f"a topic may belong to one space only; choose other topics"
                    )


def no_space(name: str, known: Iterable[str]) -> UnknownSpace:
    return UnknownSpace(
        f"there is no space {name!a}; {nearest(name, known)}; "
        f"create it: streamlease space create NAME --topics ..."
    )
