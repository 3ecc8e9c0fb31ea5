"""Micro-batches of little data in Spark: how long each takes, beside a source that has its rows in memory."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.frame import Frame, Table, percentile
from bench.messages import PAYLOAD_BYTES, SPACE
from bench.sparks import session
from streamlease.agent import blocking

STREAMS = 4
TASKS = 2
RATE = 200
"""Messages a second."""

ROWS = 20
"""Rows of a micro-batch of the source in memory: about what is published during one."""

BATCHES = 60
"""Micro-batches of one turn, besides the first ones."""

WARM = 15
PATIENCE = 120.0
PARTS = (
    "triggerExecution",
    "latestOffset",
    "walCommit",
    "queryPlanning",
    "getBatch",
    "addBatch",
    "commitOffsets",
)

_PUBLISHER = f"""
import sys, time
from streamlease.agent import blocking
with blocking.connect(sys.argv[1]) as client, client.publisher() as publisher:
    began, sent = time.monotonic(), 0
    while True:
        for _ in range(int((time.monotonic() - began) * {RATE}) - sent):
            publisher.submit("{SPACE}/" + str(sent % 100), bytes({PAYLOAD_BYTES}))
            sent += 1
        time.sleep(0.01)
"""


@contextmanager
def _published(url: str) -> Iterator[None]:
    """Messages at a steady rate, by a process of their own."""
    with blocking.connect(url) as client:
        client.create_space(SPACE, [f"{SPACE}/#"], streams=STREAMS)
    process = subprocess.Popen([sys.executable, "-c", _PUBLISHER, url])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _batches(spark: Any, format: str, options: dict[str, str], folder: Path) -> list[dict[str, int]]:
    """The durations of the parts of each micro-batch that had rows, without the first ones."""
    query = (
        spark.readStream.format(format)
        .options(**options)
        .load()
        .writeStream.format("noop")
        .option("checkpointLocation", str(folder))
        .start()
    )
    deadline = time.monotonic() + PATIENCE
    while True:
        time.sleep(1.0)
        told = [one["durationMs"] for one in query.recentProgress if one["numInputRows"]]
        if len(told) >= WARM + BATCHES:
            query.stop()
            return told[WARM : WARM + BATCHES]
        if time.monotonic() > deadline or not query.isActive:
            raise SystemExit(f"{format}: {len(told)} micro-batches in {PATIENCE:.0f} s: {query.exception()}")


def measure(frame: Frame) -> Iterator[Table]:
    """As many micro-batches as fit, the two sources in turn, two tasks each, in one Spark."""
    found: dict[str, list[dict[str, int]]] = {"memory": [], "Streamlease": []}
    with (
        frame.server() as url,
        session(TASKS) as spark,
        TemporaryDirectory() as folder,
        _published(url),
    ):
        group = {"redis": url, "subscribe": f"$shared/g/{SPACE}/#", "slots": str(TASKS), "columns": "payload"}
        contenders = {
            "memory": ("little_source", {"rows": str(ROWS), "batch": str(ROWS), "tasks": str(TASKS)}),
            "Streamlease": ("streamlease", {**group, "maxOffsetsPerTrigger": "300"}),
        }
        contenders["memory"][1]["columns"] = "payload"
        for turn in range(frame.runs + 1):
            for name, (format, options) in contenders.items():
                told = _batches(spark, format, options, Path(folder) / f"{name}-{turn}")
                found[name].extend(told if turn else ())
    yield from _tables(found)


def _tables(found: dict[str, list[dict[str, int]]]) -> Iterator[Table]:
    count = len(found["memory"])
    table = Table(
        f"Milliseconds of {count} micro-batches of about {ROWS} rows in {TASKS} tasks",
        ("", "memory p50", "p99", "Streamlease p50", "p99", "ratio of p50", "ratio of p99"),
    )
    for part in PARTS:
        figures = {name: [float(one.get(part, 0)) for one in told] for name, told in found.items()}
        (low, high), (p50, p99) = ((statistics.median(one), percentile(one, 99)) for one in figures.values())
        table.rows.append(
            (
                part,
                *(f"{one:.0f}" for one in (low, high, p50, p99)),
                f"{p50 / low:.2f}" if low else "",
                f"{p99 / high:.2f}" if high else "",
            )
        )
    yield table
