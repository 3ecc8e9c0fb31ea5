"""Mean departure delay per airport and six hours of event time, with a watermark.

Run: ``python -m streamlease.examples.data URL``, then ``python -m streamlease.examples.windowed_delays URL
FOLDER``. A window is written once, when no flight of it can come any more: two hours of event time after its
end. The typed columns ``origin`` and ``dep_delay`` are those of the space's schema; nothing is parsed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamlease.examples.command_line import FOLDER, URL, start
from streamlease.examples.local_spark import spark_session, stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run(spark: SparkSession, url: str, folder: str) -> None:
    """Aggregate what is there now into Parquet below `folder`."""
    from pyspark.sql import functions as f

    delays = (
        stream(spark, url, "$shared/windows/flights/#")
        .withWatermark("timestamp", "2 hours")
        .groupBy(f.window("timestamp", "6 hours").alias("hours"), "origin")
        .agg(f.count("*").alias("flights"), f.avg("dep_delay").alias("delay"))
    )
    query = (
        delays.select(f.col("hours.start").alias("start"), "origin", "flights", "delay")
        .writeStream.format("parquet")
        .outputMode("append")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start(f"{folder}/delays")
    )
    query.awaitTermination()


if __name__ == "__main__":
    start(lambda url, folder: run(spark_session(), url, folder), URL, FOLDER)
