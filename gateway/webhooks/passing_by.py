"""Who waits at the end of its spaces, and need not look at what passes by.

A feed tells of each message those whose filters match it. So whoever had all there was, and was told of
nothing, has nothing behind it: its position is wherever the feed is. Thousands of quiet webhooks in a busy
space cost nothing, and when a message comes for one of them, only that message is looked at.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from streamlease.gateway.core.cursors import Cursor
from streamlease.gateway.feeds import Feed, WaitingClient


class Follower(WaitingClient):
    """Somebody who waits, from when he had all there was."""

    __slots__ = ("_first", "unsure")

    def __init__(self, filter: str) -> None:
        super().__init__(filter)
        self._first: dict[Feed, int] = {}
        """The first piece of each feed that has something for it."""
        self.wake()

    def has_all(self) -> None:
        """It has all there is now."""
        self._first.clear()
        self.unsure = False
        self._woken = asyncio.get_running_loop().create_future()

    def found(self, feed: Feed, number: int) -> None:
        """See ``WaitingClient``."""
        if feed not in self._first:
            self._first[feed] = number
            super().wake()

    def wake(self) -> None:
        """Something else happened: a feed began anew, spaces came or went."""
        self.unsure = True
        super().wake()

    @property
    def is_woken(self) -> bool:
        """Whether there may be something."""
        return self._woken.done()

    async def told(self) -> None:
        """Wait until there may be something."""
        await self._woken

    def passed(self, feeds: Sequence[Feed], position: Cursor) -> Cursor:
        """The point up to which nothing behind `position` was for it."""
        if self.unsure:
            return position
        spaces = {feed.space for feed in feeds}
        places = {stream: place for stream, place in position.places.items() if stream.space not in spaces}
        for feed in feeds:
            there = feed.places(self._first.get(feed))
            if there is None:
                return position
            for stream, place in there.items():
                places[stream] = max(place, position.places.get(stream, place))
        return Cursor(places)
