"""Changes of a space's settings: looked at, made, and told, for the command and for the console."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from streamlease.admin.spaces.compaction_option import parse_compact_after
from streamlease.protocol.errors import InvalidOption
from streamlease.protocol.quantities import format_duration, format_size

if TYPE_CHECKING:
    from streamlease.admin.archives.archive_options import ArchiveChange
    from streamlease.admin.spaces.retention_options import RetentionOptions
    from streamlease.agent.client import Client
    from streamlease.streams.entries.schemas import Schema
    from streamlease.streams.spaces.spaces import Space


@dataclass(frozen=True, slots=True)
class StreamChange:
    """What is asked about the streams of the space."""

    count: int | None
    rotate: bool
    follows: int | None
    """The generation that is to be followed."""

    def __post_init__(self) -> None:
        if self.follows is not None and not self.anything:
            raise InvalidOption("--from-generation is for new streams: give --streams or --rotate too")

    @property
    def anything(self) -> bool:
        return self.count is not None or self.rotate


@dataclass(frozen=True, slots=True)
class SpaceChanges:
    """All that is asked."""

    streams: StreamChange
    retention: RetentionOptions
    columns: Schema | None
    compact_after: str | None
    archive: ArchiveChange

    @property
    def anything(self) -> bool:
        """Whether anything is given."""
        return self.settings or self.streams.anything

    @property
    def settings(self) -> bool:
        """Whether anything is given but streams."""
        others = self.columns is not None or self.compact_after is not None
        return others or self.retention.anything or self.archive.anything

    async def look(self, client: Client, name: str) -> tuple[Space, Space]:
        """The space, and what it would become; nothing is changed.

        Raises:
            UnknownSpace: there is none.
            InvalidOption, SchemaMismatch, SpaceConflict, StreamSealed: as `make`, which may find more.
        """
        from streamlease.streams.spaces.altering import with_streams

        before, after = await client.spaces.redefined(name, self._redefined)
        new = self.streams
        return before, with_streams(after, new.count, new.rotate, new.follows) if new.anything else after

    async def make(self, client: Client, name: str) -> Space:
        """Change the space; how it is then. Safe to repeat; new streams only with what they follow."""
        from streamlease.streams.epochs.sealing import change_space

        async def keep() -> None:
            (await client.agent()).need_keepers()

        new = self.streams
        return await change_space(
            client.redis,
            client.spaces,
            name,
            keep,
            self._redefined if self.settings else None,
            streams=new.count,
            rotate=new.rotate,
            expected=new.follows,
        )

    def _redefined(self, space: Space) -> Space:
        from streamlease.streams.spaces.space_options import redefined

        merged: int | Literal["off"] | None = None
        if self.compact_after is not None:
            merged = parse_compact_after(self.compact_after) or "off"
        return redefined(
            space,
            retention=self.retention.changed(space.retention),
            schema=self.columns,
            compact_after_ms=merged,
            archive=self.archive.of(space) if self.archive.anything else None,
        )


def differences(before: Space, after: Space) -> list[str]:
    """What differs between two definitions of a space: a line for each, by the name of its option. Pure."""
    was, now = _settings(before), _settings(after)
    told = [f"{name} {was[name]} becomes {value}" for name, value in now.items() if was[name] != value]
    if after.newest_schema is not None and before.newest_schema is not None:
        known = {one.name for one in before.newest_schema.columns}
        told += [
            f"column {one.name} ({one.type}) is added; older messages have null there"
            for one in after.newest_schema.columns
            if one.name not in known
        ]
    if after.newest.number != before.newest.number:
        told.append(
            f"streams {before.newest.streams} becomes {after.newest.streams}: a new generation of streams "
            f"takes what is published, and those of generation {before.newest.number} take no more"
        )
    return told


def _settings(space: Space) -> dict[str, str]:
    """What can be altered, as the options say it."""
    kept, archive = space.retention, space.archive
    return {
        "retention": _or(kept.age_ms, format_duration, "none"),
        "retention-bytes": _or(kept.bytes, format_size, "none"),
        "retention-messages": _or(kept.messages, str, "none"),
        "retention-force": "yes" if kept.force else "no",
        "group-expiry": format_duration(kept.group_expiry_ms) if kept.group_expiry_ms else "never",
        "compact-after": _or(space.compact_after_ms, format_duration, "off"),
        "archive": "none" if archive is None else archive.uri,
        "archive-catalog": "of its own" if archive is None or not archive.catalog else archive.catalog,
        "keep-in-memory": "all" if archive is None else _in_memory(archive.keep_ms, archive.keep_bytes),
    }


def _in_memory(age_ms: int | None, size: int | None) -> str:
    return _or(age_ms, format_duration, _or(size, format_size, "all"))


def _or(value: int | None, text: Callable[[int], str], none: str) -> str:
    return none if value is None else text(value)
