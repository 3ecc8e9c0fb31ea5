"""Runs the command ``streamlease`` as its users do, and says what came of it."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from unittest import mock

from streamlease.admin.documents import DOCUMENTS, check
from tests.forking import Forked, launcher

SCRIPT = Path(sys.executable).with_name("streamlease")
SECONDS = 60.0
Process = subprocess.Popen[bytes] | Forked


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one call ended."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The one JSON document of standard output."""
        (line,) = self.out.splitlines()
        return json.loads(line)

    @property
    def documents(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


class Command:
    """``streamlease`` in an environment of its own; by default on one Redis."""

    def __init__(self, directory: Path, url: str | None = None) -> None:
        self.environment = {
            name: value for name, value in os.environ.items() if not name.startswith("STREAMLEASE_")
        } | {"XDG_STATE_HOME": str(directory), "COLUMNS": "200", "PYTHONUNBUFFERED": "1"}
        self.url = url
        if url is not None:
            self.environment["STREAMLEASE_REDIS_URL"] = url
        self.log = directory / "stderr"

    def __call__(self, *words: str, text: str | bytes = b"", **environment: str) -> Outcome:
        """Run it to its end."""
        given = text.encode() if isinstance(text, str) else text
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            process = self._process(words, subprocess.PIPE, out, err, self.environment | environment)
            assert process.stdin is not None
            try:
                with contextlib.suppress(BrokenPipeError), process.stdin as stdin:
                    stdin.write(given)
                code = process.wait(SECONDS)
            finally:
                process.kill()
            out.seek(0)
            err.seek(0)
            return checked(words, Outcome(code, out.read().decode(), err.read().decode()))

    def ok(self, *words: str, text: str | bytes = b"") -> Outcome:
        """Run it; it must succeed and say nothing on standard error."""
        outcome = self(*words, text=text)
        assert (outcome.code, outcome.err) == (0, ""), outcome
        return outcome

    def start(self, *words: str, **environment: str) -> Process:
        """Start it, its standard error in ``log``; end it with ``finish``."""
        with self.log.open("ab") as log:
            return self._process(
                words, subprocess.DEVNULL, subprocess.PIPE, log, self.environment | environment
            )

    def _process(
        self,
        words: Sequence[str],
        stdin: int,
        stdout: int | IO[bytes],
        stderr: IO[bytes],
        env: dict[str, str],
    ) -> Process:
        return launcher().start([str(SCRIPT), *words], stdin, stdout, stderr, env)


class Program(Command):
    """The same by a Python that starts for each call, which costs most of a second of computing."""

    def _process(
        self,
        words: Sequence[str],
        stdin: int,
        stdout: int | IO[bytes],
        stderr: IO[bytes],
        env: dict[str, str],
    ) -> Process:
        return subprocess.Popen([str(SCRIPT), *words], stdin=stdin, stdout=stdout, stderr=stderr, env=env)


class InProcess(Command):
    """The same, run in this process: many calls then take no time for starting Python."""

    def __call__(self, *words: str, text: str | bytes = b"", **environment: str) -> Outcome:
        """Run it to its end."""
        from streamlease.admin.cli import run

        assert not text
        out, err = io.StringIO(), io.StringIO()
        with (
            mock.patch.dict(os.environ, self.environment | environment),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            _logs_of_a_command(),
        ):
            code = run(list(words))
        return checked(words, Outcome(code, out.getvalue(), err.getvalue()))


@contextlib.contextmanager
def _logs_of_a_command() -> Iterator[None]:
    """In a process of its own a command logs errors only; here pytest has set the logs up before."""
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)
    try:
        yield
    finally:
        root.setLevel(level)


def checked(words: Sequence[str], outcome: Outcome) -> Outcome:
    """Every document that a command prints in any test is what its schema says."""
    if "--json" in words:
        for length in (3, 2, 1):
            command = " ".join(words[:length])
            if command in DOCUMENTS:
                for line in outcome.out.splitlines():
                    check(command, line)
                break
    return outcome


def finish(process: Process, how: signal.Signals = signal.SIGTERM) -> Outcome:
    """Signal a process and wait for its end; again if it was only just starting and the signal went under."""
    out = b""
    try:
        for _ in range(3):
            if process.poll() is None:
                process.send_signal(how)
            with contextlib.suppress(subprocess.TimeoutExpired):
                out, _err = process.communicate(timeout=SECONDS / 2)
                break
        assert process.poll() is not None, f"it did not end after three {how.name}"
    finally:
        process.kill()
        process.communicate()
    return Outcome(process.wait(), out.decode(), "")


def lines_of(process: Process, count: int) -> list[str]:
    """The next `count` lines that a process prints; the test's timeout is the deadline."""
    assert process.stdout is not None
    return [process.stdout.readline().decode().rstrip("\n") for _ in range(count)]


def until(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    """What `condition` gives once that is true; the test fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {seconds} s: {condition}"
        time.sleep(0.02)
    return found


def bytes_lines(lines: Sequence[bytes]) -> bytes:
    return b"".join(line + b"\n" for line in lines)
