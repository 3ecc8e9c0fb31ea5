"""Whether this Python has what the programs beside this file import: one line if it has not, no traceback."""

from __future__ import annotations

import importlib.util
import sys

NEEDED = ("streamlease", "typer", "selenium")


def require_installation(program: str) -> None:
    """End the program, with exit code 1 and on standard error what to do, where the project is missing.

    Args:
        program: the name of its file, in ``scripts/``.
    """
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        sys.exit(
            f"{program}: {sys.executable} has no package {missing[0]!r}: run 'python3 run.py setup' once, "
            f"then '.venv/bin/python scripts/{program}'"
        )
