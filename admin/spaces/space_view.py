"""Prints a space: its definition, or what each stream holds and who keeps it from being removed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamlease.admin.facts.fact_tables import GROUPS_OF_SPACE, STREAMS_OF_SPACE
from streamlease.admin.output import document, line
from streamlease.admin.spaces import retention_options, schema_option
from streamlease.protocol.plurals import counted
from streamlease.protocol.quantities import format_duration

if TYPE_CHECKING:
    from streamlease.admin.facts.spaces import SpaceShown
    from streamlease.streams.spaces.spaces import Space


def definition(space: Space) -> None:
    """Its definition as a JSON document."""
    from streamlease.admin.facts.spaces import SpaceRow

    document(SpaceRow.of(space))


def draw(seen: SpaceShown) -> None:
    """Its definition, its streams, its groups."""
    line(
        f"space {seen.name}: topics {' '.join(seen.topics)}, "
        f"sharded by {seen.shard_hash} of the {seen.shard_by}, durability {seen.durability}"
    )
    line(retention_options.sentence(seen.retention.retention))
    if seen.compact_after_ms is not None:
        line(f"small entries are merged when they are older than {format_duration(seen.compact_after_ms)}")
    if seen.epochs:
        from streamlease.streams.spaces.epoch_settings import epochs_of

        line(epochs_of(seen))
    if seen.collection:
        line("a collection: its messages are changes")
    if seen.archive is not None:
        from streamlease.streams.spaces.archive_settings import ArchiveSettings

        line(f"archive {ArchiveSettings(**seen.archive.model_dump())}")
    if seen.schema_ is not None:
        schema_option.show(seen.schema_)
    if len(seen.generations) > 1 or seen.ended:
        for one in seen.generations:
            state = "sealed" if one.sealed else "open"
            line(f"generation {one.number}: {counted(one.streams, 'stream')}, {state}")
    STREAMS_OF_SPACE.table(seen.streams, seen)
    if seen.groups:
        GROUPS_OF_SPACE.table(seen.groups)
