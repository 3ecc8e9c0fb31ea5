"""Runs the command ``streamlease`` as its users do, and says what came of it."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from streamlease.admin.documents import DOCUMENTS, check

SCRIPT = Path(sys.executable).with_name("streamlease")
SECONDS = 60.0


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
        done = subprocess.run(
            [str(SCRIPT), *words],
            input=text.encode() if isinstance(text, str) else text,
            capture_output=True,
            env=self.environment | environment,
            timeout=SECONDS,
            check=False,
        )
        return checked(words, Outcome(done.returncode, done.stdout.decode(), done.stderr.decode()))

    def ok(self, *words: str, text: str | bytes = b"") -> Outcome:
        """Run it; it must succeed and say nothing on standard error."""
        outcome = self(*words, text=text)
        assert (outcome.code, outcome.err) == (0, ""), outcome
        return outcome

    def start(self, *words: str, **environment: str) -> subprocess.Popen[bytes]:
        """Start it, its standard error in ``log``; end it with ``finish``."""
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [str(SCRIPT), *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env=self.environment | environment,
            )


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
        ):
            code = run(list(words))
        return checked(words, Outcome(code, out.getvalue(), err.getvalue()))


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


def finish(process: subprocess.Popen[bytes], how: signal.Signals = signal.SIGTERM) -> Outcome:
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
    return Outcome(process.returncode, out.decode(), "")


def lines_of(process: subprocess.Popen[bytes], count: int) -> list[str]:
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
