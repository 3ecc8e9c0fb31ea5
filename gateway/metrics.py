"""What the gateways of this process count, for Prometheus.

Series carry the route of a request, never its path, topic or client: their number does not grow with these.
Requests come by thousands a second, so they are counted in plain numbers, which a scrape reads.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from prometheus_client import REGISTRY
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from streamlease.gateway.http_calls import HttpCall

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class GatewayCounts(Collector):
    """All counts of the process."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str]] = Counter()
        """By route and status; the status is ``gone`` where the client was, before an answer."""
        self._buckets: defaultdict[str, list[int]] = defaultdict(lambda: [0] * (len(SECONDS) + 1))
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._received: defaultdict[str, int] = defaultdict(int)
        self._sent: defaultdict[str, int] = defaultdict(int)
        self.refused: Counter[str] = Counter()
        """By the limit."""
        self.open: Counter[str] = Counter()
        """Requests that wait, by route."""
        self.feeds = 0

    def answered(self, call: HttpCall, seconds: float) -> None:
        """A request is over, `seconds` after it came."""
        route = call.route
        self.requests[route, str(call.status) if call.status else "gone"] += 1
        self._received[route] += call.received_bytes
        self._sent[route] += call.sent_bytes
        if not call.waits:
            self._buckets[route][bisect_left(SECONDS, seconds)] += 1
            self._seconds[route] += seconds

    @contextmanager
    def waiting(self, call: HttpCall) -> Iterator[None]:
        """Within, a request waits for what comes."""
        call.waits = True
        self.open[call.route] += 1
        try:
            yield
        finally:
            self.open[call.route] -= 1

    def collect(self) -> Iterator[Metric]:
        """See ``prometheus_client``."""
        requests = CounterMetricFamily(
            "streamlease_gateway_requests",
            "Requests that are over, by route and status; 'gone': the client went before an answer.",
            labels=["route", "status"],
        )
        for (route, status), count in self.requests.items():
            requests.add_metric([route, status], count)
        yield requests
        took = HistogramMetricFamily(
            "streamlease_gateway_request_seconds",
            "From a request to the end of its answer; without long polls and event streams, which wait.",
            labels=["route"],
        )
        for route, buckets in self._buckets.items():
            took.add_metric([route], [*_cumulative(buckets)], self._seconds[route])
        yield took
        for name, what, bytes in (
            ("received", "Bytes of the bodies of requests.", self._received),
            ("sent", "Bytes of the bodies of answers, events included.", self._sent),
        ):
            family = CounterMetricFamily(f"streamlease_gateway_{name}_bytes", what, labels=["route"])
            for route, count in bytes.items():
                family.add_metric([route], count)
            yield family
        refused = CounterMetricFamily(
            "streamlease_gateway_refused",
            "Requests beyond a limit: rate, polls, client_polls, members, client_members, channels, "
            "client_channels, client_webhooks, body or other.",
            labels=["limit"],
        )
        for limit, count in self.refused.items():
            refused.add_metric([limit], count)
        yield refused
        waiting = GaugeMetricFamily(
            "streamlease_gateway_open",
            "Long polls and event streams that are open, by route.",
            labels=["route"],
        )
        for route, count in self.open.items():
            waiting.add_metric([route], count)
        yield waiting
        yield GaugeMetricFamily(
            "streamlease_gateway_feeds", "Spaces whose end is read, as somebody waits there.", self.feeds
        )


def _cumulative(buckets: list[int]) -> Iterator[tuple[str, float]]:
    below = 0
    for edge, count in zip((*map(str, SECONDS), "+Inf"), buckets, strict=True):
        below += count
        yield edge, float(below)


COUNTS = GatewayCounts()
REGISTRY.register(COUNTS)
