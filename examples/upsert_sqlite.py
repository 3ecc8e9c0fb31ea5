"""The latest flight of each aircraft in SQLite, by ``foreachBatch`` and an upsert.

Run: ``python -m streamlease.examples.data URL``, then ``python -m streamlease.examples.upsert_sqlite URL
FOLDER``. A micro-batch that Spark makes again has the same rows, and the upsert keeps the later flight, so
writing it twice changes nothing: the table is exact whatever is killed.
"""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

from streamlease.examples.command_line import FOLDER, URL, start
from streamlease.examples.local_spark import spark_session, stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TABLE = "CREATE TABLE IF NOT EXISTS latest (tailnum TEXT PRIMARY KEY, dest TEXT, place TEXT, departs INTEGER)"
UPSERT = """
INSERT INTO latest VALUES (?, ?, ?, ?) ON CONFLICT (tailnum) DO UPDATE
SET dest = excluded.dest, place = excluded.place, departs = excluded.departs
WHERE (excluded.departs, excluded.place) > (latest.departs, latest.place)
"""


def run(spark: SparkSession, url: str, folder: str) -> None:
    """Bring the table ``latest`` in ``folder/flights.db`` up to date."""
    database = f"{folder}/flights.db"

    def upsert(batch: DataFrame, number: int) -> None:
        rows = batch.where("tailnum IS NOT NULL").selectExpr(
            "tailnum",
            "dest",
            "concat(stream, '@', lpad(offset, 12, '0')) AS place",
            "unix_timestamp(timestamp)",
        )
        with sqlite3.connect(database) as connection:
            connection.execute(TABLE)
            connection.executemany(UPSERT, [tuple(row) for row in rows.collect()])
        connection.close()

    query = (
        stream(spark, url, "$shared/latest/flights/#")
        .writeStream.foreachBatch(upsert)
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    start(lambda url, folder: run(spark_session(), url, folder), URL, FOLDER)
