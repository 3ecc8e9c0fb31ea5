"""Processes of the demo: started in groups of their own, killed whole, never left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil

from streamlease.protocol.errors import StreamleaseError

STOP_SECONDS = 20.0

LINES, MOST = 3, 1000
"""Of a log, so many lines and characters are told of who ended."""

_FRAME = re.compile(r"\s+(at |\.\.\. \d+ more)")


class DemoProcess:
    """One child process with all its descendants; what it prints goes into a file."""

    def __init__(self, name: str, arguments: list[str], directory: Path, env: Mapping[str, str]) -> None:
        self.name = name
        self.log = directory / f"{name}.log"
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=directory,
                env={**os.environ, **env},
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def check(self) -> None:
        """Raise if the process has ended by itself.

        Raises:
            StreamleaseError: it has; the message holds the end of its log.
        """
        code = self._process.poll()
        if code is not None:
            raise StreamleaseError(
                f"{self.name} ended with code {code}: {ending(self.log.read_text(errors='replace'))}"
            )

    def kill(self) -> None:
        """SIGKILL for the process and everything that it started, first the process itself."""
        family = self._family()
        for member in family:
            _signal(member, signal.SIGKILL)
        self._process.wait()
        psutil.wait_procs(family, timeout=STOP_SECONDS)

    def stop(self) -> None:
        """SIGTERM, and SIGKILL for what has not ended in time."""
        family = self._family()
        _signal_pid(self.pid, signal.SIGTERM)
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
        for member in family:
            _signal(member, signal.SIGKILL)

    def wait(self, seconds: float) -> str:
        """Wait for the end; what was printed.

        Raises:
            StreamleaseError: it failed, or took too long.
        """
        try:
            code = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise StreamleaseError(f"{self.name} did not end within {seconds:.0f} s") from None
        if code != 0:
            self.check()
        return self.log.read_text(errors="replace")

    def _family(self) -> list[psutil.Process]:
        try:
            parent = psutil.Process(self.pid)
            return [parent, *parent.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []


def ending(log: str) -> str:
    """The last lines of a log, without the frames of Java's stacks, between which the reason stands."""
    lines = [line.strip() for line in log.splitlines() if line.strip() and not _FRAME.match(line)]
    return "; ".join(lines[-LINES:])[-MOST:]


def _signal(process: psutil.Process, number: signal.Signals) -> None:
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        return


def _signal_pid(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
