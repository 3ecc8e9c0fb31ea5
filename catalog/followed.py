"""A collection of the catalog: what there is at one point, and then each change behind it.

::

    async with client.catalog("leaders") as leaders:
        leaders.items                       # {item: count} at the point
        async for change in leaders: ...    # change.item, change.diff, change.at

A change of an item is its removal (``diff`` -1) and its return with other values (1). Where more happened
than is kept, or Redis lost what was told, all is listed anew, and what differs is told: nothing is missing
and nothing comes twice, but what came and went meanwhile is not seen.

All followers of one client share what is read (`feed`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import AsyncIterator
from types import TracebackType

from streamlease.catalog.catalog_cursors import CatalogCursor, point_of
from streamlease.catalog.feed import CatalogChange, CatalogFeed
from streamlease.catalog.group_sources import LeaderSource, LeaseSource
from streamlease.catalog.item_sources import Source, home_source
from streamlease.catalog.items import CatalogItem, PublicationItem, check_collection
from streamlease.protocol.errors import InvalidOption, TopicNotFound
from streamlease.protocol.topics import check_topic
from streamlease.streams.redis.connection import AsyncRedis

LONGEST_WAIT = 366 * 86_400.0


class CatalogFeeds:
    """The feeds of one client: one for each collection that somebody follows."""

    def __init__(self, redis: AsyncRedis) -> None:
        self._redis = redis
        self._feeds: dict[str, CatalogFeed] = {}

    def of(self, collection: str) -> CatalogFeed:
        """The feed of a collection."""
        feed = self._feeds.get(collection)
        if feed is None:
            source = source_of(self._redis, collection)
            feed = self._feeds[collection] = CatalogFeed(self._redis, collection, source, self._ended)
        return feed

    def catalog(self, collection: str, start: str | None = None) -> Catalog:
        """Somebody who follows; as of `Catalog`."""
        return Catalog(self, collection, start)

    async def lookup(self, topic: str, wait: float) -> PublicationItem:
        """Somebody who publishes to a topic; see `Client.lookup`.

        Raises:
            InvalidTopic: it is none. InvalidOption: `wait` is no time.
            TopicNotFound: nobody publishes to it, or came to within `wait` seconds.
        """
        check_topic(topic)
        if not isinstance(wait, int | float) or not 0 <= wait <= LONGEST_WAIT:
            raise InvalidOption(f"wait is {ascii(wait)[:80]}: give seconds, 0 or more")
        async with self.catalog("publications") as publications:
            for one in publications.items:
                if isinstance(one, PublicationItem) and one.topic == topic:
                    return one
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    async for change in publications:
                        found = change.item
                        if change.diff > 0 and isinstance(found, PublicationItem) and found.topic == topic:
                            return found
        raise TopicNotFound(
            f"nobody publishes to {ascii(topic)[:80]}{f', and nobody came in {wait:g} s' if wait else ''}: "
            f"start its publisher, or wait longer"
        )

    async def close(self) -> None:
        """End all of them."""
        for feed in [*self._feeds.values()]:
            await feed.close(InvalidOption("the client is closed: what it followed goes no further"))

    def _ended(self, feed: CatalogFeed) -> None:
        if self._feeds.get(feed.collection) is feed:
            del self._feeds[feed.collection]


class Catalog:
    """``client.catalog(...)``: an async context manager and iterator of changes.

    Args:
        feeds: of the client.
        collection: such as ``leaders``.
        start: a cursor, to go on behind it; None: with all that there is.

    Raises:
        InvalidInput: there is no such collection, or the cursor is none.
    """

    def __init__(self, feeds: CatalogFeeds, collection: str, start: str | None = None) -> None:
        self._collection = check_collection(collection)
        self._start = None if start is None else point_of(collection, start)
        self._whole = start is None
        self._feeds = feeds
        self._feed: CatalogFeed | None = None
        self._cursor = CatalogCursor(collection, self._start)
        self._due: deque[CatalogChange] = deque()
        self._behind = False
        """Whether it was left behind, and has not got yet what that cost it."""
        self.items: Counter[CatalogItem] = Counter()
        """How many there are of each item: at the point, and as far as changes were handed out."""

    async def __aenter__(self) -> Catalog:
        """Read what there is.

        Raises:
            CatalogTruncated: what changed behind `start` is not kept any more.
            Unsupported: something is damaged.
            StoreUnavailable, StoreRefused.
            InvalidOption: it is open already.
        """
        if self._feed is not None:
            raise InvalidOption("it is open already: make another one by client.catalog(...)")
        feed = self._feeds.of(self._collection)
        beginning = await feed.begin(self, self._start)
        self._feed = feed
        self.items = beginning.items
        self._due.extend(beginning.changes)
        self._cursor = beginning.cursor
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        feed, self._feed = self._feed, None
        if feed is not None:
            await feed.leave(self)

    def __aiter__(self) -> AsyncIterator[CatalogChange]:
        return self

    async def __anext__(self) -> CatalogChange:
        """The next change.

        Raises:
            CatalogTruncated: with a `start`: it was left far behind, and what came then is not kept any more.
            Unsupported: something is damaged.
        """
        while not self._due:
            await self._more()
        change = self._due.popleft()
        self._count(change)
        return change

    def ready(self) -> list[CatalogChange]:
        """The changes that can be had without waiting."""
        changes = [*self._due]
        self._due.clear()
        for change in changes:
            self._count(change)
        return changes

    @property
    def at(self) -> str:
        """A cursor behind all that was read, to go on there."""
        if self._feed is not None and not self._due and self._feed.has_all(self):
            # Changes of others have moved the point, and what it rests on would else be dropped some day.
            self._cursor = self._feed.cursor
        return self._cursor.text

    async def _more(self) -> None:
        feed = self._feed
        if feed is None:
            raise InvalidOption("it is not open: write 'async with client.catalog(...) as ...'")
        changes = None if self._behind else await feed.more(self)
        if changes is None:
            self._behind = True  # until that is made up for, though who waits for it be cancelled
            changes = await self._left_behind(feed)
            self._behind = False
        self._due.extend(changes)
        self._cursor = feed.cursor

    async def _left_behind(self, feed: CatalogFeed) -> list[CatalogChange]:
        if not self._whole:
            return (await feed.begin(self, self._cursor.point)).changes
        now, before = feed.items, self.items
        differing = [(item, now[item] - before[item]) for item in {**before, **now}]
        steps = [(item, 1 if diff > 0 else -1) for item, diff in differing for _ in range(abs(diff))]
        steps.sort(key=lambda step: step[1])
        return [
            CatalogChange(item, diff, feed.cursor if number == len(steps) else None)
            for number, (item, diff) in enumerate(steps, 1)
        ]

    def _count(self, change: CatalogChange) -> None:
        items, item = self.items, change.item
        count = items.get(item, 0) + change.diff
        if count:
            items[item] = count
        else:
            items.pop(item, None)


def source_of(redis: AsyncRedis, collection: str) -> Source:
    """Where a collection comes from."""
    if collection == "leaders":
        return LeaderSource(redis)
    if collection == "leases":
        return LeaseSource(redis)
    return home_source(redis, collection)
