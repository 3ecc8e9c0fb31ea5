"""What a gateway counts of its webhooks, for Prometheus."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

DELIVERED = Counter("streamlease_webhook_deliveries", "Deliveries that callbacks acknowledged.")
MESSAGES = Counter("streamlease_webhook_messages", "Messages in them.")
FAILED = Counter(
    "streamlease_webhook_failures",
    "Deliveries that callbacks did not acknowledge, by the kind of trouble.",
    ["kind"],
)
SECONDS = Histogram(
    "streamlease_webhook_seconds",
    "From a delivery until it was acknowledged.",
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
HELD = Gauge("streamlease_webhooks", "Webhooks that this gateway delivers, by their state.", ["state"])
SLOTS = Gauge("streamlease_webhook_slots", "Slots of webhooks that this gateway has.")
