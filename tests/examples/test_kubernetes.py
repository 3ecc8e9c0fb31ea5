"""The examples of Spark on Kubernetes set what the program reads, and agree with each other."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
HERE = ROOT / "examples" / "kubernetes"
PROGRAM = ROOT / "helm" / "streamlease" / "files" / "spark_job.py"


def application() -> dict[str, Any]:
    found: dict[str, Any] = next(yaml.safe_load_all((HERE / "spark-application.yaml").read_text()))
    return found


def of_the_operator() -> dict[str, Any]:
    """Name and value, or source, of each variable of the operator's driver."""
    driver = application()["spec"]["driver"]
    return {one["name"]: one.get("value", one.get("valueFrom")) for one in driver["env"]}


def submitted(tmp_path: Path) -> list[str]:
    """What the script hands to spark-submit."""
    stub = tmp_path / "spark-submit"
    stub.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    stub.chmod(0o755)
    run = subprocess.run(
        ["sh", str(HERE / "spark-submit.sh"), "https://api:6443"],
        env={**os.environ, "SPARK_SUBMIT": str(stub)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return run.stdout.splitlines()


def test_both_give_the_driver_every_variable_that_the_program_reads(tmp_path: Path) -> None:
    read = set(re.findall(r"os\.environ\[\"(\w+)\"\]", PROGRAM.read_text()))
    given = of_the_operator()
    assert set(given) == read
    words = submitted(tmp_path)
    conf = dict(word.split("=", 1) for place, word in enumerate(words) if words[place - 1] == "--conf")
    prefix = "spark.kubernetes.driverEnv."
    plain = {name.removeprefix(prefix): value for name, value in conf.items() if name.startswith(prefix)}
    assert plain == {name: value for name, value in given.items() if isinstance(value, str)}
    secret = given["STREAMLEASE_REDIS_URL"]["secretKeyRef"]
    named = conf["spark.kubernetes.driver.secretKeyRef.STREAMLEASE_REDIS_URL"]
    assert named == f"{secret['name']}:{secret['key']}"
    spec = application()["spec"]
    assert conf["spark.kubernetes.container.image"] == spec["image"]
    assert int(conf["spark.executor.instances"]) == spec["executor"]["instances"]
    assert words[words.index("--master") + 1] == "k8s://https://api:6443"
    assert words[-1] == spec["mainApplicationFile"]


def test_there_is_a_core_for_each_slot() -> None:
    executor = application()["spec"]["executor"]
    assert executor["instances"] * executor["cores"] >= int(of_the_operator()["SPARK_JOB_SLOTS"])


def test_without_an_address_the_script_says_what_it_needs() -> None:
    run = subprocess.run(
        ["sh", str(HERE / "spark-submit.sh")], capture_output=True, text=True, timeout=60, check=False
    )
    assert run.returncode != 0
    assert "give the address of the Kubernetes API" in run.stderr


def test_the_image_holds_what_the_leader_hosts_image_holds_and_the_program() -> None:
    def copies(file: Path) -> set[str]:
        return set(re.findall(r"^COPY (\w+/) \1$", file.read_text(), re.MULTILINE))

    example = (HERE / "Dockerfile").read_text()
    assert copies(HERE / "Dockerfile") == copies(ROOT / "Dockerfile")
    target = application()["spec"]["mainApplicationFile"].removeprefix("local://")
    assert f"COPY {PROGRAM.relative_to(ROOT)} {target}\n" in example
    (pin,) = re.findall(r"^pyspark==(\S+)", (ROOT / "requirements" / "base.txt").read_text(), re.MULTILINE)
    assert f"ARG SPARK_TAG={pin}\n" in example
    assert application()["spec"]["sparkVersion"] == pin
