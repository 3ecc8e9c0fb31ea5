"""A Spark program for the tests: does the steps that its one argument lists, prints a line of JSON for each.

``{"master": MASTER, "steps": [{"do": NAME, ...}, ...]}``; the names are those of the functions below.
"""

from __future__ import annotations

import json
import os
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from streamlease.spark.environment import configure_environment

configure_environment()

from pyspark.errors import PySparkException  # noqa: E402
from pyspark.sql import DataFrame, SparkSession  # noqa: E402
from pyspark.sql.functions import expr  # noqa: E402

from streamlease.agent import blocking  # noqa: E402
from streamlease.spark.setup.spark_metrics import told_in_metrics  # noqa: E402
from streamlease.spark.setup.spark_ui import told_in_ui  # noqa: E402

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "512m",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.session.timeZone": "UTC",
}


def load(spark: SparkSession, options: dict[str, str]) -> DataFrame:
    """What the options name; with option ``gate``, through a source that can be held."""
    if "gate" in options:
        from tests.spark.gates import GatedSource

        spark.dataSource.register(GatedSource)
    source = "gated" if "gate" in options else "streamlease"
    return spark.readStream.format(source).options(**options).load()


def where(spark: SparkSession, step: dict[str, Any]) -> Any:
    """Where the packages come from, and PySpark in a process that runs tasks."""
    import pyspark_streamlease
    import streamlease

    tasks = spark.sparkContext.parallelize([0], 1).map(lambda _: __import__("pyspark").__file__).first()
    return {"streamlease": streamlease.__file__, "source": pyspark_streamlease.__file__, "tasks": tasks}


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


def fails_first(spark: SparkSession, step: dict[str, Any]) -> Any:
    """A sink that fails in its first, empty batch at three starts; the errors, and the batches it got."""
    seen: list[list[int]] = []

    def sink(batch: DataFrame, number: int) -> None:
        if len(seen) < 3:
            seen.append([number, batch.count()])
            raise ValueError(f"this sink failed {len(seen)} times")
        seen.append([number, batch.count()])

    errors = []
    for available_now in (False, False, False, True):
        trigger: dict[str, Any] = {"availableNow": True} if available_now else {"processingTime": "0 seconds"}
        writer = load(spark, step["options"]).writeStream.foreachBatch(sink).trigger(**trigger)
        query = writer.option("checkpointLocation", step["checkpoint"]).start()
        try:
            query.awaitTermination(60)
        except PySparkException as error:
            errors.append(str(error))
    return {"errors": errors, "seen": seen}


def twice(spark: SparkSession, step: dict[str, Any]) -> Any:
    """One frame twice in one query, and in two; each with a group of its own."""

    def frame(group: str) -> DataFrame:
        return load(spark, step["options"] | {"subscribe": f"$shared/{group}/flights/#"})

    def joined(one: DataFrame, other: DataFrame, **trigger: Any) -> str | None:
        both = one.alias("l").join(other.alias("r"), expr("l.payload = r.payload"))
        try:
            both.writeStream.format("noop").trigger(**trigger).start().awaitTermination(60)
        except PySparkException as error:
            return str(error)
        return None

    one = frame("join")
    told: dict[str, Any] = {
        "join": joined(one, one, availableNow=True),
        "loads": joined(frame("loads"), frame("loads"), processingTime="0 seconds"),
    }
    one = frame("union")
    query = one.union(one).writeStream.format("memory").queryName("u").trigger(availableNow=True).start()
    query.awaitTermination(60)
    told["union"] = [[*row] for row in spark.sql("select count(*), count(distinct payload) from u").collect()]
    one, got = frame("queries"), [0, 0]

    def sink(place: int) -> Any:
        def take(batch: DataFrame, number: int) -> None:
            got[place] += batch.count()

        return take

    queries = [one.writeStream.foreachBatch(sink(place)).start() for place in range(2)]
    deadline = time.monotonic() + 60
    while sum(got) < step["rows"] and time.monotonic() < deadline:
        for query in queries:
            query.awaitTermination(0.05)
    for query in queries:
        query.stop()
    told["queries"] = sum(got)
    return told


