"""How long a query waits for a Redis that is away, ``redis.timeout``, and what it says of missing leaders."""

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


def unled(subscription: str, seconds: float) -> StoreUnavailable:
    """No leader answers."""
    return StoreUnavailable(
        f"no leader of {subscription} answered within {seconds:.0f} s: "
        f"look at 'streamlease doctor', start a leader host, and start the query again"
    )


def unsettled(subscription: str, seconds: float) -> StoreUnavailable:
    """A leader has not said in time whose the streams are."""
    return StoreUnavailable(
        f"the streams of {subscription} were not settled by a leader within {seconds:.0f} s: "
        f"look at 'streamlease doctor', and start the query again"
    )
