"""Turns of the event loop for others, while a program takes batches that are there and waits for nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

TURN_SECONDS = 0.001
TURN_BATCHES = 32
"""So long, and for so many batches, a program that waits for nothing may keep the event loop."""


class Yielding:
    """When the loop of one program gives others a turn: a turn for each batch costs more than a small batch.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._batches = 0
        """Taken since the last turn."""
        self._at = -TURN_SECONDS
        """When that was."""

    def had_turn(self) -> None:
        """The program has waited for something."""
        self._batches, self._at = 0, self._clock()

    async def take(self) -> None:
        """Called for each batch; gives a turn when it is time."""
        self._batches += 1
        if self._batches >= TURN_BATCHES or self._clock() - self._at >= TURN_SECONDS:
            await asyncio.sleep(0)
            self.had_turn()
