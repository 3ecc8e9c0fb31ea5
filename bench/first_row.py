"""The first row in Spark: a query and a batch read from their start, beside Parquet and a source by hand.

The session is warm: each contender ran in it before. "Workers kept" is what a session has whose last Python
query is less than a minute ago; after that Spark ends idle workers, and each has to start anew, which
``spark.python.worker.reuse`` ``false`` shows. The process of a stream source is always a new one.

Every start is of a new group, whose leader the query hosts by itself. The first row is there when the sink,
which is `noop`, has the first micro-batch with rows. Its parts are those that Spark reports; "start until
trigger" is the start of the source's process, and an empty micro-batch if there was one.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench import by_hand
from bench.frame import Frame, Table
from bench.messages import PAYLOAD_BYTES
from bench.sparks import fill, processor_time, session, write_parquet

STREAMS = 16
SLOTS = 2
SPACE = "bench"
MOST_MESSAGES = 1600
"""So few that reading them takes no time."""

PATIENCE = 120.0
WORKERS = {"kept": "true", "new": "false"}
PROCESSOR = "Python's processor time"
STREAM_PARTS = ("load", "start until trigger", "latestOffset", "walCommit", "queryPlanning", "addBatch")
BATCH_PARTS = ("load", "optimization", "planning", "job")


def measure(frame: Frame) -> Iterator[Table]:
    """Queries and batch reads in turn, in a session that keeps workers and in one that does not."""
    messages = min(frame.messages, MOST_MESSAGES)
    with frame.server() as url, TemporaryDirectory() as name:
        folder = Path(name)
        fill(url, SPACE, messages, STREAMS, messages // STREAMS or 1)
        by_hand.fill(url, STREAMS, messages, PAYLOAD_BYTES)
        for workers, reuse in WORKERS.items():
            with session(2, {"spark.python.worker.reuse": reuse}) as spark:
                files = folder / "parquet"
                if not files.exists():
                    write_parquet(spark, url, SPACE, files)
                starts = Starts(spark, url, files, folder / workers)
                starts.run(frame.runs)
                yield starts.table(f"A query's first row after ms, workers {workers}", "query", STREAM_PARTS)
                yield starts.table(f"A batch read after ms, workers {workers}", "batch", BATCH_PARTS)


class Starts:
    """The starts of all contenders in one session."""

    def __init__(self, spark: Any, url: str, files: Path, folder: Path) -> None:
        self._spark = spark
        self._files = files
        self._folder = folder
        self._found: dict[tuple[str, str], list[dict[str, float]]] = {}
        self._number = 0
        self._contenders: dict[str, tuple[str, dict[str, str]]] = {
            "Parquet": ("parquet", {"path": str(files)}),
            "by hand, redis-py": ("by_hand", {"redis": url, "streams": str(SLOTS)}),
            "Streamlease": ("streamlease", {"redis": url}),
        }

    def run(self, runs: int) -> None:
        """Let the contenders take turns, once without a record of it."""
        for kind, start in (("query", self._query), ("batch", self._batch)):
            for turn in range(runs + 1):
                for name in self._contenders:
                    self._number += 1
                    parts = start(name)
                    if turn:
                        self._found.setdefault((kind, name), []).append(parts)

    def table(self, title: str, kind: str, parts: tuple[str, ...]) -> Table:
        """Medians of the whole and of its parts."""
        rows = ["first row", *parts]
        if self._folder.name == "kept":  # who has ended cannot be asked
            rows.append(PROCESSOR)
        table = Table(title, ("", *self._contenders))
        for row in rows:
            found = [[one.get(row, 0.0) for one in self._found[kind, name]] for name in self._contenders]
            table.rows.append((row, *(f"{statistics.median(each):.0f}" for each in found)))
        return table

    def _options(self, name: str, kind: str) -> tuple[str, dict[str, str]]:
        format, options = self._contenders[name]
        if format != "streamlease":
            return format, options
        group = f"$shared/{self._folder.name}-{self._number}/{SPACE}/#"
        more = {"startingOffsets": "earliest", "slots": str(SLOTS)} if kind == "query" else {}
        return format, {**options, "subscribe": group, **more}

    def _query(self, name: str) -> dict[str, float]:
        format, options = self._options(name, "query")
        reader = self._spark.readStream.format(format).options(**options)
        if format == "parquet":
            reader = reader.schema(self._spark.read.parquet(str(self._files)).schema)
        used, began = processor_time(), time.time()
        frame = reader.load()
        loaded = time.time()
        folder = str(self._folder / str(self._number))
        query = frame.writeStream.format("noop").option("checkpointLocation", folder).start()
        try:
            told = _first(query, name)
            used = processor_time() - used
        finally:
            query.stop()
        took = {key: float(value) for key, value in told["durationMs"].items()}
        triggered = datetime.fromisoformat(told["timestamp"]).timestamp()
        whole = took["triggerExecution"] - took.get("commitOffsets", 0.0) + (triggered - began) * 1000
        return {
            **took,
            "first row": whole,
            "load": (loaded - began) * 1000,
            "start until trigger": (triggered - loaded) * 1000,
            PROCESSOR: used * 1000,
        }

    def _batch(self, name: str) -> dict[str, float]:
        format, options = self._options(name, "batch")
        used, began = processor_time(), time.time()
        frame = self._spark.read.format(format).options(**options).load()
        loaded = time.time()
        if not frame.collect():
            raise SystemExit(f"{name}: no row")
        whole = time.time() - began
        used = processor_time() - used
        phases = frame._jdf.queryExecution().tracker().phases()
        took = {part: float(phases.apply(part).durationMs()) for part in ("optimization", "planning")}
        load = (loaded - began) * 1000
        return {
            **took,
            "first row": whole * 1000,
            "load": load,
            "job": whole * 1000 - load - sum(took.values()),
            PROCESSOR: used * 1000,
        }


def _first(query: Any, name: str) -> dict[str, Any]:
    """What Spark says of the first micro-batch that has rows."""
    deadline = time.monotonic() + PATIENCE
    while True:
        for told in query.recentProgress:
            if told["numInputRows"]:
                found: dict[str, Any] = told
                return found
        if time.monotonic() > deadline or not query.isActive:
            raise SystemExit(f"{name}: no row in {PATIENCE:.0f} s: {query.exception()}")
        time.sleep(0.02)
