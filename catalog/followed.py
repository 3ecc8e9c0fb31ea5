"""A collection of the catalog: what there is at one point, and then each change behind it.

::

    async with client.catalog("leaders") as leaders:
        leaders.items                       # {item: count} at the point
        async for change in leaders: ...    # change.item, change.diff, change.at

A change of an item is its removal (``diff`` -1) and its return with other values (1). Where more happened
than is kept, or Redis lost what was told, all is listed anew, and what differs is told: nothing is missing
and nothing comes twice, but what came and went meanwhile is not seen.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import json
import zlib
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any

from streamlease.catalog.group_sources import LeaderSource, LeaseSource
from streamlease.catalog.item_sources import ItemChange, Source, differences, home_source, no_cursor
from streamlease.catalog.items import CatalogItem, check_collection
from streamlease.protocol.errors import CatalogTruncated, InvalidOption, StoreUnavailable, StreamleaseError
from streamlease.streams.catalog.changes import ChangesGone
from streamlease.streams.redis.connection import AsyncRedis
from streamlease.streams.redis.lines.bells import Bells
from streamlease.streams.tasks import Supervisor

LOOK_SECONDS = 5.0
"""How often everything is looked at, whatever is pushed."""

GATHER_SECONDS = 0.02
"""How long more of what is pushed is waited for."""

AGAIN_SECONDS = 0.5
LONGEST_CURSOR = 1 << 20


@dataclass(frozen=True, slots=True)
class CatalogChange:
    """An item that came (``diff`` 1) or went (-1)."""

    item: CatalogItem
    diff: int
    _cursor: Callable[[], str] | None = field(repr=False, compare=False)

    @property
    def at(self) -> str | None:
        """A cursor behind it; None: it and the next one are parts of the same change."""
        return None if self._cursor is None else self._cursor()

    def __iter__(self) -> Iterator[Any]:
        """Item, diff, cursor."""
        return iter((self.item, self.diff, self.at))


class Catalog:
    """``client.catalog(...)``: an async context manager and iterator of changes.

    Args:
        collection: such as ``leaders``.
        start: a cursor, to go on behind it; None: with all that there is.

    Raises:
        InvalidInput: there is no such collection, or the cursor is none.
    """

    def __init__(self, redis: AsyncRedis, collection: str, start: str | None = None) -> None:
        self._collection = check_collection(collection)
        self._start = None if start is None else _decoded(collection, start)
        self._redis = redis
        self._source: Source = _source(redis, collection)
        self._tasks = Supervisor(f"catalog {collection}", self._failed)
        self._changed = asyncio.Event()
        self._error: StreamleaseError | None = None
        self._known: dict[str, CatalogItem] = {}
        """By key; with a `start` only what changed since."""
        self._due: deque[CatalogChange] = deque()
        self._open = False
        self._following = False
        self.items: Counter[CatalogItem] = Counter()
        """How many there are of each item: at the point, and as far as changes were handed out."""

    async def __aenter__(self) -> Catalog:
        """Read what there is.

        Raises:
            CatalogTruncated: what changed behind `start` is not kept any more.
            Unsupported: something is damaged.
            StoreUnavailable, StoreRefused.
        """
        if self._start is None:
            self._known = await self._source.everything()
            self.items = Counter(self._known.values())
        else:
            await self._source.go_on(self._start)
        self._open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._open = False
        await self._tasks.close()

    def __aiter__(self) -> AsyncIterator[CatalogChange]:
        return self

    async def __anext__(self) -> CatalogChange:
        """The next change.

        Raises:
            CatalogTruncated: what came behind `start` is not kept any more.
            Unsupported: something is damaged.
        """
        if not self._open:
            raise InvalidOption("it is not open: write 'async with client.catalog(...) as ...'")
        if not self._following:
            self._following = True
            bells = Bells(f"news of {self._collection}", self._redis, self._tasks)
            self._source.watch(bells, self._changed)
            self._changed.set()
        while not self._due:
            if self._error is not None:
                raise self._error
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._changed.wait()
                    await asyncio.sleep(GATHER_SECONDS)
            if not self._changed.is_set():
                self._source.look_again()
            self._changed.clear()
            try:
                self._take(await self._news())
            except StoreUnavailable:
                # What is there is told when Redis answers again.
                self._source.look_again()
                await asyncio.sleep(AGAIN_SECONDS)
                self._changed.set()
        change = self._due.popleft()
        self.items[change.item] += change.diff
        if not self.items[change.item]:
            del self.items[change.item]
        return change

    @property
    def at(self) -> str:
        """A cursor behind all that was read, to go on there."""
        return _encoded(self._collection, self._source.at)

    async def _news(self) -> list[ItemChange]:
        try:
            return await self._source.news()
        except ChangesGone:
            if self._start is not None:
                raise CatalogTruncated(self._collection) from None
        return differences(self._known, await self._source.everything())

    def _take(self, changes: list[ItemChange]) -> None:
        for number, (key, former, item, point) in enumerate(changes, 1):
            before = former if self._start is not None and key not in self._known else self._known.get(key)
            behind = self._source.at if number == len(changes) else point
            at = None if behind is None else partial(_encoded, self._collection, behind)
            if item is not None:
                self._known[key] = item
            else:
                self._known.pop(key, None)
            if before is item or before == item:
                continue
            if before is not None:
                self._due.append(CatalogChange(before, -1, None if item is not None else at))
            if item is not None:
                self._due.append(CatalogChange(item, 1, at))

    def _failed(self, name: str, error: StreamleaseError) -> None:
        self._error = error
        self._changed.set()


def _source(redis: AsyncRedis, collection: str) -> Source:
    if collection == "leaders":
        return LeaderSource(redis)
    if collection == "leases":
        return LeaseSource(redis)
    return home_source(redis, collection)


def _encoded(collection: str, point: Any) -> str:
    text = json.dumps([collection, point], separators=(",", ":")).encode()
    return base64.urlsafe_b64encode(zlib.compress(text)).rstrip(b"=").decode()


def _decoded(collection: str, cursor: str) -> Any:
    try:
        raw = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        text = zlib.decompressobj().decompress(raw, LONGEST_CURSOR)
        name, at = json.loads(text)
    except (binascii.Error, zlib.error, ValueError, TypeError):
        raise no_cursor(collection) from None
    if name != collection:
        raise no_cursor(collection)
    return at
