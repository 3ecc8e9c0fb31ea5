"""A Spark program for the tests: does the steps that its one argument lists, prints a line of JSON for each.

``{"master": MASTER, "steps": [{"do": NAME, ...}, ...]}``; the names are those of the functions below.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from streamlease.spark.environment import configure_environment

configure_environment()

from pyspark.errors import PySparkException  # noqa: E402
from pyspark.sql import DataFrame, SparkSession  # noqa: E402

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "512m",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.session.timeZone": "UTC",
}


def load(spark: SparkSession, options: dict[str, str]) -> DataFrame:
    return spark.readStream.format("streamlease").options(**options).load()


def where(spark: SparkSession, step: dict[str, Any]) -> Any:
    """Where the packages come from."""
    import pyspark_streamlease
    import streamlease

    return {"streamlease": streamlease.__file__, "source": pyspark_streamlease.__file__}


def refused(spark: SparkSession, step: dict[str, Any]) -> Any:
    """The text of the error that the options cause."""
    try:
        load(spark, step["options"]).writeStream.format("noop").start().awaitTermination(30)
    except PySparkException as error:
        return str(error)
    return None


def once(spark: SparkSession, step: dict[str, Any]) -> Any:
    """Read what is available now into Parquet."""
    frame = load(spark, step["options"])
    query = (
        frame.writeStream.format("parquet")
        .option("checkpointLocation", step["checkpoint"])
        .trigger(availableNow=True)
        .start(step["out"])
    )
    query.awaitTermination()
    return {"columns": [[field.name, field.dataType.simpleString()] for field in frame.schema]}


def always(spark: SparkSession, step: dict[str, Any]) -> Any:
    """Read on and on into Parquet, until killed; or until all is read, and then tell the progress."""
    query = (
        load(spark, step["options"])
        .writeStream.format("parquet")
        .option("checkpointLocation", step["checkpoint"])
        .trigger(processingTime="0 seconds")
        .start(step["out"])
    )
    say({"started": True})
    behind = None
    while query.isActive:
        progress = query.lastProgress
        if progress is not None:
            told = progress.sources[0].latestOffset
            report = (json.loads(told) if told else None) or {}
            if step.get("until_read") and report.get("lag") == 0 and report.get("held"):
                query.stop()
                return {"progress": report, "behind": behind}
            if report.get("lag"):
                behind = report
        time.sleep(0.05)
    query.awaitTermination()
    return None


def continuous(spark: SparkSession, step: dict[str, Any]) -> Any:
    """Run a function on every batch until there is a file ``stop``."""
    from streamlease.spark.continuous import continuous as start

    told = Path(step["told"])

    def tell(batch: Any) -> None:
        if step.get("fails"):
            raise ValueError("this function never works")
        row = [os.getpid(), batch.column("stream")[0].as_py(), batch.column("offset").to_pylist()]
        with told.open("a") as file:
            file.write(json.dumps(row) + "\n")

    query = start(spark, step["subscribe"], tell, redis=step["redis"], start="earliest", slots=2)
    say({"started": True})
    try:
        while not Path(step["stop"]).exists() and not query.await_termination(0.05):
            pass
    except Exception as error:
        return {"error": str(error), "restarts": query.restarts, "active": query.is_active}
    query.stop()
    return {"messages": query.messages, "restarts": query.restarts, "active": query.is_active}


def count(spark: SparkSession, step: dict[str, Any]) -> Any:
    """How often each message is in the sink, as Spark reads it."""
    rows = spark.read.parquet(step["out"]).groupBy("stream", "offset").count().collect()
    return sorted([row["stream"], row["offset"], row["count"]] for row in rows)


def say(what: Any) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def main() -> None:
    wanted = json.loads(sys.argv[1])
    builder = SparkSession.builder.master(wanted.get("master", "local[2]")).appName("streamlease-test")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    steps = {function.__name__: function for function in (where, refused, once, always, continuous, count)}
    for step in wanted["steps"]:
        say(steps[step["do"]](spark, step))
    spark.stop()


if __name__ == "__main__":
    main()
