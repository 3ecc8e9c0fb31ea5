"""Borrowers in executor tasks on every kind of master; workers are kept, reaped and killed, executors too."""

from __future__ import annotations

import os
import signal
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from streamlease.streams.log.joining import BATCH_ROWS
from tests.admin.command import Command, until
from tests.queries.executors import Executors, running
from tests.spark.applications import (
    PATIENT,
    Application,
    Standalone,
    connections_to,
    leases,
    once_each,
    options,
)
from tests.spark.programs import command
from tests.spark.world import World

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

LARGE = BATCH_ROWS + 10_000
"""An entry that is handed on in two batches."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Standalone]:
    """A standalone cluster of two workers."""
    folder = tmp_path / "cluster"
    folder.mkdir()
    made = Standalone(folder)
    yield made
    made.stop()


SUBMITTED = """
import os
import streamlease
from streamlease.spark.environment import configure_environment, submitted_settings

query = streamlease.queries.join()
configure_environment()
from pyspark.sql import SparkSession

settings = {"spark.master": "local[1]", "spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1"}
spark = SparkSession.builder.config(map=submitted_settings(settings)).getOrCreate()
places = spark.sparkContext.parallelize(range(8), 8).map(lambda _: os.getcwd()).distinct().collect()
print(spark.sparkContext.master, spark.conf.get("spark.app.name"), *places, flush=True)

