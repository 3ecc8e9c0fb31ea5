"""Executors behind Sentinels go on over a failover; a Redis Cluster is refused in one line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.admin.command import Command, until
from tests.conftest import MakeServer
from tests.queries.executors import Executors, alive, running
from tests.topology.servers import Cluster, Sentinels

pytestmark = [pytest.mark.topology, pytest.mark.timeout(240)]

WAITS = """
import time, streamlease
print("there", streamlease.queries.join().redis, flush=True)
while True:
    print("still", flush=True)
    time.sleep(0.05)
"""


@pytest.fixture
def sentinels(make_redis_server: MakeServer, tmp_path: Path) -> Iterator[Sentinels]:
    made = Sentinels(make_redis_server, "embedded", tmp_path)
    yield made
    made.stop()


@pytest.fixture
def executors(sentinels: Sentinels, tmp_path: Path) -> Iterator[Executors]:
    """No executor is started yet."""
    yield from running(Command(tmp_path, sentinels.url), tmp_path)


def test_a_query_goes_on_behind_a_failover_and_the_next_one_is_submitted(
    sentinels: Sentinels, executors: Executors
) -> None:
    executors.start("one", lease="60s")
    life = executors.items("executors")[0]["process"]
    query = executors.submit(executors.program(WAITS))
    pid = executors.until(query, "running")["workers"][0]["pid"]
    until(lambda: "there" in executors.output(query))
    until(lambda: executors.state(query) == "running" and sentinels.in_step())
    sentinels.primary.kill()
    sentinels.wait_for_failover()
    sentinels.wait_for_new_clients()
    assert executors.state(query) == "running" and alive(pid)
    assert [one["process"] for one in executors.items("executors")] == [life], "it is the same life"
    before = len(executors.output(query))
    until(lambda: len(executors.output(query)) > before)
    done = executors.command("submit", executors.program("print(1)", "next.py"), "--wait", "--json")
    assert (done.code, done.document["outcome"]) == (0, "done")
    executors.command.ok("query", "terminate", query)
    assert executors.until(query, "ended")["workers"][0]["exit"] == 143


def test_on_a_cluster_nothing_is_submitted_and_no_executor_starts(
    make_redis_server: MakeServer, tmp_path: Path
) -> None:
    cluster = Cluster(make_redis_server, "embedded")
    executors = Executors(Command(tmp_path, cluster.url), tmp_path)
    said = "executors need one Redis, or one behind Sentinels, and this is a Redis Cluster"
    for words in (("executor",), ("submit", executors.program("print(1)"))):
        assert said in executors.refused(*words).err
    assert executors.command.ok("query", "list", "--json").document == {"queries": []}
