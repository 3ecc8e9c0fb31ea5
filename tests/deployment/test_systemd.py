"""The units of systemd: their commands are commands, and systemd finds nothing to mend."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from streamlease.admin.cli import tree
from tests.admin.command import SCRIPT
from tests.servers import ROOT

UNITS = sorted((ROOT / "systemd").glob("*.service"))
PROGRAM = "/opt/streamlease/bin/streamlease"


def test_there_are_a_host_a_console_and_a_gateway() -> None:
    assert [unit.stem for unit in UNITS] == [f"streamlease-{one}" for one in ("console", "gateway", "host")]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_its_command_is_one_and_ends_before_it_is_killed(unit: Path) -> None:
    text = unit.read_text()
    (words,) = re.findall(rf"^ExecStart={PROGRAM} (.*)$", text, re.MULTILINE)
    name, *options = words.split()
    with tree().commands[name].make_context(name, options) as context:
        drain = context.params.get("drain_timeout", 10)
    (limit,) = re.findall(r"^TimeoutStopSec=(\d+)$", text, re.MULTILINE)
    assert int(limit) > drain
    assert "EnvironmentFile=/etc/streamlease/environment" in text


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_it_tries_on_and_has_no_rights(unit: Path) -> None:
    lines = set(unit.read_text().splitlines())
    assert {"Restart=always", "StartLimitIntervalSec=0", "DynamicUser=yes", "NoNewPrivileges=yes"} <= lines
    assert {"ProtectSystem=strict", "CapabilityBoundingSet="} <= lines


def test_the_environment_names_variables_that_commands_read() -> None:
    known = set(re.findall(r"STREAMLEASE_[A-Z_]+", (ROOT / "docs" / "reference.md").read_text()))
    text = "".join(file.read_text() for file in (ROOT / "systemd").iterdir())
    named = set(re.findall(r"STREAMLEASE_[A-Z_]+", text))
    assert "STREAMLEASE_REDIS_URL" in named
    assert named <= known


def test_systemd_itself_finds_nothing_to_mend(tmp_path: Path) -> None:
    """Where there is one; elsewhere the tests above have to do."""
    verify = shutil.which("systemd-analyze")
    for unit in UNITS if verify else ():
        copy = tmp_path / unit.name
        copy.write_text(unit.read_text().replace(PROGRAM, str(SCRIPT)))
        done = subprocess.run([str(verify), "verify", str(copy)], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
