"""What an executor does for others: queries of dead executors, and those that wait for a place.

An executor takes others for dead only if it has reached Redis all the time: behind an outage of Redis all
leases are over, and all executors are there.
"""

from __future__ import annotations

import logging

import redis as redis_py

from streamlease.executor.core.past_placing import PastPlacing
from streamlease.executor.guard import clock
from streamlease.protocol.errors import NoExecutor, QueryRefused
from streamlease.queries import files, keys, submitting
from streamlease.queries.core.machine import EndWanted
from streamlease.queries.core.record import QueryOutcome, QueryRecord, QueryStage
from streamlease.queries.core.signed_orders import Job, printable
from streamlease.queries.store import SeenQueries
from streamlease.streams.redis.connection import AsyncRedis, ask

log = logging.getLogger(__name__)

KEEP_SECONDS = 60.0
"""How often permits and files of what runs, or waits for a place, are renewed."""


class QueriesOfOthers:
    """Of one executor.

    Args:
        queue: for the queues of executors.
        lease: of the executor, in seconds.
    """

    def __init__(self, redis: AsyncRedis, queue: redis_py.Redis, key: bytes, lease: float) -> None:
        self._redis = redis
        self._queue = queue
        self._key = key
        self._lease = lease
        self._constant_since = clock()
        """Since when Redis was reached all the time."""
        self._refusals = ""
        """The newest that was told."""
        self._waiting: dict[str, float] = {}
        """Queries for which there is no room, which was said; until when what they need is kept."""
        self.past_placing = PastPlacing(submitting.PERMIT_MS)
        self._damaged: set[str] = set()
        """Queries whose records are damaged, which was said."""

    def begin_anew(self) -> None:
        """Redis was not reached, or this executor stood still."""
        self._constant_since = clock()

    async def see_to(self, seen: SeenQueries, own: str) -> bool:
        """Do what is due; whether anything changed by it.

        Args:
            own: the life of this executor.

        Raises:
            StoreUnavailable, StoreRefused, Indefinite: safe to repeat.
        """
        for query in {*seen.damaged} - self._damaged:
            log.error("the record of query %s is damaged: it is left alone", printable(query))
        self._damaged = {*seen.damaged}
        patient = clock() - self._constant_since > self._lease
        placing = {query for query, one in seen.queries.items() if one.record.state is QueryStage.PLACING}
        self.past_placing.see(seen.queries.keys() - placing, seen.at)
        self._waiting = {query: until for query, until in self._waiting.items() if query in placing}
        changed = await submitting.see_to_lost(self._redis, seen, lambda life: patient and life != own)
        for query, found in seen.queries.items():
            record = found.record
            if record.state is QueryStage.SPAWNING and record.spawn_until < seen.at:
                await submitting.advance(
                    self._redis, query, EndWanted(QueryOutcome.ABORTED, _late(record)), seen.at
                )
            elif record.state is QueryStage.PLACING:
                await self._place(record, seen.at)
        return changed

    async def _place(self, record: QueryRecord, now: int) -> None:
        query = record.query
        if record.former is None and now - record.submitted_at < self._lease * 1000:
            return  # who submitted it does that
        try:
            if query in self.past_placing:
                raise QueryRefused("it was placed already, and its record was put back: submit the job again")
            job = await submitting.permitted_job(self._redis, self._key, record, now)
        except QueryRefused as error:
            log.error("query %s is not placed: %s; %s submitted it", query, error, printable(record.who))
            await submitting.advance(self._redis, query, EndWanted(QueryOutcome.ABORTED, str(error)), now)
            return
        try:
            placed = await submitting.place_query(self._redis, self._queue, self._key, query, job)
        except NoExecutor as error:
            await self._wait(query, job, error, now)
            return
        self._waiting.pop(query, None)
        await submitting.renew_permit(self._redis, self._key, query, now)
        where = ", ".join(sorted({one.executor for one in placed.workers}))
        log.info("query %s is placed anew on %s, in place of %s", query, where, record.former)

    async def _wait(self, query: str, job: Job, error: NoExecutor, now: int) -> None:
        """A query waits for room: its permit and its files last as long as somebody sees that it waits."""
        if query not in self._waiting:
            log.warning("query %s waits: %s", query, error)
        if clock() >= self._waiting.get(query, 0.0):
            await submitting.renew_permit(self._redis, self._key, query, now)
            await files.keep(self._redis, [job.program, *job.files])
            self._waiting[query] = clock() + KEEP_SECONDS

    async def tell_refusals(self) -> None:
        """Log who used a token that is not that of his query.

        Raises:
            StoreUnavailable, StoreRefused, Indefinite: safe to repeat.
        """
        if not self._refusals:
            (newest,) = await ask(self._redis, [("XREVRANGE", keys.REFUSED, "+", "-", "COUNT", 1)])
            self._refusals = newest[0][0].decode() if newest else "0-0"
            return
        (found,) = await ask(self._redis, [("XRANGE", keys.REFUSED, f"({self._refusals}", "+", "COUNT", 100)])
        for id, fields in found:
            self._refusals = id.decode()
            if len(fields) < 4:
                continue  # whoever may write here may write anything
            query, who = fields[1].decode("utf-8", "replace"), fields[3].decode("utf-8", "replace")
            log.error(
                "a token that is not that of query %s was used by %s: refused",
                printable(query),
                printable(who),
            )


def _late(record: QueryRecord) -> str:
    missing = [f"{one.worker} on {one.executor}" for one in record.workers if not one.joined]
    return (
        f"not all workers have joined in time: missing {', '.join(missing[:8])}: "
        f"each worker of several calls streamlease.queries.join()"
    )
