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

MOST = {
    "a message, its leader here": 91,
    "a message, its leader on another host": 100,
    "a commit, its leader here": 13,
    "a commit, its leader on another host": 13,
    "progress, its leader here": 37,
    "progress, its leader on another host": 46,
}
"""So many files each walk has at most. Whoever makes one longer raises the number, and says why; those of
messages and commits stand in docs/design.md, too."""


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


def walks(url: str) -> dict[str, set[str]]:
    """The files through which each goes, by what the script says of it."""
    script = [sys.executable, str(ROOT / "scripts" / "walk.py"), url]
    said = subprocess.run(script, capture_output=True, text=True, check=True, timeout=100).stdout
    found: dict[str, set[str]] = {}
    for walk in filter(None, said.split("\n\n")):
        head, *files = walk.strip().splitlines()
        found[head.partition(":")[0]] = {file.split()[0] for file in files}
    return found


def test_the_ways_in_the_design_are_those_that_run(embedded_redis_url: str) -> None:
    ran = walks(embedded_redis_url)
    assert ran.keys() == MOST.keys()
    for way in LEAST:
        files = set[str]().union(*(ran[walk] for walk in ran if walk.removeprefix("a ").startswith(way)))
        assert named(way) - TABLES - files == set(), f"these are not on the way of a {way}"
    if any(len(files) > MOST[walk] for walk, files in ran.items()):
        # On a machine that stands still for seconds a timer may come in each repetition, but not twice so.
        again = walks(embedded_redis_url)
        ran = {walk: files & again[walk] for walk, files in ran.items()}
    longer = {walk: sorted(files) for walk, files in ran.items() if len(files) > MOST[walk]}
    assert longer == {}, "a newcomer reads more files than before: see MOST"


def test_the_design_tells_how_long_the_ways_are() -> None:
    page = " ".join((ROOT / "docs" / "design.md").read_text().split())
    assert f"a commit is {MOST['a commit, its leader on another host']} (" in page
    assert f"a message {MOST['a message, its leader here']} (" in page
    assert f"same process, {MOST['a message, its leader on another host']} (" in page


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
