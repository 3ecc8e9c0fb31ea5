"""What somebody may say of a space when it is created, and what may be said otherwise later, by name."""

from __future__ import annotations

from typing import Literal, TypedDict

from streamlease.protocol.errors import InvalidOption
from streamlease.protocol.quantities import parse_duration
from streamlease.streams.entries.schemas import Schema, SchemaLike
from streamlease.streams.spaces.archive_settings import ArchiveSettings
from streamlease.streams.spaces.collection_settings import check_collection
from streamlease.streams.spaces.definitions import ShardBy, ShardHash, Space, check_compact_after
from streamlease.streams.spaces.epoch_settings import check_not_merged
from streamlease.streams.spaces.retention import Retention


class SpaceOptions(TypedDict, total=False):
    """The options of ``SpaceStore.create``, which says what they mean."""

    streams: int
    shard_by: ShardBy
    shard_hash: ShardHash | None
    retention: Retention | str | None
    durability: str
    schema: SchemaLike | None
    compact_after_ms: int | None
    epochs: int
    epochs_timeout: float | None
    epochs_on_loss: str | None
    collection: bool
    archive: ArchiveSettings | str | None


class NewStreams(TypedDict, total=False):
    """What may be asked of the streams of a space that exists."""

    streams: int | None
    """1 to 4096: a new generation of so many streams takes what is published, unless there are so many."""
    rotate: bool
    """Begin a new generation even if the number of streams stays the same."""
    expected: int | None
    """The number of the generation that is to be followed: a rotation that is repeated is made once."""


class SpaceAlteration(NewStreams, total=False):
    """What may be altered of a space that exists; what is left out, or None, stays as it is."""

    retention: Retention | str | None
    """All of it; or an age, such as ``7d``, or ``none``, and other limits stay."""
    schema: SchemaLike | None
    """The same columns, and more that are nullable."""
    compact_after_ms: int | Literal["off"] | None
    """The age at which small entries are merged."""
    archive: ArchiveSettings | str | None
    """All of it; or its address, and how much stays in memory stays so."""


def redefined(
    space: Space,
    *,
    retention: Retention | str | None = None,
    schema: Schema | None = None,
    compact_after_ms: int | Literal["off"] | None = None,
    archive: ArchiveSettings | str | None = None,
) -> Space:
    """The definition of a space with other settings; see `SpaceAlteration`. Pure.

    Raises:
        InvalidOption: a value is not acceptable, or not for this space.
        SchemaMismatch: the space has no schema, or the change is not compatible.
    """
    kept, older, merged = space.retention, space.archive, space.compact_after_ms
    if isinstance(retention, str):
        kept = kept.for_age(_age_of(retention))
    elif retention is not None:
        kept = retention_of(retention) or kept
    if isinstance(archive, str):
        older = ArchiveSettings.of(archive) if older is None else older.at(archive)
    elif archive is not None:
        older = archive_of(archive)
    if compact_after_ms is not None:
        merged = None if compact_after_ms == "off" else compact_after_ms
        check_compact_after(merged)
        check_not_merged(space.name, space.epochs, merged)
        check_collection(space.name, space.collection, (), merged)
    changed = space.model_copy(update={"retention": kept, "archive": older, "compact_after_ms": merged})
    return changed if schema is None else changed.with_schema(schema)


def _age_of(given: str) -> int | None:
    return None if given == "none" else parse_duration("retention", given)


def retention_of(given: Retention | str | None) -> Retention | None:
    """Retention, also from the words that the command line has for it.

    Args:
        given: an age, such as ``7d``; ``none`` keeps everything; None: nothing is said.

    Raises:
        InvalidOption: something else.
    """
    if isinstance(given, str):
        return Retention(age_ms=_age_of(given))
    if given is None or isinstance(given, Retention):
        return given
    raise InvalidOption(
        f"retention is {ascii(given)[:80]}: give an age, such as '7d', or streamlease.Retention(...)"
    )


def archive_of(given: ArchiveSettings | str | None) -> ArchiveSettings | None:
    """Settings of an archive that were checked.

    Args:
        given: also its address alone; None: nothing is said.

    Raises:
        InvalidOption: something else, or no address.
    """
    if isinstance(given, str):
        return ArchiveSettings.of(given)
    if isinstance(given, ArchiveSettings):
        return ArchiveSettings.of(given.uri, given.catalog, given.keep_ms, given.keep_bytes)
    if given is None:
        return None
    raise InvalidOption(
        f"archive is {ascii(given)[:80]}: give an address, such as 's3://BUCKET/PATH', or "
        f"streamlease.ArchiveSettings(...)"
    )
