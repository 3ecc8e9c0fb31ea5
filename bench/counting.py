"""Commands that a Redis has run, those inside of scripts included."""

from __future__ import annotations

import redis

_OWN = "cmdstat_info"


class Counter:
    """Counts by ``INFO commandstats``; its own commands do not count."""

    def __init__(self, url: str) -> None:
        self._client = redis.Redis.from_url(url)
        self.all: dict[str, int] = self._now()

    def _now(self) -> dict[str, int]:
        return {name: stat["calls"] for name, stat in self._client.info("commandstats").items()}

    def since(self) -> dict[str, int]:
        """How many of each since the last call."""
        now = self._now()
        now[_OWN] = now.get(_OWN, 0)
        found = {name: calls - self.all.get(name, 0) for name, calls in now.items()}
        found[_OWN] -= 1  # the one before: a reply does not count the command that it answers
        self.all = now
        return found

    def close(self) -> None:
        """Give the connection back."""
        self._client.close()
