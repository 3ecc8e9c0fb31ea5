"""Executors in the chart: each with its own rights, and what is rendered runs what the test submits."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from streamlease.admin.doctor.roles import ADMIN, CLIENT, EXECUTOR
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
