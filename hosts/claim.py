"""A claim: which of the leader hosts does what one of them does for all.

It is a leadership record like those of the groups, under a name that no group can have. Whoever has it renews
it with each round of its work; one that cannot is followed by another host, under a higher term.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from streamlease.protocol.errors import Fenced
from streamlease.registry import leadership
from streamlease.registry.leadership import Candidacy, LeadershipConfig
from streamlease.streams.redis.connection import AsyncRedis

log = logging.getLogger(__name__)


class Claim:
    """One claim of one host.

    Args:
        name: ends up in a key, and has no ``/``.
        clock: this process' own clock in milliseconds.
        interval: seconds from one round to the next, about.
    """

    def __init__(
        self, redis: AsyncRedis, name: str, host: str, clock: Callable[[], int], interval: float
    ) -> None:
        self._redis = redis
        self._name = name
        self._host = host
        self._clock = clock
        self._config = LeadershipConfig(
            ttl=max(4000, round(interval * 3000)), renew_interval=max(1, round(interval * 1000))
        )
        self._candidacy = Candidacy(name, host, host, self._config)
        self.term: int | None = None
        """That of the claim; None: another host has it, or nobody."""
        self._renewed_at = 0

    async def get(self) -> bool:
        """Renew the claim, or try to get it; whether this host has it.

        Raises:
            StoreUnavailable, StoreRefused, Indefinite: try again.
        """
        began = self._clock()
        if self.term is not None:
            try:
                await leadership.renew(self._redis, self._name, self._host, self.term)
                self._renewed_at = began
                return True
            except Fenced as error:
                log.warning("%s: %s", self._name.removeprefix("!"), error)
                self.term = None
        record = await leadership.read(self._redis, self._name)
        if self._candidacy.observe(record, began):
            self.term = await self._candidacy.attempt(self._redis)
            self._renewed_at = began
        return self.term is not None

    @property
    def sure(self) -> bool:
        """Whether it is certainly held, by this host's own clock."""
        return self.term is not None and self._clock() - self._renewed_at < self._config.ttl

    async def give_up(self, below: int = 0) -> None:
        """Let another host have it at once.

        Args:
            below: the next term of this host is above that.

        Raises:
            StoreUnavailable, StoreRefused, Indefinite: it expires by itself.
        """
        self._candidacy.floor = max(self._candidacy.floor, below)
        if self.term is not None:
            term, self.term = self.term, None
            await leadership.resign(self._redis, self._name, self._host, term)