flights = spark.readStream.format("streamlease").options(
    redis=query.redis, subscribe="$shared/board/flights/#", startingOffsets="earliest"
)
board = flights.load().selectExpr("concat('board/', substring(topic, 9)) AS topic", "payload")
board.writeStream.format("streamlease").options(
    redis=query.redis, checkpointLocation=query.conf["checkpoint"]
).start().awaitTermination()
"""


@pytest.fixture
def executors(tmp_path: Path, embedded_redis_url: str) -> Iterator[Executors]:
    """Executors of submitted programs."""
    yield from running(Command(tmp_path, embedded_redis_url), tmp_path)


def test_a_submitted_program_runs_on_a_standalone_cluster(
    cluster: Standalone, executors: Executors, tmp_path: Path
) -> None:
    executors.start("one")
    for space in ("flights", "board"):
        executors.command.ok("space", "create", space, "--topics", f"{space}/#", "--streams", "2")
    executors.command.ok("publish", "flights/JFK", text="one\ntwo\n")
    executors.command.ok("publish", "flights/LAX", text="three\n")
    conf = {
        "checkpoint": str(tmp_path / "checkpoint"),
        "spark.master": cluster.url,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.app.name": "of $HOME 'and' more",
    }
    words = [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
    query = executors.submit(executors.program(SUBMITTED), "--spawn-timeout", "5m", *words)

    def on_board() -> bool:
        assert executors.state(query) != "ended", executors.output(query)
        streams = executors.command.ok("space", "show", "board", "--json").document["streams"]
        return sum(stream["next"] for stream in streams) == 3

    until(on_board, 240)
    found = executors.command.ok("consume", "board/#", "--from", "earliest", "--count", "3", "--json")
    arrived = [(one["topic"], one["payload"]) for one in found.documents]
    assert sorted(arrived) == [("board/JFK", "one"), ("board/JFK", "two"), ("board/LAX", "three")]
    shown = executors.show(query)
    assert (shown["publishes"], shown["reads"]) == (["board/JFK", "board/LAX"], ["$shared/board/flights/#"])
    assert {one["query"] for one in executors.items("borrowers")} == {query}
    executors.command.ok("query", "terminate", query)
    executors.until(query, "ended")
    assert executors.show(query)["outcome"] == "terminated"
    (line,) = [one for one in executors.output(query).splitlines() if one.startswith("spark://")]
    said = f"{cluster.url} of $HOME 'and' more "
    assert line.startswith(said), "quoted for PYSPARK_SUBMIT_ARGS"
    places = line.removeprefix(said).split()
    assert places
    assert all(place.startswith(str(tmp_path / "cluster" / "worker-")) for place in places), "its Workers"


def hold_in_the_middle(world: World, application: Application) -> dict[str, Any]:
    """Have a task stand between two batches of one span; the last line that it told."""
    (application.folder / "hold").touch()
    world.publish({world.streams[0]: LARGE}, entry=LARGE)
    worker = application.held()
    told = [line for line in application.told() if line["pid"] == worker][-1]
    assert told["last"] + 1 < told["end"], "it has not read all of its span"
    return told


def check_second_reading(application: Application, told: dict[str, Any]) -> None:
    """Another attempt has read the same rows again, from the first one on, and the rest of the span."""
    attempts: dict[int, list[list[Any]]] = defaultdict(list)
    for line in application.told():
        if (line["cut"], line["slot"], line["stream"]) == (told["cut"], told["slot"], told["stream"]):
            attempts[line["attempt"]].append([line[name] for name in ("first", "last", "end", "rows")])
    first = attempts.pop(told["attempt"])  # on a busy machine Spark may have started two of them already
    whole = [lines for lines in attempts.values() if lines[-1][1] + 1 == told["end"]]
    assert whole
    for lines in attempts.values():
        assert lines[: len(first)] == first[: len(lines)]
    assert all(len(lines) > len(first) and lines == whole[0] for lines in whole)


def test_workers_keep_their_connection_are_killed_in_the_middle_and_reaped_while_idle(
    world: World, start_application: Callable[..., Application]
) -> None:
    world.lead(ttl=PATIENT)
    world.publish(5)
    kept = start_application("kept", options(world), master="local[*,4]")
    kept.start()
    for _ in range(5):
        kept.wait_for_rows(world.total)
        world.publish(5)
    kept.wait_for_rows(world.total)
    port = int(world.url.rpartition(":")[2].partition("/")[0])
    connections = defaultdict(set)
    cuts = defaultdict(set)
    for line in kept.told():
        connections[line["pid"]].add(line["connection"])
        cuts[line["pid"]].add(line["cut"])
    assert all(len(some) == 1 for some in connections.values()), "a worker has one connection, and keeps it"
    assert max(map(len, cuts.values())) > 1, "workers are used again"
    assert all(connections_to(port, pid) == 1 for pid in kept.workers() if pid in connections)
    before = leases(world)

    told = hold_in_the_middle(world, kept)
    os.kill(told["pid"], signal.SIGKILL)
    kept.wait_for_rows(world.total)
    check_second_reading(kept, told)

    # Spark ends workers that were idle for a minute: time for another query, with a worker for each task.
    alone = start_application(
        "alone",
        options(world, "h", maxOffsetsPerTrigger=20_000),
        master="local-cluster[2,1,512]",
        conf={"spark.python.worker.reuse": "false", "spark.executor.memory": "512m"},
    )
    alone.start()
    alone.wait_for_rows(world.total)
    alone.stop()
    assert len(alone.delivered()) > 3
    tasks = {(line["cut"], line["slot"]): (line["pid"], line["connection"]) for line in alone.told()}
    assert len({pid for pid, _ in tasks.values()}) == len(tasks), "no worker had two tasks"
    assert len({number for _, number in tasks.values()}) == len(tasks)
    assert Counter(alone.rows()) == once_each(world)

    former = {line["pid"] for line in kept.told()}
    kept.wait_for(lambda: not kept.workers())
    world.publish(5)
    kept.wait_for_rows(world.total)
    assert former.isdisjoint(line["pid"] for line in kept.told()[-4:])
    kept.wait_for(lambda: kept.progress().get("lag") == 0)
    assert leases(world) == before, "no stream changed hands"
    assert kept.progress()["rebalances"] == 0, "to begin is none"
    kept.stop()
    assert Counter(kept.rows()) == once_each(world)


def test_a_standalone_cluster_loses_an_executor_in_the_middle_of_a_read_and_reads_one_task_twice_at_once(
    world: World, start_application: Callable[..., Application], cluster: Standalone
) -> None:
    world.lead(ttl=PATIENT)
    world.publish(5)
    conf = {
        "spark.executor.memory": "512m",
        "spark.cores.max": "2",
        "spark.speculation": "true",
        "spark.speculation.task.duration.threshold": "5s",
    }
    application = start_application("query", options(world), master=cluster.url, conf=conf)
    application.start()
    application.wait_for_rows(world.total)
    before = leases(world)
    told = hold_in_the_middle(world, application)
    lost = cluster.executor_of(told["pid"])
    os.kill(lost, signal.SIGKILL)
    application.wait_for_rows(world.total)
    check_second_reading(application, told)
    application.wait_for(lambda: len({*cluster.executors()} - {lost}) == 2)

    # Nobody ends this one: Spark runs the task in the other executor as well, and then gives the first up.
    told = hold_in_the_middle(world, application)
    application.wait_for_rows(world.total)
    check_second_reading(application, told)
    application.wait_for(lambda: "pyspark.daemon" not in command(told["pid"]))
    world.publish(5)
    application.wait_for_rows(world.total)
    assert leases(world) == before, "no stream changed hands"
    application.stop()
    assert Counter(application.rows()) == once_each(world)
