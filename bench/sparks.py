"""What the benchmarks of Spark share: a session, data, runs of a query."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa

from bench.by_hand import ByHand
from bench.messages import PAYLOAD_BYTES
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
def session(cores: int, settings: Mapping[str, str] | None = None) -> Iterator[Any]:
    """A Spark session with so many cores, whose Python workers find this package and its sources."""
    configure_environment()
    root = str(Path(__file__).resolve().parent.parent)
    paths = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(f"local[{cores}]").appName("bench")
    for name, value in (SETTINGS | dict(settings or {})).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    for source in (Entries, Memory, Little, ByHand):
        spark.dataSource.register(source)
    try:
        yield spark
    finally:
        spark.stop()


def fill(url: str, space: str, count: int, streams: int, rows: int) -> None:
    """Publish `count` messages with topic and key, in entries of `rows`."""
    with blocking.connect(url) as client:
        client.create_space(space, [f"{space}/#"], streams=streams)
        with client.publisher() as publisher:
            for first in range(0, count, rows):
                size = min(rows, count - first)
                noise = os.urandom(size * PAYLOAD_BYTES)
                batch = {
                    "topic": pa.repeat(f"{space}/{first // rows}", size),
                    "key": pa.array([b"key-%d" % (row % 1000) for row in range(size)], pa.binary()),
                    "payload": pa.array(
                        [noise[at : at + PAYLOAD_BYTES] for at in range(0, len(noise), PAYLOAD_BYTES)],
                        pa.binary(),
                    ),
                }
                publisher.send_batch("topic", pa.RecordBatch.from_pydict(batch))


def write_parquet(spark: Any, url: str, space: str, folder: Path) -> None:
    """Write all messages of `space` to Parquet files."""
    messages = spark.read.format("streamlease").option("redis", url).option("subscribe", f"{space}/#").load()
    messages.write.parquet(str(folder))


def once(spark: Any, format: str, options: dict[str, str], folder: Path) -> tuple[int, float]:
    """Read what is available now into nothing: rows, and the seconds that Spark needed for their batches."""
    reader = spark.readStream.format(format).options(**options)
    if format == "parquet":
        whole = spark.read.parquet(options["path"])
        names = options["columns"].split(",") if "columns" in options else whole.columns
        reader = reader.schema(whole.select(names).schema)
    query = (
        reader.load()
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


def processor_time() -> float:
    """Seconds that the living Python processes of Spark have used."""
    spent = 0.0
    for process in psutil.Process().children(recursive=True):
        try:
            if "python" in process.name():
                times = process.cpu_times()
                spent += times.user + times.system
        except psutil.NoSuchProcess:
            continue
    return spent
