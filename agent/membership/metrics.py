"""What the consumers of this process count, for Prometheus.

Like those of publishers they are in the default registry of ``prometheus_client``: a program that serves its
metrics serves these too, and one that does not calls `serve_metrics`. Every series carries the shared
subscription, never a stream, so their number does not grow with streams.

What a consumer counts as it goes are counters. What it has at one moment (streams, lag) is asked of it at the
scrape, which comes from another thread: it reads copies of dictionaries, and waits for nothing.
"""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Iterator
from typing import Protocol
from weakref import WeakSet

from prometheus_client import REGISTRY, Counter, Histogram, start_http_server
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from streamlease.protocol.addresses import check_listen_host, shown_address
from streamlease.protocol.errors import InvalidOption

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

READ = Counter(
    "streamlease_consumer_read_messages",
    "Messages read from streams, those that the filter does not match included.",
    ["subscription"],
)
DELIVERED = Counter(
    "streamlease_consumer_delivered_messages",
    "Messages handed to the program, again if they came again.",
    ["subscription"],
)
COMMITTED = Counter(
    "streamlease_consumer_committed_messages",
    "Messages whose commit became durable, those that the filter does not match included.",
    ["subscription"],
)
RECONNECTS = Counter(
    "streamlease_consumer_reconnects",
    "Borrowers of this process that ended and were followed by new ones, by the reason.",
    ["subscription", "reason"],
)
GRANTS = Counter(
    "streamlease_consumer_granted_streams", "Leases of streams that came to this process.", ["subscription"]
)
HAND_OVER_SECONDS = Histogram(
    "streamlease_consumer_hand_over_seconds",
    "From the revocation of a stream until this process has given it back.",
    ["subscription"],
    buckets=SECONDS,
)
PING_SECONDS = Histogram(
    "streamlease_consumer_ping_seconds",
    "From a ping to the leader's answer, in steps of a millisecond.",
    ["subscription"],
    buckets=SECONDS,
)
DROPPED = Counter(
    "streamlease_agent_dropped_messages",
    "Control messages that were for nobody in this process any more.",
)


MOST_PAST = 100
"""So many subscriptions that this process reads no more are still told of."""

_REASONS: dict[str, set[str]] = defaultdict(set)
"""Subscription -> for what reasons `RECONNECTS` has a series."""


class Consumer(Protocol):
    """What the scrape asks of a consumer, from another thread."""

    @property
    def subscription(self) -> str:
        """The shared subscription."""
        ...

    def holding(self) -> tuple[int | None, int | None]:
        """Streams held, and messages of them that are not committed; None where that is unknown."""
        ...


class _Consumers(Collector):
    def __init__(self) -> None:
        self._there: WeakSet[Consumer] = WeakSet()  # one whose loop ended without closing it goes, too
        self._seen: dict[str, None] = {}
        """Subscriptions that have series, in the order in which a consumer of them last came or went."""
        self._lock = threading.Lock()

    def add(self, consumer: Consumer) -> None:
        with self._lock:
            self._there.add(consumer)
            self._note(consumer.subscription)

    def discard(self, consumer: Consumer) -> None:
        with self._lock:
            self._there.discard(consumer)
            self._note(consumer.subscription)

    def _note(self, subscription: str) -> None:
        """A process that reads one group after the other must not grow with those that it has read."""
        self._seen.pop(subscription, None)
        self._seen[subscription] = None
        if len(self._seen) <= MOST_PAST + len(self._there):
            return
        living = {consumer.subscription for consumer in self._there}
        past = [seen for seen in self._seen if seen not in living]
        for gone in past[:-MOST_PAST]:
            del self._seen[gone]
            _drop_series(gone)

    def describe(self) -> Iterator[Metric]:
        return iter(_families())

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            there = list(self._there)
        held: dict[str, int | None] = defaultdict(int)
        lags: dict[str, int | None] = defaultdict(int)
        for consumer in there:
            for sums, count in zip((held, lags), consumer.holding(), strict=True):
                known = sums[consumer.subscription]
                sums[consumer.subscription] = None if known is None or count is None else known + count
        streams_family, lag_family = _families()
        for family, sums in ((streams_family, held), (lag_family, lags)):
            for subscription, found in sums.items():
                if found is not None:  # unknown is absent, never 0
                    family.add_metric([subscription], found)
        return iter((streams_family, lag_family))


