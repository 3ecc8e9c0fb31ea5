"""The reference of the commands is what the commands say."""

from __future__ import annotations

import importlib.util
from pathlib import Path

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
