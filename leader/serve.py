"""``streamlease serve``: a leader host as a process of its own.

Three parts share the process: the event loop with the host and its leaders; a thread with an RQ worker, whose
jobs do no more than hand a group to the host; and a thread that answers the probes of Kubernetes::

    GET /healthz   200 while the event loop turns
    GET /metrics   what Prometheus reads
    GET /readyz    200 while Redis answers and the host takes leaders; 503 otherwise, and while draining

SIGTERM and SIGINT drain: the host steps down from every leader, so that no client waits for a timeout.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import signal
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from redis import Redis
from redis.exceptions import RedisError
from rq import Queue, SimpleWorker
from rq.exceptions import StopRequested
from rq.timeouts import TimerDeathPenalty

from streamlease.leader.host import HostConfig, LeaderHost
from streamlease.leader.metrics import exposition
from streamlease.leader.runner import now_ms
from streamlease.protocol.errors import InvalidOption, StreamleaseError
from streamlease.registry import hosts
from streamlease.registry.spawn import QUEUE, queue_client
from streamlease.streams.connection import (
    check_server,
    connect,
    is_cluster,
)

log = logging.getLogger(__name__)

AGAIN_SECONDS = 1.0
"""How long after the end of a worker the next one begins."""

SCRAPE_SECONDS = 8.0
"""How long a scrape may take: less than Prometheus waits by default."""

_serving: _Serving | None = None


@dataclass(frozen=True, slots=True)
class ServeConfig:
    """Settings of ``streamlease serve``.

    Raises:
        InvalidOption: a port or a time out of range.
    """

    redis_url: str
    host: HostConfig
    http_host: str = "127.0.0.1"
    http_port: int = 8080
    """0 takes a free one."""
    drain_timeout: float = 20.0

    def __post_init__(self) -> None:
        if not 0 <= self.http_port <= 65535:
            raise InvalidOption(f"http port is {self.http_port}: it must be from 0 to 65535")
        if not 0 < self.drain_timeout <= 3600:
            raise InvalidOption(
                f"drain timeout is {self.drain_timeout} s: it must be above 0 and at most 3600"
            )


class HostWorker(SimpleWorker):
    """An RQ worker that lives in a thread of the host's process and takes its spawn jobs."""

    death_penalty_class = TimerDeathPenalty
    max_connection_wait_time = 2.0

    def _install_signal_handlers(self) -> None:
        """Signals belong to the main thread."""

    def stop(self) -> None:
        """Take no more jobs; `work` returns after the present wait."""
        self._stop_requested = True

    def heartbeat(self, timeout: int | None = None, pipeline: Any = None) -> None:
        """RQ asks nobody while it waits for jobs, but it shows here, between two waits, that it is alive."""
        if self._stop_requested:
            raise StopRequested
        super().heartbeat(timeout, pipeline)


class _Serving:
    """The process-wide state that spawn jobs and probes reach from their threads."""

    def __init__(self, host: LeaderHost, loop: asyncio.AbstractEventLoop) -> None:
        self.host = host
        self.loop = loop

    def lead(self, group: str, above: int) -> None:
        self.loop.call_soon_threadsafe(self.host.lead, group, above)

    async def _look(self) -> bool:
        beaten_at = self.host.beaten_at
        if self.host.draining or beaten_at is None:
            return False
        return now_ms() - beaten_at < hosts.SILENCE_MS

    def metrics(self) -> bytes:
        """The metrics as text; raises TimeoutError if the event loop does not turn, or Redis is slow."""
        return exposition(
            asyncio.run_coroutine_threadsafe(self.host.facts(), self.loop).result(SCRAPE_SECONDS)
        )

    def ready(self) -> bool:
        """Whether the host takes leaders; raises TimeoutError if the event loop does not turn."""
        return asyncio.run_coroutine_threadsafe(self._look(), self.loop).result(timeout=2.0)


def lead(group: str, above: int = 0) -> None:
    """The spawn job: hand the group to the host of this process.

    Args:
        above: the highest term that the asking agent has seen.

    Raises:
        StreamleaseError: this process is not a leader host.
    """
    if _serving is None:
        raise StreamleaseError(
            f"a job to lead {group} ran outside of a leader host: "
            f"only 'streamlease serve' may work on queue {QUEUE}"
        )
    _serving.lead(group, above)


