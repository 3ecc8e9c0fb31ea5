"""Waits that end in time: many with one timer, for a timer for each costs more than most waits; and one that
is waited again and again."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from streamlease.borrower.book import Held
from streamlease.streams.log.many import RETRY_SECONDS

MOST_PAUSE_SECONDS = 10.0
"""How long an archive that cannot be read is left alone at most; other streams are read meanwhile."""


def growing_pause(failures: int) -> float:
    """Seconds until what could not be read so many times before is asked for again."""
    return min(MOST_PAUSE_SECONDS, RETRY_SECONDS * 2.0 ** min(failures, 16))


class Deadlines:
    """The waits of one owner, in the order of their deadlines."""

    def __init__(self) -> None:
        self._waits: deque[tuple[float, asyncio.Future[None]]] = deque()
        """When each ends, by the event loop's clock; those that are over leave from the front."""
        self._alarm: asyncio.TimerHandle | None = None

    def add(self, wait: asyncio.Future[None], seconds: float) -> None:
        """End `wait` by a ``TimeoutError`` if it takes so long; not before those that were added earlier."""
        waits, loop = self._waits, wait.get_loop()
        while waits and waits[0][1].done():
            waits.popleft()
        waits.append((loop.time() + seconds, wait))
        if self._alarm is None:
            self._alarm = loop.call_at(waits[0][0], self._look)

    def close(self) -> None:
        """Look at none any more."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        self._waits.clear()

    def _look(self) -> None:
        self._alarm = None
        waits, loop = self._waits, asyncio.get_running_loop()
        while waits and (waits[0][1].done() or waits[0][0] <= loop.time()):
            _, wait = waits.popleft()
            if not wait.done():
                wait.set_exception(TimeoutError())
        if waits:
            self._alarm = loop.call_at(waits[0][0], self._look)


class Delays:
    """Streams that are not read before their `Held.retry_at`, in the order in which that was found.

    Args:
        clock: seconds; that of `Held.retry_at`.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._delayed: dict[Held, None] = {}
        self._failures: dict[Held, int] = {}
        """How often a stream could not be read, one time after the other."""

    def add(self, held: Held) -> None:
        """Wait for its time."""
        self._delayed[held] = None

    def put_off(self, held: Held) -> None:
        """It could not be read: it waits twice as long as the last time."""
        failures = self._failures[held] = self._failures.get(held, -1) + 1
        held.retry_at = self._clock() + growing_pause(failures)
        self.add(held)

    def was_read(self, held: Held) -> None:
        """It could be read."""
        if self._failures:
            self._failures.pop(held, None)

    def over(self) -> list[Held]:
        """Those that may be read again; they are forgotten."""
        now = self._clock()
        found = [held for held in self._delayed if held.retry_at is None or now >= held.retry_at]
        for held in found:
            held.retry_at = None
            del self._delayed[held]
        return found

    def pauses(self) -> list[float]:
        """How long (s) each still has to wait."""
        now = self._clock()
        return [held.retry_at - now for held in self._delayed if held.retry_at is not None]


class Alarm:
    """Waits for one event, but not too long; the timer of an earlier wait is kept, and may come first."""

    def __init__(self, event: asyncio.Event) -> None:
        self._event = event
        self._timer: asyncio.TimerHandle | None = None

    async def wait(self, seconds: float) -> None:
        """Return when the event is set, or after so long at most."""
        loop = asyncio.get_running_loop()
        when = loop.time() + seconds
        if self._timer is None or self._timer.when() > when:
            self.close()
            self._timer = loop.call_at(when, self._rang)
        await self._event.wait()

    def close(self) -> None:
        """Set the event no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _rang(self) -> None:
        self._timer = None
        self._event.set()
