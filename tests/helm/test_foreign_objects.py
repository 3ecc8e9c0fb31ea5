"""Objects whose schemas Kubernetes has not: of the Prometheus operator, of KEDA and of the Spark operator.

``foreign_schemas.json`` holds, for what the chart and the examples use, the parts of their own definitions
(of the Prometheus operator 0.93, KEDA 2.20 and the Spark operator 2), with all other fields refused.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.helm.charts import ROOT, Document, helm, render, value_sets, with_redis

jsonschema = pytest.importorskip("jsonschema", reason="jsonschema comes with kubernetes-validate")
pytestmark = pytest.mark.helm

SCHEMAS: dict[str, Any] = json.loads((Path(__file__).parent / "foreign_schemas.json").read_text())
APPLICATION = ROOT / "examples" / "kubernetes" / "spark-application.yaml"
KEDA = {"enabled": True, "prometheusAddress": "http://prometheus:9090", "groupsPerHost": 100}


def checked(document: Document) -> None:
    jsonschema.validate(document, SCHEMAS[document["kind"]])


def foreign() -> list[Document]:
    rendered = [
        one
        for name in ("trial", "operated", "gateway", "bridge")
        for one in render(value_sets()[name]).documents
    ]
    found = [document for document in rendered if document["kind"] in SCHEMAS]
    return [*found, *yaml.safe_load_all(APPLICATION.read_text())]


def test_each_fits_its_own_definition() -> None:
    kinds = [document["kind"] for document in foreign() if document["kind"] in SCHEMAS]
    assert set(kinds) == set(SCHEMAS)
    for document in foreign():
        if document["kind"] in SCHEMAS:
            checked(document)


@pytest.mark.parametrize("kind", SCHEMAS)
def test_the_validation_itself_finds_planted_defects(kind: str) -> None:
    document = next(copy.deepcopy(one) for one in foreign() if one["kind"] == kind)
    document["spec"]["restartOnFriday"] = True
    with pytest.raises(jsonschema.ValidationError):
        checked(document)


def test_keda_scales_the_leader_hosts_by_their_groups_and_nobody_else_says_how_many() -> None:
    rendered = render(value_sets()["trial"])
    hosts = rendered.the("Deployment")
    scaled = rendered.the("ScaledObject")["spec"]
    assert scaled["scaleTargetRef"]["name"] == hosts["metadata"]["name"]
    assert (scaled["minReplicaCount"], scaled["maxReplicaCount"]) == (2, 8)
    (trigger,) = scaled["triggers"]
    assert trigger["metadata"]["threshold"] == "150"
    assert trigger["metadata"]["query"] == (
        'sum(streamlease_leaders{namespace="streams",pod=~"demo-streamlease-.*"})'
    )
    assert "replicas" not in hosts["spec"]


def test_a_service_monitor_finds_the_hosts_behind_a_service_of_its_own() -> None:
    rendered = render(value_sets()["trial"])
    monitor = rendered.the("ServiceMonitor")["spec"]
    (service,) = [one for one in rendered.of("Service") if one["metadata"]["name"].endswith("-metrics")]
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    pod = rendered.pods()["Deployment"]
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    (endpoint,), (port,) = monitor["endpoints"], service["spec"]["ports"]
    assert endpoint["port"] == port["name"]
    assert port["targetPort"] == pod["spec"]["containers"][0]["ports"][0]["name"]
    assert endpoint["path"] == "/metrics"


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"autoscaling": {"enabled": True, "keda": KEDA}}, "choose CPU or groups per host, not both"),
        (
            {"autoscaling": {"keda": {**KEDA, "prometheusAddress": ""}}},
            "'/autoscaling/keda/prometheusAddress'",
        ),
        ({"autoscaling": {"keda": {**KEDA, "groupsPerHost": 0}}}, "'/autoscaling/keda/groupsPerHost'"),
        ({"metrics": {"podMonitor": True, "serviceMonitor": True}}, "each host would be scraped twice"),
    ],
)
def test_bad_values_are_refused_by_name(values: dict[str, Any], said: str) -> None:
    with pytest.raises(helm.HelmValuesError) as refused:
        render({**with_redis(), **values})
    assert said in str(refused.value)
