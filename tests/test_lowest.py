"""With the oldest packages that ``pyproject.toml`` takes, all is imported, and what uses them works."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from scripts.setting_up.lowest import LEFT_OUT, LOWEST_VARIABLE
from tests.house.test_pins import pins
from tests.servers import ROOT

IMPORT_ALL = """
import importlib, json, pkgutil, warnings
from importlib.metadata import version
import streamlease
warnings.simplefilter("error")
found = [one.name for one in pkgutil.walk_packages(streamlease.__path__, "streamlease.")]
for name in found:
    if not name.endswith("__main__"):
        importlib.import_module(name)
print(json.dumps([len(found), {name: version(name) for name in WANTED}]))
"""
COURSES = (
    "tests/admin/test_completion.py",
    "tests/admin/test_dead_letters_cli.py",
    "tests/agent/test_traces.py",
    "tests/archive/test_files.py",
    "tests/archive/test_places.py",
    "tests/gateway/test_metrics.py",
    "tests/http_client/test_gateway_client.py",
    "tests/streams/test_typed_spaces.py",
)
"""What uses each of those packages, and takes seconds."""

pytestmark = pytest.mark.thorough


def run(*words: str, **variables: str) -> tuple[int, str]:
    """Exit status and output of a Python that finds the oldest packages first; nothing outlives it."""
    lowest = os.environ.get(LOWEST_VARIABLE)
    if lowest is None:
        pytest.fail(f"{LOWEST_VARIABLE} is not set: run this test by 'python3 run.py test'", pytrace=False)
    ours = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    ours["PYTHONPATH"] = os.pathsep.join(filter(None, [lowest, ours.get("PYTHONPATH")]))
    with subprocess.Popen(
        [sys.executable, *words], cwd=ROOT, env=ours | variables, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    ) as process:  # fmt: skip
        try:
            said, _ = process.communicate()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, said


def test_all_modules_are_imported_without_a_warning() -> None:
    base, lowest = pins("base"), pins("lowest")
    wanted = {
        name: versions for name, versions in lowest.items() if versions != base.get(name) and name != LEFT_OUT
    }
    code, said = run("-c", IMPORT_ALL.replace("WANTED", repr(sorted(wanted))))
    assert code == 0, said
    count, versions = json.loads(said.splitlines()[-1])
    assert count > 700
    assert {name: {version} for name, version in versions.items()} == wanted


def test_options_are_read_from_their_variables() -> None:
    code, said = run("-m", "streamlease.admin", "serve", STREAMLEASE_HTTP_PORT="70000")
    assert (code, said) == (2, "error: http port is 70000: it must be from 0 to 65535\n")


def test_what_uses_them_works(tmp_path: Path) -> None:
    code, said = run(
        "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", f"--basetemp={tmp_path}", *COURSES
    )
    assert code == 0, said
