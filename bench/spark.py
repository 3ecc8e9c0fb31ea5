"""The Spark source beside memory, Parquet and a hand-written source: throughput of one task."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import redis

from bench.backlog import merge_all
from bench.frame import Frame, Table
from bench.messages import PAYLOAD_BYTES, Messages
from bench.sparks import ROWS, fill, once, session, write_parquet

STREAMS = 4
FEWER = 10
"""The hand-written source reads so many times fewer messages: it would need minutes."""

SMALL_ROWS = 625
"""Messages of a small entry: 10,000 that a publisher sends together, over 16 streams."""

COLUMNS = {
    "payload": {"columns": "payload"},
    "three columns": {"columns": "payload,offset,timestamp"},
    "all columns": {},
}


def measure(frame: Frame) -> Iterator[Table]:
    """Messages per second into the ``noop`` sink, with one core, from a warm Java."""
    few = max(1, frame.messages // FEWER)
    found: dict[str, list[float]] = {}
    with frame.server() as url, session(1) as spark, TemporaryDirectory() as folder:
        fill(url, "large", frame.messages, STREAMS, ROWS)
        fill(url, "small", frame.messages, STREAMS, SMALL_ROWS)
        for space in ("single", "merged"):
            fill(url, space, few, STREAMS, 1)
        asyncio.run(merge_all(url, "merged"))
        files = Path(folder) / "parquet"
        write_parquet(spark, url, "large", files)
        with redis.Redis.from_url(url) as plain:
            Messages.make(few).xadd_pipelined(plain)
        number = 0

        def run(name: str, format: str, expected: int, **options: str) -> None:
            nonlocal number
            number += 1
            got, seconds = once(spark, format, options, Path(folder) / str(number))
            if got != expected:
                raise SystemExit(f"{name}: {got} of {expected} rows")
            found.setdefault(name, []).append(expected / seconds)

        for turn in range(frame.runs + 1):
            for label, chosen in COLUMNS.items():
                given = {"rows": str(frame.messages), "batch": str(6 * ROWS)}
                run(f"{label}: memory", "memory_source", frame.messages, **given, **chosen)
                run(f"{label}: Parquet", "parquet", frame.messages, path=str(files), **chosen)
                for space, entries, size in (
                    ("large", f"entries of {ROWS:,}", frame.messages),
                    ("small", f"entries of {SMALL_ROWS:,}", frame.messages),
                    ("single", "entries of 1", few),
                    ("merged", "entries of 1, merged", few),
                ):
                    group = {"redis": url, "subscribe": f"$shared/g{number}/{space}/#", "slots": "1"}
                    run(
                        f"{label}: Streamlease, {entries}", "streamlease", size,
                        startingOffsets="earliest", **group, **chosen,
                    )  # fmt: skip
                run(f"{label}: one per entry", "entries_source", few, redis=url, rows="1", **chosen)
            if not turn:
                found.clear()
    table = Table(
        f"One task, {frame.messages:,} messages of {PAYLOAD_BYTES} bytes, median of {frame.runs}",
        ("", "messages/s", "of memory", "times one per entry"),
    )
    rates = {name: statistics.median(rates) for name, rates in found.items()}
    for name, rate in rates.items():
        label = name.partition(":")[0]
        memory, entries = rates[f"{label}: memory"], rates[f"{label}: one per entry"]
        table.rows.append((name, f"{rate:,.0f}", f"{rate / memory:.2f}", f"{rate / entries:.1f}"))
    yield table
