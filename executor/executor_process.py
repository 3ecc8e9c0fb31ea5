"""``streamlease executor``: the process around an executor, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import signal
import sys

import redis as redis_py

from streamlease.executor.executor import Executor, ExecutorConfig
from streamlease.hosts.jobs import SpawnJobs
from streamlease.protocol.errors import StreamleaseError
from streamlease.queries.submitting import check_one_server
from streamlease.registry.spawn import queue_client
from streamlease.registry.spawn_jobs import SpawnJob, SpawnWorkers, executor_queue
from streamlease.streams.redis.connection import AsyncRedis, check_server, connect
from streamlease.streams.tasks import task_failed

log = logging.getLogger(__name__)

DUMPABLE = 4
"""PR_SET_DUMPABLE: programs of the same user cannot read the memory of the executor, where the key is."""


async def run_executor(url: str, config: ExecutorConfig, key: bytes) -> None:
    """Run an executor until SIGTERM or SIGINT; then its workers end.

    Raises:
        StoreUnavailable, Unsupported: Redis does not answer or does not suit.
        InvalidOption: the name is taken.
        TaskFailed: it failed.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(DUMPABLE, 0, 0, 0, 0)
    redis = connect(url)
    try:
        check_one_server(redis)
        await check_server(redis)
        queue = queue_client(url)
        try:
            await _run(redis, queue, config, key)
        finally:
            queue.close()
    finally:
        await redis.aclose()


async def _run(redis: AsyncRedis, queue: redis_py.Redis, config: ExecutorConfig, key: bytes) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    executor = Executor(redis, queue, config, key, stop.set)

    def run_job(job: SpawnJob) -> None:
        assert isinstance(job, SpawnWorkers), job
        loop.call_soon_threadsafe(executor.take, job)

    failures: list[StreamleaseError] = []

    def fail(name: str, error: BaseException) -> None:
        failures.append(task_failed(f"executor {config.name}", name, error))
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(stop.set)

    await executor.start()
    jobs = SpawnJobs(
        queue, f"executor-{config.name}-{executor.life}", run_job, fail, executor_queue(config.name)
    )
    jobs.start()
    log.info("executor %s runs %d workers at most", config.name, config.slots)
    try:
        await stop.wait()
        log.info("executor %s leaves", config.name)
    finally:
        jobs.stop()
        await executor.close()
        await asyncio.to_thread(jobs.join, 5.0)
    failure = executor.failure or (failures[0] if failures else None)
    if failure is not None:
        raise failure
