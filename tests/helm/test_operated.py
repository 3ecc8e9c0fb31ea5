"""What operators add to the leader hosts: the page, autoscaling, network policies, the release's test."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.admin.command import until
from tests.helm.charts import Document, component_of, environment, helm, render, value_sets, with_redis
from tests.helm.test_entry_command import free_port

pytestmark = pytest.mark.helm

VALUES = value_sets()["operated"]


def selects(selector: dict[str, str], pod: Document) -> bool:
    return selector.items() <= pod["metadata"]["labels"].items()


def test_the_page_has_its_own_pod_behind_its_own_service() -> None:
    rendered = render(VALUES)
    pods, page = rendered.pods(), rendered.the("Deployment", "ui")
    for selector in (
        page["spec"]["selector"]["matchLabels"],
        rendered.the("Service", "ui")["spec"]["selector"],
    ):
        assert [name for name, pod in pods.items() if selects(selector, pod)] == ["ui"]
    (container,) = pods["ui"]["spec"]["containers"]
    (port,) = container["ports"]
    (served,) = rendered.the("Service", "ui")["spec"]["ports"]
    assert (served["targetPort"], port["name"]) == ("http", "http")
    assert {"name": "STREAMLEASE_UI_PORT", "value": str(port["containerPort"])} in container["env"]


def test_the_token_is_a_file_from_its_secret_and_without_one_there_is_none() -> None:
    pod = render(VALUES).pods()["ui"]
    (volume,) = [volume for volume in pod["spec"]["volumes"] if "secret" in volume]
    assert volume["secret"] == {"secretName": "streamlease-ui", "items": [{"key": "token", "path": "token"}]}
    bare = render(with_redis(ui={"enabled": True})).pods()["ui"]
    assert [volume["name"] for volume in bare["spec"]["volumes"]] == ["tmp"]
    assert "TOKEN" not in json.dumps(bare)


def test_each_network_policy_covers_its_own_pods_and_lets_redis_through() -> None:
    rendered = render(VALUES)
    pods = rendered.pods()
    covered = {}
    for policy in rendered.of("NetworkPolicy"):
        spec = policy["spec"]
        selector = spec["podSelector"]["matchLabels"]
        covered[component_of(policy)] = [name for name, pod in pods.items() if selects(selector, pod)]
        assert spec["policyTypes"] == ["Ingress", "Egress"]
        whom = "uiFrom" if component_of(policy) == "ui" else "from"
        assert spec["ingress"][0]["from"] == VALUES["networkPolicy"][whom]
        assert [port["port"] for rule in spec["egress"] for port in rule["ports"]] == [53, 53, 6379, 26379]
    assert covered == {"leader-host": ["Deployment"], "ui": ["ui"]}


def test_without_a_word_the_page_is_for_its_namespace_and_redis_may_be_anywhere() -> None:
    policies = {
        component_of(policy): policy["spec"]
        for policy in render(with_redis(ui={"enabled": True})).of("NetworkPolicy")
    }
    assert {name: spec["policyTypes"] for name, spec in policies.items()} == {
        "leader-host": ["Ingress"], "ui": ["Ingress"],
    }  # fmt: skip
    assert policies["ui"]["ingress"][0]["from"] == [{"podSelector": {}}]
    assert "from" not in policies["leader-host"]["ingress"][0]
    assert not any("egress" in spec for spec in policies.values())
    assert render(with_redis(networkPolicy={"enabled": False})).of("NetworkPolicy") == []


def test_the_page_is_served_under_the_names_of_its_service_and_of_the_ingress() -> None:
    rendered = render(VALUES)
    (container,) = rendered.pods()["ui"]["spec"]["containers"]
    (names,) = [one["value"] for one in container["env"] if one["name"] == "STREAMLEASE_UI_ALLOW_HOSTS"]
    service = rendered.the("Service", "ui")["metadata"]
    inside = f"{service['name']}.{service['namespace']}"
    assert names.split() == [
        service["name"], inside, f"{inside}.svc", f"{inside}.svc.cluster.local", "streams.example.org",
    ]  # fmt: skip


def test_the_autoscaler_scales_the_leader_hosts_and_nobody_else_says_how_many() -> None:
    rendered = render(VALUES)
    hosts = rendered.the("Deployment")
    scaler = rendered.the("HorizontalPodAutoscaler")["spec"]
    assert scaler["scaleTargetRef"]["name"] == hosts["metadata"]["name"]
    assert (scaler["minReplicas"], scaler["maxReplicas"]) == (3, 6)
    assert "replicas" not in hosts["spec"]


def test_the_releases_test_runs_the_doctor() -> None:
    pod = render(VALUES).the("Pod", "test")
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    assert pod["spec"]["containers"][0]["command"] == ["streamlease", "doctor", "--role", "host"]
    assert pod["spec"]["restartPolicy"] == "Never"


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"ui": {"enabled": True, "port": 80}}, "'/ui/port'"),
        ({"ui": {"enabled": True, "tokenSecret": {"name": "x"}}}, "'/ui/tokenSecret'"),
        ({"networkPolicy": {"redisPorts": []}}, "'/networkPolicy/redisPorts'"),
        ({"autoscaling": {"enabled": True, "cpuUtilization": 0}}, "'/autoscaling/cpuUtilization'"),
        ({"redis": {"url": "http://redis:6379"}}, "'/redis/url'"),
    ],
)
def test_bad_values_are_refused_by_name(values: dict[str, object], said: str) -> None:
    with pytest.raises(helm.HelmValuesError) as refused:
        render({**with_redis(), **values})
    assert said in str(refused.value)


@pytest.mark.parametrize(
    "url", ["redis+cluster://a:1,b:2", "rediss+sentinel://s:26379/main", "rediss://u:p@h:6380/0"]
)
def test_every_kind_of_redis_is_accepted(url: str) -> None:
    pod = render({"redis": {"url": url}}).pods()["Deployment"]
    assert pod["spec"]["containers"][0]["env"][0]["value"] == url


@pytest.mark.cluster
def test_the_pages_command_runs_with_what_the_chart_gives_it(tmp_path: Path, embedded_redis_url: str) -> None:
    pod = render(VALUES).pods()["ui"]
    given = environment(pod, secrets={("streamlease-redis", "ui-url"): embedded_redis_url}, fields={})
    token = tmp_path / "token"
    token.write_text("0123456789abcdef")
    assert given.pop("STREAMLEASE_UI_TOKEN_FILE") == "/token/token"
    port = free_port()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.defpath}"
    own = {"PATH": path, "HOME": str(tmp_path), "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    (container,) = pod["spec"]["containers"]
    program = shutil.which(container["command"][0], path=path)
    assert program is not None
    log = tmp_path / "log"
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [program, *container["command"][1:]],
            cwd=tmp_path,
            env={**own, **given, "STREAMLEASE_UI_PORT": str(port), "STREAMLEASE_UI_TOKEN_FILE": str(token)},
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
        )

    def ready() -> bool:
        assert process.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.HTTPError, OSError):
            return False

    try:
        until(ready, 60)
    finally:
        code = end(process)
    assert code == 0, log.read_text()


def end(process: subprocess.Popen[bytes]) -> int:
    process.terminate()
    try:
        return process.wait(30)
    finally:
        process.kill()
