"""What the house consists of, as its tests look at it: rooms, modules, imports, and what is committed."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
PACKAGES: list[str] = PROJECT["tool"]["setuptools"]["packages"]
PACKAGE_DIR: dict[str, str] = PROJECT["tool"]["setuptools"]["package-dir"]
PACKAGE_DATA: dict[str, list[str]] = PROJECT["tool"]["setuptools"]["package-data"]
ROOMS = {name.removeprefix("streamlease."): ROOT / folder for name, folder in PACKAGE_DIR.items() if name}
NO_ROOMS = {"src", "tests", "bench", "docs", "helm", "scripts", "build", "dist"}


def package_folders() -> dict[str, Path]:
    """Every importable package that is there, by name: the rooms, what is in them, and ``src``."""
    tops = {f"streamlease.{room}": folder for room, folder in ROOMS.items()}
    tops.update({path.parent.name: path.parent for path in (ROOT / "src").glob("*/__init__.py")})
    found = {}
    for top, folder in tops.items():
        for init in folder.rglob("__init__.py"):
            inside = init.parent.relative_to(folder).parts
            if not (top == "streamlease" and inside):  # below src/streamlease are only links to the rooms
                found[".".join((top, *inside))] = init.parent
    return found


FOLDERS = package_folders()
MODULES = {
    name if path.stem == "__init__" else f"{name}.{path.stem}": path
    for name, folder in sorted(FOLDERS.items())
    for path in sorted(folder.glob("*.py"))
}
LUA = sorted({path for folder in ROOMS.values() for path in folder.rglob("*.lua")})


def committed() -> list[Path]:
    """The files that git knows, without links and without what was deleted but not yet committed."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    assert len(paths) > 20, "git lists next to nothing: is this a checkout?"
    return [path for path in paths if path.is_file() and not path.is_symlink()]


def imports(path: Path, module: str) -> Iterator[str]:
    """The full names that a module imports anywhere in it; ``from a import b`` gives ``a.b``."""
    package = module if path.stem == "__init__" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, node.module] if node.module else above)
            yield from (f"{base}.{alias.name}" for alias in node.names)


def offences(modules: dict[str, Path], forbidden: str) -> list[str]:
    """The imports in these modules whose full name begins with a match of that pattern."""
    pattern = re.compile(rf"(?:{forbidden})(?:\.|$)")
    return [
        f"{name} imports {target}"
        for name, path in modules.items()
        for target in imports(path, name)
        if pattern.match(target)
    ]


def in_room(*rooms: str) -> dict[str, Path]:
    prefixes = tuple(f"streamlease.{room}" for room in rooms)
    return {
        name: path
        for name, path in MODULES.items()
        if name.startswith(tuple(f"{p}." for p in prefixes)) or name in prefixes
    }


PURE = {**in_room("borrower"), **{name: path for name, path in MODULES.items() if ".core." in f"{name}."}}
"""The machines: purity is a rule by folder, ``core/``, and the whole room of the borrower."""
