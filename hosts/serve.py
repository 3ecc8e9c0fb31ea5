"""``streamlease serve``: a leader host as a process of its own.

Three parts share the process: the event loop with the host and its leaders; a thread with an RQ worker, whose
jobs do no more than hand a group to the host (`hosts/jobs.py`); and a thread that answers the probes of
Kubernetes::

    GET /healthz   200 while the event loop turns and the host has not failed
    GET /metrics   what Prometheus reads
    GET /readyz    200 while Redis answers and the host takes leaders; 503 otherwise, and while draining; also
                   while damaged data keep it from its work: then it says which

SIGTERM and SIGINT drain: the host steps down from every leader, so that no client waits for a timeout. If the
host fails (`hosts/host.py`), or one of the threads ends, so does the process, with an error.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import threading
from collections.abc import Coroutine
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar, assert_never

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4

from streamlease.hosts.host import HostConfig, LeaderHost
from streamlease.hosts.jobs import SpawnJobs
from streamlease.hosts.signals.exposition import exposition
from streamlease.protocol.addresses import check_listen_host, shown_address
from streamlease.protocol.errors import InvalidOption
from streamlease.registry import hosts
from streamlease.registry.spawn import queue_client, spawn
from streamlease.registry.spawn_jobs import LeadGroup, SpawnJob, SpawnWorkers
from streamlease.streams.clock import milliseconds as now_ms
from streamlease.streams.redis.connection import (
    check_server,
    connect,
    is_cluster,
)
from streamlease.streams.server_sockets import server_socket
from streamlease.streams.tasks import task_failed

log = logging.getLogger(__name__)

T = TypeVar("T")

SCRAPE_SECONDS = 8.0
"""How long a scrape may take: less than Prometheus waits by default."""


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
        check_listen_host(self.http_host)
        if not 0 <= self.http_port <= 65535:
            raise InvalidOption(f"http port is {self.http_port}: it must be from 0 to 65535")
        if not 0 < self.drain_timeout <= 3600:
            raise InvalidOption(
                f"drain timeout is {self.drain_timeout} s: it must be above 0 and at most 3600"
            )


class _Serving:
    """What spawn jobs and probes reach from their threads."""

    def __init__(self, host: LeaderHost, loop: asyncio.AbstractEventLoop) -> None:
        self.host = host
        self.loop = loop

    def fail(self, name: str, error: BaseException) -> None:
        """A thread has ended: so does the host."""
        failure = task_failed(f"host {self.host.id}", name, error)
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody serves any more
            self.loop.call_soon_threadsafe(self.host.fail, name, failure)

    def run_job(self, job: SpawnJob) -> None:
        """Have the host run what a spawn job asks for."""
        match job:
            case LeadGroup():
                self.loop.call_soon_threadsafe(self.host.lead, job.group, job.above)
            case SpawnWorkers():
                raise TypeError("the queue of leader hosts knows no such job")
            case _:
                assert_never(job)

    async def _look(self) -> bool:
        beaten_at = self.host.beaten_at
        if self.host.draining or self.host.troubles or beaten_at is None:
            return False
        return now_ms() - beaten_at < hosts.SILENCE_MS

    def metrics(self) -> bytes:
        """The metrics as text; raises TimeoutError if the event loop does not turn, or Redis is slow."""
        return exposition(self._asked(self.host.facts(), SCRAPE_SECONDS))

    def ready(self) -> bool:
        """Whether the host takes leaders; raises TimeoutError if the event loop does not turn."""
        return self._asked(self._look(), 2.0)

    def _asked(self, work: Coroutine[Any, Any, T], seconds: float) -> T:
        """What the host's loop says, within so long; afterwards nobody is at work for it any more."""
        asked = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return asked.result(seconds)
        finally:
            asked.cancel()


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
        failure = self.server.serving.host.failure
        if failure is not None:
            self._answer(503, {"live": False, "error": str(failure)})
            return
        status = 200 if ready or self.path == "/healthz" else 503
        host = self.server.serving.host
        body = {"live": True, "ready": ready, "leaders": len(host.leaders)}
        self._answer(status, {**body, "troubles": dict(host.troubles)} if host.troubles else body)

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

    def __init__(self, listener: socket.socket, serving: _Serving) -> None:
        self.serving = serving
        super().__init__(listener.getsockname()[:2], _Probes, bind_and_activate=False)
        self.socket.close()
        self.socket = listener


async def serve(config: ServeConfig) -> None:
    """Run a leader host until SIGTERM or SIGINT, then drain.

    Raises:
        StoreUnavailable, Unsupported: Redis does not answer or does not suit.
        InvalidOption: the probe port is taken.
        TaskFailed: the host failed.
    """
    redis = connect(config.redis_url)
    # On a Redis Cluster there is no RQ: the host that is asked leads.
    queue_redis = None if is_cluster(redis) else queue_client(config.redis_url)
    try:
        await check_server(redis)
        place = None if queue_redis is None else partial(spawn, queue_redis)
        stop = asyncio.Event()
        host = LeaderHost(redis, config.host, pid=os.getpid(), place=place, failed=stop.set)
        loop = asyncio.get_running_loop()
        serving = _Serving(host, loop)
        probes = _listen(config, serving)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        jobs = None
        if queue_redis is not None:
            jobs = SpawnJobs(queue_redis, host.id, serving.run_job, serving.fail)
        try:
            await host.start()
            if jobs is not None:
                jobs.start()
            where = shown_address(config.http_host, int(probes.server_address[1]))
            log.info("host %s serves; probes on %s", host.id, where)
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
        if host.failure is not None:
            raise host.failure
    finally:
        if queue_redis is not None:
            queue_redis.close()
        await redis.aclose()


def _listen(config: ServeConfig, serving: _Serving) -> _ProbeServer:
    try:
        probes = _ProbeServer(server_socket(config.http_host, config.http_port), serving)
    except OSError as error:
        raise InvalidOption(
            f"cannot listen on {shown_address(config.http_host, config.http_port)} ({error.strerror}): "
            f"choose another --http-port, or 0 for a free one"
        ) from None

    def answer() -> None:
        try:
            probes.serve_forever()
        except BaseException as error:
            log.critical("host %s answers no probes any more", serving.host.id, exc_info=True)
            serving.fail("probes", error)

    threading.Thread(target=answer, name="probes", daemon=True).start()
    return probes
