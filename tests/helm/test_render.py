"""What the chart renders, with the value sets beside it: valid for Kubernetes, and what we promise."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.helm.charts import (
    CHART,
    NAMESPACE,
    RELEASE,
    Document,
    Rendered,
    helm,
    read_values,
    render,
    value_sets,
    with_redis,
)

kubernetes_validate = pytest.importorskip(
    "kubernetes_validate", reason="kubernetes-validate is missing: install the 'helm' group"
)
pytestmark = pytest.mark.helm

SETS = value_sets()
KUBERNETES = ["1.27", "1.30", "1.34", "1.37"]
ALWAYS = ["Deployment", "NetworkPolicy", "Pod", "PodDisruptionBudget", "ServiceAccount"]
SPARK = ["ConfigMap", "Job", "PersistentVolumeClaim"]
KINDS = {
    "url": ALWAYS,
    "secret": ALWAYS,
    "spark": ALWAYS + SPARK,
    "everything": ALWAYS + SPARK,
    "operated": [
        *ALWAYS,
        "Deployment",
        "ConfigMap",
        "HorizontalPodAutoscaler",
        "PodMonitor",
        "PrometheusRule",
        "NetworkPolicy",
        "Service",
    ],
    "gateway": [
        *ALWAYS,
        "Deployment",
        "HorizontalPodAutoscaler",
        "Ingress",
        *["NetworkPolicy"] * 2,
        "Pod",
        *["PodMonitor"] * 3,
        "PodDisruptionBudget",
        *["Service"] * 2,
        "StatefulSet",
    ],
    "openshift": [
        *ALWAYS,
        *SPARK,
        *["Deployment"] * 2,
        "Ingress",
        *["NetworkPolicy"] * 4,
        *["Pod"] * 2,
        *["PodDisruptionBudget"] * 2,
        *["Service"] * 4,
        *["StatefulSet"] * 2,
    ],
    "bridge": [
        *ALWAYS,
        "Deployment",
        *["NetworkPolicy"] * 2,
        "Pod",
        "PodDisruptionBudget",
        *["Service"] * 3,
        *["ServiceMonitor"] * 3,
        "StatefulSet",
    ],
    "executors": [
        *ALWAYS,
        "NetworkPolicy",
        "Pod",
        "PodDisruptionBudget",
        "Service",
        "StatefulSet",
    ],
    "spark-on-kubernetes": [
        *ALWAYS,
        "ConfigMap",
        "NetworkPolicy",
        "PodDisruptionBudget",
        "Role",
        "RoleBinding",
        *["Service"],
        "ServiceAccount",
        "StatefulSet",
        "Pod",
    ],
    "tls": [*ALWAYS, *SPARK, "Deployment", "NetworkPolicy", "Service"],
    "archive": [*ALWAYS, *["CronJob"] * 2],
    "trial": [
        *ALWAYS,
        "NetworkPolicy",
        "ScaledObject",
        "Secret",
        "Service",
        "Service",
        "ServiceMonitor",
        "StatefulSet",
    ],
}
FOREIGN = ("monitoring.coreos.com/", "keda.sh/")
"""Groups of objects for which Kubernetes itself has no schema: see test_foreign_objects.py."""
DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
LABEL_VALUE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


@pytest.fixture(params=SETS)
def rendered(request: pytest.FixtureRequest) -> Rendered:
    return render(SETS[request.param])


def checked(document: Document, version: str) -> None:
    """Raises unless the document fits the version's own schema, unknown fields refused."""
    assert kubernetes_validate.validate(document, version, strict=True) == version


@pytest.mark.parametrize("name", SETS)
def test_each_value_set_renders_its_objects(name: str) -> None:
    documents = render(SETS[name]).documents
    assert sorted(document["kind"] for document in documents) == sorted(KINDS[name])
    assert {document["metadata"]["namespace"] for document in documents} == {NAMESPACE}


@pytest.mark.parametrize("name", SETS)
def test_lint_finds_nothing_to_mend(name: str) -> None:
    report = helm.lint(CHART, SETS[name], strict=True, kube_version="v1.27.0")
    assert report["errors"] == []
    above_info = [message for message in report["messages"] if message["severity"] > 1]
    assert above_info == []


@pytest.mark.parametrize("version", KUBERNETES)
def test_every_object_is_valid_for_kubernetes(rendered: Rendered, version: str) -> None:
    for document in rendered.documents:
        if not document["apiVersion"].startswith(FOREIGN):
            checked(document, version)


