"""What is told of queries to whoever only looks, and to whoever waits for the end of one.

Looking ends nothing: whoever asks once cannot know whether an executor has died, or whether Redis was away,
and with it all leases. It is told which executors are silent. Whoever waits for a query has reached Redis all
the time, as the executors that see to each other have, and tells the queries of the dead as they do, only
later: so a query ends also if its executor was the only one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from streamlease.protocol.errors import StoreRefused
from streamlease.queries.core.record import QueryRecord, QueryStage
from streamlease.queries.store import SeenQueries, look, read
from streamlease.queries.submitting import see_to_lost
from streamlease.streams.redis.connection import Redis

POLL_SECONDS = 0.25
LOOK_SECONDS = 5.0

SILENT_SECONDS = 30.0
"""How long after the end of its lease an executor counts as dead for whoever waits; and how long he must have
reached Redis without a break."""


class QueryWait:
    """Somebody waits for the end of a query, and looks now and then which executors are dead.

    Args:
        clock: seconds; anything that never goes back.
    """

    def __init__(self, redis: Redis, clock: Callable[[], float] = time.monotonic) -> None:
        self._redis = redis
        self._clock = clock
        self._constant_since = clock()
        """Since when Redis has answered without a break."""
        self._answered = clock()
        self._looked = clock()

    async def record(self, query: str) -> QueryRecord:
        """The record now; what is dead was told before.

        Raises:
            UnknownQuery, Unsupported.
            StoreUnavailable, StoreRefused, Indefinite.
        """
        if self._clock() - self._looked >= LOOK_SECONDS:
            self._looked = self._clock()
            await self._see_to_dead()
        found = (await read(self._redis, query)).record
        self._heard()
        return found

    async def _see_to_dead(self) -> None:
        try:
            seen = await look(self._redis)
            self._heard()
            if self._clock() - self._constant_since > SILENT_SECONDS:
                await see_to_lost(self._redis, seen, lambda life: _silent(seen, life, SILENT_SECONDS))
        except StoreRefused:
            return  # whoever may only read sees to nothing

    def _heard(self) -> None:
        now = self._clock()
        if now - self._answered > LOOK_SECONDS:
            self._constant_since = now
        self._answered = now


def _silent(seen: SeenQueries, life: str, seconds: float) -> bool:
    return seen.until[life] < seen.at - seconds * 1000


async def until_ended(redis: Redis, query: str, *, on_change: Callable[[QueryRecord], None]) -> QueryRecord:
    """Wait until a query has ended, and with `--restart` those that follow it."""
    waiting, shown = QueryWait(redis), None
    while True:
        record = await waiting.record(query)
        if record != shown:
            on_change(record)
            shown = record
        if record.state is QueryStage.ENDED:
            if record.next is None:
                return record
            query = record.next
            continue
        await asyncio.sleep(POLL_SECONDS)


async def silent_executors(redis: Redis) -> dict[str, list[str]]:
    """Of each executor that is silent the queries that it has not ended, as far as the caller may know.

    Raises:
        StoreUnavailable, Indefinite.
    """
    try:
        seen = await look(redis)
    except StoreRefused:
        return {}
    found: dict[str, list[str]] = {}
    for query, one in seen.queries.items():
        for worker in one.record.left:
            if worker.life not in seen.until or _silent(seen, worker.life, 0):
                queries = found.setdefault(worker.executor, [])
                if query not in queries:
                    queries.append(query)
    return found
