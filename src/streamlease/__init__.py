"""Durable, ordered, elastic consumer groups with topic wildcards, on Redis.

::

    async with streamlease.connect("redis://...") as client:
        await client.create_space("flights", topics=["flights/#"], streams=8)
        async with client.subscribe("$shared/analytics/flights/+/LAX", start="earliest") as sub:
            async for batch in sub:
                ...
                await batch.commit()
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from streamlease.protocol import errors
from streamlease.protocol.errors import StreamleaseError

if TYPE_CHECKING:
    from streamlease import queries
    from streamlease.agent import blocking
    from streamlease.agent.batch import Batch
    from streamlease.agent.client import Client, connect
    from streamlease.agent.epochs.epoch_items import Aborted, EpochBatch, Frontier, Snapshot
    from streamlease.agent.epochs.group_reader import EpochPart
    from streamlease.agent.membership.metrics import serve_metrics
    from streamlease.protocol.group_options import GroupOptions
    from streamlease.streams.entries.delivered import Message
    from streamlease.streams.spaces.archive_settings import ArchiveSettings
    from streamlease.streams.spaces.retention import Retention

__version__ = "0.1.0"
__all__ = [
    "Aborted",
    "ArchiveSettings",
    "Batch",
    "Client",
    "EpochBatch",
    "EpochPart",
    "Frontier",
    "GroupOptions",
    "Message",
    "Retention",
    "Snapshot",
    "StreamleaseError",
    "__version__",
    "blocking",
    "connect",
    "errors",
    "queries",
    "serve_metrics",
]

# Spark's workers import this package for the data source alone, and need none of these.
_MODULES = {"blocking": "agent.blocking", "queries": "queries"}
_HOMES = {
    "Aborted": "agent.epochs.epoch_items",
    "ArchiveSettings": "streams.spaces.archive_settings",
    "Batch": "agent.batch",
    "Client": "agent.client",
    "EpochBatch": "agent.epochs.epoch_items",
    "EpochPart": "agent.epochs.group_reader",
    "Frontier": "agent.epochs.epoch_items",
    "GroupOptions": "protocol.group_options",
    "Message": "streams.entries.delivered",
    "Retention": "streams.spaces.retention",
    "Snapshot": "agent.epochs.epoch_items",
    "connect": "agent.client",
    "serve_metrics": "agent.membership.metrics",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"streamlease.{_MODULES[name]}")
    if name in _HOMES:
        return getattr(importlib.import_module(f"streamlease.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'streamlease' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
