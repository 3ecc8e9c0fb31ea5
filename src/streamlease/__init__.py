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

from typing import TYPE_CHECKING, Any

from streamlease.protocol import errors
from streamlease.protocol.errors import StreamleaseError

if TYPE_CHECKING:
    from streamlease import queries
    from streamlease.agent.client import Client, connect
    from streamlease.agent.membership.metrics import serve_metrics
    from streamlease.streams.spaces.archive_settings import ArchiveSettings
    from streamlease.streams.spaces.retention import Retention

__version__ = "0.1.0"
__all__ = [
    "ArchiveSettings",
    "Client",
    "Retention",
    "StreamleaseError",
    "__version__",
    "connect",
    "errors",
    "queries",
    "serve_metrics",
]


def __getattr__(name: str) -> Any:
    # Spark's workers import this package for the data source alone and need no client.
    if name in ("Client", "connect"):
        from streamlease.agent import client

        return getattr(client, name)
    if name == "ArchiveSettings":
        from streamlease.streams.spaces import archive_settings

        return archive_settings.ArchiveSettings
    if name == "Retention":
        from streamlease.streams.spaces import retention

        return retention.Retention
    if name == "queries":
        import importlib

        return importlib.import_module("streamlease.queries")
    if name == "serve_metrics":
        from streamlease.agent.membership import metrics

        return metrics.serve_metrics
    raise AttributeError(f"module 'streamlease' has no attribute '{name}'")
