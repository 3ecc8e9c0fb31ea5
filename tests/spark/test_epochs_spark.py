"""Whole epochs in real Spark: drivers that are killed with SIGKILL, and each epoch is in one micro-batch."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from urllib.parse import unquote, urlparse

import pyarrow.parquet as pq
import pytest

from streamlease.streams.epochs.epoch_publisher import EpochPublisher
from tests.spark.drivers import Driver, run
from tests.spark.test_spark import options, reached
from tests.spark.world import SPACE, SUBSCRIPTION, World

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

ROWS = 30


def newest(out: Path) -> int:
    """The newest batch that the file sink has."""
    names = [path.name.partition(".")[0] for path in (out / "_spark_metadata").glob("[0-9]*")]
    return max((int(name) for name in names), default=-1)


def epochs_by_batch(out: Path) -> list[Counter[int]]:
    """How many rows of which epoch each batch has."""
    seen: set[str] = set()
    found = []
    logs = (out / "_spark_metadata").glob("[0-9]*")
    for log in sorted(logs, key=lambda path: int(path.name.partition(".")[0])):
        lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
        files = {line["path"] for line in lines} - seen  # a compacted log repeats those before it
        seen |= files
        counts: Counter[int] = Counter()
        for file in files:
            for row in pq.read_table(unquote(urlparse(file).path)).to_pylist():
                (epoch,) = row["epoch"]
                assert row["payload"] == b"%d" % epoch
                counts[epoch] += 1
        found.append(counts)
    return found


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
    batches = epochs_by_batch(out)
    assert sum(batches, Counter[int]()) == dict.fromkeys(range(epoch + 1), ROWS), "each row once"
    assert {count for batch in batches for count in batch.values()} == {ROWS}, "and no epoch in two"
    assert max(map(len, batches)) > 1
