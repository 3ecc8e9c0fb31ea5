"""A Spark program for the tests: a stream over the seam, whose first micro-batch fails when it was read.

``python -m tests.archive.seam_program REDIS CHECKPOINT`` prints, as JSON, what memory began with before and
after the seam was moved, and for each time that a micro-batch was handed over, its number and its rows.
"""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import closing
from typing import Any

from streamlease.spark.environment import configure_environment

configure_environment()

from pyspark.errors import PySparkException  # noqa: E402
from pyspark.sql import DataFrame, SparkSession  # noqa: E402

from streamlease.agent.client import Client, connect  # noqa: E402
from streamlease.streams.log.log import AsyncLog  # noqa: E402
from streamlease.streams.redis.connection import connect_blocking  # noqa: E402
from streamlease.streams.spaces.definitions import Space  # noqa: E402
from tests.archive.helpers import archive, trim_all  # noqa: E402

MOST = 250
"""Offsets of a micro-batch."""


async def seam(client: Client, space: Space) -> dict[str, int]:
    """The first offset of each stream that is in memory."""
    states = await AsyncLog(client.redis).states(space.streams())
    return {str(stream): state.memory.first for stream, state in states.items()}


async def move(url: str) -> list[dict[str, int]]:
    """Archive all that there is, and keep little in memory; where it began before, and begins now."""
    async with connect(url) as client:
        space = await client.spaces.get("flights")
        before = await seam(client, space)
        with closing(connect_blocking(url)) as blocking:
            await asyncio.to_thread(archive, blocking, space)
        await trim_all(client, space)
        return [before, await seam(client, space)]


def rows(frame: DataFrame) -> list[list[Any]]:
    chosen = frame.selectExpr(
        "stream",
        "offset",
        "topic",
        "hex(key)",
        "hex(payload)",
        "to_json(headers)",
        "cast(timestamp as string)",
    )
    return sorted([*row] for row in chosen.collect())


def main() -> None:
    url, checkpoint = sys.argv[1:]
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    handed: list[tuple[int, list[list[Any]]]] = []
    moved: list[dict[str, int]] = []

    def sink(frame: DataFrame, number: int) -> None:
        found = rows(frame)
        if not found:
            return
        handed.append((number, found))
        if not moved:
            moved.extend(asyncio.run(move(url)))
            handed.append((number, rows(frame)))
            raise ValueError("this sink fails once")

    def run() -> str:
        query = (
            spark.readStream.format("streamlease")
            .options(
                redis=url,
                subscribe="$shared/g/flights/#",
                startingOffsets="earliest",
                maxOffsetsPerTrigger=str(MOST),
            )
            .load()
            .writeStream.foreachBatch(sink)
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination()
        except PySparkException as error:
            return str(error)
        return ""

    errors = [run(), run()]
    spark.stop()
    sys.stdout.write(json.dumps({"handed": handed, "seams": moved, "errors": errors}) + "\n")


if __name__ == "__main__":
    main()
