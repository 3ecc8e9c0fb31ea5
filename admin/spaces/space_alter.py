"""``streamlease space alter``: streams, retention and schema of a space, while it is used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamlease.admin.acting import Yes, confirm
from streamlease.admin.archives.archive_options import Archive, ArchiveCatalog, ArchiveChange, KeepInMemory
from streamlease.admin.common_options import AsJson, RedisUrl
from streamlease.admin.completing import SpaceName
from streamlease.admin.output import line
from streamlease.admin.running import with_client
from streamlease.admin.spaces import retention_options, schema_option
from streamlease.admin.spaces.compaction_option import CompactAfter, parse_compact_after
from streamlease.admin.spaces.retention_options import (
    Age,
    Bytes,
    Force,
    GroupExpiry,
    Messages,
    RetentionOptions,
)
from streamlease.admin.spaces.schema_option import SchemaFile
from streamlease.admin.spaces.space_view import definition
from streamlease.protocol.errors import InvalidOption
from streamlease.protocol.plurals import counted

if TYPE_CHECKING:
    from streamlease.agent.client import Client
    from streamlease.streams.entries.schemas import Schema
    from streamlease.streams.spaces.spaces import Space


@dataclass(frozen=True, slots=True)
class _Streams:
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

    async def alter(self, client: Client, space: Space) -> Space:
        follows = space.newest.number if self.follows is None and self.rotate else self.follows
        return await client.alter_space(space.name, streams=self.count, rotate=self.rotate, expected=follows)


@dataclass(frozen=True, slots=True)
class _Changes:
    """All that is asked."""

    streams: _Streams
    retention: RetentionOptions
    columns: Schema | None
    compact_after: str | None
    archive: ArchiveChange

    async def make(self, client: Client, name: str) -> Space:
        space = await client.spaces.get(name)
        streams_first = space.epochs and self.streams.anything
        if streams_first:  # which is refused while publishers are there: then nothing else is changed either
            space = await self.streams.alter(client, space)
        if self.archive.anything:
            await self.archive.check(client, space)
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

    def tell(self, space: Space) -> None:
        """What was changed, for people."""
        from streamlease.admin.facts.spaces import SchemaRow
        from streamlease.streams.spaces.definitions import compaction_of

        if self.retention.anything:
            line(f"space {space.name} {retention_options.sentence(space.retention)}")
        if self.compact_after is not None:
            line(f"space {space.name} {compaction_of(space)}")
        if self.archive.anything:
            line(f"space {space.name} has the archive {space.archive}")
        if self.streams.anything:
            line(
                f"space {space.name} has {counted(space.newest.streams, 'stream')} in generation "
                f"{space.newest.number}; former ones are sealed"
            )
        if self.columns is not None:
            schema_option.show(SchemaRow.of(self.columns, len(space.schemas)))


def alter(
    name: SpaceName,
    streams: Annotated[
        int | None,
        typer.Option(
            help="Spread new messages over this many new streams, and seal the old ones. A space with epochs "
            "must have no publishers then."
        ),
    ] = None,
    rotate: Annotated[
        bool,
        typer.Option(
            "--rotate", help="Start a new generation of streams, even if their number stays the same."
        ),
    ] = False,
    from_generation: Annotated[
        int | None,
        typer.Option(
            help="With --streams or --rotate: the number of the current generation. Makes the command safe "
            "to repeat: the change is made once, and refused if somebody else made one in between."
        ),
    ] = None,
    retention: Age = None,
    retention_bytes: Bytes = None,
    retention_messages: Messages = None,
    retention_force: Force = None,
    group_expiry: GroupExpiry = None,
    schema: SchemaFile = None,
    compact_after: CompactAfter = None,
    archive: Archive = None,
    keep_in_memory: KeepInMemory = None,
    archive_catalog: ArchiveCatalog = None,
    yes: Yes = False,
    redis: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """Change the settings of a space. Settings you leave out keep their value. Safe to repeat.

    Starting new streams is safe to repeat only with --from-generation. A schema may gain nullable columns;
    older messages have null there.
    """
    new = _Streams(streams, rotate, from_generation)
    asked = RetentionOptions(retention, retention_bytes, retention_messages, retention_force, group_expiry)
    older = ArchiveChange(archive, keep_in_memory, archive_catalog)
    others = schema is not None or compact_after is not None or older.anything
    if not asked.anything and not new.anything and not others:
        raise InvalidOption("nothing to alter: give at least one setting, such as --retention 7d")
    changes = _Changes(
        new, asked, None if schema is None else schema_option.read(schema), compact_after, older
    )
    if retention_force:
        confirm(
            f"Remove messages of space {name} even if a group has not consumed them?",
            f"messages of space {ascii(name)[:80]} that groups have not consumed are removed",
            yes=yes,
            as_json=as_json,
        )
    space = with_client(redis, lambda client: changes.make(client, name))
    if as_json:
        definition(space)
    else:
        changes.tell(space)
