"""Write ``helm/streamlease/files/dashboard.json``, a dashboard of Grafana, from the panels below.

Run it after a change of the panels: ``python3 helm/dashboard.py``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FILE = Path(__file__).parent / "streamlease" / "files" / "dashboard.json"
GROUP = '{namespace=~"$namespace",subscription=~"$subscription"}'
RELEASE = "namespace, job, subscription"
"""One group of one release: several may be in one Prometheus."""

PANELS = [
    (
        "Lag in messages",
        "short",
        f"max by ({RELEASE}) (streamlease_group_lag_messages{GROUP})",
        "{{namespace}} {{subscription}}",
    ),
    (
        "Lag in seconds",
        "s",
        f"max by ({RELEASE}) (streamlease_group_lag_seconds{GROUP})",
        "{{namespace}} {{subscription}}",
    ),
    (
        "Streams without an owner",
        "short",
        f"max by ({RELEASE}) (streamlease_group_streams{GROUP} - streamlease_group_held_streams{GROUP})",
        "{{namespace}} {{subscription}}",
    ),
    (
        "Borrowers",
        "short",
        f"max by ({RELEASE}) (streamlease_group_borrowers{GROUP})",
        "{{namespace}} {{subscription}}",
    ),
    ("Groups by state", "short", "count by (state) (streamlease_group_state)", "{{state}}"),
    (
        "Consumed per second",
        "short",
        f"max by ({RELEASE}) (clamp_min(deriv(streamlease_group_committed_messages{GROUP}[5m]), 0))",
        "{{namespace}} {{subscription}}",
    ),
    (
        "Moves per minute",
        "short",
        f"60 * sum by ({RELEASE}) (deriv(streamlease_group_moves{GROUP}[5m]))",
        "{{namespace}} {{subscription}}",
    ),
    (
        "Rebalances per minute",
        "short",
        f"60 * sum by ({RELEASE}) (clamp_min(deriv(streamlease_group_rebalances{GROUP}[5m]), 0))",
        "{{namespace}} {{subscription}}",
    ),
    (
        "Hand-over, 99th percentile",
        "s",
        "histogram_quantile(0.99, sum by (le, how) (rate(streamlease_hand_over_seconds_bucket[5m])))",
        "{{how}}",
    ),
    ("Leaders per host", "short", "streamlease_leaders", "{{pod}}"),
    (
        "Terms",
        "short",
        f"max by ({RELEASE}) (streamlease_group_term{GROUP})",
        "{{namespace}} {{subscription}}",
    ),
    ("Leases per second", "short", "sum(rate(streamlease_leases_total[5m]))", "leases"),
    ("Fenced leaders", "short", "sum(increase(streamlease_fenced_leaders_total[5m]))", "fenced"),
    (
        "Journal, bytes per second",
        "Bps",
        "sum by (pod) (rate(streamlease_journal_bytes_total[5m]))",
        "{{pod}}",
    ),
    (
        "Messages that wait for leaders",
        "short",
        f"sum by ({RELEASE}) (streamlease_group_mailbox_messages{GROUP})",
        "{{namespace}} {{subscription}}",
    ),
    (
        "Published messages per second",
        "short",
        "sum by (pod) (rate(streamlease_published_messages_total[5m]))",
        "{{pod}}",
    ),
    (
        "Publishing, 99th percentile",
        "s",
        "histogram_quantile(0.99, sum by (le) (rate(streamlease_publish_seconds_bucket[5m])))",
        "publish",
    ),
    (
        "Consumers: streams held",
        "short",
        f"sum by (pod) (streamlease_consumer_streams{GROUP})",
        "{{pod}}",
    ),
    (
        "Consumers: lag of the streams held",
        "short",
        f"sum by (pod) (streamlease_consumer_lag_messages{GROUP})",
        "{{pod}}",
    ),
    (
        "Consumers: messages read per second",
        "short",
        f"sum by (namespace, subscription) (rate(streamlease_consumer_read_messages_total{GROUP}[5m]))",
        "{{namespace}} {{subscription}}",
    ),
    (
        "Consumers: messages delivered per second",
        "short",
        f"sum by (namespace, subscription) (rate(streamlease_consumer_delivered_messages_total{GROUP}[5m]))",
        "{{namespace}} {{subscription}}",
    ),
    (
        "Consumers: messages committed per second",
        "short",
        f"sum by (namespace, subscription) (rate(streamlease_consumer_committed_messages_total{GROUP}[5m]))",
        "{{namespace}} {{subscription}}",
    ),
    (
        "Consumers: leases that came",
        "short",
        f"sum by (namespace, subscription) (increase(streamlease_consumer_granted_streams_total{GROUP}[5m]))",
        "{{namespace}} {{subscription}}",
    ),
    (
        "Consumers: reconnects",
        "short",
        f"sum by (reason) (increase(streamlease_consumer_reconnects_total{GROUP}[5m]))",
        "{{reason}}",
    ),
    (
        "Consumers: giving streams back, 99th percentile",
        "s",
        "histogram_quantile(0.99, sum by (le, namespace, subscription) "
        f"(rate(streamlease_consumer_hand_over_seconds_bucket{GROUP}[5m])))",
        "{{namespace}} {{subscription}}",
    ),
    (
        "Consumers: ping to the leader, 99th percentile",
        "s",
        "histogram_quantile(0.99, sum by (le, namespace, subscription) "
        f"(rate(streamlease_consumer_ping_seconds_bucket{GROUP}[5m])))",
        "{{namespace}} {{subscription}}",
    ),
    (
        "Epochs: for how long the frontier stands",
        "s",
        "max by (space) (streamlease_epochs_frontier_seconds)",
        "{{space}}",
    ),
    (
        "Epochs: publishers that are there",
        "short",
        "max by (space) (streamlease_epochs_publishers)",
        "{{space}}",
    ),
    (
        "Epochs: publishers that wait for others",
        "short",
        "max by (space) (streamlease_epochs_held_back_publishers)",
        "{{space}}",
    ),
    (
        "Epochs: messages that wait for other publishers",
        "short",
        "max by (space) (streamlease_epochs_waiting_messages)",
        "{{space}}",
    ),
    (
        "Gateway: requests per second",
        "reqps",
        "sum by (route, status) (rate(streamlease_gateway_requests_total[5m]))",
        "{{route}} {{status}}",
    ),
    (
        "Gateway: requests that do not wait, 99th percentile",
        "s",
        "histogram_quantile(0.99, sum by (le, route) (rate(streamlease_gateway_request_seconds_bucket[5m])))",
        "{{route}}",
    ),
    (
        "Gateway: open long polls and event streams",
        "short",
        "sum by (pod, route) (streamlease_gateway_open)",
        "{{pod}} {{route}}",
    ),
    (
        "Gateway: refused by limits, per second",
        "reqps",
        "sum by (limit) (rate(streamlease_gateway_refused_total[5m]))",
        "{{limit}}",
    ),
    (
        "Gateway: bytes in, per second",
        "Bps",
        "sum by (route) (rate(streamlease_gateway_received_bytes_total[5m]))",
        "{{route}}",
    ),
    (
        "Gateway: bytes out, per second",
        "Bps",
        "sum by (route) (rate(streamlease_gateway_sent_bytes_total[5m]))",
        "{{route}}",
    ),
    ("Gateway: feeds", "short", "sum by (pod) (streamlease_gateway_feeds)", "{{pod}}"),
    ("MQTT: connected to the broker", "short", "min by (pod) (streamlease_mqtt_connected)", "{{pod}}"),
    (
        "MQTT: messages from the broker that became durable, per second",
        "short",
        "sum by (pod) (rate(streamlease_mqtt_brought_total[5m]))",
        "{{pod}}",
    ),
    (
        "MQTT: messages that the broker took, per second",
        "short",
        "sum by (pod) (rate(streamlease_mqtt_sent_total[5m]))",
        "{{pod}}",
    ),
    (
        "MQTT: messages that are not durable yet",
        "short",
        "sum by (pod) (streamlease_mqtt_in_hand)",
        "{{pod}}",
    ),
    (
        "MQTT: messages that may be there twice",
        "short",
        'sum by (pod) (increase(streamlease_mqtt_again_total{known="no"}[5m]))',
        "{{pod}}",
    ),
]


def dashboard() -> dict[str, Any]:
    """The whole document."""
    source = {"type": "prometheus", "uid": "${source}"}
    return {
        "title": "Streamlease",
        "uid": "streamlease",
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "tags": ["streamlease"],
        "templating": {
            "list": [
                {"name": "source", "type": "datasource", "query": "prometheus", "label": "Source"},
                {
                    "name": "namespace",
                    "type": "query",
                    "label": "Namespace",
                    "datasource": source,
                    "query": "label_values(streamlease_leaders, namespace)",
                    "includeAll": True,
                    "allValue": ".*",
                    "multi": True,
                    "refresh": 2,
                },
                {
                    "name": "subscription",
                    "type": "query",
                    "label": "Subscription",
                    "datasource": source,
                    "query": "label_values(streamlease_group_term, subscription)",
                    "includeAll": True,
                    "multi": True,
                    "refresh": 2,
                },
            ]
        },
        "panels": [
            {
                "id": place + 1,
                "title": title,
                "type": "timeseries",
                "datasource": source,
                "gridPos": {"x": place % 2 * 12, "y": place // 2 * 8, "w": 12, "h": 8},
                "fieldConfig": {"defaults": {"unit": unit}, "overrides": []},
                "targets": [{"refId": "A", "datasource": source, "expr": query, "legendFormat": legend}],
            }
            for place, (title, unit, query, legend) in enumerate(PANELS)
        ],
    }


def text() -> str:
    """The file's text."""
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    FILE.write_text(text())
