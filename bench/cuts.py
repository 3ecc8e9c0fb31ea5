"""Cuts on the driver: what the next cut of a query costs, and how large its offset is.

One `latestOffset` finishes the cut before and fixes the next one, as in a query that is never idle. The
leader is in the same process, and its work is in the figure.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from bench.frame import Frame, Table
from bench.messages import SPACE
from streamlease.agent import blocking
from streamlease.protocol.ids import StreamId
from streamlease.streams.connection import connect_blocking
from streamlease.streams.entries import Row, encode_rows
from streamlease.streams.log import Append, BlockingLog

if TYPE_CHECKING:
    from streamlease.spark.source import StreamReader

SIZES = (100, 10_000)
FEW = 10
"""Streams with something new, where not all have."""

SPACES = 4
PAGE = 1000
PATIENCE = 120.0
QUICK_SECONDS = 0.5


def _publish(log: BlockingLog, streams: list[StreamId], sequence: int) -> None:
    entry = encode_rows([Row(f"{SPACE}/x", b"x" * 100)])
    for first in range(0, len(streams), PAGE):
        page = streams[first : first + PAGE]
        log.append_many([Append(stream, "~bench", 1, sequence, entry, gaps=True) for stream in page])


def _settle(
    reader: StreamReader, at: dict[str, Any], log: BlockingLog, streams: list[StreamId]
) -> dict[str, Any]:
    """Make cuts until the leader, which has just granted all streams, answers at once."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        _publish(log, streams[:FEW], time.monotonic_ns())
        time.sleep(1.0)
        began = time.monotonic()
        end = reader.latestOffset(at, reader.getDefaultReadLimit())
        if end != at and time.monotonic() - began < QUICK_SECONDS:
            return end
        at = end
    raise SystemExit(f"the leader was busy with its grants for {PATIENCE:.0f} s")


def measure(frame: Frame) -> Iterator[Table]:
    """One query with two slots holds all streams; cuts with news in all of them, and in few."""
    from streamlease.spark.options import SourceOptions
    from streamlease.spark.source import StreamReader

    table = Table(
        f"One cut on the driver, median of {frame.runs}",
        ("streams, with news", "latestOffset ms", "partitions ms", "offset bytes"),
    )
    for size in SIZES:
        with frame.server() as url:
            with blocking.connect(url) as client:
                for number in range(SPACES):
                    topics = [f"{SPACE}/{number}/#"]
                    client.create_space(f"{SPACE}{number}", topics, streams=size // SPACES)
            log = BlockingLog(connect_blocking(url))
            streams = [StreamId(f"{SPACE}{n % SPACES}", 0, n // SPACES) for n in range(size)]
            options = {"redis": url, "subscribe": f"$shared/g/{SPACE}/#", "startingOffsets": "earliest"}
            reader = StreamReader(SourceOptions.parse(options))
            at: dict[str, Any] = reader.initialOffset()
            limit = reader.getDefaultReadLimit()
            deadline = time.monotonic() + PATIENCE
            while reader.reportLatestOffset()["held"] < size:
                at = reader.latestOffset(at, limit)
                if time.monotonic() > deadline:
                    raise SystemExit(f"{size} streams were not granted within {PATIENCE:.0f} s")
            at = _settle(reader, at, log, streams)
            for news in dict.fromkeys((min(FEW, size), size)):
                cuts, plans, sizes = [], [], []
                for run in range(frame.runs + 1):
                    lag = reader.reportLatestOffset()["lag"]
                    _publish(log, streams[:news], time.monotonic_ns())
                    while reader.reportLatestOffset()["lag"] < lag + news:
                        time.sleep(0.01)
                    began = time.perf_counter()
                    end = reader.latestOffset(at, limit)
                    fixed = time.perf_counter()
                    if end == at:
                        raise SystemExit("no cut was fixed in time")
                    reader.partitions(at, end)
                    at = end
                    if not run:
                        continue  # it finished a cut of the size before
                    plans.append(time.perf_counter() - fixed)
                    cuts.append(fixed - began)
                    sizes.append(len(json.dumps(end)))
                figures = (statistics.median(cuts) * 1000, statistics.median(plans) * 1000)
                table.rows.append(
                    (f"{size:,}, {news:,}", *(f"{one:.1f}" for one in figures), f"{max(sizes):,}")
                )
            reader.stop()
    yield table
