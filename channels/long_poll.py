"""The poll that a client has open: the newest one counts, and it ends when there is something to say."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum


class PollEnd(Enum):
    """Why a poll waits no longer."""

    ANSWER = "answer"
    """There is something to say, or its time is over."""
    REPLACED = "replaced"
    """A newer one came, or the channel is closed: it is answered with nothing."""
    GONE = "gone"
    """Nobody waits for its answer."""


class LongPoll:
    """Those of one client, one after the other; it begins now.

    Args:
        has_news: whether there is something to say.
    """

    __slots__ = ("_has_news", "_newest", "_open", "_woken", "is_closed", "last_seen")

    def __init__(self, has_news: Callable[[], bool]) -> None:
        self.is_closed = False
        self.last_seen = asyncio.get_running_loop().time()
        """When the client was heard of, by the clock of the event loop."""
        self._has_news = has_news
        self._newest = 0
        """The number of the newest poll."""
        self._open = 0
        self._woken: asyncio.Future[None] | None = None

    @property
    def is_open(self) -> bool:
        """Whether a poll is open."""
        return self._open > 0

    def wake(self) -> None:
        """There may be something to say."""
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    def close(self) -> None:
        """No poll waits any more."""
        self.is_closed = True
        self.wake()

    async def wait(self, seconds: float, gone: asyncio.Future[None]) -> PollEnd:
        """Wait until there is something to say.

        Args:
            gone: done when nobody waits for the answer.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        self._newest += 1
        mine = self._newest
        self.wake()  # the former poll is answered with nothing
        self._open += 1
        try:
            while not self._has_news() and self._newest == mine and not self.is_closed:
                left = deadline - loop.time()
                if left <= 0:
                    break
                self._woken = woken = loop.create_future()
                await asyncio.wait((woken, gone), timeout=left, return_when=asyncio.FIRST_COMPLETED)
                if gone.done():
                    return PollEnd.GONE
        finally:
            self._open -= 1
            self.last_seen = loop.time()
        return PollEnd.ANSWER if self._newest == mine and not self.is_closed else PollEnd.REPLACED
