"""Where things are, what is said, and how programs are run with their output in a log."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
CACHE = ROOT / ".cache"
LOG = CACHE / "setup.log"
held: list[int] = []
"""Locks that programs keep which outlive a killed run: what they do is not done twice at a time."""


class SetupError(Exception):
    """Set-up cannot go on. One line: what is wrong and what to do."""


def say(text: str) -> None:
    sys.stderr.write(f"run.py: {text}\n")
    sys.stderr.flush()


@contextlib.contextmanager
def step(text: str) -> Iterator[None]:
    """One line when a long step begins and one when it is done."""
    say(f"{text} ...")
    began = time.monotonic()
    yield
    say(f"{text}: done in {time.monotonic() - began:.0f} s")


def run_logged(command: Sequence[str | Path], *, failed: str, cwd: Path = ROOT) -> None:
    """Run a command with its output in the log; raise ``SetupError`` with its last words if it fails."""
    with LOG.open("a") as log:
        log.write(f"$ {' '.join(map(str, command))}\n")
        log.flush()
        begin = log.tell()
        code = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, cwd=cwd, pass_fds=held,
            check=False,
        ).returncode  # fmt: skip
    if code != 0:
        with LOG.open(errors="replace") as log:
            log.seek(begin)
            raise SetupError(failure(failed, log.readlines(), code))


def failure(failed: str, said: Sequence[str], code: int) -> str:
    """One line about a command that failed: its last word of an error, and where all of it is."""
    words = [line.strip() for line in said if line.strip()]
    errors = [line for line in words if line.lower().startswith(("error", "e:"))]
    why = (errors or words or [f"it ended with status {code}"])[-1]
    return f"{failed}: {why} (all of it is in {LOG.relative_to(ROOT)})"
