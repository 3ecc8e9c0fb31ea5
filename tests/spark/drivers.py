"""Spark programs of their own (`driver.py`), to be waited for and to be killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
DRIVER = HERE / "driver.py"
PATIENCE = 400.0
"""How long (s) a Spark program may take to do something, on a busy machine."""


def arguments(steps: tuple[dict[str, Any], ...]) -> list[str]:
    return [sys.executable, str(DRIVER), json.dumps({"steps": steps})]


def run(folder: Path, *steps: dict[str, Any], path: Path | None = None) -> list[Any]:
    """Run the steps in a Spark program; what each of them returned."""
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}
    if path is not None:
        environment["PYTHONPATH"] = str(path)
    ran = subprocess.run(
        arguments(steps), env=environment, cwd=folder, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr[-6000:]
    return [json.loads(line) for line in ran.stdout.splitlines()]


class Driver:
    """A Spark program of its own, to be killed with all that it started."""

    def __init__(self, folder: Path, *steps: dict[str, Any]) -> None:
        self._log = (folder / "driver.log").open("a")
        self.process = subprocess.Popen(
            arguments(steps),
            env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"},
            cwd=folder,
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )

    def wait(self, seconds: float) -> None:
        """Give the program that much time; it must not end in it."""
        with suppress(subprocess.TimeoutExpired):
            code = self.process.wait(seconds)
            raise AssertionError(f"the driver ended with {code}: {Path(self._log.name).read_text()[-4000:]}")

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition holds, while the program runs."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline, f"not within {PATIENCE} s"
            self.wait(0.02)

    def kill(self) -> None:
        """SIGKILL for the driver, its Java and all Python workers, none of which may notice it first."""
        family = [self.process.pid, *descendants(self.process.pid)]
        for how in (signal.SIGSTOP, signal.SIGKILL):
            for pid in family:
                with suppress(ProcessLookupError):
                    os.kill(pid, how)
        self.process.wait()
        self._log.close()


def descendants(pid: int) -> list[int]:
    """All living descendants of a process."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                parents.setdefault(parent, []).append(int(entry.name))
    found = [pid]
    for one in found:
        found += parents.get(one, [])
    return found[1:]
