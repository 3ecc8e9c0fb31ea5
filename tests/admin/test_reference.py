"""The reference of the commands is what the commands say."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_the_reference_is_what_the_commands_say() -> None:
    spec = importlib.util.spec_from_file_location("reference", ROOT / "scripts" / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.PAGE.read_text() == module.reference(), "run: .venv/bin/python scripts/reference.py"


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


@pytest.mark.parametrize("program", ["pictures.py", "reference.py", "rights.py", "schemas.py"])
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
