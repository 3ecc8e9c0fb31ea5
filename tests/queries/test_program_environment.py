"""What a program finds in its environment, and which settings its Spark session gets."""

from __future__ import annotations

import json
import shlex

import pytest

from streamlease.admin.queries import secrets_aside
from streamlease.executor.program_environment import program_environment
from streamlease.queries.core.signed_orders import Job, JobFile
from streamlease.queries.join_query import CONF
from streamlease.spark.environment import submitted_settings

QUERY = "0123456789abcdef"


def job(**conf: str) -> Job:
    return Job(
        query=QUERY, name="q", workers=1, placement="random", program=JobFile(name="a.py"), spawn_ms=1,
        grace_ms=1, who="test", conf=tuple(sorted(conf.items())),
    )  # fmt: skip


def test_conf_of_spark_goes_to_spark_submit_quoted_and_all_of_it_to_the_program() -> None:
    conf = {
        "spark.master": "spark://cluster:7077",
        "spark.app.name": 'it\'s "$HOME" `x` \\ ; & and\nmore',
        "spark.executor.extraJavaOptions": "-Da=b -Dc=d",
        "color": "blue",
    }
    found = program_environment(job(**conf), QUERY, 0, "token", "redis://r", frozenset())
    words = shlex.split(found["PYSPARK_SUBMIT_ARGS"])
    given = dict(value.split("=", 1) for value in words[1:-1:2])
    assert (words[0:-1:2], words[-1]) == (["--conf"] * 3, "pyspark-shell")
    assert given == {name: value for name, value in conf.items() if name != "color"}
    assert json.loads(found[CONF]) == conf


def test_without_conf_of_spark_nothing_is_said_to_spark_submit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--master local[9] pyspark-shell")
    found = program_environment(job(color="blue"), QUERY, 0, "token", "redis://r", frozenset())
    assert "PYSPARK_SUBMIT_ARGS" not in found


def test_what_was_submitted_is_in_place_of_the_settings_of_a_session(monkeypatch: pytest.MonkeyPatch) -> None:
    own = {"spark.master": "local[2]", "spark.driver.host": "127.0.0.1", "spark.ui.enabled": "false"}
    monkeypatch.delenv(CONF, raising=False)
    assert submitted_settings(own) == own
    monkeypatch.setenv(CONF, json.dumps({"spark.master": "local[8]", "color": "blue"}))
    assert submitted_settings(own) == own | {"spark.master": "local[8]"}
    monkeypatch.setenv(CONF, json.dumps({"spark.master": "spark://cluster:7077"}))
    assert submitted_settings(own) == {"spark.master": "spark://cluster:7077", "spark.ui.enabled": "false"}
    monkeypatch.setenv(CONF, json.dumps({"spark.master": "k8s://api", "spark.driver.host": "10.0.0.7"}))
    assert submitted_settings(own)["spark.driver.host"] == "10.0.0.7"


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["executor", "--name", "a"], "executor"),
        (["--redis", "redis://h", "executor"], "executor"),
        (["--redis=redis://h", "executor"], "executor"),
        (["submit", "--on", "executor", "job.py"], "submit"),
        (["space", "delete", "executor", "--yes"], "space"),
        (["--redis", "executor", "space", "list"], "space"),
        (["--version"], None),
        ([], None),
    ],
)
def test_secrets_are_put_aside_for_an_executor_alone(words: list[str], command: str | None) -> None:
    assert secrets_aside._command(words) == command
