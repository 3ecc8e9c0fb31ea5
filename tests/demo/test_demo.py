"""The demo as a user runs it: as a process, with real Spark, real kills and the real flights.

Its Javas map the archive of Spark's classes, as all Javas of the tests do. It runs on one kind of server: it
asks nothing of Redis that other tests do not ask of each kind.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress

import pytest
import redis

from streamlease.admin.demo.processes import ending
from streamlease.streams.archive import archive_turns
from tests.admin.command import until
from tests.spark.classes import java_options
from tests.spark.programs import descendants

SECONDS = 800.0
CLAIMS = {b"sl:{g:!archive}:leader", b"sl:{g:!retention}:leader"}
"""Of all hosts, for all spaces: their terms stay, for whoever claims the same later."""


def _demo(url: str, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    arguments: Sequence[str] = [sys.executable, "-m", "streamlease.admin", "demo", *options, "--redis", url]
    with subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | environment
    ) as demo:
        try:
            out, err = demo.communicate(timeout=SECONDS)
        except BaseException:
            for pid in (
                *descendants(demo.pid),
                demo.pid,
            ):  # leader hosts and queries are programs of their own
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(arguments, demo.returncode, out, err)


@pytest.mark.demo
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_every_flight_arrives_once_though_a_query_and_a_leader_are_killed(embedded_redis_url: str) -> None:
    done = _demo(embedded_redis_url, "--json", JAVA_TOOL_OPTIONS=java_options())
    assert done.returncode == 0, done.stderr[-3000:]
    outcome = json.loads(done.stdout)
    assert outcome["published"] == outcome["delivered"] == 336_776
    assert outcome["read_again"] == outcome["read_again_distinct"] == 336_776
    assert 0 < outcome["archived"] <= 336_776
    assert outcome["missing"] == outcome["duplicated"] == 0
    assert outcome["both_queries_held_streams"]
    assert outcome["streams_moved"] > 0
    assert outcome["take_over_seconds"] is not None
    assert outcome["leader_replaced_seconds"] is not None
    assert len(outcome["mean_arrival_delay"]) == 16
    assert all(means["spark"] == means["file"] for means in outcome["mean_arrival_delay"].values())
    with redis.Redis.from_url(embedded_redis_url) as client:

        def nothing_of_its_own_is_left() -> bool:
            left = {key for key in client.scan_iter("sl:*") if b"flights" in key or b"{g:" in key}
            return left <= CLAIMS

        # The turn of a host that was killed at the archive ends by itself, within a minute.
        until(nothing_of_its_own_is_left, archive_turns.TURN_SECONDS + 30)


def test_a_redis_that_has_the_space_already_is_left_alone(embedded_redis_url: str) -> None:
    subprocess.run(
        [
            sys.executable, "-m", "streamlease.admin", "space", "create", "flights",
            "--topics", "mine/#", "--redis", embedded_redis_url,
        ],
        check=True,
        capture_output=True,
        timeout=60,
    )  # fmt: skip
    with redis.Redis.from_url(embedded_redis_url) as client:
        before = client.dbsize()
        done = _demo(embedded_redis_url)
        assert done.returncode == 2
        assert "space 'flights' exists in this Redis already" in done.stderr
        assert len(done.stderr.strip().splitlines()) == 1
        assert client.dbsize() == before


def test_an_unreachable_redis_is_one_line() -> None:
    done = _demo("redis://127.0.0.1:1")
    assert done.returncode == 1
    assert "Redis at 127.0.0.1:1 does not answer" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.demo
@pytest.mark.spark
def test_a_query_that_cannot_start_ends_the_demo_at_once_with_the_reason(embedded_redis_url: str) -> None:
    done = _demo(embedded_redis_url, JAVA_TOOL_OPTIONS="-Xmx1k")
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert line.startswith("error: query-first ended with code 1: ")
    assert "does not run" in line
    assert "JAVA_HOME" in line
    assert "all flights are published" not in done.stdout


def test_of_a_log_the_reason_is_told_and_not_the_stack() -> None:
    log = (
        "started\n\njava.io.IOException: no chmod\n\tat a.B.c(B.java:1)\n"
        "Caused by: it is not there\n\t... 19 more\n\n"
    )
    assert ending(log) == "started; java.io.IOException: no chmod; Caused by: it is not there"
    assert len(ending("x" * 5000)) == 1000
