"""Spawn jobs: the only RQ jobs that a leader host or an executor takes, and the worker that takes them.

RQ by itself runs whatever a job names: it unpickles the job, imports its function, its callbacks and its
dependents' functions, sends its webhooks, and obeys commands that come over a channel. Whoever may write the
keys of RQ could so run any code on every host. Here nothing of that is left. A job is JSON, and is compared
with the forms that it may have *before* anything is done with it (``registry.spawn_jobs``, a closed union)::

    ["streamlease.lead", null, [GROUP, ABOVE], {}]      and no callback, webhook, repetition, dependency, ...
    ["streamlease.spawn", null, [ORDER, SIGNATURE], {}]

Which of them is known depends on the queue. No function is ever looked up by name: what has this form is
handed to the host as a value. All else is
refused: it is logged as an error, counted (``streamlease_refused_jobs_total``, and as failed in RQ's own
registry, where `streamlease doctor` sees it), and removed. The worker performs no job in RQ's way, listens on
no channel, and minds no ``rq suspend``, which belongs to other applications of RQ.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import re
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from redis import Redis
from redis.exceptions import RedisError, ResponseError
from rq import Queue, SimpleWorker, worker_registration
from rq.exceptions import NoSuchJobError, StopRequested
from rq.job import Job
from rq.serializers import JSONSerializer
from rq.utils import now as rq_now

from streamlease.leader.metrics import REFUSED_JOBS
from streamlease.protocol.seldom import Seldom
from streamlease.registry.spawn_jobs import LEADERS, JobQueue, JobRefused, SpawnJob, spawn_job

log = logging.getLogger(__name__)

AGAIN_SECONDS = 1.0
"""How long after the end of a worker the next one begins."""

SHOWN_SECONDS = 10.0
"""How often a worker that waits shows that it is alive, which counts for 76 s."""

LONGEST_DATA = 256 * 1024
"""Bytes of the data of a job, unpacked. A group and its filter are shorter."""

_NUMBERS = re.compile(rb"[0-9a-f]{32}-[0-9]{1,20}-[0-9]{1,20}")
REMEMBERED_SECONDS = 3600
"""How long a job that was refused counts as failed."""

RunJob = Callable[[SpawnJob], None]
"""Has the host run what a job asks for; called in the worker's thread."""

_FIELDS = frozenset(
    {
        "created_at", "data", "description", "ended_at", "enqueued_at", "failure_ttl", "last_heartbeat",
        "origin", "result_ttl", "started_at", "status", "timeout", "ttl", "worker_name",
    }
)  # fmt: skip
"""What a spawn job may tell of itself; of these only `data` and `origin` are read."""


def is_id(id: bytes, of: JobQueue) -> bool:
    """Whether a job of that queue may have this id. Pure."""
    prefixes = [kind.id_prefix.encode() for kind in of.kinds.values()]
    return any(id.startswith(one) and _NUMBERS.fullmatch(id[len(one) :]) for one in prefixes)


def read_job(fields: Mapping[str, bytes], of: JobQueue = LEADERS) -> SpawnJob:
    """What is asked, from the hash of a job. Pure.

    Raises:
        JobRefused: it is not of a form that is taken in that queue.
    """
    more = sorted(name for name, value in fields.items() if name not in _FIELDS and value)
    if more:
        raise JobRefused(f"it has {', '.join(ascii(name)[1:-1] for name in more)[:200]}")
    if fields.get("origin", b"") != of.name.encode():
        raise JobRefused(f"it is of another queue, {ascii(fields.get('origin', b''))[:80]}")
    return spawn_job(_data(fields.get("data", b"")), of)


def _data(packed: bytes) -> Any:
    unpacking = zlib.decompressobj()
    try:
        data = unpacking.decompress(packed, LONGEST_DATA)
        if not unpacking.eof:
            raise JobRefused(f"its data is longer than {LONGEST_DATA} bytes, or cut off")
        return json.loads(data.decode("utf-8"))
    except (zlib.error, ValueError, RecursionError) as error:
        raise JobRefused(f"its data is not JSON ({type(error).__name__})") from None


