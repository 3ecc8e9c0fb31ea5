"""What somebody may say of a space when it is created, by name."""

from __future__ import annotations

from typing import TypedDict

from streamlease.protocol.errors import InvalidOption
from streamlease.protocol.quantities import parse_duration
from streamlease.streams.entries.schemas import SchemaLike
from streamlease.streams.spaces.archive_settings import ArchiveSettings
from streamlease.streams.spaces.definitions import ShardBy, ShardHash
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


def retention_of(given: Retention | str | None) -> Retention | None:
    """Retention, also from the words that the command line has for it.

    Args:
        given: an age, such as ``7d``; ``none`` keeps everything; None: nothing is said.

    Raises:
        InvalidOption: something else.
    """
    if isinstance(given, str):
        return Retention(age_ms=None if given == "none" else parse_duration("retention", given))
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
