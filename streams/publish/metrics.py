"""What the publishers of this process count, for Prometheus.

They are in the default registry of ``prometheus_client``: a program that serves its metrics serves these too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from prometheus_client import Counter, Histogram

PUBLISHED_MESSAGES = Counter(
    "streamlease_published_messages", "Messages that publishers of this process have had written."
)
PUBLISHED_BYTES = Counter(
    "streamlease_published_bytes", "Bytes of these messages as they count in the buffer: before compression."
)
PUBLISH_FAILURES = Counter(
    "streamlease_publish_failures",
    "Messages that failed, by the kind of error; Indefinite ones may have been written.",
    ["error"],
)
PUBLISH_SECONDS = Histogram(
    "streamlease_publish_seconds",
    "From the first message of a batch to the answer of Redis for the batch, lingering and retries included.",
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
)

AT_ONCE = 16
COUNT_SECONDS = 0.1


def count(written: Sequence[tuple[int, int, float]]) -> None:
    """Of each written part: its messages, its bytes in the buffer, the seconds since the first came."""
    for _, _, seconds in written:
        PUBLISH_SECONDS.observe(seconds)
    PUBLISHED_MESSAGES.inc(sum(messages for messages, _, _ in written))
    PUBLISHED_BYTES.inc(sum(size for _, size, _ in written))


class Tally:
    """Messages that are written one by one, and counted `AT_ONCE` at a time, or `COUNT_SECONDS` later.

    To count each by itself would be a tenth of what it takes to send it.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._written: list[tuple[int, float]] = []
        self._timer: asyncio.TimerHandle | None = None

    def add(self, size: int, seconds: float) -> None:
        """A message of `size` bytes was written `seconds` after it came."""
        self._written.append((size, seconds))
        if self._timer is None:
            self._timer = self._loop.call_later(COUNT_SECONDS, self.count)

    def count_some(self) -> None:
        """Now is a good time: nobody waits for this process."""
        if len(self._written) >= AT_ONCE:
            self._count()

    def count(self) -> None:
        """Count all."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._count()

    def _count(self) -> None:
        written, self._written = self._written, []
        for _, seconds in written:
            PUBLISH_SECONDS.observe(seconds)
        PUBLISHED_MESSAGES.inc(len(written))
        PUBLISHED_BYTES.inc(sum(size for size, _ in written))
