"""The program of `tests.forking`: imports what the command needs once, and forks a process for each call.

A call comes as one message on the socket whose descriptor is the only argument, with the call's standard
input, output, error and a pipe for its status. Into that pipe goes the number of the process, and at its
end its exit status. The child leaves the loop below and runs the script. When the socket ends, all
children are killed.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import io
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import Any

MOST_BYTES = 1 << 20
BESIDES = ("streamlease.hosts.serve", "pandas")
"""What commands import while they run."""


def warm() -> None:
    """Import and make what the command needs, but not the demo, which needs Spark."""
    package = importlib.import_module("streamlease.admin")
    for found in pkgutil.walk_packages(package.__path__, "streamlease.admin."):
        if not found.name.startswith(("streamlease.admin.demo", "streamlease.admin.__main__")):
            importlib.import_module(found.name)
    for name in BESIDES:
        importlib.import_module(name)
    sys.modules["streamlease.admin.cli"].tree()
    gc.collect()
    gc.freeze()


class Server:
    """Forks for each call, and tells what came of it."""

    def __init__(self, calls: socket.socket) -> None:
        self._calls = calls
        self._statuses: dict[int, int] = {}
        self._wake, self._woken = os.pipe()
        for end in (self._wake, self._woken):
            os.set_blocking(end, False)

    def serve(self) -> list[str]:
        """The loop; returns in a child, with the words of its call."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._woken)
        while True:
            calls = self._calls.fileno()
            readable, _, _ = select.select([calls, self._wake], [], [])
            if self._wake in readable:
                os.read(self._wake, 4096)
                self._reap()
            if calls in readable:
                message, given, _, _ = socket.recv_fds(self._calls, MOST_BYTES, 4)
                if not message:
                    self._end()
                words = self._fork(json.loads(message), given)
                if words is not None:
                    return words

    def _fork(self, call: dict[str, Any], given: list[int]) -> list[str] | None:
        """None in the server, the call's words in the child."""
        *streams, status = given
        pid = os.fork()
        if pid:
            for each in streams:
                os.close(each)
            self._statuses[pid] = status
            os.write(status, b"%d\n" % pid)
            return None
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number, each in enumerate(streams):
            os.dup2(each, number)
        sys.stdout, sys.stderr = _writer(1, sys.stdout.errors), _writer(2, sys.stderr.errors)
        self._calls.close()
        for each in (*given, *self._statuses.values(), self._wake, self._woken):
            os.close(each)
        os.chdir(call["directory"])
        os.environ.clear()
        os.environ.update(call["environment"])
        if any(name.startswith("_TYPER") for name in os.environ):  # read while the commands are made
            sys.modules["streamlease.admin.cli"].tree.cache_clear()
        return list(call["words"])

    def _reap(self) -> None:
        while self._statuses:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            pipe = self._statuses.pop(pid)
            os.write(pipe, b"%d\n" % os.waitstatus_to_exitcode(status))
            os.close(pipe)

    def _end(self) -> None:
        for pid in self._statuses:
            os.kill(pid, signal.SIGKILL)
        sys.exit()


def _writer(descriptor: int, errors: str | None) -> io.TextIOWrapper:
    """What Python makes of a standard stream at its start: whether that can be sought is asked only once."""
    raw: Any = io.FileIO(descriptor, "w", closefd=False)
    return io.TextIOWrapper(raw, encoding="utf-8", errors=errors, write_through=True)


def run(words: list[str]) -> None:
    """Run the script ``words[0]`` as Python would; exit at once where Python would tear down its modules."""
    sys.argv = words
    sys.orig_argv = [sys.executable, *words]
    sys.path[0] = str(Path(words[0]).parent)
    try:
        runpy.run_path(words[0], run_name="__main__")
    except SystemExit as end:
        if not isinstance(end.code, int) or not 0 <= end.code <= 255:
            raise
        threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as the interpreter does
        atexit._run_exitfuncs()
        gc.collect()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(end.code)


if __name__ == "__main__":
    warm()
    run(Server(socket.socket(fileno=int(sys.argv[1]))).serve())
