"""The programs and commands for those who come from XREADGROUP, as they stand in docs/coming-from.md."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from tests.admin.command import SCRIPT, Command
from tests.servers import ROOT

PAGE = (ROOT / "docs" / "coming-from.md").read_text("utf-8")


def test_from_xreadgroup(command: Command, tmp_path: Path) -> None:
    _, _, section = PAGE.partition("\n## From a loop of XREADGROUP")
    section, _, _ = section.partition("\n## ")
    for name, text in re.findall(r"```python\n# (\w+\.py)\n(.*?)```", section, re.DOTALL):
        (tmp_path / name).write_text(text)
    (console,) = re.findall(r"```console\n(.*?)```", section, re.DOTALL)
    assert 'export STREAMLEASE_REDIS_URL="$(streamlease redis status --url)"\n' in console
    typed = [part.split("\n", 1) for part in re.split(r"^\$ ", console, flags=re.MULTILINE)[1:]]
    commands = "\n".join(words for words, _ in typed[1:])  # the Redis of this test is in the environment
    done = subprocess.run(
        ["bash", "-euc", commands],
        cwd=tmp_path, capture_output=True, text=True, timeout=90, check=False,
        env={**command.environment, "PATH": f"{SCRIPT.parent}:{os.environ['PATH']}"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == "".join(printed for _, printed in typed[1:])
    assert "me of jobs read orders a moment ago" in (tmp_path / "notes.txt").read_text()
