"""Spark programs of their own that run `driver.py`, to be waited for and to be killed."""

from __future__ import annotations

import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.spark.programs import HERE, Program, command, descendants, parent, run_program

DRIVER = HERE / "driver.py"


def run(
    folder: Path, *steps: dict[str, Any], path: Path | None = None, settings: dict[str, str] | None = None
) -> list[Any]:
    """Run the steps in a Spark program; what each of them returned.

    Args:
        path: the only folder on PYTHONPATH; None for the source tree.
        settings: of Spark, besides those of all such programs.
    """
    wanted = {"steps": steps, "settings": settings or {}}
    return run_program(DRIVER, folder, wanted, path=None if path is None else str(path))


class Driver(Program):
    """A Spark program of its own, to be killed with all that it started."""

    def __init__(self, folder: Path, *steps: dict[str, Any], master: str = "local[2]") -> None:
        super().__init__(DRIVER, folder, {"steps": steps, "master": master})

    def workers(self) -> list[int]:
        """The Python workers that run tasks, or wait for some."""
        family = descendants(self.process.pid)
        daemons = [pid for pid in family if "pyspark.daemon" in command(pid)]
        return [pid for pid in family if parent(pid) in daemons]

    def wait(self, seconds: float) -> None:
        """Give the program that much time; it must not end in it."""
        with suppress(subprocess.TimeoutExpired):
            code = self.process.wait(seconds)
            raise AssertionError(f"the driver ended with {code}: {self.log.read_text()[-4000:]}")
