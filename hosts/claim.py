"""A claim: which of the leader hosts does what one of them does for all.

It is a leadership record like those of the groups, under a name that no group can have. Whoever has it renews
it with each round of its work; one that cannot is followed by another host, under a higher term.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from streamlease.protocol.errors import StreamleaseError
from streamlease.registry import leadership
from streamlease.registry.leadership import Candidacy, LeaderRecord, LeadershipConfig
from streamlease.streams.redis.connection import AsyncRedis, ask_each

log = logging.getLogger(__name__)

PAGE = 250
"""So many claims are renewed in one exchange."""


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
        self.name = name
        self.term: int | None = None
        """That of the claim; None: another host has it, or nobody."""
        self._redis = redis
        self._host = host
        self._clock = clock
        self._config = LeadershipConfig(
            ttl=max(4000, round(interval * 3000)), renew_interval=max(1, round(interval * 1000))
        )
        self._candidacy = Candidacy(name, host, host, self._config)
        self._renewed_at = 0

    async def get(self) -> bool:
        """Renew the claim, or try to get it; whether this host has it.

        Raises:
            StoreUnavailable, StoreRefused, Indefinite: try again.
        """
        for error in (await Claims(self._redis, self._host, self._clock).get([self])).values():
            raise error
        return self.term is not None

    @property
    def sure(self) -> bool:
        """Whether it is certainly held, by this host's own clock."""
        return self.term is not None and self._clock() - self._renewed_at < self._config.ttl

    def renewed(self, began: int) -> None:
        """It was renewed by what began at `began`."""
        self._renewed_at = began

    def lost(self, why: str) -> None:
        """It is no longer of this host."""
        log.warning("%s: %s", self.name.removeprefix("!"), why)
        self.term = None

    async def seek(self, record: LeaderRecord, began: int) -> None:
        """Try to get it, if what stands in Redis lets it.

        Raises:
            StoreUnavailable, StoreRefused, Indefinite: try again.
        """
        if record.damage:
            raise StreamleaseError(record.damage)
        if self._candidacy.observe(record, began):
            self.term = await self._candidacy.attempt(self._redis)
            self._renewed_at = began

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
            await leadership.resign(self._redis, self.name, self._host, term)


class Claims:
    """Gets many claims of one host in a few exchanges.

    Args:
        clock: this process' own clock in milliseconds.
    """

    def __init__(self, redis: AsyncRedis, host: str, clock: Callable[[], int]) -> None:
        self._redis = redis
        self._host = host
        self._clock = clock

    async def get(self, claims: Iterable[Claim]) -> dict[Claim, StreamleaseError]:
        """Renew those that are held, and try to get the others: what went wrong, with which.

        One with which something went wrong is held as before, until it is known to be lost.
        """
        failed: dict[Claim, StreamleaseError] = {}
        wanted = [*claims]
        for some in _pages([claim for claim in wanted if claim.term is not None]):
            failed |= await self._renew(some)
        for some in _pages([claim for claim in wanted if claim.term is None]):
            failed |= await self._seek(some)
        return failed

    async def _renew(self, claims: list[Claim]) -> dict[Claim, StreamleaseError]:
        began, failed = self._clock(), dict[Claim, StreamleaseError]()
        terms = {claim.name: claim.term for claim in claims if claim.term is not None}
        try:
            lost = await leadership.renew_all(self._redis, self._host, terms)
        except StreamleaseError as error:
            return dict.fromkeys(claims, error)
        for claim in claims:
            if claim.name not in lost:
                claim.renewed(began)
            elif isinstance(other := lost[claim.name], StreamleaseError):
                failed[claim] = other
            elif claim.term == terms[claim.name]:  # else it was given up meanwhile
                claim.lost(f"term {claim.term} of host {self._host} was followed by term {other}")
        return failed

    async def _seek(self, claims: list[Claim]) -> dict[Claim, StreamleaseError]:
        began, failed = self._clock(), dict[Claim, StreamleaseError]()
        commands = [leadership.record_command(claim.name) for claim in claims]
        try:
            *replies, time = await ask_each(self._redis, [*commands, ("TIME",)])
            if isinstance(time, StreamleaseError):
                raise time
        except StreamleaseError as error:
            return dict.fromkeys(claims, error)
        read_at = int(time[0]) * 1000 + int(time[1]) // 1000
        for claim, reply in zip(claims, replies, strict=True):
            try:
                await claim.seek(leadership.parse_record(claim.name, reply, read_at), began)
            except StreamleaseError as error:
                failed[claim] = error
        return failed


def _pages(claims: list[Claim]) -> Iterable[list[Claim]]:
    return (claims[begin : begin + PAGE] for begin in range(0, len(claims), PAGE))