def _families() -> tuple[GaugeMetricFamily, GaugeMetricFamily]:
    return (
        GaugeMetricFamily(
            "streamlease_consumer_streams",
            "Streams that this process holds; absent while unknown.",
            labels=["subscription"],
        ),
        GaugeMetricFamily(
            "streamlease_consumer_lag_messages",
            "Messages of the streams held that are not committed; absent while unknown.",
            labels=["subscription"],
        ),
    )


def _drop_series(subscription: str) -> None:
    if "PROMETHEUS_MULTIPROC_DIR" in os.environ:  # its files keep what was counted, and it cannot remove
        return
    for metric in (READ, DELIVERED, COMMITTED, GRANTS, HAND_OVER_SECONDS, PING_SECONDS):
        metric.remove(subscription)
    for reason in _REASONS.pop(subscription, ()):
        RECONNECTS.remove(subscription, reason)


def _reconnects(subscription: str, reason: str) -> Counter:
    _REASONS[subscription].add(reason)
    return RECONNECTS.labels(subscription, reason)


_CONSUMERS = _Consumers()
REGISTRY.register(_CONSUMERS)


def watch(consumer: Consumer) -> None:
    """Ask `consumer` at every scrape, until `forget`."""
    _CONSUMERS.add(consumer)


def forget(consumer: Consumer) -> None:
    """Ask `consumer` no more."""
    _CONSUMERS.discard(consumer)


class Meter:
    """Counts what one session does with its leader; belongs to the session's loop."""

    def __init__(self, subscription: str) -> None:
        self._subscription = subscription
        _reconnects(subscription, "the_leader_is_silent")
        # There from the beginning: for Prometheus, a counter that begins above 0 rises by nothing.
        self._grants = GRANTS.labels(subscription)
        self._hand_overs = HAND_OVER_SECONDS.labels(subscription)
        self._pings: dict[str, int] = {}
        """Borrower -> when (ms) its unanswered ping left."""
        self._revoked: dict[str, int] = {}
        """Stream -> since when (ms) it is being given back."""

    def pinged(self, borrower: str, now: int) -> None:
        """A ping leaves; what follows an unanswered one does not count before the answer."""
        self._pings.setdefault(borrower, now)

    def answered(self, borrower: str, now: int) -> None:
        """The leader answered a ping."""
        left = self._pings.pop(borrower, None)
        if left is not None:
            PING_SECONDS.labels(self._subscription).observe((now - left) / 1000)

    def granted(self, stream: str) -> None:
        """A lease came."""
        self._revoked.pop(stream, None)
        self._grants.inc()

    def revoking(self, stream: str, now: int) -> None:
        """The stream is asked back."""
        self._revoked.setdefault(stream, now)

    def gone(self, stream: str, now: int) -> None:
        """The stream is not held any more."""
        since = self._revoked.pop(stream, None)
        if since is not None:
            self._hand_overs.observe((now - since) / 1000)

    def ended(self, borrower: str, reason: str, *, again: bool) -> None:
        """A borrower ended; with `again` another one follows it."""
        self._pings.pop(borrower, None)
        if again:
            _reconnects(self._subscription, reason.replace(" ", "_")).inc()


_SERVED: set[tuple[str, int]] = set()


def serve_metrics(port: int = 9000, host: str = "127.0.0.1") -> int:
    """Answer Prometheus on ``http://HOST:PORT/metrics`` from a thread, until the process ends.

    A second call for the same address changes nothing.

    Args:
        port: 0 takes a free one.
        host: address to listen on; ``0.0.0.0`` for all.

    Returns:
        the port.

    Raises:
        InvalidOption: the port is out of range, or taken; or `host` is no address.
    """
    check_listen_host(host)
    if not 0 <= port <= 65535:
        raise InvalidOption(f"the port of the metrics is {port}: it must be from 0 to 65535")
    if port and (host, port) in _SERVED:
        return port
    try:
        server, _ = start_http_server(port, host)
    except OSError as error:
        raise InvalidOption(
            f"cannot serve metrics on {shown_address(host, port)} ({error.strerror or error}): "
            f"choose another port, or 0 for a free one"
        ) from None
    _SERVED.add((host, int(server.server_address[1])))
    return int(server.server_address[1])
