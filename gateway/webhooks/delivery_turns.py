"""Turns: how many deliveries are under way at once, so that a dead callback costs the others nothing.

A delivery that is quick gives its turn back in milliseconds. One that is not keeps it for `QUICK_SECONDS` at
most and is counted among the slow ones from then on. What failed the last time has turns of its own: there
may be thousands of callbacks that hang until their time is over, and they keep only each other waiting.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

QUICK = 256
"""Deliveries at once to callbacks that answer."""

SLOW = 1024
"""Of those, such as have not answered for `QUICK_SECONDS`, besides."""

SUSPECT = 64
"""Deliveries at once to callbacks that failed the last time."""

QUICK_SECONDS = 1.0


class DeliveryTurns:
    """The turns of one gateway."""

    def __init__(self, quick: int = QUICK, slow: int = SLOW, suspect: int = SUSPECT) -> None:
        self._quick = asyncio.Semaphore(quick)
        self._suspect = asyncio.Semaphore(suspect)
        self._most_slow = slow
        self.slow = 0

    @asynccontextmanager
    async def turn(self, *, suspect: bool) -> AsyncIterator[None]:
        """A delivery's turn."""
        if suspect:
            async with self._suspect:
                yield
            return
        await self._quick.acquire()
        turn = _Turn(self)
        alarm = asyncio.get_running_loop().call_later(QUICK_SECONDS, turn.give_back)
        try:
            yield
        finally:
            alarm.cancel()
            turn.end()

    def _give_back(self) -> bool:
        if self.slow >= self._most_slow:
            return False
        self.slow += 1
        self._quick.release()
        return True

    def _end(self, *, given_back: bool) -> None:
        if given_back:
            self.slow -= 1
        else:
            self._quick.release()


class _Turn:
    __slots__ = ("_given_back", "_turns")

    def __init__(self, turns: DeliveryTurns) -> None:
        self._turns = turns
        self._given_back = False

    def give_back(self) -> None:
        self._given_back = self._turns._give_back()

    def end(self) -> None:
        self._turns._end(given_back=self._given_back)
