"""A Spark program that writes to Streamlease in every way; prints a line of JSON for each step.

Its one argument is ``{"redis": URL, "folder": DIR}``. The spaces are made by the test.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from streamlease.spark.environment import configure_environment

configure_environment()

from pyspark.errors import PySparkException  # noqa: E402
from pyspark.sql import DataFrame, Row, SparkSession  # noqa: E402
from pyspark.sql import functions as f  # noqa: E402

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "512m",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "Europe/Berlin",
}


def session(cores: int = 2, **more: str) -> SparkSession:
    builder = SparkSession.builder.master(f"local[{cores}]").appName("streamlease-test")
    for name, value in {**SETTINGS, **more}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def say(what: Any) -> None:
    sys.stdout.write(json.dumps(what, default=str) + "\n")
    sys.stdout.flush()


def error_of(work: Any) -> str:
    """The one line of a refusal, out of what Spark makes of it."""
    try:
        work()
    except PySparkException as error:
        lines = str(error).splitlines()
        return next((line for line in lines if "streamlease.protocol.errors" in line), str(error)[:2000])
    return "nothing was refused"


def received(frame: DataFrame) -> int:
    """How many rows the only scan of `frame` took over from Python workers."""
    frame.collect()
    scan = frame._jdf.queryExecution().executedPlan().collectLeaves().head()
    return int(scan.metrics().apply("numOutputRows").value())


def _shown(row: Row) -> list[Any]:
    return [value.decode() if isinstance(value, bytes | bytearray) else value for value in row]


class Steps:
    def __init__(self, spark: SparkSession, redis: str, folder: Path) -> None:
        self.spark = spark
        self.redis = redis
        self.folder = folder

    def write(self, frame: DataFrame, mode: str = "append", **options: str) -> None:
        writer = frame.write.format("streamlease").option("redis", self.redis).mode(mode)
        writer.options(**options).save()

    def batch(self) -> Any:
        """300 rows with all columns and two to one topic, in transactions that are repeated."""
        rows = self.spark.range(300).select(
            f.concat(f.lit("plain/"), f.col("id") % 7).alias("topic"),
            f.when(f.col("id") % 2 == 0, f.col("id").cast("string")).alias("key"),
            f.concat(f.lit("row "), f.col("id")).alias("value"),
            f.when(
                f.col("id") % 3 == 0,
                f.array(f.struct(f.lit("h").alias("key"), f.lit("x").cast("binary").alias("value"))),
            ).alias("headers"),
            f.expr("timestamp'2024-02-29 12:30:15.123456 UTC' + id * interval 1 second").alias("timestamp"),
        )
        for version in (0, 1, 1, 0):
            self.write(rows.where(f"id % 2 = {version}"), txnAppId="app", txnVersion=str(version))
        fixed = self.spark.createDataFrame([("one",), ("two",)], "payload string")
        for _ in range(2):
            # The target is another one than that of the rows above, so it has no version 1 yet.
            self.write(fixed, topic="plain/fixed", txnAppId="app", txnVersion="1")
        workers = self.spark.range(0, 30, numPartitions=3).selectExpr("cast(id as string) as value")
        for partition in ("perWorker", "merge"):
            self.write(workers, topic=f"parts/{partition}", partition=partition)
        return True

    def typed(self) -> Any:
        """A space with a schema: its columns, in any order and with narrower types."""
        self.write(
            self.spark.range(100).select(
                f.lit("typed/x").alias("topic"),
                f.array(f.col("id").cast("int")).alias("list"),
                f.struct(f.col("id").cast("string").alias("a")).alias("nested"),
                f.col("id").cast("int").alias("number"),
                f.expr("timestamp'2024-02-29 12:30:15.5 UTC'").alias("moment"),
                f.col("id").cast("decimal(10,2)").alias("price"),
                f.col("id").cast("tinyint").alias("tiny"),
                f.col("id").cast("smallint").alias("small"),
                f.col("id").cast("int").alias("medium"),
                (f.col("id") / 2).cast("float").alias("single"),
                (f.col("id") / 4).alias("double"),
                (f.col("id") % 2 == 0).alias("flag"),
                f.col("id").cast("string").cast("binary").alias("bytes"),
                f.expr("date'2024-02-29'").alias("day"),
                f.expr("timestamp_ntz'2024-02-29 12:30:15.5'").alias("naive"),
            )
        )
        return True

    def refusals(self) -> Any:
        """What is refused, by a short name."""
        one = self.spark.range(1)
        good = one.select(f.lit("plain/a").alias("topic"), f.lit("p").alias("payload"))
        cases = {
            "no topic": lambda: self.write(good.drop("topic")),
            "null topic": lambda: self.write(good.withColumn("topic", f.lit(None).cast("string"))),
            "unknown option": lambda: self.write(good, topics="plain/a"),
        }
        return {name: error_of(case) for name, case in cases.items()}

    def load(self, subscribe: str, **options: str) -> DataFrame:
        reader = self.spark.read.format("streamlease").option("redis", self.redis)
        return reader.options(subscribe=subscribe, **options).load()

    def read(self) -> Any:
        """What was written, as the batch reader and the stream reader give it, with filters and without."""
        found: dict[str, Any] = {}
        plain = self.load("plain/#", minPartitions="3")
        found["columns"] = plain.dtypes
        found["partitions"] = plain.rdd.getNumPartitions()
        found["filtered"] = self._filtered()
        found["sql"] = self._sql()
        typed = self.load("$shared/any/typed/#")
        found["typed columns"] = typed.drop(*plain.columns).dtypes
        found["typed"] = typed.selectExpr("sum(number)", "sum(price)", "count(nested.a)").first()
        pruned = (
            self.spark.read.format("streamlease")
            .schema("number long")
            .options(redis=self.redis, subscribe="typed/#")
        )
        found["pruned"] = pruned.load().selectExpr("sum(number)").first()
        stream = self.spark.readStream.format("streamlease").options(
            redis=self.redis, subscribe="$shared/g/typed/#", startingOffsets="earliest"
        )
        out, checkpoint = str(self.folder / "typed"), str(self.folder / "typed-checkpoint")
        query = (
            stream.load()
            .writeStream.format("parquet")
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start(out)
        )
        query.awaitTermination()
        streamed, whole = self.spark.read.parquet(out), self.load("typed/#")
        found["as streamed"] = [streamed.dtypes == whole.dtypes, streamed.exceptAll(whole).count()]
        found["rows"] = [streamed.count(), whole.count()]
        return found

    def _filtered(self) -> Any:
        """One frame filtered twice in one query, with and without the session's push-down of filters.

        Spark 4.3 shares the planned read of a frame, so a reader that were told filters would give both sides
        the rows of one.
        """
        found: dict[str, Any] = {}
        for pushed in ("false", "true"):
            self.spark.conf.set("spark.sql.python.filterPushdown.enabled", pushed)
            plain = self.load("plain/#").select("topic", "stream", "offset", "payload")
            third, fourth = plain.where("topic = 'plain/3'"), plain.where("topic = 'plain/4'")
            pairs = third.alias("l").join(fourth.alias("r"), f.expr("l.offset % 2 = r.offset % 2"))
            one = plain.where("topic = 'plain/3' and offset >= 5").drop("topic")
            found[pushed] = {
                "one": sorted([*row] for row in map(_shown, one.collect())),
                "union": third.union(fourth).count(),
                "join": pairs.count(),
                "whole": plain.count(),
            }
        self.spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
        return found

    def _sql(self) -> Any:
        """A view and a table, with what Spark adds to their options."""
        given = f"OPTIONS (redis '{self.redis}', subscribe 'plain/#')"
        self.spark.sql(f"CREATE TEMPORARY VIEW plain_view USING streamlease {given}")
        for name, columns in (("inferred", ""), ("given", "(topic string, offset bigint)")):
            more = "COMMENT 'of messages' TBLPROPERTIES ('kept' = 'for ever')"
            self.spark.sql(f"CREATE TABLE plain_{name} {columns} USING streamlease {given} {more}")
        said = f"WITH (redis='{self.redis}', subscribe='plain/#')"
        count = "SELECT count(topic), count(offset) FROM"
        at = f"OPTIONS (redis '{self.redis}', subscribe 'inserted/#')"
        self.spark.sql(f"CREATE TABLE inserted USING streamlease {at}")
        rows = "SELECT 'inserted/sql', CAST(CAST(id AS STRING) AS BINARY) FROM range(5)"
        self.spark.sql(f"INSERT INTO inserted WITH (redis='{self.redis}') (topic, payload) {rows}")
        return {
            "view": [*self.spark.sql(f"{count} plain_view").first()],
            "inferred": [*self.spark.sql(f"{count} plain_inferred {said}").first()],
            "given": [*self.spark.sql(f"{count} plain_given {said}").first()],
            "unsaid": error_of(lambda: self.spark.sql(f"{count} plain_inferred").first()),
            "unknown": error_of(
                lambda: self.spark.sql(f"CREATE TABLE wrong USING streamlease {given[:-1]}, subscribed 'x')")
            ),
        }

    def choices(self) -> Any:
        """What options leave out, counted where Spark takes it over from Python; and refusals."""
        found: dict[str, Any] = {}
        whole = self.load("plain/#")
        found["narrowed"] = received(self.load("plain/#", topics="plain/3, plain/fixed"))
        found["streams"] = received(self.load("plain/#", streams="plain.0.0,plain.0.2"))

        moment = str(whole.selectExpr("unix_millis(max(append_timestamp))").collect()[0][0])
        found["before"] = self.load("plain/#", ENDINGTIMESTAMP=moment).count()
        found["after"] = self.load("plain/#", startingtimestamp=moment).count()
        last = dict(whole.groupBy("stream").agg(f.max("offset")).collect())
        found["without the last"] = self.load("plain/#", endingOffsets=json.dumps(last)).count()
        found["only the last"] = self.load("plain/#", startingOffsets=json.dumps(last)).count()

        beyond = {"startingOffsets": json.dumps(dict.fromkeys(last, 9999))}
        found["refused"] = {
            "batch beyond": error_of(lambda: self.load("plain/#", **beyond).count()),
            "batch unknown": error_of(lambda: self.load("plain/#", endingOffsets='{"plain.0.9": 1}').count()),
            "batch space": error_of(lambda: self.load("nowhere/#")),
            "stream space": error_of(lambda: self.follow("$shared/g/nowhere/#")),
            "no redis": error_of(lambda: self.follow("$shared/g/plain/#", redis="redis://127.0.0.1:1")),
            "stream beyond": error_of(lambda: self.once("$shared/beyond/plain/#", **beyond)),
        }
        many = {"STARTINGOFFSETS": "earliest", "maxOffsetsPerTrigger": "10", "minpartitions": "6"}
        found["once"] = self.once("$shared/once/plain/#", **many)
        told = self.spark.read.parquet(str(self.folder / "once"))
        streamed = told.drop("part")
        found["as streamed"] = [streamed.exceptAll(whole).count(), whole.exceptAll(streamed).count()]
        found["tasks"] = told.select("part").distinct().count()
        return found

    def follow(self, subscribe: str, **options: str) -> DataFrame:
        reader = self.spark.readStream.format("streamlease").option("redis", self.redis)
        return reader.options(subscribe=subscribe, **options).load()

    def once(self, subscribe: str, **options: str) -> Any:
        """One micro-batch with the trigger ``once``; its number and how many rows it had."""
        query = (
            self.follow(subscribe, **options)
            .withColumn("part", f.spark_partition_id())
            .writeStream.format("parquet")
            .option("checkpointLocation", str(self.folder / f"once-{len(options)}"))
            .trigger(once=True)
            .start(str(self.folder / "once"))
        )
        query.awaitTermination()
        progress = query.lastProgress
        return None if progress is None else [progress.batchId, progress.numInputRows]

    def stream(self) -> Any:
        """Micro-batches, and the last one of them again with other partitions, as after a kill."""
        checkpoint = self.folder / "checkpoint"
        say(self._stream(checkpoint, 2))
        commits = sorted((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
        commits[-1].unlink()
        (checkpoint / "commits" / f".{commits[-1].name}.crc").unlink()
        return self._stream(checkpoint, 5)

    def _stream(self, checkpoint: Path, partitions: int) -> Any:
        folder = self.folder / "lines"
        if not folder.exists():
            folder.mkdir()
            for file in range(3):
                (folder / f"{file}.txt").write_text("\n".join(f"{file} {n}" for n in range(200)))
        lines = self.spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(folder))
        query = (
            lines.repartition(partitions)
            .select(f.concat(f.lit("lines/"), f.length("value")).alias("topic"), "value")
            .writeStream.format("streamlease")
            .option("redis", self.redis)
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return {"batch": query.lastProgress.batchId, "rows": query.lastProgress.numInputRows}


def main() -> None:
    wanted = json.loads(sys.argv[1])
    spark = session()
    steps = Steps(spark, wanted["redis"], Path(wanted["folder"]))
    for name in wanted["steps"]:
        say({"step": name, "gave": getattr(steps, name)()})
    spark.stop()


if __name__ == "__main__":
    main()
