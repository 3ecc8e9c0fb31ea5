"""One Spark query of the demo: ``python -m streamlease.admin.demo.flight_query URL OUT CHECKPOINT``.

It writes each micro-batch into partitions named after the *cut*, the fixed range of offsets that the rows
were delivered in. A range that is delivered again, even by the other query after this one was killed,
replaces itself: the sink is idempotent, so every flight arrives exactly once whatever is killed when.
"""

from __future__ import annotations

import os
import signal
import sys
from threading import Event
from typing import Any

from streamlease.admin.demo.flights import SPARK_SCHEMA
from streamlease.spark.environment import configure_environment, submitted_settings, without_connect

SUBSCRIPTION = "$shared/demo/flights/#"
SLOTS = 2
MAX_OFFSETS = 12_000


SETTINGS = {
    "spark.master": "local[2]",
    "spark.ui.enabled": "false",
    "spark.driver.memory": "1g",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.sources.partitionOverwriteMode": "dynamic",
    "spark.hadoop.mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
    "spark.ui.showConsoleProgress": "false",
}


def session(name: str) -> Any:
    """A small Spark session on this machine, or where the program was submitted to run."""
    configure_environment()
    without_connect()
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.appName(name).config(map=submitted_settings(SETTINGS)).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def main(url: str, out: str, checkpoint: str) -> None:
    """Consume until SIGTERM."""
    from pyspark.sql.functions import col, from_json

    spark = session("streamlease-demo")
    flights = (
        spark.readStream.format("streamlease")
        .option("redis", url)
        .option("subscribe", SUBSCRIPTION)
        .option("startingOffsets", "earliest")
        .option("slots", SLOTS)
        .option("maxOffsetsPerTrigger", MAX_OFFSETS)
        .option("includeCut", "true")
        .load()
        .select(
            "cut", "stream", "offset", from_json(col("payload").cast("string"), SPARK_SCHEMA).alias("flight")
        )
        .select("cut", "stream", "offset", "flight.*")
    )

    def write(batch: Any, _: int) -> None:
        batch.write.mode("overwrite").partitionBy("cut").parquet(out)

    query = flights.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint).start()
    stopped = Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    while query.isActive and not stopped.wait(0.2):
        continue
    failed = query.exception()
    query.stop()
    spark.stop()
    if failed is not None:
        raise SystemExit(f"the query failed: {str(failed)[:2000]}")


if __name__ == "__main__":
    main(os.environ["STREAMLEASE_REDIS_URL"], *sys.argv[1:])
