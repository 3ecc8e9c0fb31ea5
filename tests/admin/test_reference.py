"""The references of commands and of Python are what the commands and the code say."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import streamlease
from streamlease import StreamleaseError

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("script", ["reference", "python_reference"])
def test_the_reference_is_what_is_there(script: str) -> None:
    spec = importlib.util.spec_from_file_location(script, ROOT / "scripts" / f"{script}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[script] = module  # where dataclasses and the like look for their module
    try:
        spec.loader.exec_module(module)
        assert module.PAGE.read_text() == module.reference(), f"run: .venv/bin/python scripts/{script}.py"
    finally:
        del sys.modules[script]


def test_the_reference_of_python_has_what_programs_call() -> None:
    text = (ROOT / "docs" / "python.md").read_text()
    own = {name for name in vars(streamlease.Client) if not name.startswith("_")}
    for name in own - {"agent", "tails"}:
        assert f"#### `Client.{name}`\n" in text, name
    for name in set(streamlease.__all__) - {
        "__version__",
        "StreamleaseError",
        "blocking",
        "errors",
        "queries",
    }:
        assert f"### `{name}`\n" in text, name
    for name, error in vars(streamlease.errors).items():
        if isinstance(error, type) and issubclass(error, StreamleaseError) and error is not StreamleaseError:
            assert f"| `{name}` |" in text, name
    assert text.count("```") % 2 == 0


def test_the_reference_names_every_command_of_the_design() -> None:
    text = (ROOT / "docs" / "reference.md").read_text()
    for command in (
        "demo",
        "serve",
        "space create",
        "publish",
        "consume",
        "group rebalance",
        "doctor",
        "ui",
        "top",
    ):
        assert f"## streamlease {command}\n" in text


PROGRAMS = ["pictures.py", "python_reference.py", "reference.py", "rights.py", "schemas.py"]


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_python_without_the_project_is_told_what_to_do(program: str) -> None:
    bare = [sys.executable, "-S", "-E"]  # as the system's own one is: without what .venv has
    done = subprocess.run(
        [*bare, str(ROOT / "scripts" / program)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith(
        f"{program}: {sys.executable} has no package 'streamlease': run 'python3 run.py setup'"
    )
    assert line.endswith(f"'.venv/bin/python scripts/{program}'")
