"""Two jobs in a chain: one picks late flights and writes them to topics, the other reads them there.

Run: ``python -m streamlease.examples.data URL``, then ``python -m streamlease.examples.chained_jobs URL
FOLDER``. The link between them is exact: the sink writes each micro-batch once, whatever is killed. The
topics ``late/CARRIER`` are a space with a schema of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamlease import blocking
from streamlease.examples.command_line import FOLDER, URL, start
from streamlease.examples.local_spark import spark_session, stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCHEMA = {
    "columns": [{"name": "flight", "type": "int32"}, {"name": "minutes", "type": "int32", "nullable": False}]
}


def pick(spark: SparkSession, url: str, folder: str) -> None:
    """Write the flights that arrived more than an hour late."""
    with blocking.connect(url) as client:
        client.create_space("late", ["late/#"], streams=2, schema=SCHEMA)
    late = stream(spark, url, "$shared/pick/flights/#").where("arr_delay > 60")
    query = (
        late.selectExpr(
            "concat('late/', carrier) AS topic",
            "tailnum AS key",
            "timestamp",
            "flight",
            "CAST(arr_delay AS INT) AS minutes",
        )
        .writeStream.format("streamlease")
        .option("redis", url)
        .option("checkpointLocation", f"{folder}/pick")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def count(spark: SparkSession, url: str, folder: str) -> None:
    """Put what was picked into Parquet, a folder per topic."""
    query = (
        stream(spark, url, "$shared/count/late/#")
        .select("topic", "flight", "minutes")
        .writeStream.format("parquet")
        .partitionBy("topic")
        .option("checkpointLocation", f"{folder}/count")
        .trigger(availableNow=True)
        .start(f"{folder}/late")
    )
    query.awaitTermination()


def run(spark: SparkSession, url: str, folder: str) -> None:
    """Both, one after the other; they may as well run on and on, each where it likes."""
    pick(spark, url, folder)
    count(spark, url, folder)


if __name__ == "__main__":
    start(lambda url, folder: run(spark_session(), url, folder), URL, FOLDER)
