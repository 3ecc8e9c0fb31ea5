"""What the publishers of this process count, for Prometheus.

They are in the default registry of ``prometheus_client``: a program that serves its metrics serves these too.
"""

from __future__ import annotations

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
