"""What clusters need: OpenShift, digests, labels, priorities, volumes, an Ingress; and what contradicts."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.helm.charts import Rendered, helm, render, value_sets, with_redis

pytestmark = pytest.mark.helm


@pytest.fixture(scope="module")
def rendered() -> Rendered:
    return render(value_sets()["openshift"])


def own_pods(rendered: Rendered) -> dict[str, dict[str, Any]]:
    """The pods of the parts, without that of the release's test."""
    return {name: pod for name, pod in rendered.pods().items() if pod.get("kind") != "Pod"}


def test_openshift_chooses_users_and_nothing_else_is_looser(rendered: Rendered) -> None:
    assert len(own_pods(rendered)) == 6
    for pod in rendered.pods().values():
        (container,) = pod["spec"]["containers"]
        for context in (pod["spec"]["securityContext"], container["securityContext"]):
            assert not {"runAsUser", "runAsGroup", "fsGroup"} & context.keys()
            assert context["runAsNonRoot"] is True
            assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    (container,) = render(with_redis()).pods()["Deployment"]["spec"]["containers"]
    assert container["securityContext"]["runAsUser"] == 10001


def test_every_part_has_its_labels_priority_variables_and_volumes(rendered: Rendered) -> None:
    for name, pod in own_pods(rendered).items():
        (container,) = pod["spec"]["containers"]
        assert pod["metadata"]["labels"]["team"] == "data-platform", name
        assert pod["spec"]["priorityClassName"] in ("streams", "low"), name
        assert "certificates" in {volume["name"] for volume in pod["spec"]["volumes"]}, name
        assert "/certificates" in {mount["mountPath"] for mount in container["volumeMounts"]}, name
        more = container.get("envFrom", []) + [one for one in container["env"] if one["name"] == "TZ"]
        assert len(more) == 1, name


def test_labels_of_ones_own_select_nothing(rendered: Rendered) -> None:
    for kind in ("Deployment", "StatefulSet"):
        for document in rendered.of(kind):
            assert "team" not in document["spec"]["selector"]["matchLabels"]


def test_all_images_are_named_by_digest_if_that_is_wanted(rendered: Rendered) -> None:
    images = {pod["spec"]["containers"][0]["image"] for pod in rendered.pods().values()}
    assert all(re.fullmatch(r"streamlease@sha256:[0-9a-f]{64}", image) for image in images), images
    for values in (with_redis(), {"redis": {"trial": True}, "image": {"digest": "sha256:" + "0" * 64}}):
        with pytest.raises(helm.HelmRenderError, match="has no digest"):
            render({**values, "requireDigests": True})


def test_the_ingress_leads_to_the_page_which_knows_its_names(rendered: Rendered) -> None:
    (ingress,) = rendered.of("Ingress")
    (rule,) = ingress["spec"]["rules"]
    assert ingress["spec"]["tls"] == [{"secretName": "leases-tls", "hosts": ["leases.example.org"]}]
    backend = rule["http"]["paths"][0]["backend"]["service"]
    services = {service["metadata"]["name"]: service for service in rendered.of("Service")}
    assert services[backend["name"]]["metadata"]["labels"]["app.kubernetes.io/component"] == "ui"
    (container,) = rendered.pods()["ui"]["spec"]["containers"]
    (names,) = [one["value"] for one in container["env"] if one["name"] == "STREAMLEASE_UI_ALLOW_HOSTS"]
    assert rule["host"] in names.split()


CONTRADICTIONS: list[tuple[dict[str, Any], str]] = [
    ({"autoscaling": {"enabled": True, "minReplicas": 3, "maxReplicas": 2}}, "minReplicas is 3"),
    (
        {
            "autoscaling": {
                "minReplicas": 3,
                "maxReplicas": 2,
                "keda": {"enabled": True, "prometheusAddress": "http://p:9090"},
            }
        },
        "more than maxReplicas, 2",
    ),
    ({"resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1500m"}}}, "requests.cpu is 2"),
    ({"resources": {"requests": {"memory": "1Gi"}, "limits": {"memory": "1G"}}}, "its limit, 1G"),
    ({"ui": {"enabled": True, "resources": {"requests": {"cpu": 1}}}}, "ui.resources.requests.cpu is 1"),
    ({"ui": {"ingress": {"enabled": True, "hosts": ["a.example.org"]}}}, "ui.enabled is not"),
]


@pytest.mark.parametrize(("values", "said"), CONTRADICTIONS, ids=[said for _, said in CONTRADICTIONS])
def test_what_contradicts_is_refused_with_its_values(values: dict[str, Any], said: str) -> None:
    with pytest.raises(helm.HelmRenderError, match=re.escape(said)):
        render(with_redis(**values))


@pytest.mark.parametrize("amount", ["lots", "-1", "1.5.2", "1 Gi", "2cores", -1, ""])
@pytest.mark.parametrize("kind", ["requests", "limits"])
def test_an_amount_that_is_none_is_refused(kind: str, amount: object) -> None:
    with pytest.raises(helm.HelmValuesError, match=f"/resources/{kind}/cpu"):
        render(with_redis(resources={kind: {"cpu": amount}}))


@pytest.mark.parametrize("amount", ["100m", 0.5, 1, "1", "0.25"])
def test_an_amount_of_kubernetes_is_taken(amount: object) -> None:
    assert render(with_redis(resources={"requests": {"cpu": amount}})).documents


@pytest.mark.parametrize(
    "values",
    [
        {"podLabels": {"app.kubernetes.io/name": "other"}},
        {"podLabels": {"team": "a b"}},
        {"extraVolumes": [{"name": "tmp", "emptyDir": {}}]},
        {"extraVolumeMounts": [{"name": "x", "mountPath": "/tmp"}]},
        {"extraVolumeMounts": [{"name": "x", "mountPath": "relative"}]},
        {"ui": {"enabled": True, "ingress": {"enabled": True}}},
        {"priorityClassName": "Not A Name"},
        {"openshift": "yes"},
    ],
)
def test_what_would_break_a_pod_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(helm.HelmValuesError):
        render(with_redis(**values))
