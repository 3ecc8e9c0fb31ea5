"""The Spark job that looks at what arrived: ``python -m streamlease.admin.demo.judge OUT``; prints JSON."""

from __future__ import annotations

import json
import sys

from streamlease.admin.demo.flight_query import session


def main(out: str) -> None:
    """Count, look for repeated offsets, and compute the mean arrival delay per carrier."""
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
    spark.stop()
    print(  # noqa: T201 - the answer, for the process that started this one
        json.dumps({"delivered": delivered, "distinct": distinct, "per_stream": ends, "mean_delays": means})
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
