"""Processes of ``streamlease`` that begin with everything imported.

Python takes most of a second of computing to import what the command needs, and the tests call it many
hundred times. So one process imports it once (`tests.fork_server`) and forks for each call: a process with
words, environment, folder, standard streams, signals and an exit status of its own, in which the command
runs from its entry point to its exit. What a fork does not show is what Python does around that: reading its
own variables, the imports of a single command in their order, and the end of the interpreter's modules.
`tests.admin.command.Program` shows them; ``tests/admin/test_programs.py`` runs every command that way.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

SERVER = Path(__file__).with_name("fork_server.py")
SETTINGS = {"PYTHONUNBUFFERED": "1", "OPENBLAS_NUM_THREADS": "1"}
"""What Python and its libraries read when they start; a process with several threads must not fork."""


class Forked:
    """One forked process, with the methods of `subprocess.Popen` that tests use."""

    def __init__(
        self, words: Sequence[str], status: int, stdin: IO[bytes] | None, stdout: IO[bytes] | None
    ) -> None:
        self.args = list(words)
        self.stdin = stdin
        self.stdout = stdout
        self.returncode: int | None = None
        self._status = status
        self._said: list[bytes] = []
        self._lock = threading.Lock()
        self.pid = self._number()

    def poll(self) -> int | None:
        """Its exit status if it has ended, the negative number of the signal that ended it."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status, as soon as there is one.

        Raises:
            subprocess.TimeoutExpired: it still runs after `timeout` seconds.
        """
        with self._lock:
            if self.returncode is None:
                if not _readable(self._status, timeout):
                    raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
                try:
                    self.returncode = self._number()
                finally:
                    os.close(self._status)
            return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[bytes, None]:
        """The rest of what it writes; both pipes are closed, and the process is over, afterwards.

        Raises:
            subprocess.TimeoutExpired: it still runs after `timeout` seconds; call again.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        if self.stdin is not None:
            self.stdin.close()
        if self.stdout is not None and not self.stdout.closed:
            while (piece := self._read(self.stdout, deadline)) != b"":
                self._said.append(piece)
            self.stdout.close()
        self.wait(_left(deadline))
        return b"".join(self._said), None

    def _read(self, pipe: IO[bytes], deadline: float | None) -> bytes:
        """What comes next; nothing at its end."""
        left = _left(deadline)
        if not _readable(pipe.fileno(), left):
            raise subprocess.TimeoutExpired(self.args, left or 0.0)
        return os.read(pipe.fileno(), 1 << 16)

    def _number(self) -> int:
        """The next line of the status pipe: the process's number first, its exit status last."""
        line = b""
        while not line.endswith(b"\n"):
            byte = os.read(self._status, 1)
            if not byte:
                raise RuntimeError(f"the process that forks ended, and so did {' '.join(self.args)}")
            line += byte
        return int(line)


class Launcher:
    """The process that forks; it starts with the first call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._server = subprocess.Popen(
                [sys.executable, str(SERVER), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=os.environ | SETTINGS,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        atexit.register(self.close)

    def start(
        self,
        words: Sequence[str],
        stdin: int | IO[bytes],
        stdout: int | IO[bytes],
        stderr: IO[bytes],
        env: Mapping[str, str],
    ) -> Forked:
        """A process that runs the Python script ``words[0]`` with the other words.

        `stdin` and `stdout` may be ``subprocess.PIPE``, `stdin` also ``subprocess.DEVNULL``.
        """
        with contextlib.ExitStack() as ours:
            wait, status = os.pipe()
            ours.callback(os.close, status)
            feed: IO[bytes] | None = None
            said: IO[bytes] | None = None
            if stdin == subprocess.PIPE:
                reads, writes = os.pipe()
                stdin = ours.enter_context(open(reads, "rb", buffering=0))  # noqa: PTH123 - a descriptor
                feed = open(writes, "wb")  # noqa: PTH123, SIM115
            elif stdin == subprocess.DEVNULL:
                stdin = ours.enter_context(Path(os.devnull).open("rb"))
            if stdout == subprocess.PIPE:
                reads, writes = os.pipe()
                stdout = ours.enter_context(open(writes, "wb", buffering=0))  # noqa: PTH123
                said = open(reads, "rb")  # noqa: PTH123, SIM115
            streams = [one if isinstance(one, int) else one.fileno() for one in (stdin, stdout, stderr)]
            call = {"words": list(words), "environment": dict(env), "directory": str(Path.cwd())}
            with self._lock:
                socket.send_fds(self._calls, [json.dumps(call).encode()], [*streams, status])
        return Forked(words, wait, feed, said)

    def close(self) -> None:
        """End it, and with it all that it forked."""
        self._calls.close()
        self._server.wait()


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())


def _readable(descriptor: int, timeout: float | None) -> bool:
    """Whether there is something to read, or the end of it, within `timeout` seconds."""
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(None if timeout is None else timeout * 1000))


@functools.cache
def launcher() -> Launcher:
    """The one of this test process."""
    return Launcher()
