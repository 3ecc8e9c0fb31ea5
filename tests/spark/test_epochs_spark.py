"""Whole epochs in real Spark: drivers that are killed with SIGKILL, and each epoch is in one micro-batch."""

from __future__ import annotations

import json
import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import pyarrow.parquet as pq
import pytest

from streamlease.agent.client import Client
from streamlease.streams.epochs.epoch_publisher import EpochPublisher
from tests.spark.drivers import Driver, run
from tests.spark.programs import HERE, Program
from tests.spark.test_spark import options, reached
from tests.spark.world import SPACE, SUBSCRIPTION, World

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

ROWS = 30


def newest(out: Path) -> int:
    """The newest batch that the file sink has."""
    names = [path.name.partition(".")[0] for path in (out / "_spark_metadata").glob("[0-9]*")]
    return max((int(name) for name in names), default=-1)


def rows_by_batch(out: Path) -> list[list[dict[str, Any]]]:
    """The rows of each batch that the file sink has."""
    seen: set[str] = set()
    found = []
    logs = (out / "_spark_metadata").glob("[0-9]*")
    for log in sorted(logs, key=lambda path: int(path.name.partition(".")[0])):
        lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
        files = {line["path"] for line in lines} - seen  # a compacted log repeats those before it
        seen |= files
        paths = [unquote(urlparse(file).path) for file in files]
        found.append([row for path in paths for row in pq.read_table(path).to_pylist()])
    return found


def epochs_by_batch(out: Path) -> list[Counter[int]]:
    """How many rows of which epoch each batch has."""
    return [Counter(row["epoch"][0] for row in rows) for rows in rows_by_batch(out)]


async def send(publisher: EpochPublisher, epoch: int) -> None:
    topics = {f"t/{number}": [b"%d" % epoch] * 3 for number in range(ROWS // 3)}
    for topic, payloads in topics.items():
        await publisher.submit_many(topic, payloads, epoch=epoch)
    await publisher.advance(epoch + 1)


def test_each_epoch_is_whole_in_one_micro_batch_whenever_the_driver_is_killed(
    make_world: Callable[..., World], tmp_path: Path, start_driver: Callable[..., Driver]
) -> None:
    world, moments = make_world(epochs=1), random.Random(271)
    world.lead()
    out = tmp_path / "out"
    named = options(
        world.url, str(SUBSCRIPTION), epochs="atomic", maxEpochsPerTrigger=3, embeddedLeader="false"
    )
    step = {"options": named, "checkpoint": str(tmp_path / "checkpoint"), "out": str(out)}
    publisher: EpochPublisher = world._client.epoch_publisher(SPACE, "p")
    world._thread.call(publisher.__aenter__())
    epoch = 0
    for _ in range(3):
        driver = start_driver({"do": "always", **step})
        for _ in range(moments.randint(2, 4)):
            wanted = newest(out) + 1
            for _ in range(moments.randint(1, 6)):
                world._thread.call(send(publisher, epoch))
                epoch += 1
            driver.wait_for(partial(reached, out, wanted))
        driver.wait(moments.uniform(0, 0.5))
        driver.kill()
    world._thread.call(send(publisher, epoch))
    world._thread.call(publisher.close())
    run(tmp_path, {"do": "once", **step})
    assert all(row["payload"] == b"%d" % row["epoch"][0] for rows in rows_by_batch(out) for row in rows)
    batches = epochs_by_batch(out)
    assert sum(batches, Counter[int]()) == dict.fromkeys(range(epoch + 1), ROWS), "each row once"
    assert {count for batch in batches for count in batch.values()} == {ROWS}, "and no epoch in two"
    assert max(map(len, batches)) > 1


@pytest.fixture
def start_chain(tmp_path: Path) -> Iterator[Callable[..., Program]]:
    """Starts both jobs of the chain in one program, and kills those that still run."""
    started: list[Program] = []

    def start(**arguments: Any) -> Program:
        wanted = {"folder": str(tmp_path), "once": False, "epochs": True, **arguments}
        started.append(Program(HERE / "chain_program.py", tmp_path, wanted))
        return started[-1]

    yield start
    for program in started:
        if program.process.poll() is None:
            program.kill()


def sizes_of_micro_batches(checkpoint: Path) -> dict[int, int]:
    """How many rows each micro-batch of a job has, by its offset log."""
    found = {}
    for log in (checkpoint / "offsets").glob("[0-9]*"):
        ranges = json.loads(log.read_text().splitlines()[2])["ranges"]
        found[int(log.name)] = sum(
            int(one) for text in ranges.values() for one in re.findall(r"\+(\d+)/", text)
        )
    return found


async def test_each_micro_batch_of_a_killed_job_is_whole_in_one_of_the_next_job(
    embedded_redis_url: str, tmp_path: Path, start_chain: Callable[..., Program]
) -> None:
    url, moments, sent = embedded_redis_url, random.Random(7), 0
    out = tmp_path / "second" / "rows"

    async def publish(count: int) -> None:
        nonlocal sent
        async with Client(url, embedded=False) as client, client.publisher() as publisher:
            for number in range(sent, sent + count):
                await publisher.submit(f"in/{number % 5}", b"%d" % number)
        sent += count

    async with Client(url, embedded=False) as client:
        await client.create_space("in", ["in/#"], streams=2)
        await client.create_space("out", ["out/#"], streams=3, epochs=1)
    await publish(200)
    for partitions in (1, 3):
        jobs = start_chain(redis=url, partitions=partitions)
        wanted = newest(out) + 1
        await publish(150)
        jobs.wait_for(partial(reached, out, wanted))
        await publish(400)
        moment = time.monotonic() + moments.uniform(0.3, 2.5)
        jobs.wait_for(lambda moment=moment: time.monotonic() >= moment)  # type: ignore[misc]
        jobs.kill()
    await publish(50)
    jobs = start_chain(redis=url, partitions=2)
    jobs.wait_for(lambda: sum(map(len, rows_by_batch(out))) >= sent)
    jobs.kill()
    rows = [row for batch in rows_by_batch(out) for row in batch]
    assert sorted(int(row["payload"].split()[1]) for row in rows) == [*range(sent)], "each once"
    batches = epochs_by_batch(out)
    epochs = [epoch for batch in batches for epoch in batch]
    assert len(epochs) == len({*epochs}), "none is in two micro-batches"
    sizes = sizes_of_micro_batches(tmp_path / "first" / "checkpoint")
    assert sum(batches, Counter[int]()) == {epoch: sizes[epoch] for epoch in epochs}, "and each is whole"
