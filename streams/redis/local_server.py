"""The Redis that Streamlease brings along, as its clients see it: which one runs for this user, and where.

``streamlease redis start`` keeps one in `default_directory`, with a state file that only its owner may read
(``admin/redis/embedded.py`` writes it). Whoever names no Redis means that one if it runs; whoever names its
address without a login, as in ``redis://127.0.0.1:6379``, gets its password from there. The file is a hint:
nothing of it is used unless the process that it names is there and serves that port.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

STATE_FILE = "server.json"
_HERE = {"127.0.0.1", "localhost"}
_PORT = 6379


@dataclass(frozen=True, slots=True)
class ServerState:
    """What the state file remembers of a server. ``started``: seconds since 1970; ``url``: with password."""

    pid: int
    port: int
    url: str
    binary: str
    source: str
    persistent: bool
    started: float


def default_directory() -> Path:
    """``$XDG_STATE_HOME/streamlease/redis``, by default below ``~/.local/state``."""
    state_home = os.environ.get("XDG_STATE_HOME")
    base = Path(state_home) if state_home else Path.home() / ".local" / "state"
    return base / "streamlease" / "redis"


def read_state(directory: Path) -> ServerState | None:
    """What the state file of that directory says; None if there is none, or it makes no sense."""
    try:
        fields = json.loads((directory / STATE_FILE).read_text())
        state = ServerState(**fields)
    except (OSError, ValueError, TypeError):
        return None
    whole = all(isinstance(value, int) for value in (state.pid, state.port)) and isinstance(state.url, str)
    return state if whole and state.pid > 0 and 0 < state.port <= 65535 else None


def is_server_process(pid: int, port: int) -> bool:
    """Whether that process exists and its command line, where servers show their port, names that port."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        if sys.platform == "linux":
            return False
        listed = subprocess.run(["ps", "-o", "command=", "-p", str(pid)], capture_output=True, check=False)
        words = listed.stdout.decode(errors="replace")
    return "-server" in words and (f":{port}" in words or f"--port {port}" in words)


def running() -> ServerState | None:
    """The server of the default directory, if its process is there."""
    try:
        state = read_state(default_directory())
    except RuntimeError:  # a user without a home
        return None
    return state if state is not None and is_server_process(state.pid, state.port) else None


def with_login(url: str) -> str:
    """`url`; with the running server's password, if it names that server and no login."""
    try:
        parts = urlsplit(url)
        port = parts.port or _PORT
    except ValueError:  # whoever connects says what is wrong with it
        return url
    if parts.scheme != "redis" or parts.hostname not in _HERE or "@" in parts.netloc:
        return url
    if "password=" in parts.query or "password_file=" in parts.query:
        return url
    state = running()
    if state is None or state.port != port:
        return url
    login, _, _ = urlsplit(state.url).netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{login}@{parts.netloc}")) if login else url
