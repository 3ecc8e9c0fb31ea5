"""What somebody may say of a space when it is created, by name."""

from __future__ import annotations

from typing import TypedDict

from streamlease.protocol.errors import InvalidOption
from streamlease.streams.entries.schemas import SchemaLike
from streamlease.streams.spaces.archive_settings import ArchiveSettings
from streamlease.streams.spaces.definitions import ShardBy, ShardHash
from streamlease.streams.spaces.retention import Retention


class SpaceOptions(TypedDict, total=False):
    """The options of ``SpaceStore.create``, which says what they mean."""

    streams: int
    shard_by: ShardBy
    shard_hash: ShardHash | None
    retention: Retention | None
    durability: str
    schema: SchemaLike | None
    compact_after_ms: int | None
    epochs: int
    epochs_timeout: float | None
    epochs_on_loss: str | None
    collection: bool
    archive: ArchiveSettings | None


def check_kinds(name: str, retention: object, archive: object) -> None:
    """Whether these are settings, and not the words that the command line has for them.

    Raises:
        InvalidOption: they are not.
    """
    for what, given, kind in (("retention", retention, Retention), ("archive", archive, ArchiveSettings)):
        if given is not None and not isinstance(given, kind):
            raise InvalidOption(
                f"{what} is {ascii(given)[:80]}: give {kind.__name__} of {kind.__module__}, or leave it out "
                f"and say 'streamlease space alter {name} --{what} ...'"
            )
