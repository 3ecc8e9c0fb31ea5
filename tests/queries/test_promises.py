"""The page names tests for each promise; they are there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "queries.md"


def test_each_promise_has_tests_that_are_there() -> None:
    _, _, table = PAGE.read_text().partition("## What Strymon's runtime promises")
    rows = re.findall(r"^\| (X[0-9]+) \|.*\|(.*)\|$", table, re.MULTILINE)
    assert [name for name, _ in rows] == [f"X{number}" for number in range(1, 17)]
    files = {*re.findall(r"`(tests/\w+/(?:test_\w+\.py)?)`", table)}
    assert len(files) > 10
    assert [file for file in sorted(files) if not (ROOT / file).exists()] == []
    named = {*re.findall(r"`(test_\w+)`", table)}
    there = "\n".join(path.read_text() for file in files for path in _modules(ROOT / file))
    assert [name for name in sorted(named) if f"def {name}(" not in there] == []


def _modules(place: Path) -> list[Path]:
    return [place] if place.is_file() else sorted(place.glob("test_*.py"))
