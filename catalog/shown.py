"""What a client shows of itself in the catalog: what it publishes to, and what it reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from streamlease.catalog.own_rows import OwnRows
from streamlease.protocol.errors import InvalidOption
from streamlease.streams.redis.connection import AsyncRedis
from streamlease.streams.spaces.published_topics import MOST_TOPICS

MOST_SHOWN = 1000
"""Publications of one client in the catalog; more topics are published to all the same."""

Removal = Callable[[], None]
"""It is not so any more."""


class Shown:
    """The rows of one client.

    Args:
        rows: where they stand; None: nothing is shown.
    """

    def __init__(self, rows: OwnRows | None = None) -> None:
        self._rows = rows
        self._topics: dict[str, bool] = {}
        """To which it publishes, and whether that is shown."""
        self._count = 0
        self._closed = False

    @property
    def process(self) -> str:
        """What the client is called there; empty: it shows nothing. Raises as `publication`."""
        self._check_open()
        return "" if self._rows is None else self._rows.process

    async def close(self) -> None:
        """The client ends: all its rows leave."""
        self._closed = True
        if self._rows is not None:
            await self._rows.close()

    def publication(self, topic: str, space: str) -> None:
        """The client publishes to `topic`, until it is closed; the topic is known from then on.

        It is told again when it looks for the space anew: that may have been deleted and made again since,
        and then none of its topics is known.

        Raises:
            InvalidOption: the client is closed.
        """
        self._check_open()
        if self._rows is None or (topic not in self._topics and len(self._topics) >= MOST_TOPICS):
            return
        if self._topics.setdefault(topic, len(self._topics) < MOST_SHOWN):
            self._rows.put("publications", topic, {"topic": topic, "space": space})
        self._rows.note_topic(space, topic)

    def subscription(self, filter: str, group: str | None = None) -> Removal:
        """The client reads `filter`, as a member of a group or for itself."""
        return self._put("subscriptions", {"filter": filter, "group": group})

    def borrower(self, subscription: str, borrower: str, query_name: str = "") -> Removal:
        """The client has a borrower.

        Args:
            query_name: of the query that it is of, as its author calls it; empty: it has none.
        """
        row = {"subscription": subscription, "borrower": borrower}
        return self._put("borrowers", row | ({"query_name": query_name} if query_name else {}))

    def _check_open(self) -> None:
        if self._closed:
            raise InvalidOption("the client is closed: connect again")

    def _put(self, collection: str, row: dict[str, Any]) -> Removal:
        self._check_open()
        rows, self._count = self._rows, self._count + 1
        if rows is None:
            return _nothing
        key = str(self._count)
        rows.put(collection, key, row)
        return lambda: rows.remove(collection, key)


def shown_by(redis: AsyncRedis) -> Shown:
    """What a client of `redis` shows, on a lease of its own."""
    return Shown(OwnRows(redis))


def _nothing() -> None:
    pass
