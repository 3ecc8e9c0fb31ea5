"""Cuts: what the next cut of a query costs on the driver, how large its offset is, and what its tasks take.

One `latestOffset` finishes the cut before and fixes the next one, as in a query that is never idle. The
leader is in the same process, and its work is in the figure. Both tasks are run one after the other in this
process, without Spark: they read the cut, a message of each stream, and make record batches of it.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bench.frame import Frame, Table
from bench.messages import SPACE
from streamlease.agent import blocking
from streamlease.protocol.ids import StreamId
from streamlease.streams.entries.entries import Row, encode_rows
from streamlease.streams.log.log import Append, AsyncLog
from streamlease.streams.redis.connection import connect_blocking, run_blocking

if TYPE_CHECKING:
    from streamlease.spark.source import StreamReader

SIZES = (100, 10_000)
FEW = 10
"""Streams with something new, where not all have."""

SPACES = 4
PAGE = 1000
PATIENCE = 120.0
QUICK_SECONDS = 0.5


def _publish(log: AsyncLog, streams: list[StreamId], sequence: int) -> None:
    entry = encode_rows([Row(f"{SPACE}/x", b"x" * 100)])
    for first in range(0, len(streams), PAGE):
        page = streams[first : first + PAGE]
        appends = [Append(stream, "~bench", 1, sequence, entry, gaps=True) for stream in page]
        run_blocking(log.append_many(appends))


def _settle(
    reader: StreamReader, at: dict[str, Any], log: AsyncLog, streams: list[StreamId]
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


@dataclass
class Holding:
    """A query that holds all of its streams, each with one message at least."""

    reader: StreamReader
    at: dict[str, Any]
    url: str
    streams: list[StreamId]
    log: AsyncLog

    def publish(self, news: int) -> None:
        """Give the first streams a message each, and wait until the query knows."""
        lag = self.reader.reportLatestOffset()["lag"]
        _publish(self.log, self.streams[:news], time.monotonic_ns())
        deadline = time.monotonic() + PATIENCE
        while self.reader.reportLatestOffset()["lag"] < lag + news:
            if time.monotonic() > deadline:
                raise SystemExit(f"the news of {news} streams did not come within {PATIENCE:.0f} s")
            time.sleep(0.01)


@contextmanager
def holding(frame: Frame, size: int) -> Iterator[Holding]:
    """A query with two slots, a leader in the same process, and so many streams."""
    from streamlease.spark.options import SourceOptions
    from streamlease.spark.source import StreamReader

    with frame.server() as url:
        spaces = SPACES if size % SPACES == 0 else 1
        with blocking.connect(url) as client:
            for number in range(spaces):
                client.create_space(f"{SPACE}{number}", [f"{SPACE}/{number}/#"], streams=size // spaces)
        log = AsyncLog(connect_blocking(url))
        streams = [StreamId(f"{SPACE}{n % spaces}", 0, n // spaces) for n in range(size)]
        options = {"redis": url, "subscribe": f"$shared/g/{SPACE}/#", "startingOffsets": "earliest"}
        reader = StreamReader(SourceOptions.parse(options))
        at: dict[str, Any] = reader.initialOffset()
        deadline = time.monotonic() + PATIENCE
        while (reader.reportLatestOffset()["held"] or 0) < len(streams):
            at = reader.latestOffset(at, reader.getDefaultReadLimit())
            if time.monotonic() > deadline:
                raise SystemExit(f"{size} streams were not granted within {PATIENCE:.0f} s")
        yield Holding(reader, _settle(reader, at, log, streams), url, streams, log)
        reader.stop()


def measure(frame: Frame) -> Iterator[Table]:
    """One query with two slots holds all streams; cuts with news in all of them, and in few."""
    table = Table(
        f"One cut, median of {frame.runs}",
        (
            "streams, with news",
            "latestOffset ms",
            "processor ms",
            "partitions ms",
            "tasks ms",
            "offset bytes",
        ),
    )
    for size in SIZES:
        with holding(frame, size) as query:
            for news in dict.fromkeys((min(FEW, size), size)):
                figures = _cuts(query, news, frame.runs)
                cells = (f"{statistics.median(one) * 1000:.1f}" for one in figures[:4])
                table.rows.append((f"{size:,}, {news:,}", *cells, f"{max(figures[4]):,}"))
    yield table


def _cuts(
    query: Holding, news: int, runs: int
) -> tuple[list[float], list[float], list[float], list[float], list[int]]:
    """Seconds of `latestOffset`, its processor seconds, those of `partitions` and of the tasks, and bytes of
    the offset."""
    reader = query.reader
    cuts, processor, plans, tasks, sizes = [], [], [], [], []
    for run in range(runs + 1):
        query.publish(news)
        began, burnt = time.perf_counter(), time.process_time()
        end = reader.latestOffset(query.at, reader.getDefaultReadLimit())
        fixed, burnt = time.perf_counter(), time.process_time() - burnt
        if end == query.at:
            raise SystemExit("no cut was fixed in time")
        partitions = reader.partitions(query.at, end)
        planned = time.perf_counter()
        rows = sum(batch.num_rows for partition in partitions for batch in reader.read(partition))
        read = time.perf_counter()
        if rows < news:
            raise SystemExit(f"a cut of {news} messages had {rows}")
        query.at = end
        if run:  # the first one finished a cut of the size before
            plans.append(planned - fixed)
            tasks.append(read - planned)
            cuts.append(fixed - began)
            processor.append(burnt)
            sizes.append(len(json.dumps(end)))
    return cuts, processor, plans, tasks, sizes
