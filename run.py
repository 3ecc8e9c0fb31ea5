#!/usr/bin/env python3
"""Set everything up and run the demo, the tests or all checks. Needs Python 3.11 to 3.13, nothing else.

The first run makes ``.venv``, installs the pinned packages of ``requirements/`` and this project into it,
and finds Java and Redis. A stamp, written last, makes further runs quick; an interrupted run is gone on with.

This file runs on any Python from 2.7 on, to tell which one is needed; the work is in ``scripts/setting_up``.
"""

import os
import subprocess
import sys

OLDEST, NEWEST = (3, 11), (3, 13)
ROOT = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - no pathlib in 2.7


def version(number):
    # type: (tuple[int, ...]) -> str
    return ".".join(str(part) for part in number)


def runs(name):
    # type: (str) -> bool
    """Whether a program of that name is on PATH, and runs; 2.7 has no ``shutil.which``."""
    with open(os.devnull, "w") as nowhere:  # noqa: PTH123
        try:
            return subprocess.call([name, "--version"], stdout=nowhere, stderr=nowhere) == 0
        except OSError:
            return False


def refusal(found, windows):
    # type: (tuple[int, ...], bool) -> str
    """Why this Python, or this machine, will not do, and what will; empty if it does. One line."""
    if windows:
        return "Streamlease needs Linux or macOS: on Windows, run it in WSL"
    if OLDEST <= found <= NEWEST:
        return ""
    arguments = " ".join(["run.py"] + sys.argv[1:])  # noqa: RUF005 - no unpacking in 2.7
    there = [name for name in ("python3.13", "python3.12", "python3.11") if runs(name)]
    if there:
        way = "run '" + there[0] + " " + arguments + "', which is here"
    elif runs("uv"):
        way = "run 'uv run --no-project --python " + version(NEWEST) + " " + arguments + "', which brings one"
    else:
        way = "install one of these, and run such as 'python" + version(NEWEST) + " " + arguments + "'"
    return "this is Python " + version(found) + ", and Streamlease needs 3.11, 3.12 or 3.13: " + way


def main():
    # type: () -> int
    why_not = refusal(tuple(sys.version_info[:2]), os.name == "nt")
    if why_not:
        sys.stderr.write("run.py: " + why_not + "\n")
        return 1
    sys.path.insert(0, ROOT)
    from scripts.setting_up import commands

    return commands.run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
