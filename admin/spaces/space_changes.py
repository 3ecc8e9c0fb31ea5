"""Changes of a space's settings: looked at, made, and told, for the command and for the console."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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
class NewStreams:
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

    def after(self, space: Space) -> Space:
        """The definition with the streams that would be made; the number of the generation may be higher.

        Raises:
            InvalidOption, StreamSealed, SpaceConflict: as `alter`, which may find more.
        """
        from streamlease.streams.spaces.altering import altered_meanwhile, check_goes_on
        from streamlease.streams.spaces.definitions import Generation, check_streams, follows

        if not self.anything:
            return space
        if self.count is not None:
            check_streams(space.name, self.count)
        check_goes_on(space)
        newest, wanted = space.newest, self.count or space.newest.streams
        if self.follows is not None and self.follows != newest.number:
            if follows(space, self.follows, wanted):
                return space
            raise altered_meanwhile(space)
        if wanted == newest.streams and not self.rotate:
            return space
        one = Generation(number=newest.number + 1, streams=wanted)
        return space.model_copy(update={"generations": (*space.generations, one)})

    async def alter(self, client: Client, space: Space) -> Space:
        follows = space.newest.number if self.follows is None and self.rotate else self.follows
        return await client.alter_space(space.name, streams=self.count, rotate=self.rotate, expected=follows)


@dataclass(frozen=True, slots=True)
class SpaceChanges:
    """All that is asked."""

    streams: NewStreams
    retention: RetentionOptions
    columns: Schema | None
    compact_after: str | None
    archive: ArchiveChange

    @property
    def anything(self) -> bool:
        """Whether any setting is given."""
        others = self.columns is not None or self.compact_after is not None
        return others or self.streams.anything or self.retention.anything or self.archive.anything

    async def look(self, client: Client, name: str) -> tuple[Space, Space]:
        """The space, and what it would become; nothing is changed.

        Raises:
            UnknownSpace: there is none.
            InvalidOption, SchemaMismatch, SpaceConflict, StreamSealed: as `make`, which may find more.
        """
        space = await client.spaces.get(name)
        if self.archive.anything:
            await self.archive.check(client, space)
        return space, self.streams.after(self._redefined(space))

    async def make(self, client: Client, name: str) -> Space:
        """Change the space; how it is then. Safe to repeat; new streams only with what they follow."""
        space = await client.spaces.get(name)
        streams_first = space.epochs and self.streams.anything
        if streams_first:  # which is refused while publishers are there: then nothing else is changed either
            space = await self.streams.alter(client, space)
        if self.archive.anything:
            await self.archive.check(client, space)
            await self.archive.take(client, space)
        others = self.columns is not None or self.compact_after is not None or self.archive.anything
        if self.retention.anything or others:
            before, space = space, await client.spaces.change(name, self._redefined)
            if self.archive.anything:
                await self.archive.leave(client, before, space)
            await client.spaces.generations.tell_schemas(space)
        if not self.streams.anything or streams_first:
            return space
        return await self.streams.alter(client, space)

    def _redefined(self, space: Space) -> Space:
        from streamlease.streams.spaces.collection_settings import check_collection
        from streamlease.streams.spaces.definitions import check_compact_after
        from streamlease.streams.spaces.epoch_settings import check_not_merged

        update: dict[str, Any] = {"retention": self.retention.changed(space.retention)}
        if self.compact_after is not None:
            update["compact_after_ms"] = parse_compact_after(self.compact_after)
            check_compact_after(update["compact_after_ms"])
            check_not_merged(space.name, space.epochs, update["compact_after_ms"])
            check_collection(space.name, space.collection, (), update["compact_after_ms"])
        if self.archive.anything:
            update["archive"] = self.archive.of(space)
        changed = space.model_copy(update=update)
        return changed if self.columns is None else changed.with_schema(self.columns)


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
