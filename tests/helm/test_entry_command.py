"""The image's entry command with the chart's environment, as a process against a real Redis.

What a kubelet does is done here by hand: the command from the Dockerfile, the variables from the rendered
Deployment, the probes, and SIGTERM. Only the port and the URL of Redis are replaced.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import redis

from tests.conftest import MakeServer
from tests.helm.charts import Values, environment, render
from tests.helm.dockerfiles import stages

pytestmark = [pytest.mark.helm, pytest.mark.cluster]

HOSTS = "sl:{hosts}:alive"
START_SECONDS = 30.0
OUTAGE_SECONDS = 30.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass
class Host:
    """One running leader host and the three things that a kubelet knows of it."""

    process: subprocess.Popen[bytes]
    port: int
    drain_timeout: int
    grace_period: int
    log: Path

    def status(self, path: str) -> int | None:
        """HTTP status of a probe; None if nothing answers."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=3) as answer:
                status: int = answer.status
                return status
        except urllib.error.HTTPError as refusal:
            refusal.close()
            return refusal.code
        except OSError:
            return None

    def wait_until(self, condition: Callable[[], bool], seconds: float, what: str) -> None:
        """Until ``condition`` holds; fails at the deadline, or at once if the process ends before."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                pytest.fail(f"not within {seconds:g} s: {what}\n{self.said()}")
            try:
                code = self.process.wait(0.05)
            except subprocess.TimeoutExpired:
                continue
            pytest.fail(f"ended with {code} while waiting: {what}\n{self.said()}")

    def wait_until_ready(self, seconds: float = START_SECONDS) -> None:
        self.wait_until(lambda: self.status("/readyz") == 200, seconds, "/readyz answers 200")

    def terminate(self) -> int:
        """SIGTERM, as a kubelet sends it. Returns the exit code; fails where the kubelet would kill."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(self.grace_period)
        except subprocess.TimeoutExpired:
            pytest.fail(f"still there {self.grace_period} s after SIGTERM\n{self.said()}")

    def said(self) -> str:
        return self.log.read_text(errors="replace")[-4000:]


@contextmanager
def leader_host(
    directory: Path, redis_url: str, *, name: str = "demo-streamlease-abc12", drain_timeout: int = 20
) -> Iterator[Host]:
    """Starts what the image would start, in the environment that the chart gives; kills it at the end."""
    values: Values = {
        "redis": {"existingSecret": {"name": "streamlease-redis", "key": "url"}},
        "drainTimeout": drain_timeout,
    }
    pod = render(values).pods()["Deployment"]
    given = environment(
        pod,
        secrets={("streamlease-redis", "url"): redis_url},
        fields={"metadata.name": name},
    )
    image = stages()[-1]
    command = image.exec_form("ENTRYPOINT") + image.exec_form("CMD")
    (container,) = pod["spec"]["containers"]
    assert container["command"] == command, "the chart and the image start different things"

    path = f"{Path(sys.executable).parent}{os.pathsep}{os.defpath}"
    program = shutil.which(command[0], path=path)
    assert program is not None, f"{command[0]} is not installed beside {sys.executable}"
    port = free_port()
    own = {**image.environment(), "PATH": path, "HOME": str(directory)}
    log = directory / f"{name}.log"
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [program, *command[1:]],
            cwd=directory,
            env={**own, **given, "STREAMLEASE_HTTP_PORT": str(port)},
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
        )
    try:
        yield Host(
            process,
            port,
            int(given["STREAMLEASE_DRAIN_TIMEOUT"]),
            pod["spec"]["terminationGracePeriodSeconds"],
            log,
        )
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def registered(client: redis.Redis) -> set[object]:
    return set(client.zrange(HOSTS, 0, -1))


def test_it_serves_its_probes_and_drains_on_sigterm(tmp_path: Path, embedded_redis_url: str) -> None:
    with (
        leader_host(tmp_path, embedded_redis_url) as host,
        redis.Redis.from_url(embedded_redis_url) as client,
    ):
        host.wait_until_ready()
        assert host.status("/healthz") == 200
        assert len(registered(client)) == 1

        assert host.terminate() == 0, host.said()
        assert registered(client) == set()
        assert host.status("/healthz") is None


def test_one_host_stops_and_the_other_stays(tmp_path: Path, embedded_redis_url: str) -> None:
    with (
        redis.Redis.from_url(embedded_redis_url) as client,
        leader_host(tmp_path, embedded_redis_url, name="demo-streamlease-old11") as old,
        leader_host(tmp_path, embedded_redis_url, name="demo-streamlease-new22") as new,
    ):
        old.wait_until_ready()
        new.wait_until_ready()
        assert len(registered(client)) == 2
        assert old.terminate() == 0, old.said()
        assert len(registered(client)) == 1
        assert new.status("/readyz") == 200
        assert new.terminate() == 0, new.said()
        assert registered(client) == set()


def test_a_redis_that_hangs_makes_it_unready_but_not_dead(
    tmp_path: Path, make_redis_server: MakeServer
) -> None:
    server = make_redis_server()
    with leader_host(tmp_path, server.url) as host:
        host.wait_until_ready()
        server.pause()
        host.wait_until(lambda: host.status("/readyz") == 503, OUTAGE_SECONDS, "/readyz answers 503")
        assert host.status("/healthz") == 200
        server.resume()
        host.wait_until_ready(OUTAGE_SECONDS)
        assert host.terminate() == 0, host.said()


def test_it_ends_in_time_though_redis_is_gone(tmp_path: Path, make_redis_server: MakeServer) -> None:
    server = make_redis_server()
    with leader_host(tmp_path, server.url, drain_timeout=3) as host:
        host.wait_until_ready()
        server.kill()
        host.terminate()  # within the grace period; there is nobody left to tell, so any exit code will do
