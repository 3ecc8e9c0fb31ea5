"""The servers of the peers: found on this machine, started on free ports of 127.0.0.1, and stopped."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
from redis import Redis

from bench.frame import Frame

HOST = "127.0.0.1"
START_SECONDS = 120.0
STOP_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Server:
    """A server that runs: where, and which process's family it is."""

    url: str
    pid: int


class NotFound(Exception):
    """The server or its client is not on this machine; the text says what to install."""


@contextmanager
def redis() -> Iterator[Server]:
    """The embedded Redis."""
    with Frame().server() as url:
        with Redis.from_url(url) as client:
            pid = int(client.info("server")["process_id"])
        yield Server(url, pid)


@contextmanager
def nats() -> Iterator[Server]:
    """A NATS server with JetStream, whose files are in a temporary folder."""
    program = _program("nats-server", "apt-get install nats-server")
    with tempfile.TemporaryDirectory(prefix="peers-") as folder:
        port = _free_port()
        words = [program, "-js", "-sd", folder, "-a", HOST, "-p", str(port)]
        with _running(words, {}, Path(folder), [port]) as pid:
            yield Server(f"nats://{HOST}:{port}", pid)


@contextmanager
def rabbitmq() -> Iterator[Server]:
    """A RabbitMQ node with its stream plugin, alone with its own port mapper."""
    _program("rabbitmq-server", "apt-get install rabbitmq-server")
    program = "/usr/lib/rabbitmq/bin/rabbitmq-server"  # the one in PATH changes to another user
    with tempfile.TemporaryDirectory(prefix="peers-") as folder:
        home = Path(folder)
        amqp, distribution, mapper, stream = (_free_port() for _ in range(4))
        (home / "plugins").write_text("[rabbitmq_stream].\n")
        (home / "rabbitmq.conf").write_text(
            f"listeners.tcp.1 = {HOST}:{amqp}\n"
            f"stream.listeners.tcp.1 = {HOST}:{stream}\n"
            f"stream.advertised_host = {HOST}\nstream.advertised_port = {stream}\n"
        )
        settings = {
            "HOME": folder,
            "RABBITMQ_NODENAME": f"peers{stream}@localhost",
            "RABBITMQ_MNESIA_BASE": str(home / "data"),
            "RABBITMQ_LOG_BASE": str(home / "log"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "plugins"),
            "RABBITMQ_CONFIG_FILE": str(home / "rabbitmq.conf"),
            "RABBITMQ_DIST_PORT": str(distribution),
            "ERL_EPMD_PORT": str(mapper),
            "ERL_EPMD_ADDRESS": HOST,
        }
        with _running([program], settings, home, [stream]) as pid:
            yield Server(f"rabbitmq-stream://{HOST}:{stream}", pid)


def _program(name: str, remedy: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise NotFound(f"no {name}: {remedy}")
    return found


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


@contextmanager
def _running(
    words: Sequence[str], settings: Mapping[str, str], folder: Path, ports: Sequence[int]
) -> Iterator[int]:
    """Start a server, wait until it listens, and end its whole session afterwards."""
    log = folder / "server.out"
    with log.open("wb") as out:
        process = subprocess.Popen(
            words,
            env={**os.environ, **settings},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        for port in ports:
            _wait(process, port, log)
        yield process.pid
    finally:
        family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        process.terminate()
        _, alive = psutil.wait_procs(family, STOP_SECONDS)
        for each in alive:
            each.kill()
        process.wait()


def _wait(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            socket.create_connection((HOST, port), 1).close()
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{process.args!r} did not start:\n{log.read_text()[-2000:]}") from None
            time.sleep(0.05)
        else:
            return