class QueuedJob(Job):
    """RQ's job around a spawn job: it can do nothing but carry it."""

    asks: SpawnJob
    fields: Mapping[str, bytes]
    """What its hash says; nothing is done with that but by `take`."""

    def restore(self, raw_data: Any) -> None:
        """Keep what the hash says."""
        self.fields = {
            bytes(name).decode("ascii", "replace"): bytes(value) for name, value in raw_data.items()
        }

    def take(self, of: JobQueue) -> None:
        """Take what the hash says, if it is a spawn job of that queue.

        Raises:
            JobRefused: it is not.
        """
        self.asks = read_job(self.fields, of)
        self.origin, self.description = of.name, str(self.asks)

    @property
    def func(self) -> None:
        """None: no name is ever looked up."""


class SpawnQueue(Queue):
    """A queue of spawn jobs; what is none is refused as it is taken."""

    job_class = QueuedJob
    of: JobQueue = LEADERS

    @classmethod
    def dequeue_any(
        cls, queues: Iterable[Queue], timeout: int | None, connection: Redis, *_: Any, **__: Any
    ) -> tuple[Job, Queue] | None:
        """The next spawn job.

        Raises:
            DequeueTimeout: none came.
            redis.RedisError: Redis does not answer.
        """
        (queue,) = queues
        of: JobQueue = queue.of  # type: ignore[attr-defined]  # it is a SpawnQueue
        while (taken := cls.lmove(connection, queue.key, timeout)) is not None:
            id = bytes(taken[1])
            try:
                if not is_id(id, of):
                    raise JobRefused("its id is not that of a spawn job")
                job = QueuedJob.fetch(id.decode("ascii"), connection=connection, serializer=JSONSerializer)
                assert isinstance(job, QueuedJob), job
                job.take(of)
                return job, queue
            except NoSuchJobError:
                connection.lrem(queue.intermediate_queue_key, 1, id.decode("ascii"))  # nobody took it in time
            except (JobRefused, ValueError, ResponseError) as error:
                refuse(connection, queue, id, error, of)
        return None


def refuse(connection: Redis, queue: Queue, id: bytes, why: Exception, of: JobQueue = LEADERS) -> None:
    """Remove a job that is no spawn job, and say so."""
    REFUSED_JOBS.inc()
    log.error(
        "job %s in queue %s is refused, nothing of it was run: %s; only %s may write this queue: "
        "look who else has rights to rq:* (docs/redis.md)",
        ascii(id)[2:-1][:100],
        of.name,
        " ".join(str(why).split()),
        "leader hosts" if of is LEADERS else "operators and executors",
    )
    with connection.pipeline(transaction=False) as pipe:
        pipe.execute_command("LREM", queue.intermediate_queue_key, 0, id)  # type: ignore[no-untyped-call]
        pipe.zadd(of.failed, {id: time.time() + REMEMBERED_SECONDS})
        if is_id(id, of):
            pipe.unlink(b"rq:job:" + id)
        pipe.execute(raise_on_error=False)


