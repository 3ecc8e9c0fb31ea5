"""The rule that a skip is a failure in CI, tried on a test run of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers import ROOT

SKIPPING = """
import pytest

@pytest.mark.skip(reason="because of the mark")
def test_marked(): ...

def test_inside():
    pytest.skip("because of a call")

@pytest.mark.xfail(reason="known", strict=True)
def test_known(): assert False

def test_fine(): ...
"""
SKIPPING_MODULE = "import pytest\npytest.importorskip('a_module_that_nobody_has')\n"


def run_pytest(directory: Path, source: str, ci: str | None) -> tuple[int, str]:
    (directory / "test_it.py").write_text(source)
    (directory / "pytest.ini").write_text("[pytest]\n")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("CI", None)
    if ci is not None:
        environment["CI"] = ci
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider", "-q", "-ra", "."],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return ran.returncode, ran.stdout


@pytest.mark.slow
def test_skips_fail_in_ci_and_expected_failures_do_not(tmp_path: Path) -> None:
    code, said = run_pytest(tmp_path, SKIPPING, "true")
    assert code == 1
    assert "1 failed, 1 passed, 1 xfailed, 1 error" in said
    assert "which fails in CI: Skipped: because of the mark" in said
    assert "which fails in CI: Skipped: because of a call" in said


@pytest.mark.slow
def test_a_module_that_skips_itself_fails_in_ci(tmp_path: Path) -> None:
    code, said = run_pytest(tmp_path, SKIPPING_MODULE, "true")
    assert code not in (0, 5)
    assert "which fails in CI" in said


@pytest.mark.parametrize("ci", [None, "false"])
@pytest.mark.slow
def test_skips_pass_elsewhere(tmp_path: Path, ci: str | None) -> None:
    code, said = run_pytest(tmp_path, SKIPPING, ci)
    assert code == 0
    assert "1 passed, 2 skipped, 1 xfailed" in said


RECORDING = """
import os, pathlib

def record(name):
    pathlib.Path(name).write_text(os.environ["PYTEST_XDIST_WORKER"])
"""
STARTS_JAVA = """
import pytest
from recording import record

@pytest.mark.spark
def test_it(): record("java-{number}")
"""
OTHER = """
from recording import record

def test_it(): record("other")
"""


FIRST = """
import time, pathlib, pytest
from recording import record

@pytest.mark.thorough
@pytest.mark.parametrize("number", range(3))
def test_it(number):
    end = time.monotonic() + 60
    while not pathlib.Path("short-d-2").exists():
        assert time.monotonic() < end
        time.sleep(0.01)
    record(f"first-{number}")
"""
SECOND = """
import pathlib, pytest
from recording import record

@pytest.mark.thorough
def test_it():
    assert pathlib.Path("short-d-2").exists()
    record("second")
"""
SHORT = """
import pytest
from recording import record

@pytest.mark.parametrize("number", range(3))
def test_it(number): record(f"short-{name}-{{number}}")
"""


def run_by_two_workers(directory: Path) -> str:
    (directory / "recording.py").write_text(RECORDING)
    marks = "spark: starts Java\n    thorough: takes long\n"
    (directory / "pytest.ini").write_text(f"[pytest]\npythonpath = .\nmarkers =\n    {marks}")
    options = ("-p", "tests.conftest", "-p", "no:cacheprovider", "-n", "2", "--dist", "loadfile")
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "--no-loadscope-reorder", "."],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    return ran.stdout


@pytest.mark.slow
def test_files_that_compute_take_one_worker_while_there_are_others(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text(FIRST)
    (tmp_path / "test_b.py").write_text(SECOND)
    for name in "cd":
        (tmp_path / f"test_{name}.py").write_text(SHORT.format(name=name))
    said = run_by_two_workers(tmp_path)
    assert "10 passed" in said, said
    (first,) = {file.read_text() for file in tmp_path.glob("first-*")}
    (short,) = {file.read_text() for file in tmp_path.glob("short-*")}
    assert {first, short} == {"gw0", "gw1"}


@pytest.mark.slow
def test_of_several_workers_one_runs_all_tests_that_start_java(tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / f"test_java_{number}.py").write_text(STARTS_JAVA.format(number=number))
    (tmp_path / "test_a.py").write_text(OTHER)
    said = run_by_two_workers(tmp_path)
    assert "5 passed" in said, said
    (java,) = {file.read_text() for file in tmp_path.glob("java-*")}
    assert {java, (tmp_path / "other").read_text()} == {"gw0", "gw1"}
