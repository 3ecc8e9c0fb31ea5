"""How long a query waits for a Redis that is away, ``redis.timeout``, and what it says without a leader."""

from __future__ import annotations

from streamlease.protocol.errors import StoreUnavailable, StreamleaseError

TELL_SECONDS = 5.0
"""After so long without a leader a query says so in its log; a leader that falls is followed sooner."""

AGAIN_SECONDS = 60.0
"""How often it says so."""


class Outage:
    """Since when Redis has not answered.

    Args:
        seconds: how long that may be.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._since: float | None = None
        self._error: StreamleaseError | None = None

    def look(self, error: StreamleaseError | None, now: float) -> None:
        """Take note of how the last question to Redis went."""
        if error is None or not error.retriable:
            self._since = None
        elif self._since is None:
            self._since = now
        self._error = error

    def check(self, now: float) -> None:
        """See whether it may go on.

        Raises:
            StoreUnavailable: no question was answered for too long.
        """
        if self._since is not None and now - self._since >= self._seconds:
            raise StoreUnavailable(
                f"Redis was away for {self._seconds:.0f} s (option 'redis.timeout'): {self._error}; "
                f"start the query again with the same checkpoint, and it goes on where it was"
            )


class Leaderless:
    """Whether a query has a leader, and what it says of that in its log and its progress.

    Args:
        subscription: what the query consumes.
    """

    def __init__(self, subscription: str) -> None:
        self._subscription = subscription
        self._since: float | None = None
        self._tell_at = 0.0

    def look(self, cause: str | None, now: float) -> str | None:
        """Take note at `now` (s) of why there is no leader; empty: that is not known, None: there is one.

        Returns:
            what is to be said in the log, if something is.
        """
        since = self._since
        if cause is None:
            self._since = None
            if since is not None and self._tell_at > since + TELL_SECONDS:
                return f"{self._subscription}: a leader answers again after {now - since:.0f} s"
            return None
        if since is None:
            since = self._since = now
            self._tell_at = now + TELL_SECONDS
        if now < self._tell_at:
            return None
        self._tell_at = now + AGAIN_SECONDS
        return f"{self.error(cause)} (for {now - since:.0f} s)"

    def error(self, cause: str) -> str:
        """What the query's progress says."""
        return f"no leader of {self._subscription} answers this query, so it reads nothing new" + (
            f": {cause}" if cause else ""
        )


def unled(subscription: str, seconds: float) -> StoreUnavailable:
    """No leader answers."""
    return StoreUnavailable(
        f"no leader of {subscription} answered within {seconds:.0f} s: "
        f"look at 'streamlease doctor', start a leader host, and start the query again"
    )


def unsettled(subscription: str, seconds: float, obstacle: str = "") -> StoreUnavailable:
    """A leader has not said in time whose the streams are; `obstacle` is what was seen last."""
    return StoreUnavailable(
        f"the streams of {subscription} were not settled by a leader within {seconds:.0f} s"
        + (f" ({obstacle})" if obstacle else "")
        + ": look at 'streamlease doctor' and 'streamlease group describe', and start the query again"
    )
