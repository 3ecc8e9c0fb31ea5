"""Submitting a job, and placing its workers; what is told of an executor whose life is over."""

from __future__ import annotations

import asyncio
import hashlib
import random
import secrets
from collections.abc import Callable, Iterable

import redis as redis_py
from redis.exceptions import RedisError

from streamlease.protocol.errors import (
    Indefinite,
    NoExecutor,
    QueryRefused,
    StoreUnavailable,
    UnknownQuery,
    Unsupported,
)
from streamlease.queries.core.machine import EndWanted, Event, WorkersLost, WorkersPlaced, step
from streamlease.queries.core.record import QueryOutcome, QueryRecord, QueryStage
from streamlease.queries.core.signed_orders import (
    Job,
    Order,
    OrderedWorker,
    check_job,
    former_query,
    next_query,
    permit_for,
    sign,
    token_digest,
    token_of,
)
from streamlease.queries.core.worker_places import booked_by, place
from streamlease.queries.files import upload
from streamlease.queries.keys import PERMITS
from streamlease.queries.store import (
    MOST_TRIES,
    SeenQueries,
    Write,
    change,
    look,
    read,
    reap,
    write,
)
from streamlease.registry.spawn import put_job
from streamlease.registry.spawn_jobs import SpawnWorkers, executor_queue
from streamlease.streams.redis.connection import Redis, ask, is_cluster

PERMIT_MS = 15 * 60_000
"""How long after the last renewal of its permit a query may be placed anew."""

_shuffled = random.SystemRandom()


def new_query() -> str:
    """A fresh id."""
    return secrets.token_hex(8)


def check_one_server(redis: Redis) -> None:
    """Raises Unsupported on a Redis Cluster: orders go through RQ, whose keys lie in several slots."""
    if is_cluster(redis):
        raise Unsupported(
            "executors need one Redis, or one behind Sentinels, and this is a Redis Cluster, over which the "
            "keys of RQ would be spread: give executors and who submits another --redis"
        )


async def submit(
    redis: Redis, queue: redis_py.Redis, key: bytes, job: Job, contents: Iterable[bytes]
) -> QueryRecord:
    """Have a job run: its record, with the executors that were chosen.

    Args:
        queue: for the queues of executors.
        key: the submit key, of all executors.
        contents: of those files that travel through Redis.

    Raises:
        NoExecutor: nothing fits, or nothing is free: nothing was done.
        StoreUnavailable, StoreRefused, Indefinite.
    """
    seen = await look(redis)
    place(job, seen.executors, booked_by(one.record for one in seen.queries.values()))
    for content in contents:
        await upload(redis, content)
    query, text = job.query, job.text
    record = QueryRecord(
        query=query,
        name=job.name,
        state=QueryStage.PLACING,
        size=job.workers,
        who=job.who,
        restart=job.restart,
        job=text,
        signature=sign(key, "job", text),
        submitted_at=seen.at,
    )
    digest, permit = token_digest(token_of(key, query)), permit_for(key, query, seen.at + PERMIT_MS)
    await write(redis, [Write(0, record, digest=digest, permit=permit)])
    try:
        return await place_query(redis, queue, key, query, job)
    except NoExecutor as error:
        await change(redis, query, EndWanted(QueryOutcome.ABORTED, str(error)), seen.at)
        raise


async def place_query(redis: Redis, queue: redis_py.Redis, key: bytes, query: str, job: Job) -> QueryRecord:
    """Choose executors for a query whose job was checked, and order them to run it.

    Raises:
        NoExecutor: there is no room.
        StoreUnavailable, StoreRefused, Indefinite: what was not ordered ends when its time to spawn is over.
    """
    for _ in range(MOST_TRIES):
        seen = await look(redis)
        found = seen.queries.get(query)
        if found is None or found.record.state is not QueryStage.PLACING:
            return (await read(redis, query)).record  # somebody else was quicker
        executors = _shuffled.sample(seen.executors, len(seen.executors))
        booked = booked_by(one.record for one in seen.queries.values())
        workers = place(job, executors, booked, anew=found.record.former is not None)
        until = seen.at + job.spawn_ms
        record = step(found.record, WorkersPlaced(workers, until), seen.at)
        digest = token_digest(token_of(key, query))
        done = await write(
            redis,
            [Write(found.revision, record, digest=digest)],
            placed=seen.placed,
            lives=[one.life for one in workers],
        )
        if done.word == "done":
            await asyncio.to_thread(_order, queue, key, record, job, until)
            return record
    raise Indefinite(f"query {query} could not be placed, because others were again and again: try again")


