"""Real Spark: its workers archive, its reader reads the table's files, a stream goes over the seam."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from streamlease.agent.client import Client
from streamlease.streams.archive.iceberg_table import SpaceTable
from streamlease.streams.redis.connection import BlockingRedis
from tests.archive.helpers import all_of, archive, in_table, publish, rows, same, space_of, trim_all

PROGRAM = """
import json, sys
from streamlease.spark.environment import configure_environment
configure_environment()
from pyspark.sql import SparkSession
from streamlease.protocol.errors import ArchiveUnavailable
from streamlease.spark.archiving_job import archive_with_spark
from streamlease.spark.setup.spark_errors import cause_of
from tests.archive.going_on import read_while_archiving_goes_on
spark = (
    SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    .config("spark.sql.session.timeZone", "UTC").getOrCreate()
)
spark.sparkContext.setLogLevel("ERROR")
done = archive_with_spark(spark, sys.argv[1], "flights")
frame = spark.read.parquet(*[file.path for file in done.files], *sys.argv[2:])
read = sorted([row.stream, row.offset] for row in frame.select("stream", "offset").collect())
types = {field.name: field.dataType.simpleString() for field in frame.schema}
sizes = read_while_archiving_goes_on(spark, sys.argv[1])
def fails(number):
    raise ArchiveUnavailable(f"no room for {number}")
try:
    spark.sparkContext.parallelize([7], 1).map(fails).collect()
except Exception as error:
    cause = cause_of(error)
spark.stop()
told = {"messages": done.messages, "troubles": done.troubles, "read": read, "types": types, "sizes": sizes}
told["cause"] = cause
print(json.dumps(told))
"""


@pytest.mark.timeout(300)
async def test_workers_of_spark_write_the_files_and_spark_reads_them(
    client: Client, blocking: BlockingRedis, uri: str, embedded_redis_url: str
) -> None:
    space = await space_of(client, uri)
    await publish(client, 0, 200)
    await asyncio.to_thread(archive, blocking, space)
    assert space.archive is not None
    table = SpaceTable.open(blocking, space, space.archive).iceberg
    listed = [task.file.file_path for task in table.scan().plan_files()]
    await publish(client, 200, 400)
    whole = await rows(client, space)
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", PROGRAM, embedded_redis_url, *listed],
        env=os.environ | {"PYTHONWARNINGS": "default"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert (told["messages"], told["troubles"]) == (400, {})
    assert [tuple(one) for one in told["read"]] == all_of(whole), "no row twice, none missing"
    assert told["types"]["payload"] == "binary"
    assert told["types"]["append_timestamp"] == "timestamp"
    assert len(set(told["sizes"])) > 1, "archiving went on meanwhile"
    assert told["cause"] == "streamlease.protocol.errors.ArchiveUnavailable: no room for 7"
    whole = await rows(client, space)
    assert in_table(blocking, space) == all_of(whole)
    await trim_all(client, space)
    assert same(whole, await rows(client, space))


@pytest.mark.timeout(300)
async def test_a_micro_batch_over_the_seam_comes_again_as_it_was_when_the_seam_has_moved(
    client: Client, blocking: BlockingRedis, uri: str, embedded_redis_url: str, tmp_path: Path
) -> None:
    """It begins in files and ends in memory; when it is read again, all of it is in files."""
    space = await space_of(client, uri)
    await publish(client, 0, 200)
    await asyncio.to_thread(archive, blocking, space)
    await trim_all(client, space)
    await publish(client, 200, 200)
    whole = await rows(client, space)
    done = await asyncio.to_thread(
        subprocess.run,
        [
            sys.executable,
            "-m",
            "tests.archive.seam_program",
            embedded_redis_url,
            str(tmp_path / "checkpoint"),
        ],
        env=os.environ | {"PYTHONWARNINGS": "default"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert "this sink fails once" in told["errors"][0]
    assert told["errors"][1] == ""
    (number, first), again, replayed, *later = told["handed"]
    before, after = told["seams"]
    for stream in map(str, space.streams()):
        offsets = [row[1] for row in first if row[0] == stream]
        assert offsets[0] < before[stream] <= offsets[-1], "the cut lies on both sides"
        assert offsets[-1] < after[stream], "and then on one"
    assert again == [number, first], "read twice by one query"
    assert replayed == [number, first], "read again by the next one"
    found = sorted((row[0], row[1]) for _, part in ([number, first], *later) for row in part)
    assert found == all_of(whole), "no row twice, none missing"
    assert later
    payloads = {(row[0], row[1]): bytes.fromhex(row[4]) for _, part in told["handed"] for row in part}
    for stream, table in whole.items():
        for offset, payload in zip(table["offset"].to_pylist(), table["payload"].to_pylist(), strict=True):
            assert payloads[str(stream), offset] == payload
