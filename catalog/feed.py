"""What the followers of one collection in one process read: once, for all of them.

::

    Redis -> source -> feed: known rows, changes -> follower
                                                 -> follower
                                                 -> follower

The feed reads and parses each change once, and keeps it until the slowest follower has it, but `MOST_KEPT`
changes at most. A follower begins at the newest point of the feed, so the changes behind it are the same for
all. One that is left behind further is told what differs; one with a cursor reads what came behind its own.

Where more happened than Redis keeps, Redis lost what was told, or it cannot be read, the feed lists all anew,
and all followers are told what differs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from streamlease.catalog.catalog_cursors import CatalogCursor
from streamlease.catalog.item_sources import ItemChange, Source, differences
from streamlease.catalog.items import CatalogItem
from streamlease.protocol.errors import StoreUnavailable, StreamleaseError
from streamlease.protocol.seldom import Seldom
from streamlease.streams.catalog.changes import ChangesGone, DamagedChange
from streamlease.streams.redis.connection import AsyncRedis
from streamlease.streams.redis.lines.bells import Bells
from streamlease.streams.tasks import Supervisor

_logger = logging.getLogger(__name__)

LOOK_SECONDS = 5.0
"""How often everything is looked at, whatever is pushed: traffic never moves that."""

GATHER_SECONDS = 0.02
"""How long more of what is pushed is waited for."""

AGAIN_SECONDS = 0.5

MOST_KEPT = 20_000
"""Changes that wait for a follower; behind more of them it is told what differs."""


@dataclass(frozen=True, slots=True)
class CatalogChange:
    """An item that came (``diff`` 1) or went (-1)."""

    item: CatalogItem
    diff: int
    _cursor: CatalogCursor | None = field(repr=False, compare=False)

    @property
    def at(self) -> str | None:
        """A cursor behind it; None: it and the next one are parts of the same change."""
        return None if self._cursor is None else self._cursor.text

    def __iter__(self) -> Iterator[Any]:
        """Item, diff, cursor."""
        return iter((self.item, self.diff, self.at))


@dataclass(frozen=True, slots=True)
class Beginning:
    """Where a follower begins."""

    items: Counter[CatalogItem]
    """What there is; with a cursor, nothing."""
    changes: list[CatalogChange]
    """With a cursor: what came behind it."""
    cursor: CatalogCursor
    """Behind all of it."""


class CatalogFeed:
    """One collection, as all followers of one client see it.

    Args:
        ended: told when nobody follows any more, or it failed: whoever comes then begins another one.
    """

    def __init__(
        self, redis: AsyncRedis, collection: str, source: Source, ended: Callable[[CatalogFeed], None]
    ) -> None:
        self.collection = collection
        self._redis = redis
        self._source = source
        self._ended = ended
        self._tasks = Supervisor(f"catalog {collection}", self._failed)
        self._seldom = Seldom(_logger)
        self._error: StreamleaseError | None = None
        self._reading = asyncio.Lock()
        self._looked = asyncio.Event()
        """Set when something may be new."""
        self._more = asyncio.Event()
        """Set, and made anew, when there are more changes."""
        self._known: dict[str, CatalogItem] | None = None
        """By key; None: nothing was listed yet."""
        self._cursor = CatalogCursor(collection, None)
        self._changes: list[CatalogChange] = []
        self._first = 0
        """The number of the first of `_changes`."""
        self._places: dict[object, int] = {}
        """The number of the next change of each follower."""

    async def begin(self, follower: object, start: Any = None) -> Beginning:
        """Take a follower in, at the newest point.

        Args:
            start: a point behind which it was told nothing yet; None: it knows nothing.

        Raises:
            CatalogTruncated: what came behind `start` is not kept any more.
            InvalidInput: `start` is no point of this collection.
            Unsupported: something is damaged.
            StoreUnavailable, StoreRefused.
        """
        self._places[follower] = self._end
        try:
            async with self._reading:
                await self._catch_up()
                assert self._known is not None
                if start is None:
                    beginning = Beginning(Counter(self._known.values()), [], self._cursor)
                else:
                    while (behind := await self._source.since(start)) is None:
                        await self._catch_up()
                    beginning = Beginning(Counter(), self._told(behind), self._cursor)
                self._places[follower] = self._end
        except BaseException:
            await self.leave(follower)
            raise
        return beginning

    async def leave(self, follower: object) -> None:
        """It follows no more. With the last follower the feed ends."""
        self._places.pop(follower, None)
        if not self._places:
            await self.close()

    async def close(self, error: StreamleaseError | None = None) -> None:
        """Read no more; those who follow are told `error`."""
        self._ended(self)
        if error is not None:
            self._failed("", error)
        await self._tasks.close()

    async def more(self, follower: object) -> list[CatalogChange] | None:
        """All changes that a follower has not got yet; waits until there is one. None: it was left behind.

        Raises:
            Unsupported: something is damaged. StoreRefused. InvalidOption: the client was closed.
        """
        if not self._tasks and self._error is None:
            self._tasks.start("changes", self._follow(), endless=True)
        while (place := self._places[follower]) == self._end:
            if self._error is not None:
                raise self._error
            await self._more.wait()
        self._places[follower] = self._end
        return None if place < self._first else self._changes[place - self._first :]

    def has_all(self, follower: object) -> bool:
        """Whether a follower has got all changes."""
        return self._places[follower] == self._end

    @property
    def items(self) -> Counter[CatalogItem]:
        """What there is, at the point `cursor`."""
        return Counter((self._known or {}).values())

    @property
    def cursor(self) -> CatalogCursor:
        """Behind all changes."""
        return self._cursor

    @property
    def _end(self) -> int:
        return self._first + len(self._changes)

    # ------------------------------------------------------------ reading

    async def _follow(self) -> None:
        bells = Bells(f"news of {self.collection}", self._redis, self._tasks)
        self._source.watch(bells, self._looked)
        self._looked.set()
        clock = asyncio.get_running_loop().time
        due = clock() + LOOK_SECONDS
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(due):
                    await self._looked.wait()
                    await asyncio.sleep(GATHER_SECONDS)
            if clock() >= due:
                self._source.look_again()
                due = clock() + LOOK_SECONDS
            self._looked.clear()
            try:
                async with self._reading:
                    self._take(await self._news())
            except StoreUnavailable:
                # What is there is told when Redis answers again.
                self._source.look_again()
                await asyncio.sleep(AGAIN_SECONDS)
                self._looked.set()

    async def _catch_up(self) -> None:
        """Read up to the newest point, whatever was pushed."""
        if self._known is None:
            self._known = await self._source.everything()
            self._cursor = CatalogCursor(self.collection, self._source.at)
        else:
            self._source.look_again()
            self._take(await self._news())

    async def _news(self) -> list[ItemChange]:
        try:
            return await self._source.news()
        except ChangesGone as gone:
            if isinstance(gone, DamagedChange):
                self._seldom.warning("%s: all %s are listed again", gone, self.collection)
            return differences(self._known or {}, await self._source.everything())

    def _take(self, changes: list[ItemChange]) -> None:
        assert self._known is not None
        known = self._known
        # Where others changed something the point has moved, too.
        self._cursor = CatalogCursor(self.collection, self._source.at)
        count = len(self._changes)
        for change in changes:
            former = known.get(change.key)
            if change.item is None:
                known.pop(change.key, None)
            else:
                known[change.key] = change.item
            self._append(self._changes, change, former, last=change is changes[-1])
        if len(self._changes) > count:
            self._more.set()
            self._more = asyncio.Event()
        self._forget()

    def _told(self, changes: list[ItemChange]) -> list[CatalogChange]:
        """As they are told to whoever knows nothing but what changed."""
        told: list[CatalogChange] = []
        for change in changes:
            self._append(told, change, change.former, last=change is changes[-1])
        return told

    def _append(
        self, told: list[CatalogChange], change: ItemChange, former: CatalogItem | None, *, last: bool
    ) -> None:
        item = change.item
        if former is item or former == item:
            return
        at = None if change.at is None else CatalogCursor(self.collection, change.at)
        at = self._cursor if last else at
        if former is not None:
            told.append(CatalogChange(former, -1, None if item is not None else at))
        if item is not None:
            told.append(CatalogChange(item, 1, at))

    def _forget(self) -> None:
        """Drop the changes that all have, and those that are too many."""
        needed = min(self._places.values(), default=self._end)
        first = max(needed, self._end - MOST_KEPT)
        del self._changes[: first - self._first]
        self._first = first

    def _failed(self, name: str, error: StreamleaseError) -> None:
        self._error = error
        self._more.set()
        self._ended(self)
