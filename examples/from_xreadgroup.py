"""From a hand-written loop of XREADGROUP to a Spark job.

Run: ``python -m streamlease.examples.from_xreadgroup URL FOLDER``. Before, a service read a plain Redis
stream like this, with order lost as soon as two of it ran, and messages of a dead one left pending for ever::

    while True:
        for _, entries in redis.xreadgroup("delays", name, {"departures": ">"}, count=100, block=5000):
            for id, fields in entries:
                add_up(fields[b"carrier"], float(fields[b"delay"]))
                redis.xack("departures", "delays", id)

Three steps replace it: make a space, bring in what the stream has (``streamlease import redis-stream``, which
can go on beside the old producers and repeats nothing when started again), and read it as a group.
"""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import redis

from streamlease import blocking
from streamlease.examples.command_line import FOLDER, URL, start
from streamlease.examples.data import flights
from streamlease.examples.local_spark import spark_session, stream

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def old_producer(url: str, count: int = 1000) -> None:
    """What was there before: entries with fields in a plain stream."""
    with redis.Redis.from_url(url) as client:
        pipeline = client.pipeline(transaction=False)
        for row in flights(count):
            fields = {
                "carrier": row["carrier"],
                "delay": "" if row["dep_delay"] is None else row["dep_delay"],
            }
            pipeline.xadd("departures", fields)
        pipeline.execute()


def bring_in(url: str) -> None:
    """Move what the plain stream has; each entry once, however often this runs."""
    with blocking.connect(url) as client:
        client.create_space("departures", ["departures/#"], streams=2, shard_by="key")
    command = [sys.executable, "-m", "streamlease.admin", "import", "redis-stream", "departures"]
    into = ["--space", "departures", "--topic", "departures/all", "--key-field", "carrier", "--redis", url]
    subprocess.run([*command, *into], check=True, stdout=subprocess.DEVNULL)


def run(spark: SparkSession, url: str, folder: str) -> None:
    """Read the group, and leave mean delays by carrier in Parquet below `folder`."""
    delays = stream(spark, url, "$shared/delays/departures/#").selectExpr(
        "CAST(key AS STRING) AS carrier",
        "TRY_CAST(get_json_object(CAST(payload AS STRING), '$.delay') AS DOUBLE) AS delay",  # '' is null
    )
    query = (
        delays.writeStream.format("parquet")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start(f"{folder}/delays")
    )
    query.awaitTermination()


def main(url: str, folder: str) -> None:
    """All three steps, and what the old service had before them."""
    old_producer(url)
    bring_in(url)
    run(spark_session(), url, folder)


if __name__ == "__main__":
    start(main, URL, FOLDER)
