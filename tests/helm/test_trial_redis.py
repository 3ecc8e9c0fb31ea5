"""The trial Redis: its own rendered configuration runs a server, and every pod finds it."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.conftest import MakeServer
from tests.helm.charts import Values, environment, helm, render, value_sets, with_redis
from tests.servers import Kind

pytestmark = pytest.mark.helm

VALUES = value_sets()["trial"]
PASSWORD = VALUES["trialRedis"]["password"]


def secret(values: Values = VALUES) -> dict[str, str]:
    found: dict[str, str] = render(values).the("Secret", "trial-redis")["stringData"]
    return found


def test_every_pod_has_the_url_of_the_service_from_its_secret() -> None:
    rendered = render(VALUES)
    service = rendered.the("Service", "trial-redis")["metadata"]["name"]
    assert secret()["url"] == f"redis://:{PASSWORD}@{service}:6379/0"
    pods = rendered.pods()
    for name in ("Deployment", "test"):
        given = environment(pods[name], secrets={(service, "url"): "found"}, fields={"metadata.name": "x"})
        assert given["STREAMLEASE_REDIS_URL"] == "found"
    labels = pods["trial-redis"]["metadata"]["labels"]
    assert rendered.the("Service", "trial-redis")["spec"]["selector"].items() <= labels.items()
    assert not rendered.the("Deployment")["spec"]["selector"]["matchLabels"].items() <= labels.items()


def test_the_server_keeps_its_data_on_a_claim_and_nobody_else_reads_its_secret() -> None:
    state = render(VALUES).the("StatefulSet", "trial-redis")["spec"]
    (claim,) = state["volumeClaimTemplates"]
    assert claim["spec"]["resources"]["requests"]["storage"] == "2Gi"
    assert claim["spec"]["storageClassName"] == "fast"
    (container,) = state["template"]["spec"]["containers"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert f"dir {mounts['data']}\n" in secret()["server.conf"]
    assert container["command"] == ["valkey-server", f"{mounts['config']}/server.conf"]
    assert PASSWORD not in str(state)


def test_a_password_is_made_up_where_none_is_given() -> None:
    bare: dict[str, Any] = {"redis": {"trial": True}}
    first, second = (secret(bare)["password"] for _ in range(2))
    assert len(first) == 32
    assert first != second


@pytest.mark.parametrize("kind", [Kind.EMBEDDED, Kind.REDIS7])
def test_a_server_runs_with_the_rendered_settings_and_the_doctor_finds_it_well(
    tmp_path: Path, make_redis_server: MakeServer, kind: Kind
) -> None:
    lines = secret()["server.conf"].splitlines()
    given = dict(line.split(" ", 1) for line in lines)
    given.pop("dir")
    given.pop("port")
    password = given.pop("requirepass")
    server = make_redis_server(kind, persistent=True, settings=given)
    client = redis.Redis.from_url(server.url)
    client.config_set("requirepass", password)  # the fixture itself asks without one
    try:
        where = server.url.replace("redis://", f"redis://:{PASSWORD}@")
        doctor = subprocess.run(
            [str(Path(sys.executable).with_name("streamlease")), "doctor"],
            env={**os.environ, "STREAMLEASE_REDIS_URL": where},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert doctor.returncode == 0, doctor.stdout + doctor.stderr
        with redis.Redis.from_url(where) as known:
            assert known.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
            assert known.config_get("appendonly") == {"appendonly": "yes"}
            known.config_set("requirepass", "")
    finally:
        client.close()


def test_an_own_tls_secret_is_mounted_in_every_pod_that_talks_to_redis() -> None:
    pods = render(value_sets()["tls"]).pods()
    assert set(pods) == {"Deployment", "Job", "test", "ui"}
    for pod in pods.values():
        (container,) = pod["spec"]["containers"]
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        assert mounts["redis-tls"] == "/redis-tls"
        (volume,) = [volume for volume in pod["spec"]["volumes"] if volume["name"] == "redis-tls"]
        assert volume["secret"] == {"secretName": "redis-ca", "defaultMode": 0o440}
    assert "redis-tls" not in str(render(with_redis(ui={"enabled": True})).documents)


URL = "redis://redis.example.internal:6379/0"


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"redis": {"trial": True, "url": URL}}, "choose redis.trial or your own, not both"),
        ({"redis": {"trial": False}}, "'/redis/trial'"),
        ({"redis": {"trial": True}, "trialRedis": {"password": "short"}}, "'/trialRedis/password'"),
        (
            {"redis": {"trial": True}, "trialRedis": {"password": "with a space in it"}},
            "'/trialRedis/password'",
        ),
        ({"redis": {"trial": True}, "trialRedis": {"maxmemory": "much"}}, "'/trialRedis/maxmemory'"),
        ({"redis": {"trial": True}, "trialRedis": {"appendfsync": "no"}}, "'/trialRedis/appendfsync'"),
        (
            {"redis": {"trial": True}, "trialRedis": {"storage": {"size": "big"}}},
            "'/trialRedis/storage/size'",
        ),
        ({"redis": {"url": URL, "tlsSecret": "No_Name"}}, "'/redis/tlsSecret'"),
    ],
)
def test_bad_values_are_refused_by_name(values: Values, said: str) -> None:
    with pytest.raises(helm.HelmValuesError) as refused:
        render(values)
    assert said in str(refused.value)


def test_the_notes_say_what_a_trial_is() -> None:
    notes = render(VALUES).notes
    assert "a single server for trials, StatefulSet demo-streamlease-redis" in notes
    assert "WARNING: it has no replica" in notes
    assert PASSWORD not in notes
    assert base64.b64encode(PASSWORD.encode()).decode() not in notes
