"""Executors that are killed, stopped, cut off, or leave, and a Redis that is restarted: real processes."""

from __future__ import annotations

import contextlib
import itertools
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.admin.command import Command, until
from tests.conftest import MakeServer
from tests.queries.executors import Executors, alive, lines_of_file, running

pytestmark = pytest.mark.cluster

LEASE = "4s"

COUNTS = """
import json, os, sys, time
import streamlease
query = streamlease.queries.join()
out = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
while True:
    line = {"at": time.clock_gettime(time.CLOCK_BOOTTIME), "query": query.id, "pid": os.getpid()}
    os.write(out, (json.dumps(line) + "\\n").encode())
    time.sleep(0.02)
"""
"""A query that says all the time that it runs. It goes on in one file, as with a checkpoint."""

WAITS = "import streamlease, time; streamlease.queries.join(); time.sleep(600)"


@pytest.fixture
def own_redis(tmp_path: Path, make_redis_server: MakeServer) -> Iterator[tuple[Executors, Any]]:
    """Executors on a Redis of their own, which keeps its data."""
    server = make_redis_server(persistent=True)
    for executors in running(Command(tmp_path, server.url), tmp_path):
        yield executors, server


def beats(executors: Executors) -> list[Any]:
    return lines_of_file(executors.folder / "beats")


def submit_counter(executors: Executors, *words: str) -> tuple[str, str]:
    """A query that counts, and the executor on which it runs."""
    program = executors.program(COUNTS)
    query = executors.submit(*words, program, "--", str(executors.folder / "beats"))
    until(lambda: beats(executors))
    return query, executors.show(query)["workers"][0]["executor"]


def never_twice(executors: Executors) -> list[str]:
    """The queries in the order in which they ran; none of them before the former one had ended."""
    spans: dict[int, list[float]] = {}
    names: dict[int, str] = {}
    for one in beats(executors):
        spans.setdefault(one["pid"], []).append(one["at"])
        names[one["pid"]] = one["query"]
    ordered = sorted(spans, key=lambda pid: min(spans[pid]))
    for before, behind in itertools.pairwise(ordered):
        assert max(spans[before]) < min(spans[behind]), "two of them ran at once"
    return [names[pid] for pid in ordered]


def runs_elsewhere(executors: Executors, query: str) -> Any:
    """The query that was placed in place of another one, once it runs."""
    until(lambda: executors.show(query)["next"])
    following = executors.show(query)["next"]
    until(lambda: any(one["query"] == following for one in beats(executors)))
    return executors.show(following)


@pytest.mark.parametrize("restart", [True, False])
def test_a_killed_executor_loses_its_queries_and_those_are_placed_anew_that_want_it(
    executors: Executors, restart: bool
) -> None:
    executors.start("one", "other", lease=LEASE)
    query, where = submit_counter(executors, *(["--restart"] if restart else []))
    pid = executors.show(query)["workers"][0]["pid"]
    executors.processes[where].kill()
    until(lambda: not alive(pid))
    lost = executors.until(query, "ended")
    assert (lost["outcome"], lost["reason"]) == ("lost", f"executor {where} died, or was cut off")
    assert lost["workers"][0]["exit"] is None
    assert executors.names() == [name for name in ("one", "other") if name != where]
    if restart:
        following = runs_elsewhere(executors, query)
        assert following["query"] == f"{query}.2"
        assert (following["former"], following["workers"][0]["executor"]) == (query, *executors.names())
        assert never_twice(executors) == [query, following["query"]]
        executors.command.ok("query", "terminate", following["query"])
        assert executors.until(following["query"], "ended")["next"] is None
    else:
        assert lost["next"] is None
        assert never_twice(executors) == [query]


@pytest.mark.parametrize("whole", [True, False], ids=["the whole machine", "the executor alone"])
def test_what_stood_still_past_its_lease_never_runs_a_query_beside_its_successor(
    executors: Executors, whole: bool
) -> None:
    executors.start("one", "other", lease=LEASE)
    query, where = submit_counter(executors, "--restart")
    stopped = executors.tree(where) if whole else [psutil.Process(executors.processes[where].pid)]
    for process in stopped:
        process.send_signal(signal.SIGSTOP)
    following = runs_elsewhere(executors, query)
    seen = len(beats(executors))
    for process in reversed(stopped):  # the program first: its guard is to be quick all the same
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGCONT)
    until(lambda: len(executors.names()) == 2)
    until(lambda: len(beats(executors)) > seen + 50)
    if not whole:
        assert never_twice(executors) == [query, following["query"]]
    late = [one for one in beats(executors)[seen:] if one["query"] == query]
    assert len(late) <= (5 if whole else 0), "until its guard has killed it"
    assert executors.show(query)["outcome"] == "lost"
    assert "begins anew" in executors.log(where).read_text()
    assert executors.state(following["query"]) == "running"


