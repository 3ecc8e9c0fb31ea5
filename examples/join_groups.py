"""Flights from JFK and from Newark to one place within the hour: two groups, joined as streams.

Run: ``python -m streamlease.examples.data URL``, then ``python -m streamlease.examples.join_groups URL
FOLDER``. Each side is a shared subscription of its own, with progress of its own; the watermarks tell Spark
how long to remember a flight.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamlease.examples.command_line import FOLDER, URL, start
from streamlease.examples.local_spark import spark_session, stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def run(spark: SparkSession, url: str, folder: str) -> None:
    """Write the pairs that there are now into Parquet below `folder`."""
    from pyspark.sql import functions as f

    kennedy = (
        stream(spark, url, "$shared/kennedy/flights/JFK/+")
        .withWatermark("timestamp", "1 hour")
        .selectExpr("dest AS place", "timestamp AS left_kennedy", "concat(carrier, flight) AS kennedy")
    )
    newark = (
        stream(spark, url, "$shared/newark/flights/EWR/+")
        .withWatermark("timestamp", "1 hour")
        .selectExpr("dest", "timestamp AS left_newark", "concat(carrier, flight) AS newark")
    )
    pairs = kennedy.join(
        newark,
        f.expr(
            "dest = place AND left_newark >= left_kennedy AND left_newark <= left_kennedy + INTERVAL 1 HOUR"
        ),
    )
    query = (
        pairs.select("dest", "kennedy", "newark", "left_kennedy", "left_newark")
        .writeStream.format("parquet")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start(f"{folder}/pairs")
    )
    query.awaitTermination()


if __name__ == "__main__":
    start(lambda url, folder: run(spark_session(), url, folder), URL, FOLDER)