class _Probes(BaseHTTPRequestHandler):
    server: _ProbeServer

    def do_GET(self) -> None:
        if self.path == "/metrics":
            self._metrics()
            return
        if self.path not in ("/healthz", "/readyz"):
            self._answer(404, {"error": "use /healthz, /readyz or /metrics"})
            return
        try:
            ready = self.server.serving.ready()
        except (TimeoutError, RuntimeError):
            self._answer(503, {"live": False})
            return
        status = 200 if ready or self.path == "/healthz" else 503
        self._answer(status, {"live": True, "ready": ready, "leaders": len(self.server.serving.host.leaders)})

    def _metrics(self) -> None:
        try:
            text = self.server.serving.metrics()
        except (TimeoutError, RuntimeError):
            self._answer(503, {"live": False})
            return
        self._send(200, CONTENT_TYPE_PLAIN_0_0_4, text)

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        self._send(status, "application/json", json.dumps(body).encode())

    def _send(self, status: int, kind: str, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        log.debug(format, *args)


class _ProbeServer(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], serving: _Serving) -> None:
        self.serving = serving
        super().__init__(address, _Probes)


async def serve(config: ServeConfig) -> None:
    """Run a leader host until SIGTERM or SIGINT, then drain.

    Raises:
        StoreUnavailable, Unsupported: Redis does not answer or does not suit.
        InvalidOption: the probe port is taken.
    """
    global _serving  # noqa: PLW0603 - RQ jobs are functions of a module and find the host here
    redis = connect(config.redis_url)
    # On a Redis Cluster there is no RQ: spawn requests come by mail.
    queue_redis = None if is_cluster(redis) else queue_client(config.redis_url)
    try:
        await check_server(redis)
        host = LeaderHost(redis, config.host, pid=os.getpid())
        loop = asyncio.get_running_loop()
        _serving = _Serving(host, loop)
        probes = _listen(config, _serving)
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        jobs = SpawnJobs(queue_redis, host.id) if queue_redis is not None else None
        try:
            await host.start()
            if jobs is not None:
                jobs.start()
            log.info("host %s serves; probes on %s:%d", host.id, config.http_host, probes.server_address[1])
            await stop.wait()
            log.info("host %s drains %d leaders", host.id, len(host.leaders))
        finally:
            if jobs is not None:
                jobs.stop()
            await host.close(config.drain_timeout)
            await asyncio.to_thread(probes.shutdown)
            probes.server_close()
            if jobs is not None:
                await asyncio.to_thread(jobs.join, 5.0)
            _serving = None
    finally:
        if queue_redis is not None:
            queue_redis.close()
        await redis.aclose()


def _listen(config: ServeConfig, serving: _Serving) -> _ProbeServer:
    try:
        probes = _ProbeServer((config.http_host, config.http_port), serving)
    except OSError as error:
        raise InvalidOption(
            f"cannot listen on {config.http_host}:{config.http_port} ({error.strerror}): "
            f"choose another --http-port, or 0 for a free one"
        ) from None
    threading.Thread(target=probes.serve_forever, name="probes", daemon=True).start()
    return probes


class SpawnJobs:
    """Takes spawn jobs in a thread of its own. A worker that loses Redis is followed by another one."""

    def __init__(self, redis: Redis, name: str) -> None:
        self._redis = redis
        self._name = name
        self._stopped = threading.Event()
        self._worker: HostWorker | None = None
        self._thread = threading.Thread(target=self._work, name="spawn-jobs", daemon=True)

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

    def _work(self) -> None:
        for number in itertools.count(1):
            try:
                # RQ waits for jobs in steps of its worker_ttl less 15 s; a name is free again after a while.
                self._worker = HostWorker(
                    [Queue(QUEUE, connection=self._redis)],
                    connection=self._redis,
                    name=f"{self._name}.{number}",
                    worker_ttl=16,
                )
                if not self._stopped.is_set():
                    self._worker.work(logging_level="WARNING")
            except (RedisError, OSError) as error:
                log.warning("host %s takes no spawn jobs for a moment: %s", self._name, error)
            if self._stopped.wait(AGAIN_SECONDS):
                return
