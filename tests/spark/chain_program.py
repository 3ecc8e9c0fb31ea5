"""Two Spark jobs in a chain: one copies ``in/#`` to ``out/#``, the other puts these into files.

The argument is ``{"redis": URL, "folder": DIR, "partitions": N, "once": BOOL, "epochs": BOOL}``. With epochs,
each micro-batch of the first is an epoch, and the second reads whole epochs of space ``out``. Both run in one
program, so that one signal kills both, each wherever it is just then; or, with ``"jobs": [NAME]``, only one.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery

from tests.spark.sink_program import say, session


def main() -> None:
    wanted: dict[str, Any] = json.loads(sys.argv[1])
    spark = session(2)
    folder = Path(wanted["folder"])

    def start(name: str, subscribe: str) -> StreamingQuery:
        options = {
            "redis": wanted["redis"],
            "subscribe": subscribe,
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": "100",
            "sessionTimeoutMs": "60000",
        }
        if wanted.get("epochs") and name == "second":
            del options["maxOffsetsPerTrigger"]
            options |= {"epochs": "atomic", "maxEpochsPerTrigger": "2"}
        rows = spark.readStream.format("streamlease").options(**options).load()
        if name == "first":
            copied = rows.select(
                f.regexp_replace("topic", "^in/", "out/").alias("topic"),
                "key",
                f.concat(f.lit(b"seen "), "payload").alias("payload"),
            )
            # Other partitions at each start, so a batch that is made again is divided otherwise.
            writer = copied.repartition(wanted["partitions"]).writeStream.format("streamlease")
            writer = writer.option("redis", wanted["redis"])
            if wanted.get("epochs"):
                writer = writer.options(epochs="batch", space="out")
        else:
            writer = rows.writeStream.format("parquet").option("path", str(folder / name / "rows"))
        writer = writer.option("checkpointLocation", str(folder / name / "checkpoint"))
        if wanted["once"]:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime="0 seconds").start()

    queries = []
    for name, subscribe in (("first", "$shared/a/in/#"), ("second", "$shared/b/out/#")):
        if name not in wanted.get("jobs", ("first", "second")):
            continue
        queries.append(start(name, subscribe))
        say({"started": name})
        if wanted["once"]:
            queries[-1].awaitTermination()
    for query in queries:
        query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