@pytest.mark.parametrize(
    ("path", "value"),
    [("spec.replicas", "two"), ("spec.template.spec.restartOnFriday", True), ("spec.strategy", [])],
)
def test_the_validation_itself_finds_planted_defects(path: str, value: Any) -> None:
    document = copy.deepcopy(render(SETS["url"]).the("Deployment"))
    *parents, last = path.split(".")
    target = document
    for parent in parents:
        target = target[parent]
    target[last] = value
    for version in KUBERNETES:
        with pytest.raises(kubernetes_validate.ValidationError):
            checked(document, version)


def test_the_reader_itself_refuses_a_key_that_is_given_twice(tmp_path: Path) -> None:
    page = tmp_path / "twice.yaml"
    page.write_text("a: {b: 1, b: 2}\n")
    with pytest.raises(yaml.YAMLError, match="given twice"):
        read_values(page)


def test_selectors_find_their_own_pods_and_no_others(rendered: Rendered) -> None:
    host = rendered.the("Deployment")
    selector = host["spec"]["selector"]["matchLabels"]
    assert selector.items() <= host["spec"]["template"]["metadata"]["labels"].items()
    assert rendered.the("PodDisruptionBudget")["spec"]["selector"]["matchLabels"] == selector
    for constraint in host["spec"]["template"]["spec"].get("topologySpreadConstraints", []):
        assert constraint["labelSelector"]["matchLabels"] == selector
        assert constraint["whenUnsatisfiable"] == "ScheduleAnyway"
    for job in rendered.of("Job"):
        assert not selector.items() <= job["spec"]["template"]["metadata"]["labels"].items()


def test_selectors_hold_nothing_that_an_upgrade_changes(rendered: Rendered) -> None:
    assert set(rendered.the("Deployment")["spec"]["selector"]["matchLabels"]) == {
        "app.kubernetes.io/name",
        "app.kubernetes.io/instance",
        "app.kubernetes.io/component",
    }


def test_every_object_carries_the_recommended_labels(rendered: Rendered) -> None:
    for document in rendered.documents:
        labels = document["metadata"]["labels"]
        recommended = ("name", "instance", "version", "component", "part-of", "managed-by")
        own = {"release", "grafana_dashboard"}  # by which Prometheus and Grafana find what is theirs
        expected = {f"app.kubernetes.io/{name}" for name in recommended} | {"helm.sh/chart"}
        assert expected == set(labels) - own
        assert labels["app.kubernetes.io/instance"] == RELEASE


def test_every_pod_runs_with_the_least_rights(rendered: Rendered) -> None:
    for name, pod in rendered.pods().items():
        spec = pod["spec"]
        drives = name == "executor" and bool(rendered.of("Role"))
        assert spec["automountServiceAccountToken"] is drives
        assert not {"hostNetwork", "hostPID", "hostIPC", "initContainers"} & set(spec)
        context = spec["securityContext"]
        assert context["runAsNonRoot"] is True
        users = {key: context[key] for key in ("runAsUser", "runAsGroup", "fsGroup") if key in context}
        assert users in ({}, dict.fromkeys(("runAsUser", "runAsGroup", "fsGroup"), 10001))  # {}: OpenShift
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in spec["containers"]:
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["readOnlyRootFilesystem"] is True
            assert context["runAsNonRoot"] is True
            assert context.get("runAsUser") == users.get("runAsUser")
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert "privileged" not in context
            for kind in ("requests", "limits"):
                assert {"cpu", "memory"} <= set(container["resources"][kind])
            mounts = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
            volumes = {volume["name"]: volume for volume in spec["volumes"]}
            claimed = {"data"} if container["name"] == "redis" else set()
            assert set(mounts.values()) == set(volumes) | claimed
            assert "emptyDir" in volumes[mounts["/tmp"]]
    for account in rendered.of("ServiceAccount"):
        assert account["automountServiceAccountToken"] is False


def test_no_pod_is_killed_before_its_drain_may_end(rendered: Rendered) -> None:
    pod = rendered.pods()["Deployment"]["spec"]
    variables = {variable["name"]: variable.get("value") for variable in pod["containers"][0]["env"]}
    assert pod["terminationGracePeriodSeconds"] == int(variables["STREAMLEASE_DRAIN_TIMEOUT"]) + 10


def test_a_rolling_update_never_has_fewer_hosts(rendered: Rendered) -> None:
    strategy = rendered.the("Deployment")["spec"]["strategy"]
    assert strategy == {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}


