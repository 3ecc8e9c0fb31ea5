"""How long a subscription may be silent before its client asks: a timer that adapts."""

from __future__ import annotations

SMOOTHING = 0.25
PATIENCE = 2.0
"""Times the usual pause between two pushes."""


class QuietTimer:
    """Grows while questions find nothing, for then push can be trusted; falls when one finds something.

    Args:
        least: seconds, at the beginning and after each finding.
        most: seconds.
    """

    def __init__(self, least: float, most: float) -> None:
        self._least = least
        self._most = most
        self._usual = 0.0
        self._pushed_at: float | None = None
        self.seconds = least

    def pushed(self, now: float) -> None:
        """A push was taken: where there are many, silence means something sooner."""
        if self._pushed_at is not None:
            self._usual += SMOOTHING * (now - self._pushed_at - self._usual)
        self._pushed_at = now
        self.seconds = max(self.seconds / 2, self._floor())

    def found_nothing(self) -> None:
        """A question told that nothing was missed."""
        self.seconds = min(2 * self.seconds, self._most)

    def found_something(self) -> None:
        """A question told that the push did not do its work."""
        self.seconds = self._floor()

    def _floor(self) -> float:
        return min(max(self._least, PATIENCE * self._usual), self._most)
