"""CronJobs that archive: one for each space; what is rendered archives, with the rights of a client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from streamlease.admin.doctor.roles import CLIENT
from tests.admin.command import Command
from tests.conftest import MakeServer
from tests.helm.charts import Document, environment, helm, render, value_sets, with_redis

pytestmark = pytest.mark.helm

VALUES = value_sets()["archive"]
SECRETS = {("streamlease-redis", "client-url"): "redis://redis.example.internal:6379/0"}


def jobs(**values: Any) -> list[Document]:
    given = {"enabled": True, "spaces": ["flights"], **values}
    return render(with_redis(archiveJob=given)).of("CronJob")


def pod_of(job: Document) -> Document:
    pod: Document = job["spec"]["jobTemplate"]["spec"]["template"]
    return pod


def container_of(job: Document) -> Document:
    (container,) = pod_of(job)["spec"]["containers"]
    return dict(container)


def test_each_space_has_its_own_and_no_two_run_at_once() -> None:
    found = render(VALUES).of("CronJob")
    assert [container_of(one)["args"] for one in found] == [
        ["--spark", "local[4]", "--", "flights"],
        ["--spark", "local[4]", "--", "Orders_2"],
    ]
    assert [one["metadata"]["annotations"]["streamlease/space"] for one in found] == ["flights", "Orders_2"]
    assert len({one["metadata"]["name"] for one in found}) == 2
    for one in found:
        assert len(one["metadata"]["name"]) <= 52, "the most that Kubernetes takes for a CronJob"
        assert one["spec"]["concurrencyPolicy"] == "Forbid"
        assert (one["spec"]["schedule"], one["spec"]["timeZone"]) == ("*/30 2-5 * * *", "Europe/Vienna")
        assert pod_of(one)["spec"]["restartPolicy"] == "Never"
        assert pod_of(one)["spec"]["nodeSelector"] == {"pool": "batch"}
        assert container_of(one)["envFrom"] == [{"secretRef": {"name": "flights-archive"}}]
    again = render(VALUES | {"archiveJob": VALUES["archiveJob"] | {"spaces": ["Orders_2"]}}).of("CronJob")
    assert again[0]["metadata"]["name"] == found[1]["metadata"]["name"], "whatever other spaces there are"
    (long,) = render(VALUES | {"archiveJob": VALUES["archiveJob"] | {"spaces": ["a"]}}, release="r" * 53).of(
        "CronJob"
    )
    assert len(long["metadata"]["name"]) <= 52


def test_the_driver_of_spark_is_found_and_has_its_memory() -> None:
    for one in render(VALUES).of("CronJob"):
        given = environment(pod_of(one), secrets=SECRETS, fields={"status.podIP": "10.0.0.1"})
        assert given["STREAMLEASE_REDIS_URL"] == SECRETS["streamlease-redis", "client-url"]
        assert given["PYSPARK_SUBMIT_ARGS"] == "--driver-memory 2g pyspark-shell"
        assert given["SPARK_LOCAL_HOSTNAME"] == "10.0.0.1"


def test_without_spark_one_process_archives_in_the_image_of_leader_hosts() -> None:
    (job,) = jobs()
    assert container_of(job)["image"] == "streamlease:0.1.0"
    assert container_of(job)["args"] == ["--", "flights"]
    assert {one["name"] for one in container_of(job)["env"]} == {
        "STREAMLEASE_REDIS_URL",
        "STREAMLEASE_LOG_FORMAT",
    }
    assert "timeZone" not in job["spec"]
    (job,) = jobs(spark="spark://master:7077")
    assert container_of(job)["image"] == "streamlease:0.1.0-spark"
    (job,) = jobs(image={"repository": "own", "tag": "8"})
    assert container_of(job)["image"] == "own:8"
    digest = f"sha256:{'a' * 64}"
    values = {"enabled": True, "spaces": ["flights"]}
    (job,) = render(with_redis(image={"digest": digest}, archiveJob=values)).of("CronJob")
    assert container_of(job)["image"] == f"streamlease@{digest}"


def test_what_is_rendered_archives_with_the_rights_of_a_client(
    tmp_path: Path, make_redis_server: MakeServer
) -> None:
    """And lets go of what need not stay in memory."""
    server = make_redis_server("redis7")
    with server.client() as client:
        words = [word for word in CLIENT.line().split()[2:] if word != "+waitaof"]
        client.execute_command("ACL", "SETUSER", *words)  # type: ignore[no-untyped-call]
    (job,) = jobs()
    container = container_of(job)
    all_rights = Command(tmp_path, server.url)
    uri = str(tmp_path / "archive")
    all_rights.ok(
        "space", "create", "flights", "--topics", "flights/#", "--archive", uri, "--keep-in-memory", "1B"
    )
    all_rights.ok("publish", "flights/a", text="".join(f"message {number}\n" for number in range(100)))
    ran = Command(tmp_path, server.url.replace("//", "//client:PASSWORD@"))
    name, *words = container["command"]
    assert name == "streamlease"
    assert "100 messages are in 1 new files" in ran.ok(*words, *container["args"]).out
    (stream,) = all_rights.ok("space", "show", "flights", "--json").document["streams"]
    assert (stream["oldest"], stream["bytes"]) == (0, 0), "the memory is empty, and all exists"


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"spaces": []}, "spaces"),
        ({"spaces": ["a", "a"]}, "spaces"),
        ({"schedule": "hourly"}, "schedule"),
        ({"spark": "http://master"}, "spark"),
        ({"deadlineSeconds": 0}, "deadlineSeconds"),
        ({"every": "1h"}, "every"),
    ],
)
def test_what_cannot_be_is_refused_with_its_name(values: dict[str, Any], named: str) -> None:
    with pytest.raises(helm.HelmValuesError, match=named):
        jobs(**values)