def late(spark: SparkSession, step: dict[str, Any]) -> Any:
    """A query whose progress is tracked asynchronously, stopped half-way and started again; rows, and batches
    that the checkpoint has."""
    told = []
    for wanted in (step["rows"] // 2, step["rows"]):
        query = (
            load(spark, step["options"])
            .writeStream.format("noop")
            .option("checkpointLocation", step["checkpoint"])
            .option("asyncProgressTrackingEnabled", "true")
            .option("asyncProgressTrackingCheckpointIntervalMs", "60000")
            .start()
        )
        rows, deadline = 0, time.monotonic() + 60
        while rows + sum(one["rows"] for one in told) < wanted and time.monotonic() < deadline:
            query.awaitTermination(0.05)
            rows = sum(progress.numInputRows for progress in query.recentProgress)
        query.stop()
        batches = {progress.batchId for progress in query.recentProgress if progress.numInputRows}
        logged = [file.name for file in Path(step["checkpoint"], "offsets").glob("[0-9]*")]
        told.append({"rows": rows, "batches": len(batches), "logged": len(logged)})
    return told


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


def collected(spark: SparkSession, step: dict[str, Any]) -> Any:
    """Change a collection, read its changes up to what is there then; the table of its items, as JSON."""
    with blocking.connect(step["options"]["redis"]) as client, client.publisher() as pub:
        for topic, payload, diff in step["changes"]:
            pub.send(topic, payload.encode(), diff=diff)
    query = (
        load(spark, {**step["options"], "collection": "changes"})
        .selectExpr("topic", "cast(payload as string) payload", "diff", "offset")
        .writeStream.format("parquet")
        .option("checkpointLocation", step["checkpoint"])
        .trigger(availableNow=True)
        .start(step["out"])
    )
    query.awaitTermination()
    items = {**step["options"], "collection": "items"}
    rows = spark.read.format("streamlease").options(**items).load()
    return [[row["topic"], bytes(row["payload"]).decode(), row["count"]] for row in rows.collect()]


def catalogued(spark: SparkSession, step: dict[str, Any]) -> Any:
    """Make a space, and read what changed of them up to then; their names, as a table has them."""
    with blocking.connect(step["options"]["redis"]) as client:
        client.create_space(step["space"], [f"{step['space']}/#"])
    query = (
        load(spark, step["options"])
        .select("space", "topics", "diff")
        .writeStream.format("parquet")
        .option("checkpointLocation", step["checkpoint"])
        .trigger(availableNow=True)
        .start(step["out"])
    )
    query.awaitTermination()
    rows = spark.read.format("streamlease").options(**step["options"], collection="items").load()
    return sorted([row["space"], row["count"]] for row in rows.collect())


def joined(spark: SparkSession, step: dict[str, Any]) -> Any:
    """Join two spaces by their epochs; the most rows of its state. With `batches`, stop after so many."""
    left, right = (
        load(spark, options)
        .selectExpr(f"cast(payload as string) {name}", f"timestamp_seconds(epoch[0] + 1) as {name}_epoch")
        .withWatermark(f"{name}_epoch", "0 seconds")
        for name, options in step["sides"].items()
    )
    ours, theirs = step["sides"]
    both = left.join(right, left[f"{ours}_epoch"] == right[f"{theirs}_epoch"])
    rows = both.selectExpr(ours, theirs, f"array(unix_seconds({ours}_epoch) - 1) as epoch")
    writer = rows.writeStream.format("parquet").option("checkpointLocation", step["checkpoint"])
    if "batches" in step:
        query = writer.trigger(processingTime="1 second").start(step["out"])  # some is left for the next run
        while query.lastProgress is None or query.lastProgress.batchId < step["batches"]:
            query.awaitTermination(0.05)  # raises what it ended with
        query.stop()
    else:
        query = writer.trigger(availableNow=True).start(step["out"])
    query.awaitTermination()
    states = [one.stateOperators[0].numRowsTotal for one in query.recentProgress if one.stateOperators]
    return {"state": max(states)}


def told(spark: SparkSession, step: dict[str, Any]) -> Any:
    """Pages and metrics of Spark's UI, of a query that tells there how its source stands; and its rows."""
    rows: list[int] = []
    during: list[dict[str, int]] = []

    def write(batch: DataFrame, number: int) -> None:
        rows.append(batch.count())
        if number == 2:
            held = f"{name}.held"
            during.append(gauges(spark, lambda seen: seen.get(held) == 3 and -1 not in seen.values()))

    name = "flights to <LAX>"
    told_in_metrics(spark)
    writer = load(spark, step["options"]).writeStream.queryName(name)
    query = writer.foreachBatch(told_in_ui(spark, write)).trigger(availableNow=True).start()
    query.awaitTermination()
    reported = [json.loads(one.sources[0].latestOffset or "{}") for one in query.recentProgress]
    after = gauges(spark, lambda seen: set(seen.values()) == {-1})
    url = spark.sparkContext.uiWebUrl
    pages = {}
    for page in ("jobs/", "stages/"):
        with urllib.request.urlopen(f"{url}/{page}", timeout=30) as answer:
            pages[page] = answer.read().decode()
    return {"rows": rows, "reported": reported, "pages": pages, "during": during, "after": after}


def gauges(spark: SparkSession, wanted: Callable[[dict[str, int]], bool]) -> dict[str, int]:
    """Those of Streamlease's queries among Spark's metrics, ``QUERY.NAME``, once they are as wanted."""
    until = time.monotonic() + 30
    while True:
        with urllib.request.urlopen(f"{spark.sparkContext.uiWebUrl}/metrics/json/", timeout=30) as answer:
            all_of_them = json.load(answer)["gauges"]
        seen = {
            name.partition(".driver.AccumulatorSource.streamlease.")[2]: gauge["value"]
            for name, gauge in all_of_them.items()
            if ".driver.AccumulatorSource.streamlease." in name
        }
        if wanted(seen):
            return seen
        if time.monotonic() > until:
            raise TimeoutError(f"Spark's metrics are {seen}")
        time.sleep(0.05)


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
    for name, value in (SETTINGS | wanted.get("settings", {})).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    steps = {
        function.__name__: function
        for function in (where, refused, once, fails_first, twice, late, always, continuous, told, count)
    } | {"collected": collected, "catalogued": catalogued, "joined": joined}
    for step in wanted["steps"]:
        say(steps[step["do"]](spark, step))
    spark.stop()


if __name__ == "__main__":
    main()
