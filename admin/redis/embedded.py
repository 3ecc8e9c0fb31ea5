"""The Redis that Streamlease brings along: start, find again, and stop one server on this machine.

Two ways of life:

* **persistent** (``streamlease redis start``): the server is a daemon of its own, keeps an append-only
  file (``appendfsync everysec``) and outlives the process that started it.
* **throw-away** (the demo, tests): nothing is written to disk, and on Linux the kernel kills the server
  when the process that started it ends, however it ends (``prctl(PR_SET_PDEATHSIG)``). Elsewhere it
  lives until ``stop``.

A directory holds at most one server. Its state file says which (pid, port, url, binary, started);
it is only a hint: before anything is believed or killed, the server itself is asked for its process id
over its port, because pids and ports are used again by others.

The server listens on 127.0.0.1 only, and wants a password: a random one, which stands in a file of mode
0600 in a directory of mode 0700, so that the other users of the machine cannot use it. The server reads it
from its configuration file; no process list shows it. It stays the same as long as its file does. The
server is for one machine, not for production.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from streamlease.admin.redis.server_process import (
    HOST,
    ServerBinary,
    adopt,
    ask_server,
    find_server,
    free_port,
    port_is_taken,
    spawn,
    terminate,
    wait_until_ready,
)
from streamlease.protocol.errors import InvalidOption, StoreUnavailable
from streamlease.streams.redis.local_server import (
    STATE_FILE,
    ServerState,
    default_directory,
    is_server_process,
    read_state,
)

LOG_FILE = "server.log"
CONFIGURATION_FILE = "server.conf"
PASSWORD_FILE = "password"
LOCK_FILE = "server.lock"
START_SECONDS = 20.0
USUAL_PORT = 6379
"""Where clients look that are told nothing else."""
_PORT_ATTEMPTS = 5


class EmbeddedRedis:
    """The server that belongs to one directory, whether it runs or not.

    ``directory`` is ``default_directory()`` if None. Nothing is touched before ``start``.
    """

    def __init__(self, directory: Path | str | None = None) -> None:
        self.directory = (default_directory() if directory is None else Path(directory)).absolute()

    @classmethod
    @contextmanager
    def throw_away(cls) -> Iterator[str]:
        """The URL of a server in a temporary directory; both are gone when the block ends."""
        with tempfile.TemporaryDirectory(prefix="streamlease-redis-") as directory:
            server = cls(directory)
            try:
                yield server.start(persistent=False)
            finally:
                server.stop()

    def start(self, port: int | None = 0, *, persistent: bool = True) -> str:
        """Start the server and return its URL once it answers; if it already runs, return its URL.

        ``port`` None takes the usual one, or a free one if that is taken; 0 takes a free one.

        Raises ``InvalidOption`` (port, directory, or it already runs otherwise), ``Unsupported`` (no server
        program), ``StoreUnavailable`` (it does not come up).
        """
        if port is not None and not 0 <= port <= 65535:
            raise InvalidOption(f"port {port} is out of range: give 1 to 65535, or 0 for any free port")
        with self._locked():
            running = self.status()
            if running is not None:
                if port not in (None, 0, running.port) or persistent != running.persistent:
                    raise InvalidOption(
                        f"a {_way(running.persistent)} Redis already runs on port {running.port} in "
                        f"{self.directory}: stop it first, or use it as it is"
                    )
                return running.url
            return self._start(find_server(), port, persistent)

    def stop(self) -> bool:
        """Stop the server; False if none runs. What a persistent one acknowledged stays on disk.

        Raises ``StoreUnavailable`` if it does not answer or does not end: then nothing was killed by force.
        """
        if not self.directory.is_dir():
            return False
        with self._locked():
            running = self.status()
            if running is not None:
                terminate(running.pid)
            (self.directory / STATE_FILE).unlink(missing_ok=True)
            return running is not None

    def status(self) -> ServerState | None:
        """The server that runs here, after asking it; None if there is none.

        Raises ``StoreUnavailable`` if its process is there but does not answer.
        """
        state = read_state(self.directory)
        if state is None or not is_server_process(state.pid, state.port):
            return None
        answer = ask_server(state.port, password=self._password(make=False))
        if answer is None:
            raise StoreUnavailable(
                f"the Redis of {self.directory} (process {state.pid}, port {state.port}) does not answer: "
                f"see {self.directory / LOG_FILE}, or end it with 'kill {state.pid}'"
            )
        return state if answer.pid == state.pid else None

    def _start(self, server: ServerBinary, port: int | None, persistent: bool) -> str:
        if port and port_is_taken(port):
            raise InvalidOption(
                f"port {port} of {HOST} is taken or not permitted: give another one, or 0 for any free port"
            )
        log = self.directory / LOG_FILE
        password = self._password()
        for attempts_left in reversed(range(_PORT_ATTEMPTS)):
            usual = port is None and not port_is_taken(USUAL_PORT)
            chosen = USUAL_PORT if usual else port or free_port()
            self._configure(chosen, persistent, password)
            command = [str(server.path), str(self.directory / CONFIGURATION_FILE)]
            process = spawn(command, log=log, bound=not persistent)
            try:
                wait_until_ready(process, chosen, log, seconds=START_SECONDS, password=password)
            except StoreUnavailable:
                if port or not attempts_left or not port_is_taken(chosen):
                    raise
                continue  # somebody was quicker to take the free port
            except BaseException:  # such as Ctrl-C: a server without a state file could not be found again
                process.kill()
                process.wait()
                raise
            break
        adopt(process)
        url = f"redis://:{password}@{HOST}:{chosen}/0"
        state = ServerState(
            process.pid, chosen, url, str(server.path), server.source, persistent, round(time.time(), 3)
        )
        self._write_state(state)
        return url

    def _password(self, *, make: bool = True) -> str:
        """That of the server; a new one if there is none. Raises ``InvalidOption`` if it cannot be read."""
        file = self.directory / PASSWORD_FILE
        try:
            known = file.read_text().strip() if file.exists() else ""
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidOption(f"cannot read the password of the Redis in {file}: {error}") from None
        if re.fullmatch(r"[\w-]{20,}", known) or not make:
            return known
        known = secrets.token_urlsafe(32)
        self._write(PASSWORD_FILE, known + "\n")
        return known

    def _configure(self, port: int, persistent: bool, password: str) -> None:
        settings = {
            "bind": HOST,
            "port": str(port),
            "dir": str(self.directory),
            "save": "",
            "appendonly": "yes" if persistent else "no",
            "appendfsync": "everysec",
            "maxmemory-policy": "noeviction",
            "daemonize": "no",
            "requirepass": password,
            "masterauth": password,
        }
        lines = (f'{name} "{_quoted(value)}"\n' for name, value in settings.items())
        self._write(CONFIGURATION_FILE, "".join(lines))

    def _write_state(self, state: ServerState) -> None:
        self._write(STATE_FILE, json.dumps(asdict(state), indent=1))

    def _write(self, name: str, text: str) -> None:
        """Replace a file that only its owner may read."""
        scratch = self.directory / f"{name}.{os.getpid()}"
        scratch.unlink(missing_ok=True)
        with os.fdopen(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(self.directory / name)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Two processes that start or stop the server of one directory take turns."""
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.directory.chmod(0o700)  # it may have been there before
            lock = (self.directory / LOCK_FILE).open("a")
        except OSError as error:
            raise InvalidOption(
                f"cannot keep a Redis in {self.directory}: {error.strerror}; "
                "give a directory that you may write"
            ) from error
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def directory_of(configuration_file: str, pid: str, port: str) -> Path | None:
    """The directory of a server that was started here, from what it says of itself in INFO.

    None if it is another server, or this user may not read its directory.
    """
    directory = Path(configuration_file).parent
    try:
        if Path(configuration_file).name != CONFIGURATION_FILE or not directory.is_absolute():
            return None
        state = read_state(directory)
    except ValueError:  # no path
        return None
    return directory if state is not None and (str(state.pid), str(state.port)) == (pid, port) else None


def _quoted(value: str) -> str:
    r"""`value` as it stands between the quotes of a configuration file, where a backslash begins ``\xHH``."""
    plain = (32 <= byte < 127 and chr(byte) not in '"\\' for byte in os.fsencode(value))
    return "".join(
        chr(byte) if good else f"\\x{byte:02x}" for byte, good in zip(os.fsencode(value), plain, strict=True)
    )


def _way(persistent: bool) -> str:
    return "persistent" if persistent else "throw-away"
