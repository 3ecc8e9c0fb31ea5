"""The benchmark runs and prints; what it prints is not judged."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import import_module

import pytest

from bench.__main__ import subjects


def test_it_prints_rates_and_ratios_of_all_contenders() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench", "--messages", "3000", "--runs", "1"],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    for contender in ("pipelined XADD", "messages", "record batches", "XREADGROUP", "subscription", "ranges"):
        assert contender in done.stdout


@pytest.mark.parametrize(
    "options", [["--messages", "0"], ["--runs", "-1"], ["--messages", "many"], ["no-such-subject"]]
)
def test_nonsense_is_refused(options: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench", *options], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert "--messages" in done.stderr


def test_every_subject_says_in_one_line_what_it_compares() -> None:
    for name, line in subjects().items():
        assert line.endswith("."), name
        assert callable(import_module(f"bench.{name}").measure)


def test_the_append_script_without_its_sum_is_the_one_that_is_compared() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench", "accounting", "--messages", "20", "--runs", "1"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert re.findall(r"(?m)^\W*(1|1000)(?:\W+\d+\.\d){2}\W*$", done.stdout) == ["1", "1000"], done.stdout
