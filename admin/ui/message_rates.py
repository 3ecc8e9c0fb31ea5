"""Messages per second, from counts that were read at different times. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

WINDOW = 5.0
"""Seconds over which a rate is taken."""

STEP = 2.0
"""Seconds between two points of a series."""

POINTS = 90
PAUSE = 10.0
"""After so long without a count, what was before is forgotten: nobody looked meanwhile."""


class MessageRates:
    """The rates of any number of things."""

    def __init__(self) -> None:
        self._counts: dict[str, deque[tuple[float, int]]] = {}
        self._series: dict[str, deque[float | None]] = {}
        self._counted = self._stepped = float("-inf")

    def take(self, now: float, counts: Mapping[str, int | None]) -> dict[str, float | None]:
        """The rate of each; None: not known yet.

        Args:
            now: seconds, of any clock that does not go back.
            counts: how many there ever were of each; None: nobody knows.
        """
        if now - self._counted > PAUSE:
            self._counts.clear()
            self._series.clear()
        self._counted = now
        for name in self._counts.keys() - counts.keys():
            del self._counts[name]
            self._series.pop(name, None)
        rates = {name: self._rate(name, now, count) for name, count in counts.items()}
        if now - self._stepped >= STEP:
            self._stepped = now
            for name, rate in rates.items():
                self._series.setdefault(name, deque(maxlen=POINTS)).append(rate)
        return rates

    def series(self, name: str) -> list[float | None]:
        """Former rates, oldest first, `STEP` seconds apart."""
        return [*self._series.get(name, ())]

    def _rate(self, name: str, now: float, count: int | None) -> float | None:
        points = self._counts.setdefault(name, deque())
        if count is None or (points and points[-1][1] > count):
            points.clear()  # it began anew, as after a reset or a loss
        if count is None:
            return None
        points.append((now, count))
        while len(points) > 2 and points[1][0] <= now - WINDOW:
            points.popleft()
        began, first = points[0]
        return round((count - first) / (now - began), 1) if now - began >= 0.2 else None