class HostWorker(SimpleWorker):
    """An RQ worker that lives in a thread of the host's process and takes its spawn jobs, nothing else."""

    queue_class = SpawnQueue
    job_class = QueuedJob
    max_connection_wait_time = 2.0

    def __init__(
        self, redis: Redis, name: str, run_job: RunJob, of: JobQueue = LEADERS, seldom: Seldom | None = None
    ) -> None:
        # RQ waits for jobs in steps of its worker_ttl less 15 s; a name is free again after a while.
        queue = SpawnQueue(of.name, connection=redis, serializer=JSONSerializer, job_class=QueuedJob)
        queue.of = of
        self._of = of
        super().__init__([queue], connection=redis, name=name, worker_ttl=16, serializer=JSONSerializer)
        self._run_job = run_job
        self._seldom = seldom or Seldom(log)
        self._shown_at: float | None = None

    def dequeue_job_and_maintain_ttl(
        self, timeout: int | None, max_idle_time: int | None = None
    ) -> tuple[Job, Queue] | None:
        """The next job."""
        with self._refusals():
            return super().dequeue_job_and_maintain_ttl(timeout, max_idle_time)

    def execute_job(self, job: Job, queue: Queue) -> None:
        """Hand it to the host. The job stays until it expires, so that nobody makes it again."""
        assert isinstance(job, QueuedJob), job
        with self._refusals():
            if self._stop_requested:
                self.connection.rpush(queue.key, job.id)  # another host takes it
            else:
                self._run_job(job.asks)
            self.connection.lrem(queue.intermediate_queue_key, 1, job.id)

    @contextlib.contextmanager
    def _refusals(self) -> Iterator[None]:
        """If Redis refuses a write, as with a full disk, or goes, the worker ends; RQ would see a defect."""
        try:
            yield
        except RedisError as error:
            _pauses(self._seldom, self.name, error)
            raise StopRequested from None

    def _install_signal_handlers(self) -> None:
        """Signals belong to the main thread."""

    def _set_ip_address(self, connection: Redis) -> None:
        """It would ask for the list of all clients, which a host has no right to."""
        self.ip_address = "unknown"

    def subscribe(self) -> None:
        """No commands are taken over a channel: one of them ends the process."""

    def check_for_suspension(self, burst: bool) -> None:
        """``rq suspend`` is for the workers of other applications on this Redis."""

    def run_maintenance_tasks(self) -> None:
        """Forget what died; of this queue only, and without reading a job."""
        self.last_cleaned_at = rq_now()  # type: ignore[assignment]  # a time, or None
        (queue,) = self.queues
        connection = self.connection
        with self._refusals():
            connection.zremrangebyscore(self._of.failed, 0, time.time())
            for id in connection.lrange(queue.intermediate_queue_key, 0, -1):
                if not connection.exists(b"rq:job:" + bytes(id)):  # type: ignore[arg-type]  # no text here
                    connection.execute_command("LREM", queue.intermediate_queue_key, 0, id)  # type: ignore[no-untyped-call]
            worker_registration.clean_worker_registry(queue)

    def stop(self) -> None:
        """Take no more jobs; `work` returns after the present wait."""
        self._stop_requested = True

    def heartbeat(self, timeout: int | None = None, pipeline: Any = None) -> None:
        """RQ asks nobody while it waits for jobs, but it shows here, between two waits, that it is alive."""
        if self._stop_requested:
            raise StopRequested
        now = time.monotonic()
        waits = timeout is None and pipeline is None
        if waits and self._shown_at is not None and now - self._shown_at < SHOWN_SECONDS:
            return
        with self._refusals():
            super().heartbeat(timeout, pipeline)
        self._shown_at = now


def _pauses(seldom: Seldom, name: str, error: Exception) -> None:
    """Workers follow each other every second; of a pipeline, redis-py names the command before the cause."""
    cause = str(error).rpartition("caused error: ")[2]
    seldom.warning("%s takes no spawn jobs for a moment: %s", name, error, kind=cause)


class SpawnJobs:
    """Takes spawn jobs in a thread of its own. A worker that loses Redis is followed by another one.

    Args:
        failed: told, in that thread, if it ends by a defect: then no more jobs are taken.
        of: the queue from which they are taken.
    """

    def __init__(
        self,
        redis: Redis,
        name: str,
        run_job: RunJob,
        failed: Callable[[str, BaseException], None] = lambda name, error: None,
        of: JobQueue = LEADERS,
    ) -> None:
        self._of = of
        self._redis = redis
        self._name = name
        self._run_job = run_job
        self._stopped = threading.Event()
        self._worker: HostWorker | None = None
        self._thread = threading.Thread(target=self._run, name="spawn-jobs", daemon=True)
        self._failed = failed
        self._seldom = Seldom(log)

    def start(self) -> None:
        """Begin to take jobs."""
        self._thread.start()

    def stop(self) -> None:
        """Take no more jobs."""
        self._stopped.set()
        if self._worker is not None:
            self._worker.stop()

    def join(self, seconds: float) -> None:
        """Wait until the last job is done, at most so long."""
        if self._thread.is_alive():
            self._thread.join(seconds)

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            log.critical("%s takes no spawn jobs any more", self._name, exc_info=True)
            self._failed("spawn-jobs", error)

    def _work(self) -> None:
        for number in itertools.count(1):
            try:
                name = f"streamlease-{self._name}.{number}"
                self._worker = HostWorker(self._redis, name, self._run_job, self._of, self._seldom)
                if not self._stopped.is_set():
                    self._worker.work(logging_level="WARNING")
            except (RedisError, OSError) as error:
                _pauses(self._seldom, self._name, error)
            if self._stopped.wait(AGAIN_SECONDS):
                return
