"""A Spark batch from an archive, beside Spark's Parquet reader, the ceiling of a Python source, and Redis.

The ceiling is a data source of a page that hands on what pyarrow reads, a task for each file.
"""

from __future__ import annotations

import asyncio
import json
import random
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

import streamlease
from bench.frame import Frame, Table
from bench.messages import PAYLOAD_BYTES
from bench.sparks import ROWS, fill, session
from streamlease.agent import blocking
from streamlease.hosts.trimming import Retainer
from streamlease.streams.archive.archiver import Archiver
from streamlease.streams.archive.iceberg_table import SpaceTable
from streamlease.streams.clock import milliseconds
from streamlease.streams.redis.connection import connect_blocking, run_blocking
from streamlease.streams.spaces.archive_settings import ArchiveSettings
from streamlease.streams.spaces.spaces import SpaceStore

STREAMS = 4
CORES = 2
COLUMNS: Mapping[str, str | None] = {
    "payload": "payload",
    "three columns": "payload,offset,timestamp",
    "all columns": None,
}
IN_FILES, IN_MEMORY = "older", "newer"


class _FileReader(DataSourceReader):
    def __init__(self, options: dict[str, str], schema: StructType) -> None:
        self._files = json.loads(options["files"])
        self._columns = schema.names

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(path) for path in self._files]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        with pq.ParquetFile(partition.value) as file:
            yield from file.iter_batches(ROWS, columns=self._columns)


class FileCeiling(DataSource):
    """``format("file_ceiling")``: what pyarrow reads of the option ``files``, in the schema of the reader."""

    @classmethod
    def name(cls) -> str:
        return "file_ceiling"

    def reader(self, schema: StructType) -> DataSourceReader:
        return _FileReader(dict(self.options), schema)


def measure(frame: Frame) -> Iterator[Table]:
    """Messages per second into the ``noop`` sink, with two cores, from a warm Java."""
    found: dict[str, list[float]] = {}
    with frame.server() as url, TemporaryDirectory() as folder, session(CORES) as spark:
        spark.dataSource.register(FileCeiling)
        with blocking.connect(url) as client:
            settings = ArchiveSettings.of(f"{folder}/archive", keep_ms=1)
            client.create_space(IN_FILES, [f"{IN_FILES}/#"], streams=STREAMS, archive=settings)
        for space in (IN_FILES, IN_MEMORY):
            fill(url, space, frame.messages, STREAMS, ROWS)
        files = _archived(url)
        whole = spark.read.parquet(*files)

        def run(name: str, data: Any) -> None:
            began = time.perf_counter()
            data.write.format("noop").mode("overwrite").save()
            found.setdefault(name, []).append(frame.messages / (time.perf_counter() - began))

        def streamlease_of(space: str, columns: Mapping[str, str]) -> Any:
            source = spark.read.format("streamlease").option("redis", url).option("subscribe", f"{space}/#")
            return source.options(**columns).load()

        for space in (IN_FILES, IN_MEMORY):
            if (count := streamlease_of(space, {}).count()) != frame.messages:
                raise SystemExit(f"{space}: {count} of {frame.messages} rows")
        for turn in range(frame.runs + 1):
            for label, chosen in COLUMNS.items():
                names = whole.columns if chosen is None else chosen.split(",")
                columns = {} if chosen is None else {"columns": chosen}
                schema = whole.select(names).schema
                ceiling = spark.read.format("file_ceiling").schema(schema).option("files", json.dumps(files))
                contenders = [
                    ("Parquet, Spark's own reader", spark.read.parquet(*files).select(names)),
                    ("Parquet, a Python source's ceiling", ceiling.load()),
                    ("Streamlease, archive", streamlease_of(IN_FILES, columns)),
                    ("Streamlease, Redis", streamlease_of(IN_MEMORY, columns)),
                ]
                if turn:  # a run pays for what the one before it left behind
                    random.Random(turn).shuffle(contenders)
                for name, data in contenders:
                    run(f"{label}: {name}", data)
            if not turn:
                for rates in found.values():
                    rates.clear()
    yield _table(frame, found, len(files))


def _table(frame: Frame, found: Mapping[str, list[float]], files: int) -> Table:
    table = Table(
        f"A Spark batch, {frame.messages:,} messages of {PAYLOAD_BYTES} bytes in {files} files, two cores, "
        f"median of {frame.runs}",
        ("", "messages/s", "of the ceiling", "of Redis"),
    )
    rates = {name: statistics.median(rates) for name, rates in found.items()}
    for name, rate in rates.items():
        label = name.partition(":")[0]
        ceiling = rates[f"{label}: Parquet, a Python source's ceiling"]
        memory = rates[f"{label}: Streamlease, Redis"]
        table.rows.append((name, f"{rate:,.0f}", f"{rate / ceiling:.2f}", f"{rate / memory:.2f}"))
    return table


def _archived(url: str) -> list[str]:
    """Move all messages into files, and out of the memory; the files."""

    async def trimmed() -> None:
        async with streamlease.connect(url) as client:
            retainer = Retainer(client.redis, "bench", milliseconds)
            await retainer.round()
            await retainer.close()

    with closing(connect_blocking(url)) as redis:
        space = run_blocking(SpaceStore(redis).get(IN_FILES))
        assert space.archive is not None
        Archiver(redis, space, space.archive).run()
        table = SpaceTable.open(redis, space, space.archive)
        asyncio.run(trimmed())
        return sorted(path for some in table.files().values() for path in some)
