"""What all benchmarks share: a server, contenders side by side, medians and ratios, tables.

A subject is a module of this room with a docstring, whose first line says what is compared, and

    def measure(frame: Frame) -> Iterator[Table]: ...

It starts what it needs, lets its contenders take turns, and yields tables. Whoever adds a subject adds a
module; nothing else has to know it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import redis

from streamlease.admin.redis.embedded import EmbeddedRedis

Contender = Callable[[], float]
"""Does its work once, and gives the seconds of it that count."""


@dataclass(frozen=True, slots=True)
class Frame:
    """How a benchmark is to be run.

    Args:
        messages: how many messages each contender handles in a run.
        runs: how often each contender runs; medians are printed.
        redis: URL of the Redis to use, which loses its ``bench:*`` and ``sl:*`` keys; None for own ones.
    """

    messages: int = 200_000
    runs: int = 5
    redis: str | None = None

    @contextmanager
    def server(self) -> Iterator[str]:
        """The URL of a Redis without keys of a benchmark."""
        if self.redis is None:
            with EmbeddedRedis.throw_away() as url:
                yield url
        else:
            clear(self.redis)
            yield self.redis

    def side_by_side(
        self, contenders: Mapping[str, Contender], before: Callable[[], None] = lambda: None
    ) -> dict[str, list[float]]:
        """Let the contenders take turns, `runs` times; the seconds of each.

        Args:
            before: called before each turn.
        """
        seconds: dict[str, list[float]] = {name: [] for name in contenders}
        for _ in range(self.runs):
            for name, work in contenders.items():
                before()
                seconds[name].append(work())
        return seconds


@dataclass(slots=True)
class Table:
    """Figures to be printed: a title, names of columns, and rows of texts, the first of which is a name."""

    title: str
    columns: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list)


def clear(url: str) -> None:
    """Remove all keys of benchmarks."""
    with redis.Redis.from_url(url) as client:
        for pattern in ("bench:*", "sl:*"):
            for key in client.scan_iter(pattern, 1000):
                client.unlink(key)


def seconds_of(work: Callable[[], object]) -> float:
    """How long `work` takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def rates(title: str, seconds: Mapping[str, Sequence[float]], count: int, base: str) -> Table:
    """Messages per second of contenders that handled `count` each, and the ratio to the one named `base`."""
    median = {name: statistics.median(times) for name, times in seconds.items()}
    table = Table(title, ("", "messages/s", f"ratio to {base.partition(' ')[0]}"))
    for name, each in median.items():
        table.rows.append((name, f"{count / each:,.0f}", f"{median[base] / each:.1f}"))
    return table


def latencies(title: str, seconds: Mapping[str, Sequence[float]], base: str) -> Table:
    """Median and 99th percentile of single calls in milliseconds, and their ratio to those of `base`."""
    cuts = {name: (statistics.median(times), percentile(times, 99)) for name, times in seconds.items()}
    table = Table(title, ("", "p50 ms", "p99 ms", "ratio of p50", "ratio of p99"))
    low, high = cuts[base]
    for name, (p50, p99) in cuts.items():
        figures = (f"{p50 * 1000:.3f}", f"{p99 * 1000:.3f}", f"{p50 / low:.2f}", f"{p99 / high:.2f}")
        table.rows.append((name, *figures))
    return table


def percentile(samples: Sequence[float], percent: int) -> float:
    """The value below which `percent` of the samples lie; the highest if there are too few."""
    ranked = sorted(samples)
    return ranked[min(len(ranked) - 1, len(ranked) * percent // 100)]
