"""How long a query waits for a Redis that is away: ``redis.timeout``."""

from __future__ import annotations

from streamlease.protocol.errors import StoreUnavailable, StreamleaseError


class Outage:
    """Since when Redis has not answered.

    Args:
        seconds: how long that may be.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._since: float | None = None

    def look(self, error: StreamleaseError | None, now: float) -> None:
        """Take note of how the last question to Redis went.

        Raises:
            StoreUnavailable: no question was answered for too long.
        """
        if error is None or not error.retriable:
            self._since = None
            return
        if self._since is None:
            self._since = now
        if now - self._since >= self._seconds:
            raise StoreUnavailable(
                f"Redis was away for {self._seconds:.0f} s (option 'redis.timeout'): {error}; "
                f"start the query again with the same checkpoint, and it goes on where it was"
            )
