"""What the channels of this process count, for Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from prometheus_client import REGISTRY
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from streamlease.channels.core.client_mailbox import ClientMailbox

SENT, DROPPED, FAILED, FELL_BACK, DEAD = "sent", "dropped", "failed", "fell_back", "dead"
TOLD = {
    SENT: "Messages that went out, again too.",
    DROPPED: "Messages of lossy keys that were dropped.",
    FAILED: "Keys that ended by an error.",
    FELL_BACK: "How often a live key went back to its cursor.",
    DEAD: "Clients that had no poll open for too long.",
}


class ChannelCounts(Collector):
    """All counts of the process; plain numbers, which a scrape reads."""

    def __init__(self) -> None:
        self.mailboxes: WeakSet[ClientMailbox[Any]] = WeakSet()
        """Those of open channels."""
        self.totals: Counter[str] = Counter()

    def collect(self) -> Iterator[Metric]:
        """See ``prometheus_client``."""
        mailboxes = [*self.mailboxes]
        for name, what, value in (
            ("open", "Channels that are open.", len(mailboxes)),
            ("keys", "Keys that are subscribed to.", sum(len(one.keys) for one in mailboxes)),
            ("waiting", "Messages that wait for their clients.", sum(one.waiting for one in mailboxes)),
            ("bytes", "Bytes of what waits or is not acknowledged.", sum(one.bytes for one in mailboxes)),
        ):
            yield GaugeMetricFamily(f"streamlease_channels_{name}", what, value)
        dropped = self.totals[DROPPED] + sum(one.dropped for one in mailboxes)
        for name, what in TOLD.items():
            total = dropped if name == DROPPED else self.totals[name]
            yield CounterMetricFamily(f"streamlease_channels_{name}", what, total)


CHANNEL_COUNTS = ChannelCounts()
REGISTRY.register(CHANNEL_COUNTS)
