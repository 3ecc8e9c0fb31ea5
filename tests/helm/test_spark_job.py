"""The example Spark job: its Job object, and its program run for real with another source in its place."""

from __future__ import annotations

import ast
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from streamlease.spark.setup.java import ensure_java
from tests.helm.charts import CHART, Document, environment, render, value_sets, with_redis

pytestmark = pytest.mark.helm

PROGRAM = CHART / "files" / "spark_job.py"
SECRETS = {("streamlease-redis", "client-url"): "redis://redis.example.internal:6379/0"}
SETS = value_sets()


def job(**values: Any) -> Document:
    return render(with_redis(sparkJob={"enabled": True, **values})).the("Job")


def pod_of(rendered_job: Document) -> Document:
    pod: Document = rendered_job["spec"]["template"]
    return pod


def variables(rendered_job: Document) -> dict[str, str]:
    return environment(pod_of(rendered_job), secrets=SECRETS, fields={})


def test_the_program_is_mounted_and_run() -> None:
    rendered = render(SETS["spark"])
    config = rendered.the("ConfigMap")
    assert config["data"] == {"spark_job.py": PROGRAM.read_text()}
    spec = pod_of(rendered.the("Job"))["spec"]
    (container,) = spec["containers"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    assert volumes["program"]["configMap"]["name"] == config["metadata"]["name"]
    assert container["command"] == ["python", f"{mounts['program']}/spark_job.py"]
    for name in ("SPARK_JOB_CHECKPOINT", "SPARK_JOB_OUTPUT"):
        assert variables(rendered.the("Job"))[name].startswith(f"{mounts['data']}/")


def test_the_program_reads_what_the_chart_sets_and_nothing_else() -> None:
    read = {
        node.slice.value
        for node in ast.walk(ast.parse(PROGRAM.read_text()))
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant)
    }
    given = set(variables(job()))
    assert read <= given
    assert {name for name in given if name.startswith("SPARK_JOB_")} <= read


def test_the_values_arrive_as_variables() -> None:
    given = variables(render(SETS["everything"]).the("Job"))
    assert given["SPARK_JOB_SUBSCRIPTION"] == "$queue/billing/orders/#"
    assert given["SPARK_JOB_STARTING_OFFSETS"] == "latest"
    assert given["SPARK_JOB_SLOTS"] == "4"
    assert given["SPARK_JOB_TRIGGER"] == "5 seconds"
    assert given["SPARK_JOB_SINK"] == "parquet"
    assert given["PYSPARK_SUBMIT_ARGS"] == "--master local[4] --driver-memory 2g pyspark-shell"


@pytest.mark.parametrize("topics", ["a: b/#", "a #b/c", '"a"/b', "a/\\d{{ 1 }}/é", "#"])
def test_any_topic_filter_arrives_as_it_is(topics: str) -> None:
    subscription = f"$shared/group/{topics}"
    rendered = render(with_redis(sparkJob={"enabled": True, "subscription": subscription}))
    assert variables(rendered.the("Job"))["SPARK_JOB_SUBSCRIPTION"] == subscription
    assert f"consumes {subscription} with" in rendered.notes


def test_the_image_falls_back_to_the_leader_hosts() -> None:
    def image(values: dict[str, Any], **own: str) -> str:
        rendered = render(with_redis(image=values, sparkJob={"enabled": True, "image": own}))
        reference: str = pod_of(rendered.the("Job"))["spec"]["containers"][0]["image"]
        return reference

    assert image({}) == "streamlease:0.1.0-spark"
    assert image({"repository": "r.example.internal/s", "tag": "7"}) == "r.example.internal/s:7-spark"
    assert image({"tag": "7"}, repository="own", tag="8") == "own:8"
    assert image({}, digest=f"sha256:{'a' * 64}") == f"streamlease@sha256:{'a' * 64}"


@pytest.mark.parametrize(
    ("checkpoint", "claims", "volume"),
    [
        ({"persistent": False}, 0, {"emptyDir": {}}),
        ({}, 1, {"persistentVolumeClaim": {"claimName": "demo-streamlease-spark"}}),
        ({"existingClaim": "mine"}, 0, {"persistentVolumeClaim": {"claimName": "mine"}}),
    ],
)
def test_the_checkpoint_has_its_volume(
    checkpoint: dict[str, Any], claims: int, volume: dict[str, Any]
) -> None:
    rendered = render(with_redis(sparkJob={"enabled": True, "checkpoint": checkpoint}))
    assert len(rendered.of("PersistentVolumeClaim")) == claims
    assert {"name": "data", **volume} in pod_of(rendered.the("Job"))["spec"]["volumes"]


def test_the_claim_is_as_asked_and_outlives_the_release() -> None:
    claim = render(SETS["everything"]).the("PersistentVolumeClaim")
    assert claim["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert claim["spec"] == {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "fast",
        "resources": {"requests": {"storage": "20Gi"}},
    }


def test_a_changed_job_is_a_new_one_and_an_unchanged_one_is_not() -> None:
    name = job()["metadata"]["name"]
    assert name == job()["metadata"]["name"]
    assert name == job(backoffLimit=1)["metadata"]["name"]  # that field may be changed in place
    for change in ({"slots": 3}, {"subscription": "$shared/a/b"}, {"podAnnotations": {"a": "b"}}):
        assert job(**change)["metadata"]["name"] != name
    more_hosts = render(with_redis(replicas=9, sparkJob={"enabled": True})).the("Job")
    assert more_hosts["metadata"]["name"] == name


def test_an_eviction_is_not_a_failure() -> None:
    rendered = job()
    assert pod_of(rendered)["spec"]["restartPolicy"] == "Never"  # what podFailurePolicy asks for
    assert rendered["spec"]["podFailurePolicy"]["rules"] == [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    ]


@pytest.mark.spark
@pytest.mark.timeout(180)
def test_the_program_writes_its_sink_and_leaves_sigterm_as_an_unfinished_job(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    source = PROGRAM.read_text()
    assert source.count('.format("streamlease")') == 1
    program = tmp_path / "spark_job.py"
    program.write_text(source.replace('.format("streamlease")', '.format("rate")'))
    output, checkpoint = tmp_path / "output", tmp_path / "checkpoint"
    given = variables(job(trigger="1 second", sink="parquet", driverMemory="512m"))
    given |= {
        "SPARK_JOB_OUTPUT": str(output),
        "SPARK_JOB_CHECKPOINT": str(checkpoint),
        "SPARK_LOCAL_DIRS": str(tmp_path),
    }
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    log = tmp_path / "log"
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [sys.executable, program],
            cwd=tmp_path,
            env={**kept, "JAVA_HOME": str(ensure_java().home), "PYSPARK_PYTHON": sys.executable, **given},
            stdout=sink,
            stderr=subprocess.STDOUT,
        )
    try:
        deadline = time.monotonic() + 120
        while not (checkpoint / "commits" / "0").exists():
            assert time.monotonic() < deadline, f"no batch in 120 s:\n{log.read_text()[-3000:]}"
            try:
                process.wait(0.1)
            except subprocess.TimeoutExpired:
                continue
            pytest.fail(f"ended with {process.returncode} before SIGTERM:\n{log.read_text()[-3000:]}")
        process.send_signal(signal.SIGTERM)
        assert process.wait(50) == 128 + signal.SIGTERM
        assert (output / "_spark_metadata").is_dir()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
