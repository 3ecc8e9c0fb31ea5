"""``archive run --spark``: a Spark that the command starts, whatever else the environment asks for."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from streamlease.admin.archives import spark_archiving
from streamlease.agent.client import Client
from streamlease.protocol.errors import ArchiveUnavailable
from streamlease.spark import archiving_job
from streamlease.spark import environment as spark_environment
from streamlease.streams.redis.connection import BlockingRedis
from tests.admin.command import SCRIPT
from tests.archive.helpers import all_of, in_table, publish, rows, space_of
from tests.spark.programs import environment, path_without_java

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


async def test_the_command_archives_by_the_master_that_it_is_given(
    client: Client, blocking: BlockingRedis, uri: str, embedded_redis_url: str, tmp_path: Path
) -> None:
    """Also where the environment asks for Spark Connect, and no Java is on PATH."""
    space = await space_of(client, uri)
    await publish(client, 0, 100)
    whole = await rows(client, space)
    path = await asyncio.to_thread(path_without_java, tmp_path / "tools")
    remote = {
        "SPARK_REMOTE": "sc://127.0.0.1:1",
        "SPARK_CONNECT_MODE_ENABLED": "1",
        "SPARK_API_MODE": "connect",
    }
    given = {name: value for name, value in environment(None).items() if name != "JAVA_HOME"}

    async def run(master: str) -> subprocess.CompletedProcess[str]:
        words = [str(SCRIPT), "archive", "run", "flights", "--spark", master, "--redis", embedded_redis_url]
        more: dict[str, Any] = {"env": given | remote | {"PATH": path}, "cwd": tmp_path}
        return await asyncio.to_thread(
            subprocess.run, words, capture_output=True, text=True, timeout=280, check=False, **more
        )

    done = await run("local[2]")
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.startswith("space flights: 100 messages are in ")
    assert in_table(blocking, space) == all_of(whole)
    refused = await run("local[x]")
    *_, last = refused.stderr.splitlines()
    assert (refused.returncode, refused.stdout) == (2, "")
    assert last == (
        "error: no Spark starts with master 'local[x]' (org.apache.spark.SparkException: Could not parse "
        "Master URL: 'local[x]'): name one such as 'local[4]', 'spark://HOST:7077' or 'yarn'"
    )


class _Session:
    stopped = 0

    def stop(self) -> None:
        self.stopped += 1


@pytest.mark.parametrize("error", [Py4JError, PySparkRuntimeError])
def test_what_spark_could_not_write_is_told_in_a_line(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    session = _Session()

    def fails(*_: object) -> None:
        raise error(
            "An error occurred while calling o44.collect.\n: java.io.IOException: no room\n\tat x.y(Z)"
        )

    monkeypatch.setattr(spark_archiving, "_session", lambda master, name: session)
    monkeypatch.setattr(archiving_job, "archive_with_spark", fails)
    with pytest.raises(ArchiveUnavailable) as raised:
        spark_archiving.archived_in_spark("local", "redis://127.0.0.1:1/0", "flights")
    assert str(raised.value) == (
        "Spark did not write all files of space flights (java.io.IOException: no room): what is in the "
        "archive stands; look at what Spark says above, and try again"
    )
    assert session.stopped == 1


@pytest.mark.parametrize(
    ("master", "given", "used"),
    [
        ("local[2]", None, sys.executable),
        ("local[2]", "/its/python", "/its/python"),
        ("spark://h:7077", None, None),
        ("spark://h:7077", "/its/python", "/its/python"),
    ],
)
def test_workers_elsewhere_have_a_python_of_their_own(
    monkeypatch: pytest.MonkeyPatch, master: str, given: str | None, used: str | None
) -> None:
    def configure() -> None:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)

    def starts(builder: Any) -> str | None:
        return os.environ.get("PYSPARK_PYTHON")

    with mock.patch.dict(os.environ, {} if given is None else {"PYSPARK_PYTHON": given}):
        if given is None:
            os.environ.pop("PYSPARK_PYTHON", None)
        monkeypatch.setattr(spark_environment, "configure_environment", configure)
        monkeypatch.setattr(SparkSession.Builder, "getOrCreate", starts)
        assert spark_archiving._session(master, "a") == used
