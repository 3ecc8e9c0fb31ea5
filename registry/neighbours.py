"""Letters between owners of mailboxes on one event loop: they go from hand to hand, not through Redis.

So an embedded leader and the consumers beside it need Redis for what must be durable, and for nothing else.
To the protocol it is a mailbox like any other: letters come in order, and beyond a bound the oldest ones are
dropped.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque

from streamlease.registry.mailbox import Letter

log = logging.getLogger(__name__)

MOST_LETTERS = 100_000
"""So many wait at most for one owner; as many as wait in a postbox."""


class Inbox:
    """What neighbours have sent to `owner`; at most `most` letters wait."""

    def __init__(self, owner: str, most: int = MOST_LETTERS) -> None:
        self._owner = owner
        self._waiting: deque[Letter] = deque(maxlen=most)
        self._news = asyncio.Event()
        self.dropped = 0
        """Letters for which there was no room."""

    def put(self, letter: Letter) -> None:
        """Leave a letter, without waiting."""
        if len(self._waiting) == self._waiting.maxlen:
            if not self.dropped:
                log.warning("%s drops messages: %d wait to be heard already", self._owner, len(self._waiting))
            self.dropped += 1
        self._waiting.append(letter)
        self._news.set()

    async def receive(self) -> list[Letter]:
        """Wait for letters."""
        await self._news.wait()
        self._news.clear()
        letters = [*self._waiting]
        self._waiting.clear()
        return letters


class Neighbours:
    """Who lives on this event loop, and shares what is made of this class."""

    def __init__(self) -> None:
        self.inboxes: dict[str, Inbox] = {}
        """By owner."""

    def move_in(self, owner: str) -> Inbox:
        """From now on, letters of neighbours for `owner` lie here."""
        return self.inboxes.setdefault(owner, Inbox(owner))

    def move_out(self, owner: str) -> None:
        """Letters for `owner` go to its mailbox again."""
        self.inboxes.pop(owner, None)
