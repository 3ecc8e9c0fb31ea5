"""A Spark application that does what it is told by lines of JSON on its standard input, and answers each.

Its queries read through a `GatedSource` and write into a `Table` with `foreachBatch`. One application serves
many queries, one after the other or side by side.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.spark.driver import SETTINGS, say
from tests.spark.gates import Gate, GatedSource
from tests.spark.table import Message, Table

FAILURES = 4
"""How often a task may fail."""


class Application:
    """The queries of one Spark session, by name."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self.queries: dict[str, StreamingQuery] = {}

    def start(
        self, name: str, options: dict[str, str], checkpoint: str, table: str, gate: str, once: bool
    ) -> Any:
        """Start a query; the error that Spark refuses it with, or None."""
        gates, rows_of = Gate(Path(gate)), Table(Path(table))

        def put(batch: DataFrame, number: int) -> None:
            text = "n" if "n" in batch.columns else "payload"  # of a space with a schema
            columns = batch.selectExpr("stream", "offset", "topic", f"cast({text} as string)", "cut")
            rows = [Message(*row) for row in columns.collect()]
            gates.come_to("unsunk")
            rows_of.put(name, number, rows)
            gates.come_to("sunk")
            if gates.breaks("sunk"):
                raise RuntimeError("this function fails behind the commit of its sink")

        try:
            rows = self.spark.readStream.format("gated").options(**options, gate=gate).load()
            writer = rows.writeStream.foreachBatch(put).option("checkpointLocation", checkpoint)
            trigger: dict[str, Any] = {"availableNow": True} if once else {"processingTime": "0 seconds"}
            self.queries[name] = writer.trigger(**trigger).start()
        except Exception as error:
            return str(error)
        return None

    def ended(self, name: str) -> Any:
        """Whether the query is over, and the error that ended it."""
        query = self.queries[name]
        if query.isActive:
            return [False, None]
        error = query.exception()
        return [True, None if error is None else str(error)]

    def stop(self, name: str) -> Any:
        """Stop the query."""
        if name in self.queries:
            self.queries[name].stop()


def main() -> None:
    wanted = json.loads(sys.argv[1])
    builder = SparkSession.builder.master(f"local[{wanted['cores']},{FAILURES}]").appName("faults")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(GatedSource)
    application = Application(spark)
    say({"ready": True})
    for line in sys.stdin:
        asked = json.loads(line)
        say({"answer": getattr(application, asked.pop("do"))(**asked)})
    spark.stop()


if __name__ == "__main__":
    main()
