"""What there is of a collection now, for whoever does not follow it: the views of operators read so."""

from __future__ import annotations

from streamlease.catalog.followed import source_of
from streamlease.catalog.items import CatalogItem
from streamlease.streams.redis.connection import AsyncRedis


async def items_of(redis: AsyncRedis, collection: str) -> list[CatalogItem]:
    """All items of a collection.

    Raises:
        Unsupported: something is damaged.
        StoreUnavailable, StoreRefused.
    """
    return [*(await source_of(redis, collection).everything()).values()]
