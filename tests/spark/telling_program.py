"""A Spark application whose tasks tell what they read, and stop in the middle of it when they are asked to.

The argument is ``{"master": MASTER, "conf": {...}, "folder": DIR, "runs": [{OPTION: VALUE}, ...]}``. Each
run is a query with the same checkpoint and output, from the file ``start-N`` until the file ``stop-N``. The
source is the product's, made to write a line into ``told`` for each stream of a batch before it hands that
on. If there is a file ``hold``, one task renames it to ``held-PID`` between two batches of a span, and asks
for no second one.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from streamlease.spark.environment import configure_environment

configure_environment()

import pyarrow as pa  # noqa: E402
from pyspark import TaskContext  # noqa: E402
from pyspark.sql import SparkSession  # noqa: E402
from pyspark.sql.datasource import InputPartition  # noqa: E402
from pyspark.sql.types import StructType  # noqa: E402

from streamlease.spark.connections import connection  # noqa: E402
from streamlease.spark.options import SourceOptions  # noqa: E402
from streamlease.spark.schema import stream_columns  # noqa: E402
from streamlease.spark.source import SlotPartition, StreamleaseSource, StreamReader  # noqa: E402
from streamlease.streams.redis.connection import ask, run_blocking  # noqa: E402
from tests.spark.driver import SETTINGS, say  # noqa: E402

FOLDER = Path(json.loads(sys.argv[1])["folder"]) if len(sys.argv) > 1 else Path()


class TellingReader(StreamReader):
    """The product's reader, watched."""

    def __init__(self, options: SourceOptions, schema: StructType, folder: Path) -> None:
        super().__init__(options, stream_columns(options, schema))
        self._folder = folder

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_folder": self._folder}

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, SlotPartition)
        work, task = partition.work, TaskContext.get()
        ends = {part.stream: part.end for part in work.pieces.parts}
        for batch in super().read(partition):
            (number,) = run_blocking(ask(connection(self._options.redis), [("CLIENT", "ID")]))
            known = {
                "pid": os.getpid(),
                "connection": number,
                "session": work.session,
                "cut": work.cut,
                "slot": work.slot,
                "attempt": task.attemptNumber() if task is not None else None,
            }
            last = self._tell(known, batch, ends)
            yield batch
            if last["last"] + 1 < last["end"]:
                self._hold()

    def _tell(self, known: dict[str, Any], batch: pa.RecordBatch, ends: dict[str, int]) -> dict[str, Any]:
        """Write a line for each stream of the batch, one behind the other; the last one."""
        first, line = 0, dict[str, Any]()
        for stream, rows in groupby(batch.column("stream").to_pylist()):
            some = batch.slice(first, sum(1 for _ in rows))
            first += some.num_rows
            offsets = some.column("offset").to_pylist()
            line = {
                **known,
                "stream": stream,
                "first": offsets[0],
                "last": offsets[-1],
                "end": ends[stream],
                "rows": hashlib.sha256(repr(some.to_pydict()).encode()).hexdigest(),
            }
            with (self._folder / "told").open("a") as file:
                file.write(json.dumps(line) + "\n")
        return line

    def _hold(self) -> None:
        try:
            (self._folder / "hold").rename(self._folder / f"held-{os.getpid()}")
        except FileNotFoundError:
            return
        while True:
            signal.pause()


class Telling(StreamleaseSource):
    """The product's source, with a reader that tells."""

    folder = FOLDER

    @classmethod
    def name(cls) -> str:
        return "telling"

    def streamReader(self, schema: StructType) -> TellingReader:
        return TellingReader(SourceOptions.parse(self.options), schema, self.folder)


def wait_for(file: Path) -> None:
    while not file.exists():
        time.sleep(0.02)


def main() -> None:
    wanted = json.loads(sys.argv[1])
    builder = SparkSession.builder.master(wanted["master"]).appName("streamlease-test")
    for name, value in {**SETTINGS, **wanted.get("conf", {})}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(Telling)
    for number, options in enumerate(wanted["runs"]):
        wait_for(FOLDER / f"start-{number}")
        query = (
            spark.readStream.format("telling")
            .options(**options)
            .load()
            .writeStream.format("parquet")
            .option("checkpointLocation", str(FOLDER / "checkpoint"))
            .start(str(FOLDER / "out"))
        )
        say({"started": number})
        while not (FOLDER / f"stop-{number}").exists():
            if query.awaitTermination(0.05):
                break
            progress = query.lastProgress
            if progress is not None and progress.sources[0].latestOffset:
                (FOLDER / "progress.new").write_text(progress.sources[0].latestOffset)
                (FOLDER / "progress.new").rename(FOLDER / "progress")
        query.stop()
        say({"stopped": number})
    spark.stop()


if __name__ == "__main__":
    main()
