"""Executors in the chart: each with its own rights, and what is rendered runs what the test submits."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from streamlease.admin.doctor.roles import ADMIN, CLIENT, EXECUTOR
from streamlease.executor.program_environment import PASSED
from tests.admin.command import finish, until
from tests.conftest import MakeServer
from tests.helm.charts import Values, environment, render, value_sets, with_redis
from tests.helm.test_render import helm

pytestmark = [pytest.mark.helm, pytest.mark.cluster]

VALUES = value_sets()["executors"]
KEY = "a key of tests, 0123456789"
FIELDS = {"metadata.name": "demo-streamlease-executor-0", "status.podIP": "127.0.0.1"}


def test_executors_get_their_rights_their_ports_and_time_to_end() -> None:
    rendered = render(VALUES)
    executors = rendered.the("StatefulSet", "executor")["spec"]
    pod = executors["template"]["spec"]
    assert executors["replicas"] == 3
    assert executors["serviceName"] == rendered.the("Service", "executor")["metadata"]["name"]
    assert pod["terminationGracePeriodSeconds"] == 30
    assert pod["containers"][0]["image"].endswith(":0.1.0-spark")
    policy = rendered.the("NetworkPolicy", "executor")["spec"]
    assert policy["ingress"][0]["ports"] == [{"port": 7100, "endPort": 7119, "protocol": "TCP"}]
    assert policy["ingress"][0]["from"][0]["podSelector"] == policy["podSelector"]
    assert rendered.the("PodDisruptionBudget", "executor")["spec"]["maxUnavailable"] == 1
    mounted = {one["mountPath"] for one in pod["containers"][0]["volumeMounts"]}
    assert mounted == {"/tmp", "/programs", "/data"}
    name = rendered.the("StatefulSet", "executor")["metadata"]["name"]
    assert len(f"{name}-999-0123456789") <= 63


def test_drivers_make_spark_pods_that_reach_them_and_nothing_else_may() -> None:
    rendered = render(value_sets()["spark-on-kubernetes"])
    executors = rendered.the("StatefulSet", "executor")
    name, pod = executors["metadata"]["name"], executors["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert (pod["serviceAccountName"], pod["automountServiceAccountToken"]) == (name, True)
    assert rendered.pods()["Deployment"]["spec"]["serviceAccountName"] != name, "leader hosts make no pods"
    (role,), (binding,) = rendered.of("Role"), rendered.of("RoleBinding")
    assert {one for rule in role["rules"] for one in rule["resources"]} == {
        "pods", "configmaps", "persistentvolumeclaims",
    }  # fmt: skip
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert [one["name"] for one in binding["subjects"]] == [name]
    variables = {one["name"]: one for one in container["env"]}
    assert variables["SPARK_LOCAL_HOSTNAME"]["valueFrom"]["fieldRef"]["fieldPath"] == "status.podIP"
    assert {"SPARK_LOCAL_HOSTNAME", "SPARK_CONF_DIR"} <= PASSED, "programs get them"
    (mount,) = [one for one in container["volumeMounts"] if one["name"] == "spark-conf"]
    assert mount["mountPath"] == variables["SPARK_CONF_DIR"]["value"]
    files = rendered.the("ConfigMap", "executor")["data"]
    conf = dict(line.split(" ", 1) for line in files["spark-defaults.conf"].splitlines())
    # Eight drivers at most: each port is tried from its first one on.
    assert (conf["spark.driver.port"], conf["spark.driver.blockManager.port"]) == ("7200", "7208")
    assert conf["spark.port.maxRetries"] == "7"
    assert conf["spark.kubernetes.container.image"] == container["image"]
    assert conf["spark.kubernetes.container.image.pullSecrets"] == "registry,mirror"
    assert conf["spark.kubernetes.authenticate.executor.serviceAccountName"] not in ("", name)
    assert conf["spark.kubernetes.executor.podTemplateFile"] == "/spark-conf/executor-pod.yaml"
    made = yaml.safe_load(files["executor-pod.yaml"])["spec"]
    assert made["securityContext"]["runAsNonRoot"] is True
    rules = rendered.the("NetworkPolicy", "executor")["spec"]["ingress"]
    (spark,) = [rule for rule in rules if rule["ports"][0]["port"] == 7200]
    assert spark["ports"][0]["endPort"] == 7215
    assert spark["from"][0]["podSelector"]["matchLabels"] == {
        "spark-role": "executor",
        "streamlease/drivers": conf["spark.kubernetes.executor.label.streamlease/drivers"],
    }


def test_pods_make_no_pods_unless_that_is_wanted() -> None:
    rendered = render(VALUES)
    assert not rendered.of("Role")
    assert not rendered.of("RoleBinding")
    assert not rendered.of("ConfigMap")
    pod = rendered.pods()["executor"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert not [one for one in pod["containers"][0]["env"] if one["name"].startswith("SPARK")]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"ports": "7000-7099", "sparkOnKubernetes": {"enabled": True, "driverPorts": "7099-7110"}}, "twice"),
        ({"sparkOnKubernetes": {"enabled": True, "driverPorts": "7300-7300"}}, "at least two ports"),
        ({"sparkOnKubernetes": {"enabled": True, "driverPorts": "7310-7300"}}, "at least two ports"),
    ],
)
def test_ports_that_contradict_are_refused(given: Values, said: str) -> None:
    key = {"submitKeySecret": {"name": "x", "key": "y"}}
    with pytest.raises(helm.HelmError, match=said):
        render(with_redis(executors={"enabled": True, **key, **given}))


@pytest.mark.parametrize(
    "executors",
    [
        {"enabled": True},
        {"enabled": True, "submitKeySecret": {"name": "x"}},
        {"enabled": True, "submitKeySecret": {"name": "x", "key": "y"}, "ports": "7000"},
        {"enabled": True, "submitKeySecret": {"name": "x", "key": "y"}, "slots": 0},
    ],
    ids=["no key", "no name of the key", "one port", "no slot"],
)
def test_what_is_missing_is_refused(executors: Values) -> None:
    with pytest.raises(helm.HelmError, match="executors"):
        render(with_redis(executors=executors))


def test_what_is_rendered_runs_what_the_test_submits(make_redis_server: MakeServer, tmp_path: Path) -> None:
    server = make_redis_server("redis7")
    users = {"url": ADMIN, "client-url": CLIENT, "executor-url": EXECUTOR, "admin-url": ADMIN}
    with server.client() as client:
        for role in {*users.values()}:
            words = [word for word in role.line().split()[2:] if word != "+waitaof"]
            client.execute_command("ACL", "SETUSER", *words)  # type: ignore[no-untyped-call]
    secrets = {
        ("streamlease-redis", key): server.url.replace("//", f"//{role.name}:PASSWORD@")
        for key, role in users.items()
    }
    secrets["streamlease-submit", "submit-key"] = KEY
    pods = render(VALUES).pods()
    work = tmp_path / "work"
    work.mkdir()
    executor = started(pods["executor"], secrets, STREAMLEASE_EXECUTOR_FOLDER=str(work))
    try:
        until(lambda: (work / ".ready").exists() or executor.poll() is not None)
        assert executor.poll() is None
        (container,) = pods["executor-test"]["spec"]["containers"]
        shell, option, script = container["command"]
        script = script.replace("/tmp/", f"{tmp_path}/")
        done = subprocess.run(
            [shell, option, script],
            env=own(environment(pods["executor-test"], secrets=secrets, fields=FIELDS)),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done
        assert "(helm_test) is ended: done" in done.stderr
    finally:
        ended = finish(executor)
    assert ended.code == 0


def own(given: dict[str, str]) -> dict[str, str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {"PATH": path, "HOME": os.environ["HOME"], **given}


def started(pod: Any, secrets: dict[tuple[str, str], str], **more: str) -> subprocess.Popen[bytes]:
    """The pod's container as a process."""
    (container,) = pod["spec"]["containers"]
    env = own(environment(pod, secrets=secrets, fields=FIELDS)) | more
    return subprocess.Popen(container["command"], env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