HOSTS = {
    "STREAMLEASE_HTTP_HOST",
    "STREAMLEASE_UI_HOST",
    "STREAMLEASE_GATEWAY_HOST",
    "STREAMLEASE_METRICS_HOST",
}


def test_all_parts_listen_on_addresses_of_ipv6_where_there_are_such() -> None:
    tokens = {"name": "streamlease-tokens", "key": "tokens.json"}
    found = render(
        with_redis(
            listenAddress="::",
            ui={"enabled": True},
            gateway={"enabled": True, "tokensSecret": tokens},
            mqttBridge={"enabled": True, "url": "mqtt://broker", "filters": ["a/#"]},
        )
    )
    told = {
        one["name"]: one["value"]
        for pod in found.pods().values()
        for container in pod["spec"]["containers"]
        for one in container.get("env", [])
        if one["name"] in HOSTS
    }
    assert told == dict.fromkeys(HOSTS, "::")


def test_probes_ask_the_port_that_the_host_listens_on(rendered: Rendered) -> None:
    (container,) = rendered.pods()["Deployment"]["spec"]["containers"]
    (port,) = container["ports"]
    variables = {variable["name"]: variable.get("value") for variable in container["env"]}
    assert variables["STREAMLEASE_HTTP_PORT"] == str(port["containerPort"])
    assert variables["STREAMLEASE_HTTP_HOST"] == "0.0.0.0"
    asked = {name: container[name]["httpGet"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert {probe["port"] for probe in asked.values()} == {port["name"]}
    assert {name: probe["path"] for name, probe in asked.items()} == {
        "startupProbe": "/healthz",
        "livenessProbe": "/healthz",
        "readinessProbe": "/readyz",
    }


def test_redis_comes_from_the_given_source_in_every_pod() -> None:
    for name in ("url", "everything"):
        for pod in render(SETS[name]).pods().values():
            assert pod["spec"]["containers"][0]["env"][0] == {
                "name": "STREAMLEASE_REDIS_URL",
                "value": SETS[name]["redis"]["url"],
            }
    for pod in render(SETS["secret"]).pods().values():
        assert redis_key(pod) == SETS["secret"]["redis"]["existingSecret"]


def redis_key(pod: dict[str, Any]) -> dict[str, str]:
    """The Secret and key from which a pod has its URL."""
    first = pod["spec"]["containers"][0]["env"][0]
    assert first["name"] == "STREAMLEASE_REDIS_URL"
    found: dict[str, str] = first["valueFrom"]["secretKeyRef"]
    return found


def test_each_kind_of_pod_may_be_a_user_of_its_own() -> None:
    spark, operated = render(SETS["spark"]).pods(), render(SETS["operated"])
    assert redis_key(spark["Job"])["key"] == "client-url"
    assert redis_key(spark["Deployment"])["key"] == "url"
    deployments = operated.of("Deployment")
    keys = {one["metadata"]["name"]: redis_key(one["spec"]["template"])["key"] for one in deployments}
    assert {key for name, key in keys.items() if name.endswith("-ui")} == {"ui-url"}
    assert {key for name, key in keys.items() if not name.endswith("-ui")} == {"url"}
    doctor = operated.the("Pod", "test")
    assert redis_key(doctor)["key"] == "url"
    assert doctor["spec"]["containers"][0]["command"] == ["streamlease", "doctor", "--role", "host"]


def test_every_optional_value_arrives() -> None:
    values = SETS["everything"]
    rendered = render(values)
    for kind, given in (("Deployment", values), ("Job", values["sparkJob"])):
        pod = rendered.pods()[kind]
        assert pod["spec"]["nodeSelector"] == given["nodeSelector"]
        assert pod["spec"]["tolerations"] == given["tolerations"]
        assert pod["spec"]["affinity"] == given["affinity"]
        assert pod["spec"]["imagePullSecrets"] == values["imagePullSecrets"]
        assert pod["spec"]["serviceAccountName"] == "lease-hosts"
        assert pod["metadata"]["annotations"].items() >= given["podAnnotations"].items()
        (container,) = pod["spec"]["containers"]
        assert container["env"][-len(given["extraEnv"]) :] == given["extraEnv"]
        assert container["resources"] == given["resources"]
        assert container["imagePullPolicy"] == "Always"
    image = values["image"]
    host = rendered.the("Deployment")
    assert host["metadata"]["name"] == "flights-streamlease"
    assert host["metadata"]["labels"]["app.kubernetes.io/name"] == "lease"
    assert host["spec"]["replicas"] == 5
    assert (
        host["spec"]["template"]["spec"]["containers"][0]["image"]
        == f"{image['repository']}@{image['digest']}"
    )
    assert rendered.the("ServiceAccount")["metadata"]["annotations"] == {"example.com/role": "streamlease"}
    assert rendered.the("PodDisruptionBudget")["spec"]["maxUnavailable"] == "20%"
    assert [
        constraint["topologyKey"]
        for constraint in host["spec"]["template"]["spec"]["topologySpreadConstraints"]
    ] == ["topology.kubernetes.io/zone"]


def test_what_is_switched_off_is_absent() -> None:
    rendered = render(
        with_redis(
            serviceAccount={"create": False},
            networkPolicy={"enabled": False},
            podDisruptionBudget={"enabled": False, "maxUnavailable": 1},
            topologySpread={"enabled": False, "topologyKeys": []},
        )
    )
    assert sorted(document["kind"] for document in rendered.documents) == ["Deployment", "Pod"]
    pod = rendered.pods()["Deployment"]["spec"]
    assert pod["serviceAccountName"] == "default"
    assert "topologySpreadConstraints" not in pod
    for version in KUBERNETES:
        checked(rendered.the("Deployment"), version)


@pytest.mark.parametrize(
    ("release", "values"),
    [
        ("a" * 53, {"nameOverride": "b" * 63}),
        ("a" * 53, {}),
        ("demo", {"fullnameOverride": f"{'c' * 47}-{'d' * 15}"}),
        ("streamlease", {}),
    ],
)
def test_names_and_labels_stay_within_63_characters(release: str, values: dict[str, Any]) -> None:
    rendered = render({**SETS["spark"], **values}, release=release)
    for document in rendered.documents:
        assert DNS_LABEL.fullmatch(document["metadata"]["name"]), document["metadata"]["name"]
        for label in document["metadata"]["labels"].values():
            assert LABEL_VALUE.fullmatch(label), label
    assert len({(document["kind"], document["metadata"]["name"]) for document in rendered.documents}) == 8


def test_a_release_of_the_charts_name_does_not_say_it_twice() -> None:
    assert render(SETS["url"], release="streamlease").the("Deployment")["metadata"]["name"] == "streamlease"
    assert render(SETS["url"], release="demo").the("Deployment")["metadata"]["name"] == "demo-streamlease"


def test_notes_are_true_for_the_values() -> None:
    url, secret, spark, everything = (
        render(SETS[name]).notes for name in ("url", "secret", "spark", "everything")
    )
    assert "2 leader host(s) as Deployment demo-streamlease in namespace streams" in url
    assert "within 20 s; Kubernetes kills it after 30 s" in url
    assert "Spark job" not in url
    assert "WARNING" not in url
    assert 'under key "url" of Secret "streamlease-redis"' in secret
    assert "consumes $shared/analytics/flights/+/LAX with 2 slot(s), sink console" in spark
    assert "PersistentVolumeClaim demo-streamlease-spark, which stays" in spark
    assert "5 leader host(s) as Deployment flights-streamlease" in everything
    assert "within 45 s; Kubernetes kills it after 55 s" in everything
    assert "consumes $queue/billing/orders/# with 4 slot(s), sink parquet, trigger 5 seconds" in everything


def test_notes_warn_and_tell_no_password() -> None:
    notes = render(SETS["everything"]).notes
    assert "password@" not in notes
    assert "WARNING: that URL holds a user or password" in notes
    assert "WARNING: replicas is 0" in render(with_redis(replicas=0)).notes
    checkpoint = {"persistent": False}
    assert "WARNING: its checkpoint is an emptyDir" in (
        render(with_redis(sparkJob={"enabled": True, "checkpoint": checkpoint})).notes
    )
    own = {"existingClaim": "mine"}
    assert "on your PersistentVolumeClaim mine" in (
        render(with_redis(sparkJob={"enabled": True, "checkpoint": own})).notes
    )


def test_the_packaged_chart_renders_the_same(tmp_path: Path) -> None:
    with helm.Chart.load(CHART) as chart:
        archive = chart.save(tmp_path)
    with helm.Chart.load(archive) as packaged:
        assert not [file["name"] for file in packaged.files if file["name"].startswith("ci/")]
        manifests = packaged.render(SETS["everything"], name=RELEASE, namespace=NAMESPACE)
    with helm.Chart.load(CHART) as chart:
        assert manifests == chart.render(SETS["everything"], name=RELEASE, namespace=NAMESPACE)
