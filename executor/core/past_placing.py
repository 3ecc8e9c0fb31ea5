"""Which queries an executor has seen behind their placing: none of them is ever placed again. Pure.

The record of a query stands in Redis unsigned, and its permit holds for minutes: whoever can write there
could put both back as they were before the query ran. Nothing goes back (`queries/core/machine.py`), so
executors that saw it further on take no such record for true. One that was started since knows nothing of
it, and takes it as long as the permit holds.
"""

from __future__ import annotations

from collections.abc import Iterable

MOST_KNOWN = 100_000
"""Queries that are kept in mind; the oldest go first."""


class PastPlacing:
    """Queries that were seen spawning, or later.

    Args:
        keep_ms: for how long behind that a query is kept in mind: as long as a permit can hold.
    """

    def __init__(self, keep_ms: int) -> None:
        self._keep_ms = keep_ms
        self._seen: dict[str, int] = {}
        """When last, the oldest first."""

    def see(self, queries: Iterable[str], now: int) -> None:
        """These are behind their placing.

        Args:
            now: milliseconds of the Redis clock.
        """
        for query in queries:
            self._seen.pop(query, None)
            self._seen[query] = now
        while self._seen:
            oldest = next(iter(self._seen))
            if len(self._seen) <= MOST_KNOWN and self._seen[oldest] > now - self._keep_ms:
                break
            del self._seen[oldest]

    def __contains__(self, query: str) -> bool:
        return query in self._seen
