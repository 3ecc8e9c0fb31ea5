"""What the design says of the ways of a message, of a commit and of progress is what runs."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from operator import attrgetter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TABLES = {"spark/core/query_states.py", "leader/core/lease.py", "leader/core/couplings.py"}
"""Named on the page beside the files that run, and looked into only where something changes."""

LEAST = {"message": 16, "commit": 6, "progress": 16}
"""So many files each section names at least, beside the tables."""


def steps(way: str) -> str:
    """The numbered steps of a section of the page."""
    page = (ROOT / "docs" / "design.md").read_text()
    _, found, section = page.partition(f"## The way of {'' if way == 'progress' else 'a '}{way},")
    assert found, f"there is no section about the way of {way}"
    found_steps = section.split("\n\n")[1]
    assert found_steps.startswith("1. ")
    return found_steps


def named(way: str) -> set[str]:
    """The files that the steps name."""
    return set(re.findall(r"`([a-z_/]+\.(?:py|lua))`", steps(way)))


def passed(url: str) -> dict[str, set[str]]:
    """The files through which each goes, wherever its leader is."""
    script = [sys.executable, str(ROOT / "scripts" / "walk.py"), url]
    said = subprocess.run(script, capture_output=True, text=True, check=True, timeout=100).stdout
    found: dict[str, set[str]] = {}
    for walk in filter(None, said.split("\n\n")):
        head, *files = walk.strip().splitlines()
        way = head.partition(",")[0].removeprefix("a ")
        found.setdefault(way, set()).update(file.split()[0] for file in files)
    return found


def test_the_ways_in_the_design_are_those_that_run(embedded_redis_url: str) -> None:
    ran = passed(embedded_redis_url)
    assert ran.keys() == LEAST.keys()
    for way, files in ran.items():
        assert named(way) - TABLES - files == set(), f"these are not on the way of a {way}"


@pytest.mark.parametrize("way", LEAST)
def test_the_ways_name_files_enough_and_they_exist(way: str) -> None:
    assert len(named(way) - TABLES) >= LEAST[way]
    assert [file for file in named(way) if not (ROOT / file).is_file()] == []


@pytest.mark.parametrize("way", LEAST)
def test_what_the_ways_name_is_where_they_say(way: str) -> None:
    placed = re.findall(r"`([a-z_/]+)\.py`\s+`([\w.]+)`", steps(way))
    assert len(placed) >= 2
    for file, name in placed:
        module = importlib.import_module(f"streamlease.{file.replace('/', '.')}")
        thing = attrgetter(name)(module)
        assert thing.__module__ == module.__name__, f"{name} is not defined in {file}.py"
    said = re.findall(r"`([A-Z]\w+(?:\.\w+)?)`", steps(way))
    assert len(said) >= 2
    assert set(said) - defined() == set()


def defined() -> set[str]:
    """The classes of the product, and their methods as ``Class.method``."""
    found = set[str]()
    rooms = {init.parent for init in ROOT.glob("*/__init__.py")}
    rooms -= {ROOT / other for other in ("tests", "bench", "examples")}
    for file in (file for room in rooms for file in room.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ClassDef):
                found.add(node.name)
                methods = (
                    one for one in node.body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)
                )
                found.update(f"{node.name}.{method.name}" for method in methods)
    return found
