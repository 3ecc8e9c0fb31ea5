"""Lua files say what they take and answer, and share what they do alike."""

from __future__ import annotations

from itertools import takewhile
from pathlib import Path

import pytest

from tests.house.plan import LUA, ROOT


@pytest.mark.parametrize("script", LUA, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_lua_file_opens_with_its_keys_arguments_and_replies(script: Path) -> None:
    lines = script.read_text().splitlines()
    header = list(takewhile(lambda line: line.startswith("--"), lines))
    for word in ("KEYS", "ARGV", "Repl"):
        assert any(word in line for line in header), f"the header of {script.name} says nothing about {word}"


def test_no_two_lua_files_hold_six_equal_lines() -> None:
    """What two scripts do alike belongs into a file that both include."""
    runs: dict[tuple[str, ...], set[str]] = {}
    for script in LUA:
        lines = [line.split("--")[0].strip() for line in script.read_text().splitlines()]
        lines = [line for line in lines if line]
        for first in range(len(lines) - 5):
            runs.setdefault(tuple(lines[first : first + 6]), set()).add(str(script.relative_to(ROOT)))
    assert {run: found for run, found in runs.items() if len(found) > 1} == {}


def test_what_a_lua_file_includes_stands_before_its_first_statement() -> None:
    including = 0
    for script in LUA:
        head = list(
            takewhile(lambda line: line.startswith("--") or not line, script.read_text().splitlines())
        )
        named = script.read_text().count("-- include: ")
        including += named
        assert sum(line.startswith("-- include: ") for line in head) == named, script
    assert including >= 4