def test_an_executor_that_leaves_hands_its_queries_over(executors: Executors) -> None:
    executors.start("one", "other", lease="60s")
    query, where = submit_counter(executors, "--restart")
    executors.processes[where].terminate()
    assert executors.processes[where].wait(30) == 0
    lost = executors.show(query)
    assert (lost["outcome"], lost["reason"]) == ("lost", f"executor {where} left")
    following = runs_elsewhere(executors, query)
    assert never_twice(executors) == [query, following["query"]]


def test_the_only_executor_dies_and_a_query_waits_for_the_next_one(executors: Executors) -> None:
    executors.start("one", lease=LEASE)
    query, _ = submit_counter(executors, "--restart")
    executors.processes["one"].kill()
    executors.processes["one"].wait()
    executors.start("next", lease=LEASE)
    following = runs_elsewhere(executors, query)
    assert following["workers"][0]["executor"] == "next"
    assert never_twice(executors) == [query, following["query"]]


def test_a_restart_of_redis_ends_no_query(own_redis: tuple[Executors, Any]) -> None:
    executors, server = own_redis
    executors.start("one", "other")
    query, _ = submit_counter(executors, "--restart")
    server.restart()
    seen = len(beats(executors))
    until(lambda: len(beats(executors)) > seen + 100)
    assert executors.state(query) == "running"
    executors.command.ok("query", "terminate", query)
    assert executors.until(query, "ended")["workers"][0]["exit"] == 143
    assert never_twice(executors) == [query]


MEETS = """
import pathlib, sys, time
import streamlease
print("here", flush=True)
while not pathlib.Path(sys.argv[1]).exists():
    time.sleep(0.05)
print(streamlease.queries.join().workers, flush=True)
"""


def test_a_restart_of_redis_while_placing_and_while_spawning_costs_no_query(
    own_redis: tuple[Executors, Any],
) -> None:
    executors, server = own_redis
    executors.start("one", lease=LEASE)
    query, _ = submit_counter(executors, "--restart")
    executors.processes["one"].kill()
    executors.processes["one"].wait()
    executors.start("full", lease=LEASE, more=("--slots", "2", "--label", "x=y"))
    go = executors.folder / "go"
    words = ["--workers", "2", "--label", "x=y", executors.program(MEETS, "meets.py"), "--", str(go)]
    spawning = executors.submit(*words)
    until(lambda: "here" in executors.output(spawning, 0) and "here" in executors.output(spawning, 1))
    until(lambda: executors.show(query)["next"])
    placing = executors.show(query)["next"]
    assert (executors.state(placing), executors.state(spawning)) == ("placing", "spawning"), "no slot is free"
    server.restart()
    assert (executors.state(placing), executors.state(spawning)) == ("placing", "spawning")
    go.touch()
    assert executors.until(spawning, "ended")["outcome"] == "done"
    assert runs_elsewhere(executors, query)["query"] == placing
    assert never_twice(executors) == [query, placing]


def test_a_query_outlasts_an_outage_of_redis_unless_it_may_run_elsewhere(
    own_redis: tuple[Executors, Any],
) -> None:
    executors, server = own_redis
    executors.start("one", lease="2s", more=("--slots", "2"))
    query, _ = submit_counter(executors)
    program = executors.program(
        "import streamlease, time; streamlease.queries.join(); time.sleep(600)", "b.py"
    )
    other = executors.submit("--restart", program)
    pid = executors.until(other, "running")["workers"][0]["pid"]
    server.pause()
    until(lambda: not alive(pid))
    server.resume()
    until(lambda: executors.show(other)["next"])
    assert executors.show(other)["outcome"] == "lost"
    executors.until(f"{other}.2", "running")
    assert executors.state(query) == "running"
    assert never_twice(executors) == [query]


def test_a_redis_that_lost_all_is_a_new_beginning(tmp_path: Path, make_redis_server: MakeServer) -> None:
    server = make_redis_server()
    for executors in running(Command(tmp_path, server.url), tmp_path):
        executors.start("one")
        query, _ = submit_counter(executors)
        pid = executors.show(query)["workers"][0]["pid"]
        server.restart()
        until(lambda pid=pid: not alive(pid))
        until(lambda executors=executors: executors.names() == ["one"])
        assert "there is no query" in executors.refused("query", "show", query).err
        done = executors.command("submit", "--wait", "--json", executors.program("print(1)", "one.py"))
        assert done.document["outcome"] == "done"


def test_workers_of_several_executors_end_together(executors: Executors) -> None:
    executors.start("one", "other", lease=LEASE)
    program = executors.program(WAITS)
    query = executors.submit("--workers", "2", "--restart", program)
    running_ = executors.until(query, "running")
    executors.processes["one"].kill()
    executors.processes["one"].wait()
    lost = executors.until(query, "ended")
    (left,) = [one for one in lost["workers"] if one["executor"] == "other"]
    assert (lost["outcome"], left["exit"]) == ("lost", 143)
    until(lambda: executors.state(f"{query}.2") == "running")
    again = executors.show(f"{query}.2")
    assert {one["executor"] for one in again["workers"]} == {"other"}
    assert len({one["port"] for one in again["workers"]}) == 2
    assert len(running_["workers"]) == 2
