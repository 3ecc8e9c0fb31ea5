"""Monitors, alerts and the dashboard ask for metrics that exist, of pods that exist."""

from __future__ import annotations

import importlib.util
import json
import re
from typing import Any

import pytest
import yaml

from streamlease.agent.membership import metrics as consuming
from streamlease.gateway import metrics as serving
from streamlease.gateway.channels import metrics as channelling
from streamlease.gateway.mqtt import metrics as bridging
from streamlease.gateway.webhooks import metrics as delivering
from streamlease.hosts.signals.exposition import HostFacts, KeptFacts, exposition
from streamlease.hosts.signals.group_signals import GroupSignals
from streamlease.leader.metrics import LedFacts
from streamlease.services import metrics as calling
from streamlease.streams.publish import metrics as publishing
from tests.helm.charts import CHART, ROOT, render, value_sets

pytestmark = pytest.mark.helm

VALUES = value_sets()["operated"]
ALERTS = CHART / "files" / "alerts.yaml"
NAME = re.compile(r"\bstreamlease_\w+")


def existing() -> set[str]:
    """The names of all series that a host, a publisher, a consumer, a gateway and a bridge may have."""
    assert serving.COUNTS.refused["body"] >= 0  # whatever was served in this process before
    assert channelling.ChannelCounts.__module__.endswith("metrics")
    delivering.HELD.labels("active")
    delivering.FAILED.labels("refused")
    bridging.RECEIVED.labels("1")
    calling.RUNNING.labels("scorer")
    publishing.PUBLISH_FAILURES.labels("Indefinite")
    consuming.Meter("$shared/g/#").ended("b", "the leader is silent", again=True)
    led = LedFacts("$shared/g/#", 1, 0, 0, 0)
    group = GroupSignals("$shared/g/#", "led", 2, 2, 1, 0, 5, 1.5)
    text = exposition(HostFacts([led], False, 0, 0, [KeptFacts("s", 2, 1, 3, 4.0)], [group])).decode()
    kinds = dict(re.findall(r"^# TYPE (streamlease_\w+) (\w+)$", text, re.MULTILINE))
    parts = ("_bucket", "_sum", "_count")
    kinds = {name: kind for name, kind in kinds.items() if not name.endswith("_created")}
    return {
        f"{name}{part}" for name, kind in kinds.items() for part in (parts if kind == "histogram" else ("",))
    }


def alerts() -> list[dict[str, Any]]:
    """The rules that alert; the others record."""
    return [one for one in yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"] if "alert" in one]


def queries() -> list[str]:
    panels = json.loads((CHART / "files" / "dashboard.json").read_text())["panels"]
    asked = [target["expr"] for panel in panels for target in panel["targets"]]
    rules = yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]
    return asked + [rule["expr"] for rule in rules]


def test_every_query_asks_for_metrics_that_exist() -> None:
    known = existing()
    assert len(queries()) > 15
    recorded = {
        one["record"] for one in yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"] if "record" in one
    }
    for query in queries():
        names = set(NAME.findall(query))
        made = set(re.findall(r"\bstreamlease:\w+", query))
        assert names | made, query
        assert made <= recorded, query
        assert names <= known, query


def test_every_metric_is_on_the_dashboard_or_is_known_not_to_be() -> None:
    shown = {name for query in queries() for name in NAME.findall(query)}
    told = ("streamlease_group_", "streamlease_consumer_", "streamlease_epochs_", "streamlease_gateway_")
    parts = ("_sum", "_count")  # of histograms the buckets are shown
    wanted = {name for name in existing() if name.startswith(told) and not name.endswith(parts)}
    assert len(wanted) > 15
    assert wanted - shown == set()


def test_every_metric_is_in_the_documentation() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    described = set(NAME.findall(page))
    families = {re.sub(r"_(bucket|sum|count)$", "", name) for name in existing()}
    assert families == described


def test_every_alert_says_what_is_wrong_and_what_to_do() -> None:
    rules = alerts()
    assert len({rule["alert"] for rule in rules}) == len(rules)
    for rule in rules:
        assert rule["labels"]["severity"] in {"info", "warning", "critical"}
        assert set(rule["annotations"]) == {"summary", "description"}


def test_the_operators_page_explains_every_alert() -> None:
    rules = alerts()
    page = (ROOT / "docs" / "operations.md").read_text()
    assert set(re.findall(r"^\| `(Streamlease\w+)` \|", page, re.MULTILINE)) == {r["alert"] for r in rules}


def test_the_dashboard_is_what_its_program_writes() -> None:
    spec = importlib.util.spec_from_file_location("dashboard", ROOT / "helm" / "dashboard.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (CHART / "files" / "dashboard.json").read_text() == module.text(), "run: python3 helm/dashboard.py"


def test_the_monitor_asks_the_leader_hosts_where_they_listen() -> None:
    rendered = render(VALUES)
    monitor = rendered.the("PodMonitor")
    pod = rendered.pods()["Deployment"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint["port"] == pod["spec"]["containers"][0]["ports"][0]["name"]
    assert (endpoint["path"], endpoint["interval"]) == ("/metrics", "15s")
    assert monitor["metadata"]["labels"]["release"] == "prometheus"


def test_rules_and_dashboard_arrive_unchanged() -> None:
    rendered = render(VALUES)
    assert rendered.the("PrometheusRule")["spec"] == yaml.safe_load(ALERTS.read_text())
    (held,) = rendered.the("ConfigMap")["data"].values()
    assert json.loads(held) == json.loads((CHART / "files" / "dashboard.json").read_text())
