"""Whole epochs in real Spark: drivers that are killed with SIGKILL, and each epoch is in one micro-batch."""

from __future__ import annotations

import json
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote, urlparse

import pyarrow.parquet as pq
import pytest

from streamlease.agent import blocking
from streamlease.spark.core.checkpoint import CutOffset
from streamlease.streams.epochs.core.lines import AdvanceLine
from streamlease.streams.epochs.epoch_publisher import EpochPublisher
from streamlease.streams.epochs.stored import lines_command, parse_lines
from streamlease.streams.redis.connection import ask, connect_blocking, run_blocking
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


Death = Literal["with an open epoch", "with an epoch given up"]
"""Where in a micro-batch a job dies: before its epoch is given up, or between that and the commit log."""


class Chain:
    """What both jobs of the chain read and write, and where the first of them just is."""

    def __init__(self, url: str, folder: Path, start: Callable[..., Program]) -> None:
        self.url = url
        self.checkpoint = folder / "first" / "checkpoint"
        self.out = folder / "second" / "rows"
        self.start = partial(start, redis=url)
        self.published = 0
        with blocking.connect(url) as client:
            client.create_space("in", ["in/#"], streams=2)
            client.create_space("out", ["out/#"], streams=3, epochs=1)

    def publish(self, count: int) -> None:
        """Publish the next messages, numbered from 0 on."""
        numbers = range(self.published, self.published + count)
        with blocking.connect(self.url) as client, client.publisher() as publisher:
            publisher.send_many([f"in/{n % 5}" for n in numbers], [b"%d" % n for n in numbers])
        self.published += count

    def places(self) -> dict[tuple[str, int], int]:
        """Which message stands where in space ``in``."""
        with blocking.connect(self.url) as client, client.history("in/#") as history:
            messages = [message for batch in history for message in batch.messages]
        return {(str(one.stream), one.offset): int(one.payload) for one in messages}

    def newest(self, log: str) -> int:
        """The newest micro-batch that a log of the first job has."""
        return max((int(path.name) for path in (self.checkpoint / log).glob("[0-9]*")), default=-1)

    def given_up(self) -> int:
        """The newest epoch that the first job has given up."""
        with connect_blocking(self.url) as redis:
            (reply,) = run_blocking(ask(redis, [lines_command("out", 0)]))
        advances = [one.line for one in parse_lines("out", reply) if isinstance(one.line, AdvanceLine)]
        return max((line.to[0][0] - 1 for line in advances), default=-1)

    def is_at(self, death: Death) -> bool:
        """Whether the first job is there, in the micro-batch that only its offset log has."""
        batch = self.newest("offsets")
        given_up = self.given_up() == batch
        return self.newest("commits") < batch and given_up == (death == "with an epoch given up")

    def kill_first(self, first: Program, death: Death, pause: float) -> None:
        """Kill the first job alone, there, some seconds behind something that the second has of it."""
        wanted, fed = newest(self.out) + 1, -1
        first.wait_for(partial(reached, self.out, wanted))
        moment = time.monotonic() + pause

        def stands_there() -> bool:
            nonlocal fed
            if fed < self.newest("offsets"):
                fed = self.newest("offsets")
                self.publish(100)  # there is always another micro-batch
            if time.monotonic() < moment or not self.is_at(death):
                return False
            first.signal(signal.SIGSTOP)
            if not self.is_at(death):
                first.signal(signal.SIGCONT)
                return False
            return True

        first.wait_for(stands_there)
        first.kill()

    def micro_batches(self) -> dict[int, list[int]]:
        """The messages in each micro-batch of the first job that has any, by its offset log."""
        found, numbers = {}, self.places()
        for log in (self.checkpoint / "offsets").glob("[0-9]*"):
            offset = json.loads(log.read_text().splitlines()[2])
            ranges = CutOffset.from_json(offset, offset["group"]).ranges
            places = [(part.stream, n) for part in ranges for n in range(part.start, part.end)]
            if places:
                found[int(log.name)] = sorted(numbers[place] for place in places)
        return found


@pytest.fixture
def chain(embedded_redis_url: str, tmp_path: Path) -> Iterator[Chain]:
    """Starts both jobs of the chain in one program, or one of them, and kills those that still run."""
    started: list[Program] = []

    def start(**arguments: Any) -> Program:
        wanted = {"folder": str(tmp_path), "once": False, "epochs": True, **arguments}
        started.append(Program(HERE / "chain_program.py", tmp_path, wanted))
        return started[-1]

    yield Chain(embedded_redis_url, tmp_path, start)
    for program in started:
        if program.process.poll() is None:
            program.kill()


def test_each_micro_batch_of_a_killed_job_is_whole_in_one_of_the_next_job(chain: Chain) -> None:
    """The first is killed alone, again and again, while the second reads on, and then the second."""
    moments = random.Random(7)
    deaths: list[Death] = ["with an open epoch", "with an epoch given up", "with an epoch given up"]
    chain.publish(200)
    second = chain.start(jobs=["second"])
    for partitions, death in enumerate(deaths, 1):  # so a micro-batch that is made again is divided otherwise
        first = chain.start(jobs=["first"], partitions=partitions)
        chain.kill_first(first, death, moments.uniform(0, 1))
        assert second.process.poll() is None, "the second read all the time"
    moment = time.monotonic() + moments.uniform(0, 0.5)
    second.wait_for(lambda: time.monotonic() >= moment)
    second.kill()
    both = chain.start(partitions=2)
    both.wait_for(lambda: sum(map(len, rows_by_batch(chain.out))) >= chain.published)
    both.kill()
    found: dict[int, list[list[int]]] = {}
    for rows in rows_by_batch(chain.out):
        epochs: dict[int, list[int]] = {}
        for row in rows:
            epochs.setdefault(row["epoch"][0], []).append(int(row["payload"].split()[1]))
        for epoch, numbers in epochs.items():
            found.setdefault(epoch, []).append(sorted(numbers))
    micro_batches = chain.micro_batches()
    assert found == {batch: [numbers] for batch, numbers in micro_batches.items()}, "each whole, and once"
    assert sorted(n for numbers in micro_batches.values() for n in numbers) == [*range(chain.published)]
