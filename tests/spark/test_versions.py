"""What is said of a Spark, a PySpark or a Python that does not fit."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

import pyspark_streamlease
from streamlease.protocol.errors import Unsupported
from streamlease.spark.setup.versions import check_versions
from streamlease.spark.source import StreamleaseSource
from tests.spark.refusals import one_line

HERE = f"{sys.version_info[0]}.{sys.version_info[1]}"


@pytest.fixture(autouse=True)
def _bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SPARK_HOME", "PYSPARK_PYTHON"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def old_pyspark() -> Iterator[str]:
    """PySpark says that it is older than it is."""
    version = pyspark.__version__
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pyspark, "__version__", "4.2.1")
        importlib.reload(pyspark_streamlease)
        yield "4.2.1"
    assert pyspark.__version__ == version
    importlib.reload(pyspark_streamlease)


def refusal() -> str:
    with pytest.raises(Unsupported) as refused:
        check_versions()
    return one_line(refused.value)


def python(folder: Path, script: str) -> str:
    """A program that stands for a Python."""
    program = folder / "python"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return str(program)


def spark_home(folder: Path, version: str) -> str:
    (folder / "jars").mkdir()
    (folder / "jars" / f"spark-core_2.13-{version}.jar").touch()
    return str(folder)


def test_what_pip_installed_fits() -> None:
    check_versions()
    assert pyspark_streamlease.DefaultSource is StreamleaseSource


def test_an_old_pyspark_is_named(old_pyspark: str) -> None:
    said = refusal()
    assert f"this is PySpark {old_pyspark}, and streamlease needs 4.3: run" in said
    assert "pip install 'streamlease[spark]'" in said


def test_under_an_old_pyspark_the_source_is_found_and_says_so(old_pyspark: str) -> None:
    """Spark would find no source of anybody if the package could not be imported."""
    source = pyspark_streamlease.DefaultSource
    assert source.name() == "streamlease"
    with pytest.raises(Unsupported, match=f"this is PySpark {old_pyspark}") as refused:
        source({}).schema()
    one_line(refused.value)


def test_a_missing_pyspark_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    assert "PySpark is not installed: run" in refusal()


def test_a_spark_home_of_another_release_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", spark_home(tmp_path, "3.5.1"))
    assert f"SPARK_HOME is {tmp_path}, which is Spark 3.5.1, and this is PySpark 4.3" in refusal()


@pytest.mark.parametrize("version", [pyspark.__version__, "4.3.99", "4.3.1-vendor-2"])
def test_a_spark_home_of_the_same_release_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    monkeypatch.setenv("SPARK_HOME", spark_home(tmp_path, version))
    check_versions()


@pytest.mark.parametrize("home", ["", "/nonexistent"])
def test_a_spark_home_that_says_nothing_is_left_to_spark(monkeypatch: pytest.MonkeyPatch, home: str) -> None:
    monkeypatch.setenv("SPARK_HOME", home)
    check_versions()


def test_a_python_of_another_release_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = python(tmp_path, "echo 3.8")
    monkeypatch.setenv("PYSPARK_PYTHON", other)
    assert f"PYSPARK_PYTHON is {other}, which is Python 3.8, and this is Python {HERE}" in refusal()


def test_a_python_that_does_not_run_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = python(tmp_path, "exit 1")
    monkeypatch.setenv("PYSPARK_PYTHON", broken)
    assert f"PYSPARK_PYTHON is {broken}, which does not run: unset it" in refusal()


def test_a_python_of_the_same_release_or_of_another_machine_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (python(tmp_path, f"echo {HERE}"), sys.executable, "/nonexistent/bin/python"):
        monkeypatch.setenv("PYSPARK_PYTHON", name)
        check_versions()
