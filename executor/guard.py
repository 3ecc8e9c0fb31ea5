"""``python -m streamlease.executor.guard FD LOCK COMMAND...``: a process beside the program of a worker.

It starts the program in a session of its own, and sees to it that nothing of it is left behind. On its
standard input its executor says, a line each::

    lease SECONDS     the lease of the executor holds until then, by the clock of this machine (`clock`)
    end SECONDS       the program is to end; it is killed so many seconds later

and on the file FD it says ``pid PID``, then ``exit CODE`` or ``lapsed CODE``. CODE is 128 and the number of
the signal, if one ended the program. When the input ends, the executor has died. The file LOCK is kept
open to the guard's end: as long as it is, nobody removes the folder of the program (`run_folders`).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

from streamlease.executor.core.guarding import Guard, GuardEvent, GuardState, renewed, step

SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER: what the program leaves behind becomes a child of the guard."""

SIGNALS = {GuardState.ENDING: signal.SIGTERM, GuardState.KILLED: signal.SIGKILL}


def clock() -> float:
    """Seconds of this machine, the same for all its processes; also while it sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class GuardedProgram:
    """The program, and what the guard does about it."""

    def __init__(self, command: list[str], told: int) -> None:
        self._told = told
        self._guard = Guard()
        self._waker, wakes = os.pipe()
        os.set_blocking(wakes, False)
        signal.set_wakeup_fd(wakes)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: None)  # handlers are not inherited, and SIG_IGN would be
        self._program = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
        self._tell(f"pid {self._program.pid}")

    def run(self) -> int:
        """Guard it to its end; its code."""
        reads = [self._waker, 0]
        rest = b""
        while (code := self._program.poll()) is None:
            deadline = self._guard.deadline
            wait = None if deadline is None else max(0.0, deadline - clock())
            ready, _, _ = select.select(reads, [], [], wait)
            if self._waker in ready:
                os.read(self._waker, 4096)
            if 0 in ready:
                heard = os.read(0, 4096)
                *lines, rest = (rest + heard).split(b"\n")
                for line in lines:
                    self._take(line)
                if not heard:
                    reads.remove(0)
                    self._step(GuardEvent.ALONE)
            self._step(GuardEvent.TIME)
        self._guard = step(self._guard, GuardEvent.EXITED, clock())
        code = code if code >= 0 else 128 - code
        self._clear()
        self._tell(f"{'lapsed' if self._guard.lapsed else 'exit'} {code}")
        return code

    def _take(self, line: bytes) -> None:
        word, _, number = line.partition(b" ")
        if word == b"lease":
            self._guard = renewed(self._guard, float(number))
        elif word == b"end":
            self._step(GuardEvent.WANTED, float(number))

    def _step(self, event: GuardEvent, grace: float = 0.0) -> None:
        former, self._guard = self._guard, step(self._guard, event, clock(), grace)
        if self._guard.state is not former.state:
            self._signal(SIGNALS[self._guard.state])

    def _signal(self, number: signal.Signals) -> None:
        if number is signal.SIGKILL:
            self._clear()
            return
        # The program alone: it ends what it has started in its own order, as a driver does with its JVM.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(self._program.pid, number)

    def _clear(self) -> None:
        """Kill what the program has left behind, wherever it went."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._program.pid, signal.SIGKILL)
        while left := _descendants(os.getpid()) - {self._program.pid}:
            for pid in left:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            if self._program.poll() is None:
                return  # it is reaped by who waits for it
            with contextlib.suppress(ChildProcessError):
                os.waitpid(-1, 0)

    def _tell(self, text: str) -> None:
        with contextlib.suppress(OSError):
            os.write(self._told, text.encode() + b"\n")


def _descendants(ancestor: int) -> set[int]:
    parents: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            if state != "Z" or int(parent) == ancestor:
                parents[int(folder.name)] = int(parent)
    found: set[int] = set()
    grown = {ancestor}
    while grown:
        grown = {pid for pid, parent in parents.items() if parent in grown} - found
        found |= grown
    return found


def main(told: str, lock: str, *command: str) -> int:
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    for file in (told, lock):
        os.set_inheritable(int(file), False)
    return GuardedProgram(list(command), int(told)).run()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
