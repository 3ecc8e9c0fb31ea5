"""Which documents each command prints with ``--json``, and their JSON Schemas, which are part of the docs.

The models are those that the commands build and draw: rows of ``admin.facts``, and ``admin.answers``.
"""

from __future__ import annotations

import functools
import json
from typing import Any

from pydantic import TypeAdapter, ValidationError

from streamlease.admin.answers import (
    AbortedPublisher,
    Altered,
    ClosedStreams,
    CollectionShown,
    DeadLetters,
    Declared,
    Deleted,
    Doctor,
    Done,
    Drained,
    DrainedHost,
    EmbeddedRedis,
    EpochsAborted,
    EpochsBegun,
    Error,
    FrontierMoved,
    History,
    Imported,
    ItemChanged,
    Message,
    Moved,
    PausedUntil,
    Published,
    Rebalanced,
    Released,
    ReplayedLetters,
    Reset,
    SnapshotEnded,
    SteppedDown,
    StoppedRedis,
    Undrained,
    Unstopped,
)
from streamlease.admin.archives.archive_rows import (
    ArchiveCompacted,
    ArchiveRun,
    ArchiveShown,
    ArchiveVerified,
)
from streamlease.admin.facts.catalog_rows import (
    CatalogItemChanged,
    CatalogShown,
    CatalogSnapshotEnded,
    TopicsShown,
)
from streamlease.admin.facts.epochs import SpaceEpochs
from streamlease.admin.facts.group import Group
from streamlease.admin.facts.groups import GroupList
from streamlease.admin.facts.queries import LogLine, QueryList, QueryRow, QueryShown
from streamlease.admin.facts.rows import FactRow
from streamlease.admin.facts.spaces import SpaceList, SpaceRow, SpaceShown
from streamlease.admin.facts.status import StatusFacts

DOCUMENTS: dict[str, tuple[type[FactRow | Message], ...]] = {
    "archive compact": (ArchiveCompacted,),
    "archive run": (ArchiveRun,),
    "archive show": (ArchiveShown,),
    "archive verify": (ArchiveVerified,),
    "catalog": (CatalogShown, CatalogSnapshotEnded, CatalogItemChanged),
    "collection": (CollectionShown, SnapshotEnded, ItemChanged),
    "consume": (Message, EpochsBegun, FrontierMoved, EpochsAborted),
    "doctor": (Doctor,),
    "epochs abort": (AbortedPublisher,),
    "epochs close": (ClosedStreams,),
    "epochs show": (SpaceEpochs,),
    "group alter": (Altered,),
    "group dead-letters list": (DeadLetters,),
    "group dead-letters put": (Unstopped,),
    "group dead-letters replay": (ReplayedLetters,),
    "group dead-letters retry": (Unstopped,),
    "group declare": (Declared,),
    "group delete": (Done,),
    "group describe": (Group,),
    "group drain": (Drained, Undrained, DrainedHost),
    "group expire": (Done,),
    "group history": (History,),
    "group list": (GroupList,),
    "group move": (Moved,),
    "group pause": (PausedUntil,),
    "group rebalance": (Rebalanced,),
    "group release": (Released,),
    "group reset": (Reset,),
    "group resume": (Done,),
    "group step-down": (SteppedDown,),
    "import redis-stream": (Imported,),
    "publish": (Published,),
    "query list": (QueryList,),
    "query logs": (LogLine,),
    "query show": (QueryShown,),
    "query terminate": (QueryRow,),
    "redis start": (EmbeddedRedis,),
    "redis status": (EmbeddedRedis,),
    "redis stop": (StoppedRedis,),
    "space alter": (SpaceRow,),
    "space create": (SpaceRow,),
    "space delete": (Deleted,),
    "space list": (SpaceList,),
    "space seal": (SpaceRow,),
    "space show": (SpaceShown,),
    "space topics": (TopicsShown,),
    "status": (StatusFacts,),
    "submit": (QueryRow,),
}
"""Command -> the documents that it may print, beside `Error`."""


def schema(command: str) -> dict[str, Any]:
    """The JSON Schema of what a command prints with ``--json``, errors included."""
    models: list[type[FactRow | Message]] = [*DOCUMENTS[command], Error]
    adapters: list[Any] = [(model, "validation", TypeAdapter(model)) for model in models]
    _, made = TypeAdapter.json_schemas(adapters, ref_template="#/$defs/{model}")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"streamlease {command} --json",
        "anyOf": [{"$ref": f"#/$defs/{model.__name__}"} for model in models],
        "$defs": made["$defs"],
    }


def check(command: str, text: str) -> None:
    """Whether one line of output is what the command promises.

    Raises:
        pydantic.ValidationError: it is not.
    """
    adapters = (_ERROR,) if set(json.loads(text)) == {"error"} else _adapters(command)
    for place, adapter in enumerate(adapters):
        try:
            adapter.validate_json(text)
            return
        except ValidationError:
            if place == len(adapters) - 1:
                raise


@functools.cache
def _adapters(command: str) -> tuple[TypeAdapter[Any], ...]:
    """Made once for each command: to make one takes a hundred times as long as to check a line."""
    return tuple(TypeAdapter[Any](model) for model in DOCUMENTS[command])


_ERROR = TypeAdapter[Any](Error)
