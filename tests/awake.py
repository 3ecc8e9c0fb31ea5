"""Seconds in which this process could run.

A test must not assert how long something took: on a machine that is shared everything stands still now and
then, for many seconds. What a test may say is that nobody waited: for a time-out of ten seconds, say. So it
counts the seconds in which the machine let this process run, and of any that it did not, next to nothing.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

TICK = 0.02
MOST = 3 * TICK
"""Seconds counted from one tick to the next: more have passed only if the process did not run."""


class AwakeClock:
    """Adds up the seconds between its ticks, of each pause `MOST` of them."""

    def __init__(self, now: float) -> None:
        self.seconds = 0.0
        self._last = now

    def tick(self, now: float) -> None:
        """It is `now`, in seconds."""
        self.seconds += min(now - self._last, MOST)
        self._last = now


@contextmanager
def awake() -> Iterator[AwakeClock]:
    """A clock that runs until the block is left, whatever the block's thread does meanwhile."""
    clock = AwakeClock(time.monotonic())
    over = threading.Event()

    def run() -> None:
        while not over.wait(TICK):
            clock.tick(time.monotonic())

    thread = threading.Thread(target=run, name="awake")
    thread.start()
    try:
        yield clock
    finally:
        over.set()
        thread.join()


@asynccontextmanager
async def within(seconds: float) -> AsyncIterator[None]:
    """As ``asyncio.timeout``, in seconds in which this process could run."""
    clock = AwakeClock(time.monotonic())

    async def run() -> None:
        while clock.seconds < seconds:
            await asyncio.sleep(TICK)
            clock.tick(time.monotonic())
        limit.reschedule(asyncio.get_running_loop().time())

    async with asyncio.timeout(None) as limit:
        running = asyncio.create_task(run())
        try:
            yield
        finally:
            running.cancel()
