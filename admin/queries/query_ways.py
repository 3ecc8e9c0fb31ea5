"""What the programs of a query publish and read, by the catalog."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from streamlease.catalog.items import PublicationItem, SubscriptionItem

if TYPE_CHECKING:
    from streamlease.agent.client import Client


class QueryWays(NamedTuple):
    """Sorted, each once."""

    publishes: list[str]
    """Topics."""
    reads: list[str]
    """Filters, and of groups ``$shared/GROUP/FILTER``."""


async def ways_of(client: Client, query: str) -> QueryWays:
    """What a query publishes and reads now.

    Raises:
        Unsupported: something in the catalog is damaged.
        StoreUnavailable, StoreRefused.
    """
    publishes, reads = set(), set()
    async with client.catalog("publications") as publications:
        for one in publications.items:
            if isinstance(one, PublicationItem) and one.query == query:
                publishes.add(one.topic)
    async with client.catalog("subscriptions") as subscriptions:
        for other in subscriptions.items:
            if isinstance(other, SubscriptionItem) and other.query == query:
                reads.add(other.filter if other.group is None else f"$shared/{other.group}/{other.filter}")
    return QueryWays(sorted(publishes), sorted(reads))
