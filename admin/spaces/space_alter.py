"""``streamlease space alter``: streams, retention and schema of a space, while it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from streamlease.admin.acting import Yes, confirm
from streamlease.admin.archives.archive_options import Archive, ArchiveCatalog, ArchiveChange, KeepInMemory
from streamlease.admin.common_options import AsJson, RedisUrl
from streamlease.admin.completing import SpaceName
from streamlease.admin.output import line
from streamlease.admin.running import with_client
from streamlease.admin.spaces import retention_options, schema_option
from streamlease.admin.spaces.compaction_option import CompactAfter
from streamlease.admin.spaces.retention_options import (
    Age,
    Bytes,
    Force,
    GroupExpiry,
    Messages,
    RetentionOptions,
)
from streamlease.admin.spaces.schema_option import SchemaFile
from streamlease.admin.spaces.space_changes import SpaceChanges, StreamChange
from streamlease.admin.spaces.space_view import definition
from streamlease.protocol.errors import InvalidOption
from streamlease.protocol.plurals import counted

if TYPE_CHECKING:
    from streamlease.streams.spaces.spaces import Space


def _tell(changes: SpaceChanges, space: Space) -> None:
    """What was changed, for people."""
    from streamlease.admin.facts.spaces import SchemaRow
    from streamlease.streams.spaces.definitions import compaction_of

    if changes.retention.anything:
        line(f"space {space.name} {retention_options.sentence(space.retention)}")
    if changes.compact_after is not None:
        line(f"space {space.name} {compaction_of(space)}")
    if changes.archive.anything:
        line(f"space {space.name} has the archive {space.archive}")
    if changes.streams.anything:
        line(
            f"space {space.name} has {counted(space.newest.streams, 'stream')} in generation "
            f"{space.newest.number}; former ones are sealed"
        )
    if changes.columns is not None:
        schema_option.show(SchemaRow.of(changes.columns, len(space.schemas)))


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
    new = StreamChange(streams, rotate, from_generation)
    asked = RetentionOptions(retention, retention_bytes, retention_messages, retention_force, group_expiry)
    older = ArchiveChange(archive, keep_in_memory, archive_catalog)
    changes = SpaceChanges(
        new, asked, None if schema is None else schema_option.read(schema), compact_after, older
    )
    if not changes.anything:
        raise InvalidOption("nothing to alter: give at least one setting, such as --retention 7d")
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
        _tell(changes, space)
