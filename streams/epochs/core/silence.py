"""Which publishers are silent: judged by two clocks, so that a jump of either gives nobody up. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Sign(NamedTuple):
    """The last sign of life of an incarnation that is there."""

    name: str
    inc: int
    seen: int
    """Milliseconds of the Redis clock."""


class Silences:
    """Watches the signs of life of the publishers of one space.

    Args:
        timeout: milliseconds without one, by the Redis clock and by the watcher's own.
    """

    def __init__(self, timeout: int) -> None:
        self.timeout = timeout
        self._watched: dict[Sign, int] = {}
        """Each sign, and since when this watcher has seen no later one, by its own clock."""

    def look(self, signs: Iterable[Sign], redis_now: int, own_now: int) -> list[Sign]:
        """Those that have been silent for too long.

        Args:
            signs: all publishers that are there now.
            redis_now, own_now: milliseconds of both clocks.
        """
        self._watched = {sign: self._watched.get(sign, own_now) for sign in signs}
        return [
            sign
            for sign, since in self._watched.items()
            if own_now - since >= self.timeout and abs(redis_now - sign.seen) >= self.timeout
        ]
