"""How long a follower leaves the gateway alone after a failure, and when it has borne enough of them."""

from __future__ import annotations

import math

FIRST_PAUSE, MOST_PAUSE = 0.1, 5.0
MOST_PUSH_PAUSE = 30.0


class FollowPauses:
    """Pauses grow with each failure; the first time that pushes which did their work fail, there is none.

    Args:
        spread: from 0 to 1, other for each client.
        patience: seconds without anything good, after which it is enough; None: never.
    """

    def __init__(self, spread: float, patience: float | None) -> None:
        self._spread = spread
        self._patience = patience
        self._failures = 0
        self._failing_since: float | None = None
        self._push_failures = 0
        self.push_again_at = -math.inf
        """Not before that is another subscription made."""

    def answered(self) -> None:
        """A question was answered."""
        self._failures, self._failing_since = 0, None

    def took(self) -> None:
        """Something was taken."""
        self._failing_since = None

    def pushed(self) -> None:
        """A subscription did its work."""
        self._push_failures = 0

    def after_question(self) -> float:
        """Seconds before the next question, as one failed."""
        self._failures += 1
        return self._pause(self._failures, MOST_PAUSE)

    def push_failed(self, now: float) -> None:
        """A subscription failed."""
        self.push_again_at = now + self._pause(self._push_failures, MOST_PUSH_PAUSE)
        self._push_failures += 1

    def is_enough(self, now: float) -> bool:
        """Whether nothing good came for too long; asked at each failure."""
        if self._failing_since is None:
            self._failing_since = now
        return self._patience is not None and now - self._failing_since >= self._patience

    def _pause(self, failures: int, most: float) -> float:
        if not failures:
            return 0.0
        return min(FIRST_PAUSE * 2.0 ** min(failures - 1, 20), most) * (0.5 + self._spread)
