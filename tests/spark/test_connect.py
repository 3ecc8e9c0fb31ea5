"""Spark Connect: source, sink and batch reader in a session whose driver is elsewhere; and what cannot be."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from streamlease.agent.client import connect
from tests.spark.programs import HERE, run_program

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

SCHEMA = pa.schema([pa.field("n", pa.int64(), nullable=False)])
REFUSED = (
    "descriptions of jobs in Spark's UI are the driver's",
    "metrics of Spark are the driver's",
    "the tasks of continuous mode are the driver's",
    "tasks that write to an archive are the driver's",
)


async def test_a_session_of_spark_connect_reads_and_writes(embedded_redis_url: str, tmp_path: Path) -> None:
    async with connect(embedded_redis_url) as client:
        await client.create_space("orders", ["orders/#"], streams=3, schema=SCHEMA)
        await client.create_space("copies", ["copies/#"], streams=2, schema=SCHEMA)
        await client.create_space("passed", ["passed/#"], streams=2, schema=SCHEMA)
    program = HERE / "connect_program.py"
    given = {"redis": embedded_redis_url, "folder": str(tmp_path)}
    told = await asyncio.to_thread(run_program, program, tmp_path, given)
    session, numbers, copies, unknown, *refused, pipeline = told
    assert session == {"session": "pyspark.sql.connect.session"}
    assert sorted(n for batch in numbers["batches"] for n in batch) == list(range(400)), "each once"
    assert set(numbers["batches"][-1]) == set(range(300, 400)), "it went on where it was"
    assert numbers["held"] == 3
    assert copies == {"copies": list(range(400))}
    assert "InvalidOption: option 'startingoffset' is unknown: did you mean 'startingOffsets'?" in unknown
    assert len(refused) == len(REFUSED)
    for line, wanted in zip(refused, REFUSED, strict=True):
        assert line.startswith(f"Unsupported: {wanted}, not those of a session of Spark Connect (PySpark")
    assert pipeline == {"session": "stopped by the pipeline"}
    landed = pq.read_table(tmp_path / "warehouse" / "landed")
    assert sorted(landed["n"].to_pylist()) == list(range(400)), (
        "a streaming table of a pipeline has each once"
    )
    async with connect(embedded_redis_url) as client, client.history("passed/#") as passed:
        on = [n async for batch in passed for n in batch.to_arrow()["n"].to_pylist()]
        assert sorted(on) == list(range(400)), "and so has its sink"
