"""The commands of ``run.py``: the demo, the tests, the checks."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import NoReturn

from scripts.setting_up.lowest import LOWEST_VARIABLE, provide_lowest
from scripts.setting_up.packages import set_up
from scripts.setting_up.programs import (
    MOSQUITTO_VARIABLE,
    PROMETHEUS_VARIABLE,
    REDIS_VARIABLE,
    provide_browser,
    provide_mosquitto,
    provide_prometheus,
    provide_redis7,
)
from scripts.setting_up.steps import CACHE, PYTHON, ROOT, VENV, SetupError, held, say

USAGE = """\
usage: python3 run.py COMMAND [ARGUMENT...]

  demo [argument...]         run the demo ('demo --help' lists its arguments)
  test                       run all tests, several at a time, and then those that need quiet
  test --fast                those of the core that are quick, without Java, browsers, clusters or Helm
  test argument...           run pytest with these arguments, one test at a time ('test tests': all of them)
  check [--no-tests]         format, lint and types, then the tests
  setup                      only set up
"""
SLOW_SUITES = (
    "spark",
    "cluster",
    "chaos",
    "demo",
    "browser",
    "topology",
    "helm",
    "thorough",
    "slow",
    "outer",
)  # markers of pyproject.toml
NOTHING_TO_RUN, INTERRUPTED = 5, 2  # exit statuses of pytest


@contextlib.contextmanager
def taking_turns() -> Iterator[None]:
    """Two runs of this program do not set up at the same time."""
    CACHE.mkdir(exist_ok=True)
    with (CACHE / "setup.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another run of run.py that is setting up")
            fcntl.flock(lock, fcntl.LOCK_EX)
        held.append(lock.fileno())
        try:
            yield
        finally:
            held.clear()


def environment() -> dict[str, str]:
    """The environment of all that is run: the programs of .venv come first, and modules are compiled once.

    Strings hash alike in all processes: the workers of a run collect the same tests, and a seed of the
    simulation is the same run tomorrow.
    """
    path = f"{PYTHON.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    ours = {"PYTHONHASHSEED": "0", **os.environ, "VIRTUAL_ENV": str(VENV), "PATH": path}
    ours.pop("PYTHONDONTWRITEBYTECODE", None)  # each of many processes would compile all modules anew
    return ours


def become(program: str, *arguments: str) -> NoReturn:
    """Be replaced by a program of .venv, so that its signals and its exit status are its own."""
    os.chdir(ROOT)
    path = str(PYTHON.parent / program)
    os.execve(path, [path, *arguments], environment())


def run_tool(*arguments: str) -> int:
    """Run a Python module of .venv to its end; its exit status. Ctrl-C ends the tool, which then returns."""
    with subprocess.Popen([PYTHON, "-m", *arguments], cwd=ROOT, env=environment()) as process:
        while True:
            try:
                code = process.wait()
                return code if code >= 0 else 128 - code
            except KeyboardInterrupt:
                continue


def workers() -> int:
    """How many tests run at a time: most of them wait, so it is two more than there are processors."""
    return min((os.cpu_count() or 1) + 2, 8)


def run_tests(*, fast: bool) -> int:
    """Run the tests side by side, of which the slowest are told, then those marked ``quiet`` one by one.

    Returns:
        the first exit status but 0.
    """
    chosen = "".join(f" and not {suite}" for suite in SLOW_SUITES) if fast else ""
    side_by_side = ("-n", str(workers()), "--dist", "loadfile", "--no-loadscope-reorder", "--durations=20")
    outcomes: list[str] = []
    failed = 0
    for what, marks, options in (
        ("side by side", "not quiet", side_by_side),
        ("one by one", "quiet", ("-n", "0")),
    ):
        say(f"tests {what}: pytest {' '.join(options)} -m '{marks}{chosen}'")
        began = time.monotonic()
        code = run_tool("pytest", *options, "-m", marks + chosen)
        if code != NOTHING_TO_RUN:
            ended = f"failed with status {code}" if code else "passed"
            outcomes.append(f"{what} {ended} in {time.monotonic() - began:.0f} s")
            failed = failed or code
        if code == INTERRUPTED or code > 128:
            break
    say(f"tests: {', '.join(outcomes) or 'nothing to run'}")
    return failed if outcomes else NOTHING_TO_RUN


def check_sources() -> int:
    checks = {
        "format": ("ruff", "format", "--check", "."),
        "lint": ("ruff", "check", "."),
        "types": ("mypy",),
        "types of the set-up": ("mypy", "run.py", "scripts", "tests/servers.py", "tests/conftest.py"),
    }
    failed = 0
    for what, command in checks.items():
        say(f"checking {what}")
        code = run_tool(*command)
        if code:
            say(f"checking {what}: failed")
        failed = failed or code
    return failed


def main(arguments: Sequence[str]) -> int:
    if not arguments:
        sys.stderr.write(USAGE)
        return 2
    command, *rest = arguments
    if command in ("-h", "--help", "help"):
        sys.stdout.write(USAGE)
        return 0
    accepts = {"demo": True, "test": True, "setup": not rest, "check": rest in ([], ["--no-tests"])}
    if not accepts.get(command):
        sys.stderr.write(f"run.py: cannot do {' '.join(arguments)!r}\n{USAGE}")
        return 2
    with_tests = command == "test" or (command == "check" and not rest)
    with taking_turns():
        set_up("base" if command == "demo" else "dev")
        if with_tests or command == "setup":
            os.environ[REDIS_VARIABLE] = str(provide_redis7())
            os.environ[MOSQUITTO_VARIABLE] = str(provide_mosquitto())
            os.environ[PROMETHEUS_VARIABLE] = str(provide_prometheus())
        if with_tests and rest != ["--fast"]:
            os.environ[LOWEST_VARIABLE] = str(provide_lowest())
            if "not browser" not in " ".join(rest):
                provide_browser()
    if command == "demo":
        become("streamlease", "demo", *rest)
    if command == "test" and rest not in ([], ["--fast"]):
        become("python", "-m", "pytest", *rest)
    failed = check_sources() if command == "check" else 0
    if with_tests:
        failed = run_tests(fast=rest == ["--fast"]) or failed
    return failed


def run(arguments: Sequence[str]) -> int:
    """Do what the arguments say; the exit status."""
    try:
        return main(arguments)
    except SetupError as problem:
        say(str(problem))
        return 1
    except KeyboardInterrupt:
        say("interrupted; the same command goes on where it stopped")
        return 130
