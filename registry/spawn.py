"""Find the leader of a shared subscription, or have one spawned (EIP-0028, `leader_wanted`).

Whoever misses a leader asks some of the leader hosts that are alive, by a message into their mailboxes. A
host that is asked makes an RQ job, which any leader host may take. The job only places the leader: the host
that takes it becomes a candidate, and the job ends. Who leads is decided by the leadership record alone, so
a job that runs twice, late or never does no harm.

The job's id is deterministic: the group, the term that would follow, and the current window of time. All
that miss the same leader at once, and all hosts that they ask, make one job, and a job that a dying host took
is followed by another in the next window. Only hosts need rights to the keys of RQ
(`docs/decisions/0120-only-hosts-touch-the-queue.md`). What a job may say is fixed in `spawn_jobs`.

A Redis Cluster has no RQ, whose keys lie in many slots: there the one host that is asked leads by itself.
"""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import dataclass

import redis as redis_py
from redis.exceptions import RedisError, ResponseError

from streamlease.protocol.errors import InvalidOption
from streamlease.protocol.messages import SpawnWanted
from streamlease.registry import hosts, leadership
from streamlease.registry.leadership import LeaderRecord
from streamlease.registry.mail import mailbox
from streamlease.registry.spawn_jobs import LEADERS, JobQueue, LeadGroup, SpawnJob
from streamlease.streams.redis.connection import (
    AsyncRedis,
    BlockingCluster,
    address,
    connect_blocking,
    is_cluster,
    masked,
    refusal,
    unavailable,
)

WINDOW_MS = 3000
"""Length of the window in which one spawn job per group and term exists."""

ASKED = 3
"""So many hosts are asked for a leader: one that just died counts as alive for some seconds."""


@dataclass(frozen=True, slots=True)
class Found:
    """What is known about a group's leader."""

    record: LeaderRecord
    hosts: int
    """How many leader hosts are alive."""
    host_ids: tuple[str, ...] = ()
    """Which, in an order that all who look see alike."""

    @property
    def live(self) -> bool:
        """Whether somebody leads and has renewed in time."""
        return self.record.held and not self.record.expired


async def find(redis: AsyncRedis, group: str) -> Found:
    """Who leads the group now, and whether there are hosts that could.

    Raises:
        StoreUnavailable: Redis does not answer.
    """
    record = await leadership.read(redis, group)
    alive = await hosts.alive(redis)
    return Found(record, len(alive), tuple(sorted(host.host for host in alive)))


def queue_client(url: str) -> redis_py.Redis:
    """A client for the queue of spawn jobs. Close it.

    Raises:
        InvalidOption: `url` is malformed, or of a Redis Cluster, which has no such queue.
    """
    client = connect_blocking(url)
    if isinstance(client, BlockingCluster):
        client.close()
        raise InvalidOption(f"'{masked(url)}' is a Redis Cluster, which has no queue of spawn jobs")
    return client


def job_id(group: str, term: int, now_ms: int) -> str:
    """The id of the job that spawns the leader of `term` in the window of time around `now_ms`."""
    digest = hashlib.sha256(group.encode("utf-8")).hexdigest()[:32]
    return f"{LeadGroup.id_prefix}{digest}-{term}-{now_ms // WINDOW_MS}"


async def ask_hosts(redis: AsyncRedis, sender: str, group: str, found: Found, above: int = 0) -> bool:
    """Ask some of the hosts that are alive to see to a leader; False if all of them are gone.

    On a Redis Cluster one is asked, and leads. All who ask within one window ask the same hosts; one that
    dies is followed by another in a later window.

    Args:
        above: the highest term that the caller has seen: Redis may have lost it since.

    Raises:
        StoreUnavailable: Redis does not answer; it may have been sent.
    """
    window = found.record.read_at // WINDOW_MS
    digest = hashlib.sha256(job_id(group, found.record.term + 1, window * WINDOW_MS).encode()).digest()
    first, count = int.from_bytes(digest[:4], "big"), len(found.host_ids)
    asked = {found.host_ids[(first + n) % count] for n in range(1 if is_cluster(redis) else ASKED)}
    wanted = SpawnWanted(group=group, above=above)
    return await mailbox.send(redis, sender, [(host, wanted) for host in sorted(asked)]) != asked


async def spawn(redis: redis_py.Redis, group: str, record: LeaderRecord, above: int = 0) -> bool:
    """Make the job for a leader of the group, which any host may take; False if there is one already.

    Args:
        redis: a blocking client, because RQ is blocking; used in a thread.
        record: the leadership record as last read; its clock decides the window.
        above: the new term must be higher.

    Raises:
        StoreUnavailable, StoreRefused: no job could be made, or nobody knows whether one was.
    """
    try:
        return await asyncio.to_thread(_spawn, redis, group, record, above)
    except ResponseError as error:
        raise refusal(error) from None
    except (RedisError, OSError) as error:
        raise unavailable(address(redis), error) from None


def _spawn(redis: redis_py.Redis, group: str, record: LeaderRecord, above: int) -> bool:
    now = record.read_at or _redis_ms(redis)
    return put_job(redis, LEADERS, LeadGroup(group, above), job_id(group, record.term + 1, now))


def put_job(redis: redis_py.Redis, queue: JobQueue, job: SpawnJob, id: str, ttl: int = 10) -> bool:
    """Put a job into a queue; False if one of that id is there already.

    Args:
        ttl: seconds until nobody need take it any more.

    Raises:
        redis.RedisError, OSError.
    """
    from rq import Queue  # whoever makes no jobs need not import it
    from rq.exceptions import DuplicateJobError
    from rq.serializers import JSONSerializer

    try:
        Queue(queue.name, connection=redis, serializer=JSONSerializer).enqueue_call(
            job.kind,
            args=job.arguments,
            job_id=id,
            unique=True,
            result_ttl=0,
            failure_ttl=60,
            ttl=ttl,
            timeout=10,
            description=str(job),
        )
    except DuplicateJobError:
        return False
    return True


def _redis_ms(redis: redis_py.Redis) -> int:
    seconds, microseconds = redis.time()
    return int(seconds) * 1000 + int(microseconds) // 1000
