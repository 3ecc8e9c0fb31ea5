"""What the services of this process count, for Prometheus: requests that it serves, and calls that it makes.

They are in the default registry of ``prometheus_client``: a program that serves its metrics serves these too.
The labels are names of services and of outcomes, which a program writes down; never those of processes.
"""

from __future__ import annotations

from functools import lru_cache

from prometheus_client import Counter, Gauge, Histogram

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

REQUESTS = Counter(
    "streamlease_service_requests",
    "Requests that came, by what became of them: answered, failed, cancelled, or why they were refused.",
    ["service", "outcome"],
)
REQUEST_SECONDS = Histogram(
    "streamlease_service_seconds",
    "How long handlers worked on requests that they answered, or failed at.",
    ["service"],
    buckets=_SECONDS,
)
RUNNING = Gauge("streamlease_service_running", "Requests that are at work.", ["service"])
LATE = Counter("streamlease_service_late", "Requests that came too late to be begun.")
CALLS = Counter(
    "streamlease_calls", "Calls that are over: answered, or the kind of error.", ["service", "outcome"]
)
CALL_SECONDS = Histogram(
    "streamlease_call_seconds", "From a call to its answer, or error.", ["service"], buckets=_SECONDS
)


class ServiceCounts:
    """Those of one service that is served."""

    def __init__(self, service: str) -> None:
        self._service = service
        self._seconds = REQUEST_SECONDS.labels(service)
        self._answered = REQUESTS.labels(service, "answered")
        self.running = RUNNING.labels(service)

    def answered(self, seconds: float) -> None:
        """A handler answered."""
        self._answered.inc()
        self._seconds.observe(seconds)

    def failed(self, seconds: float) -> None:
        """A handler raised."""
        self.other("failed")
        self._seconds.observe(seconds)

    def other(self, outcome: str) -> None:
        """Something else became of a request."""
        REQUESTS.labels(self._service, outcome).inc()


@lru_cache(maxsize=256)
def _call(service: str, outcome: str) -> tuple[Counter, Histogram]:
    return CALLS.labels(service, outcome), CALL_SECONDS.labels(service)


def called(service: str, outcome: str, seconds: float) -> None:
    """A call is over."""
    count, histogram = _call(service, outcome)
    count.inc()
    histogram.observe(seconds)
