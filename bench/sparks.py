"""What the benchmarks of Spark share: a session, data, runs of a query."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from bench.messages import PAYLOAD_BYTES, SPACE
from bench.sources import Entries, Little, Memory
from streamlease.agent import blocking
from streamlease.spark.environment import configure_environment

ROWS = 10_000
"""Messages of an entry."""

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "2g",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.streaming.numRecentProgressUpdates": "100000",
}


@contextmanager
def session(cores: int) -> Iterator[Any]:
    """A Spark session with so many cores, whose Python workers find this package and its sources."""
    configure_environment()
    root = str(Path(__file__).resolve().parent.parent)
    paths = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(f"local[{cores}]").appName("bench")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    for source in (Entries, Memory, Little):
        spark.dataSource.register(source)
    try:
        yield spark
    finally:
        spark.stop()


def fill(url: str, count: int, streams: int) -> None:
    """Publish `count` messages with topic and key, in record batches."""
    with blocking.connect(url) as client:
        client.create_space(SPACE, [f"{SPACE}/#"], streams=streams)
        with client.publisher() as publisher:
            for first in range(0, count, ROWS):
                rows = min(ROWS, count - first)
                noise = os.urandom(rows * PAYLOAD_BYTES)
                batch = {
                    "topic": pa.repeat(f"{SPACE}/{first // ROWS}", rows),
                    "key": pa.array([b"key-%d" % (row % 1000) for row in range(rows)], pa.binary()),
                    "payload": pa.array(
                        [noise[at : at + PAYLOAD_BYTES] for at in range(0, len(noise), PAYLOAD_BYTES)],
                        pa.binary(),
                    ),
                }
                publisher.send_batch("topic", pa.RecordBatch.from_pydict(batch))


def once(spark: Any, format: str, options: dict[str, str], folder: Path) -> tuple[int, float]:
    """Read what is available now into nothing: rows, and the seconds that Spark needed for their batches."""
    query = (
        spark.readStream.format(format)
        .options(**options)
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", str(folder))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    told = query.recentProgress
    return sum(one["numInputRows"] for one in told), sum(
        one["durationMs"].get("addBatch", 0) for one in told
    ) / 1000
