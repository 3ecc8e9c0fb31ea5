"""Where the items of a collection come from: all of them at one point, and what changed behind it.

Each kind of fact has one place, and the catalog reads it there, so nobody writes anything twice. Spaces,
hosts and what processes make have logs of their changes beside them; for groups see `group_sources`.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple, Protocol

from streamlease.catalog.catalog_cursors import no_cursor
from streamlease.catalog.items import CatalogItem, item_of
from streamlease.catalog.sweeping import remove_what_is_over
from streamlease.protocol.errors import CatalogTruncated, Indefinite, StoreRefused, Unsupported
from streamlease.protocol.seldom import Seldom
from streamlease.registry.hosts import SILENCE_MS, forget_silent
from streamlease.registry.keys import HOSTS_ALIVE, HOSTS_INFO
from streamlease.streams.catalog.changes import (
    PAGE,
    ChangesGone,
    Owners,
    RowChange,
    changes_behind,
    list_rows,
)
from streamlease.streams.catalog.keys import CATALOG, HOSTS, PROCESSES, SPACES, TOPICS, Home, rows
from streamlease.streams.log.keys import SPACE_DEFINITIONS
from streamlease.streams.redis.connection import AsyncRedis
from streamlease.streams.redis.lines.bells import Bells

_logger = logging.getLogger(__name__)

Sweep = Callable[[AsyncRedis], Awaitable[None]]

POINT = re.compile(r"\d{1,20}-\d{1,20}")


class ItemChange(NamedTuple):
    """An item before and after; None where there is none."""

    key: str
    former: CatalogItem | None
    """Of `since` alone: whoever has a snapshot knows it."""
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

    async def since(self, at: Any) -> list[ItemChange] | None:
        """What changed from a point that was told before, in another process perhaps, up to `self.at`.

        Returns:
            None: `self.at` is not there any more; ask for `news` first.

        Raises:
            CatalogTruncated: what came behind `at` is not kept any more.
            InvalidInput: it is no such point.
        """

    async def as_of(self, at: Any) -> dict[str, CatalogItem]:
        """All items at a point that was told before, by key.

        Raises:
            CatalogTruncated: it is not kept any more.
            InvalidInput: it is no such point.
        """

    async def between(self, at: Any, end: Any) -> list[ItemChange]:
        """What changed from one point that was told before to a later one: the same, whenever it is asked.

        Raises:
            CatalogTruncated: one of them is not kept any more.
            InvalidInput: one is no such point.
        """

    async def news(self) -> list[ItemChange]:
        """What changed behind the point, which goes on; nothing: nothing changed.

        Raises:
            ChangesGone: what came behind it is not kept any more.
        """


class HomeSource:
    """A collection that has a log of its changes. An item that cannot be read is said, and counts as none.

    Args:
        key: of the hash with the items.
        owners: of whom they are; None: they stay until somebody removes them.
        sweep: removes those of who is dead.
    """

    def __init__(
        self,
        redis: AsyncRedis,
        collection: str,
        home: Home,
        key: str,
        owners: Owners | None = None,
        sweep: Sweep | None = None,
    ) -> None:
        self._redis = redis
        self._collection = collection
        self._home = home
        self._key = key
        self._owners = owners
        self._at = ""
        self._sweep = sweep
        """None: there is nothing to remove, or this user of Redis may not."""
        self._looks = False
        self._seldom = Seldom(_logger)

    def watch(self, bells: Bells, changed: asyncio.Event) -> None:
        bells.watch_channel(self._home.told, changed)

    def look_again(self) -> None:
        self._looks = True

    @property
    def at(self) -> str:
        return self._at

    async def everything(self) -> dict[str, CatalogItem]:
        listed = await list_rows(self._redis, self._home, self._key, self._owners)
        if listed.over and await self._swept():
            listed = await list_rows(self._redis, self._home, self._key, self._owners)
        self._at = listed.at
        return self._items(listed.rows)

    async def since(self, at: Any) -> list[ItemChange] | None:
        changes = await self._read(at, self._at)
        return None if changes is None else [self._changed(one, former=True) for one in changes]

    async def as_of(self, at: Any) -> dict[str, CatalogItem]:
        # What a dead process made is there until its removal is told.
        listed = await list_rows(self._redis, self._home, self._key)
        rows = listed.rows
        for change in reversed(await self._all_between(at, listed.at)):
            if change.former:
                rows[change.key] = change.former
            else:
                rows.pop(change.key, None)
        return self._items(rows)

    async def between(self, at: Any, end: Any) -> list[ItemChange]:
        return [self._changed(one, former=True) for one in await self._all_between(at, end)]

    async def _all_between(self, at: Any, end: Any) -> list[RowChange]:
        found = await self._read(at, end)
        if found is None:
            raise CatalogTruncated(self._collection)
        return found

    async def _read(self, at: Any, end: Any) -> list[RowChange] | None:
        """The changes behind `at` up to `end`; None: `end` is not there any more."""
        for one in (at, end):
            if not isinstance(one, str) or not POINT.fullmatch(one):
                raise no_cursor(self._collection)
        found: list[RowChange] = []
        while True:
            try:
                changes = await changes_behind(self._redis, self._home, at, end)
            except ChangesGone:
                raise CatalogTruncated(self._collection) from None
            found += [one for one in changes if self._is_mine(one)]
            at = changes[-1].at if changes else at
            if len(changes) < PAGE:
                return found if at == end else None

    async def news(self) -> list[ItemChange]:
        if self._looks and await self._swept():
            self._looks = False
        found: list[ItemChange] = []
        at = self._at
        while True:
            changes = await changes_behind(self._redis, self._home, at)
            found += [self._changed(one) for one in changes if self._is_mine(one)]
            at = changes[-1].at if changes else at
            if len(changes) < PAGE:
                self._at = at
                return found

    def _is_mine(self, change: RowChange) -> bool:
        return change.collection == self._collection

    def _changed(self, change: RowChange, *, former: bool = False) -> ItemChange:
        before = self._item(change.key, change.former) if former else None
        return ItemChange(change.key, before, self._item(change.key, change.row), change.at)

    def _items(self, rows: Mapping[str, str]) -> dict[str, CatalogItem]:
        found = ((key, self._item(key, text)) for key, text in rows.items())
        return {key: item for key, item in found if item is not None}

    def _item(self, key: str, text: str) -> CatalogItem | None:
        try:
            return item_of(self._collection, key, text) if text else None
        except Unsupported as error:  # of a later version, perhaps
            self._seldom.warning("%s; it is left out", error)
            return None

    async def _swept(self) -> bool:
        """Remove what is of the dead; False: that is for others to do."""
        if self._sweep is not None:
            try:
                await self._sweep(self._redis)
            except Indefinite:
                return False  # the next look sees to it
            except StoreRefused:
                self._sweep = None
        return self._sweep is not None


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
        seen = Owners(HOSTS_ALIVE, SILENCE_MS)
        return HomeSource(redis, collection, HOSTS, HOSTS_INFO, seen, forget_silent)
    return HomeSource(redis, collection, CATALOG, rows(collection), Owners(PROCESSES), remove_what_is_over)
