"""A Spark program whose session is one of Spark Connect; prints a line of JSON for each step.

Its one argument is ``{"redis": URL, "folder": DIR}``. The server of Spark Connect is a part of this process,
as ``remote("local[2]")`` makes it, and the session talks to it as to any other: what it reads and writes
happens there, and functions of ``foreachBatch`` run in a process of their own. The test makes the spaces.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from streamlease.spark.environment import configure_environment

configure_environment()
os.environ["SPARK_TESTING"] = "1"  # a free port, in place of always the same one

from pyspark.pipelines.cli import run as run_pipeline  # noqa: E402
from pyspark.sql import DataFrame, SparkSession  # noqa: E402

import streamlease  # noqa: E402
from streamlease.protocol.errors import StreamleaseError  # noqa: E402
from streamlease.spark.archiving_job import archive_with_spark  # noqa: E402
from streamlease.spark.continuous import continuous  # noqa: E402
from streamlease.spark.setup.spark_metrics import told_in_metrics  # noqa: E402
from streamlease.spark.setup.spark_ui import told_in_ui  # noqa: E402
from tests.spark.sink_program import SETTINGS, error_of, say  # noqa: E402

GIVEN: dict[str, str] = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}
REDIS, FOLDER = GIVEN.get("redis", ""), Path(GIVEN.get("folder", ""))
SUBSCRIPTION = "$shared/g/orders/#"


async def publish(numbers: range) -> None:
    async with streamlease.connect(REDIS) as client, client.publisher() as publisher:
        for number in numbers:
            await publisher.submit(f"orders/{number % 5}", {"n": number})


def read(spark: SparkSession, **options: str) -> DataFrame:
    """Orders as a stream."""
    given = {"redis": REDIS, "subscribe": SUBSCRIPTION, "startingOffsets": "earliest"} | options
    return spark.readStream.format("streamlease").options(**given).load()


def to_file(path: str) -> Callable[[DataFrame, int], None]:
    """Writes the numbers of each micro-batch into a file of its own, which one that comes again replaces."""

    def write(frame: DataFrame, number: int) -> None:
        with open(f"{path}/{number}.json", "w") as file:  # noqa: PTH123 (it is pickled to another process)
            json.dump([row.n for row in frame.select("n").collect()], file)

    return write


def numbers_in(folder: Path) -> list[list[int]]:
    files = sorted(folder.iterdir(), key=lambda path: int(path.stem))
    return [sorted(json.loads(path.read_text())) for path in files]


def run(frame: DataFrame, name: str, *, sink: bool = False) -> dict[str, Any]:
    """A query of all that is there, to its end; what its source reported last."""
    writing = frame.writeStream.option("checkpointLocation", str(FOLDER / f"checkpoint of {name}"))
    if sink:
        writing = writing.format("streamlease").option("redis", REDIS)
    else:
        (FOLDER / name).mkdir(exist_ok=True)
        writing = writing.foreachBatch(to_file(str(FOLDER / name)))
    query = writing.trigger(availableNow=True).start()
    query.awaitTermination()
    error = query.exception()
    assert error is None, error
    progress = [one for one in query.recentProgress if one.sources[0].numInputRows]
    return json.loads(progress[-1].sources[0].latestOffset or "null") if progress else {}


PIPELINE = """
name: orders
storage: {storage}
libraries:
  - glob:
      include: flows.py
"""
FLOWS = """
from pyspark import pipelines as dp
from pyspark.sql import SparkSession

spark = SparkSession.active()


@dp.table
def landed():
    options = {{"redis": "{redis}", "subscribe": "$shared/p/orders/#", "startingOffsets": "earliest"}}
    return spark.readStream.format("streamlease").options(**options).load()


dp.create_sink("out", "streamlease", {{"redis": "{redis}"}})


@dp.append_flow(target="out")
def passed_on():
    return spark.readStream.table("landed").selectExpr("'passed/on' AS topic", "n")
"""


def refusal(work: Callable[[], object]) -> str:
    try:
        work()
    except StreamleaseError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was refused"


def main() -> None:
    builder = SparkSession.builder.remote("local[2]").appName("streamlease-test")
    builder = builder.config("spark.sql.warehouse.dir", (FOLDER / "warehouse").as_uri())
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    say({"session": type(spark).__module__})
    asyncio.run(publish(range(300)))
    first = run(read(spark), "numbers")
    asyncio.run(publish(range(300, 400)))
    run(read(spark), "numbers")
    say({"batches": numbers_in(FOLDER / "numbers"), "held": first["held"]})
    other = read(spark, subscribe="$shared/h/orders/#").selectExpr("concat('copies/', n % 3) AS topic", "n")
    run(other, "copies", sink=True)
    options = {"redis": REDIS, "subscribe": "copies/#"}
    copies = spark.read.format("streamlease").options(**options).load()
    say({"copies": sorted(row.n for row in copies.select("n").collect())})
    say(error_of(lambda: read(spark, startingOffset="earliest").printSchema()))
    for work in (
        lambda: told_in_ui(spark, lambda frame, number: None),
        lambda: told_in_metrics(spark),
        lambda: continuous(spark, SUBSCRIPTION, print, redis=REDIS),
        lambda: archive_with_spark(spark, REDIS, "orders"),
    ):
        say(refusal(work))
    flow = FOLDER / "pipeline"
    flow.mkdir()
    (flow / "spark-pipeline.yml").write_text(PIPELINE.format(storage=(FOLDER / "storage").as_uri()))
    (flow / "flows.py").write_text(FLOWS.format(redis=REDIS))
    run_pipeline(flow / "spark-pipeline.yml", full_refresh=[], full_refresh_all=False, refresh=[], dry=False)
    say({"session": "stopped by the pipeline"})


if __name__ == "__main__":
    main()
