"""Where the items of a collection come from: all of them at one point, and what changed behind it.

Each kind of fact has one place, and the catalog reads it there, so nobody writes anything twice. Spaces,
hosts and what processes make have logs of their changes beside them; for groups see `group_sources`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from streamlease.catalog.items import CatalogItem, item_of
from streamlease.protocol.errors import CatalogTruncated, InvalidInput
from streamlease.registry.keys import HOSTS_INFO
from streamlease.streams.catalog.changes import PAGE, ChangesGone, changes_behind, list_rows
from streamlease.streams.catalog.keys import CATALOG, HOSTS, SPACES, TOPICS, Home, rows
from streamlease.streams.log.keys import SPACE_DEFINITIONS
from streamlease.streams.redis.connection import AsyncRedis
from streamlease.streams.redis.lines.bells import Bells


class ItemChange(NamedTuple):
    """An item before and after; None where there is none."""

    key: str
    former: CatalogItem | None
    item: CatalogItem | None
    at: Any = None
    """The point behind it; None: the newest one is behind all that is told together."""


class Source(Protocol):
    """Where one collection comes from."""

    def watch(self, bells: Bells, changed: asyncio.Event) -> None:
        """Have `changed` set when something may be new."""

    def look_again(self) -> None:
        """Whatever was pushed may not have come: look at everything next time."""

    @property
    def at(self) -> Any:
        """The point up to which everything was told, to be kept as JSON."""

    async def everything(self) -> dict[str, CatalogItem]:
        """All items, by key: the newest point."""

    async def go_on(self, at: Any) -> None:
        """Begin at a point that was told before, in another process perhaps.

        Raises:
            CatalogTruncated: what came behind it is not kept any more.
            InvalidInput: it is no such point.
        """

    async def news(self) -> list[ItemChange]:
        """What changed behind the point, which goes on; nothing: nothing changed.

        Raises:
            ChangesGone: what came behind it is not kept any more.
        """


class HomeSource:
    """A collection that has a log of its changes.

    Args:
        key: of the hash with the items.
    """

    def __init__(
        self, redis: AsyncRedis, collection: str, home: Home, key: str, *, of_processes: bool = False
    ) -> None:
        self._redis = redis
        self._collection = collection
        self._home = home
        self._key = key
        self._of_processes = of_processes
        self._at = ""

    def watch(self, bells: Bells, changed: asyncio.Event) -> None:
        bells.watch_channel(self._home.told, changed)

    def look_again(self) -> None:
        pass

    @property
    def at(self) -> str:
        return self._at

    async def everything(self) -> dict[str, CatalogItem]:
        listed = await list_rows(self._redis, self._home, self._key, self._of_processes)
        self._at = listed.at
        return {key: item_of(self._collection, key, text) for key, text in listed.rows.items()}

    async def go_on(self, at: Any) -> None:
        if not isinstance(at, str):
            raise no_cursor(self._collection)
        self._at = at
        try:
            await changes_behind(self._redis, self._home, at)
        except ChangesGone:
            raise CatalogTruncated(self._collection) from None

    async def news(self) -> list[ItemChange]:
        found: list[ItemChange] = []
        while True:
            changes = await changes_behind(self._redis, self._home, self._at)
            for change in changes:
                self._at = change.at
                if change.collection == self._collection:
                    former = self._item(change.key, change.former)
                    item = self._item(change.key, change.row)
                    found.append(ItemChange(change.key, former, item, change.at))
            if len(changes) < PAGE:
                return found

    def _item(self, key: str, text: str) -> CatalogItem | None:
        return item_of(self._collection, key, text) if text else None


def differences(former: Mapping[str, CatalogItem], items: Mapping[str, CatalogItem]) -> list[ItemChange]:
    """What changed from `former` to `items`, by key."""
    return [
        ItemChange(key, former.get(key), items.get(key))
        for key in {**former, **items}
        if former.get(key) != items.get(key)
    ]


def home_source(redis: AsyncRedis, collection: str) -> HomeSource:
    """The source of a collection that has a log of its changes."""
    if collection == "spaces":
        return HomeSource(redis, collection, SPACES, SPACE_DEFINITIONS)
    if collection == "topics":
        return HomeSource(redis, collection, SPACES, TOPICS)
    if collection == "hosts":
        return HomeSource(redis, collection, HOSTS, HOSTS_INFO)
    return HomeSource(redis, collection, CATALOG, rows(collection), of_processes=True)


def no_cursor(collection: str) -> InvalidInput:
    """The error of a cursor that was not told by a follower of `collection`."""
    return InvalidInput(f"the cursor is none of {collection}: use 'at' of an answer, as it is")
