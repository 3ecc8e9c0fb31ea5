"""What there is of a collection now, for whoever does not follow it: the views of operators read so."""

from __future__ import annotations

from streamlease.catalog.followed import source_of
from streamlease.catalog.items import CatalogItem, item_of
from streamlease.protocol.errors import Unsupported
from streamlease.streams.catalog.changes import Owners, list_rows
from streamlease.streams.catalog.keys import CATALOG, MADE, PROCESSES, rows
from streamlease.streams.redis.connection import AsyncRedis


async def items_of(redis: AsyncRedis, collection: str) -> list[CatalogItem]:
    """All items of a collection that can be read.

    Raises:
        Unsupported: something else is damaged.
        StoreUnavailable, StoreRefused.
    """
    return [*(await source_of(redis, collection).everything()).values()]


async def unreadable_items(redis: AsyncRedis) -> list[str]:
    """Of what processes made, the items that cannot be read, and why: a line for each.

    Raises:
        StoreUnavailable, StoreRefused.
    """
    found: list[str] = []
    for collection in MADE:
        listed = await list_rows(redis, CATALOG, rows(collection), Owners(PROCESSES))
        for key, text in listed.rows.items():
            try:
                item_of(collection, key, text)
            except Unsupported as error:
                found.append(str(error))
    return found
