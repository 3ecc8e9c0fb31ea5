"""The Spark job that looks at what arrived: ``... demo.judge OUT SPACE``; prints JSON."""

from __future__ import annotations

import json
import os
import sys

from streamlease.admin.demo.flight_query import session


def main(url: str, out: str, space: str) -> None:
    """Count, look for repeated offsets, compute the mean arrival delay per carrier; and read all again."""
    from pyspark.sql.functions import avg, count

    spark = session("streamlease-demo-judge")
    arrived = spark.read.parquet(out)
    delivered = arrived.count()
    distinct = arrived.select("stream", "offset").distinct().count()
    ends = {row["stream"]: row["n"] for row in arrived.groupBy("stream").agg(count("*").alias("n")).collect()}
    means = {
        row["carrier"]: row["mean"]
        for row in arrived.groupBy("carrier").agg(avg("arr_delay").alias("mean")).collect()
    }
    history = spark.read.format("streamlease").option("redis", url).option("subscribe", f"{space}/#").load()
    offsets = history.select("stream", "offset")
    read_again, once = offsets.count(), offsets.distinct().count()
    spark.stop()
    print(  # noqa: T201 - the answer, for the process that started this one
        json.dumps(
            {
                "delivered": delivered,
                "distinct": distinct,
                "per_stream": ends,
                "mean_delays": means,
                "read_again": read_again,
                "read_again_distinct": once,
            }
        )
    )


if __name__ == "__main__":
    main(os.environ["STREAMLEASE_REDIS_URL"], *sys.argv[1:])
