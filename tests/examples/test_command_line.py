"""The examples as people start them: without what they take, with what is none, and where nothing is yet."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.programs import environment

NOWHERE = "redis://127.0.0.1:1/0"
BOTH = "URL, FOLDER"
TAKES = {
    "data": "URL",
    "windowed_delays": BOTH,
    "upsert_sqlite": BOTH,
    "join_groups": BOTH,
    "chained_jobs": BOTH,
    "from_xreadgroup": BOTH,
    "submitted_flights": BOTH,
    "flights_in_the_air": "URL, DAYS",
}


def run(name: str, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", f"streamlease.examples.{name}", *words]
    return subprocess.run(
        command, env=os.environ | environ, capture_output=True, text=True, timeout=240, check=False
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", TAKES)
def test_what_an_example_takes_is_told(name: str) -> None:
    ran = run(name)
    assert ran.returncode == 2
    assert ran.stderr.splitlines()[-1] == (
        f"python -m streamlease.examples.{name}: error: the following arguments are required: {TAKES[name]}"
    )


@pytest.mark.slow
def test_days_are_a_number() -> None:
    ran = run("flights_in_the_air", NOWHERE, "three")
    assert ran.returncode == 2
    assert ran.stderr.splitlines()[-1].endswith("error: argument DAYS: invalid int value: 'three'")


@pytest.mark.slow
@pytest.mark.parametrize("words", [("data", NOWHERE), ("flights_in_the_air", NOWHERE, "1")])
def test_a_redis_that_is_not_there_is_told_in_a_line(words: tuple[str, ...]) -> None:
    ran = run(*words)
    (line,) = ran.stderr.splitlines()
    assert (ran.returncode, line.partition(" does not answer")[0]) == (1, "error: Redis at 127.0.0.1:1")


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_what_spark_refuses_is_told_in_a_line_also_where_all_others_use_spark_connect(
    embedded_redis_url: str, tmp_path: Path
) -> None:
    remote = {"SPARK_REMOTE": "sc://127.0.0.1:1", "SPARK_API_MODE": "connect"}
    given = environment(None) | remote
    ran = run("windowed_delays", embedded_redis_url, str(tmp_path), **given)
    last = ran.stderr.splitlines()[-1]
    assert (ran.returncode, ran.stdout) == (1, "")
    assert last.startswith("error: streamlease.protocol.errors.UnknownSpace: no space has topics that match")
