"""What the design says of the ways of a message and of a commit is what runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLES = {"spark/core/query_states.py", "leader/core/lease.py", "leader/core/couplings.py"}
"""Named on the page beside the files that run, and looked into only where something changes."""


def named(title: str) -> set[str]:
    """The files that a section of the page names."""
    text = (ROOT / "docs" / "design.md").read_text()
    section = text.partition(f"## The way of a {title},")[2].partition("## ")[0].partition("`python ")[0]
    return set(re.findall(r"`([a-z_/]+\.(?:py|lua))`", section)) - TABLES


def test_the_ways_in_the_design_are_those_that_run(embedded_redis_url: str) -> None:
    script = [sys.executable, str(ROOT / "scripts" / "walk.py"), embedded_redis_url]
    said = subprocess.run(script, capture_output=True, text=True, check=True, timeout=100).stdout
    passed: dict[str, set[str]] = {"message": set(), "commit": set()}
    for walk in said.split("\n\n"):
        head, *files = walk.strip().splitlines() or [""]
        if head:
            passed[head.split()[1].rstrip(",")] |= {file.split()[0] for file in files}
    for title, files in passed.items():
        assert len(named(title)) > 5, "the section was not found"
        assert named(title) - files == set(), f"a {title} does not pass these"
