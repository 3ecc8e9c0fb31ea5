"""The definition of a space as a document."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from streamlease.admin.spaces import retention_options, schema_option

if TYPE_CHECKING:
    from streamlease.streams.spaces.spaces import Space


def definition(space: Space) -> dict[str, Any]:
    """A space as a document."""
    return {
        "name": space.name,
        "topics": list(space.topics),
        "streams": space.newest.streams,
        "shard_by": space.shard_by,
        "retention": retention_options.document(space.retention),
        "durability": space.durability,
        "ended": space.ended,
        "generations": [generation.model_dump() for generation in space.generations],
        "schema": None
        if space.newest_schema is None
        else schema_option.document(space.newest_schema, len(space.schemas)),
    }
