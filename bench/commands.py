"""Redis commands of a Spark query: those of one micro-batch, and those of a second at rest."""

from __future__ import annotations

import time
from collections.abc import Iterator

from bench.counting import Counter
from bench.cuts import FEW, Holding, holding
from bench.frame import Frame, Table

SIZES = (10, 100, 10_000)
REST_SECONDS = 10.0


def measure(frame: Frame) -> Iterator[Table]:
    """A query that holds streams, with news in none and in some of them; its tasks are run in turn."""
    table = Table(
        f"Redis commands of a query with two tasks, mean of {frame.runs} micro-batches",
        ("streams held", "a second, at rest", "micro-batch without news", f"with news in {FEW} streams"),
    )
    for size in SIZES:
        with holding(frame, size) as query:
            counter = Counter(query.url)
            for _ in range(2):  # the last cut of the beginning is finished in the first round
                _trigger(query)
                counter.since()
                time.sleep(REST_SECONDS)
                rest = sum(counter.since().values()) / REST_SECONDS
            figures = [_commands(query, counter, rest, news, frame.runs) for news in (0, FEW)]
            table.rows.append((f"{size:,}", *(f"{one:.1f}" for one in (rest, *figures))))
    yield table


def _commands(query: Holding, counter: Counter, rest: float, news: int, runs: int) -> float:
    """Commands of one micro-batch, without those that come with time."""
    total = 0.0
    for _ in range(runs):
        if news:
            query.publish(news)
        counter.since()
        began = time.monotonic()
        _trigger(query)
        total += sum(counter.since().values()) - rest * (time.monotonic() - began)
    return max(0.0, total / runs)  # what comes with time does not come evenly


def _trigger(query: Holding) -> None:
    """One micro-batch: a cut, and what its tasks do."""
    end = query.reader.latestOffset(query.at, query.reader.getDefaultReadLimit())
    for partition in query.reader.partitions(query.at, end):
        for _ in query.reader.read(partition):
            pass
    query.at = end