def _order(queue: redis_py.Redis, key: bytes, record: QueryRecord, job: Job, until: int) -> None:
    lives = {one.life: one.executor for one in record.workers}
    for life, executor in lives.items():
        workers = tuple(OrderedWorker(worker=one.worker, port=one.port) for one in record.of_life(life))
        order = Order(query=record.query, life=life, workers=workers, until=until, job=job.text)
        spawn = SpawnWorkers(order.text, sign(key, "order", order.text))
        digest = hashlib.sha256(f"{record.query} {life}".encode()).hexdigest()[:32]
        id = f"{spawn.id_prefix}{digest}-{record.workers[0].worker}-{until}"
        try:
            put_job(queue, executor_queue(executor), spawn, id, ttl=max(1, job.spawn_ms // 1000))
        except (RedisError, OSError) as error:
            raise StoreUnavailable(f"executor {executor} could not be asked: {error}") from None


async def advance(redis: Redis, query: str, event: Event, now: int) -> QueryRecord | None:
    """Step a query; one that is lost and is to be placed anew gets its successor in the same act.

    Returns:
        its record; None if nobody knows it any more.

    Raises:
        StoreUnavailable, StoreRefused, Indefinite: safe to repeat.
    """
    for _ in range(MOST_TRIES):
        try:
            found = await read(redis, query)
        except UnknownQuery:
            return None
        stepped = step(found.record, event, now)
        if stepped == found.record:
            return stepped
        writes = [Write(found.revision, stepped)]
        ended = stepped.state is QueryStage.ENDED
        if ended and stepped.outcome is QueryOutcome.LOST and stepped.restart:
            following = next_query(query)
            writes = [
                Write(found.revision, stepped.model_copy(update={"next": following})),
                Write(0, _anew(stepped, following, now)),
            ]
        if (await write(redis, writes)).word == "done":
            return writes[0].record
    raise Indefinite(f"query {query} is changed by others again and again: try again")


def _anew(lost: QueryRecord, query: str, now: int) -> QueryRecord:
    kept = {"name", "size", "who", "restart", "job", "signature"}
    return QueryRecord(
        **lost.model_dump(include=kept),
        query=query,
        state=QueryStage.PLACING,
        submitted_at=now,
        former=lost.query,
    )


async def see_to_lost(redis: Redis, seen: SeenQueries, silent: Callable[[str], bool]) -> bool:
    """End the lives of executors that are silent, and tell their queries; whether anything was.

    Args:
        silent: whether an executor whose lease is over counts as dead; given its life.

    Raises:
        StoreUnavailable, StoreRefused, Indefinite: safe to repeat.
    """
    over = {life for life, until in seen.until.items() if until < seen.at and silent(life)}
    if over:
        await reap(redis, over)
        over -= (await look(redis)).until.keys()
    changed = bool(over)
    for query, found in seen.queries.items():
        for one in found.record.left:
            if one.life not in seen.until or one.life in over:
                why = f"executor {one.executor} died, or was cut off"
                await advance(redis, query, WorkersLost(one.life, why), seen.at)
                changed = True
    return changed


async def permitted_job(redis: Redis, key: bytes, record: QueryRecord, now: int) -> Job:
    """The job of a query that may be placed now, by its own permit or that of the query that was lost.

    What stands in the record is not signed. So a query that follows another one needs a job that was
    submitted with ``--restart``; and the permit of the former one, which holds while that lives, is for it
    only once that has ended as lost.

    Raises:
        QueryRefused: it may not.
        StoreUnavailable, StoreRefused, Indefinite.
    """
    refused = QueryRefused(f"query {record.query} has no permit")
    former = former_query(record.query)
    for query in (record.query, former if former == record.former else None):
        if query is None:
            continue
        (permit,) = await ask(redis, [("HGET", PERMITS, query)])
        if permit is None:
            continue
        try:
            text = permit.decode("utf-8", "replace")
            job = check_job(key, query, record.job, record.signature, text, now)
            if record.query != job.query and not job.restart:
                raise QueryRefused(f"query {job.query} was submitted without --restart: nothing follows it")
            if query != record.query:
                await _check_lost(redis, query, record.query)
            return job
        except QueryRefused as error:
            refused = error
    raise refused


async def _check_lost(redis: Redis, former: str, following: str) -> None:
    try:
        lost = (await read(redis, former)).record
    except UnknownQuery:
        raise QueryRefused(f"query {former} is not known any more: submit the job again") from None
    except Unsupported as error:
        raise QueryRefused(str(error)) from None
    if (lost.state, lost.outcome, lost.next) != (QueryStage.ENDED, QueryOutcome.LOST, following):
        raise QueryRefused(
            f"query {former} has not ended as lost, so that {following} followed it: it is {lost.state.value}"
        )


async def renew_permit(redis: Redis, key: bytes, query: str, now: int) -> None:
    """Have a query that runs, or may be placed, be permitted for some minutes more."""
    await ask(redis, [("HSET", PERMITS, query, permit_for(key, query, now + PERMIT_MS))])
