"""The pinned versions are those that ``pyproject.toml`` asks for."""

from __future__ import annotations

import re

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.house.plan import PROJECT, ROOT


def pins(name: str) -> dict[str, set[str]]:
    """The versions that ``requirements/<name>.txt`` pins, by package (one for each range of Pythons)."""
    found: dict[str, set[str]] = {}
    for line in (ROOT / "requirements" / f"{name}.txt").read_text().splitlines():
        pin = re.match(r"([\w.-]+)==([^\s;]+)", line)
        if pin is not None:
            found.setdefault(canonicalize_name(pin.group(1)), set()).add(pin.group(2))
    return found


def wanted(*tables: list[str]) -> list[Requirement]:
    requirements = [Requirement(line) for table in tables for line in table]
    return [requirement for requirement in requirements if requirement.name != "streamlease"]


def test_the_pins_are_what_pyproject_asks_for() -> None:
    """Run ``python3 scripts/pin.py`` after a change of dependencies."""
    project, groups = PROJECT["project"], PROJECT["dependency-groups"]
    extras = project["optional-dependencies"]
    base = wanted(project["dependencies"], *extras.values())
    for name, requirements in {
        "build": wanted(PROJECT["build-system"]["requires"]),
        "base": base,
        "dev": [*base, *wanted(*groups.values())],
    }.items():
        pinned = pins(name)
        for requirement in requirements:
            versions = pinned.get(canonicalize_name(requirement.name))
            assert versions, f"requirements/{name}.txt does not pin {requirement.name}"
            assert all(requirement.specifier.contains(v, prereleases=True) for v in versions), (
                f"requirements/{name}.txt pins {requirement.name} {versions}, wanted is {requirement}"
            )


def test_the_pins_of_all_files_agree() -> None:
    dev = pins("dev")
    for name in ("build", "base"):
        assert {package: dev.get(package) for package in pins(name)} == pins(name)


def test_the_oldest_packages_are_those_that_pyproject_takes() -> None:
    """A bound that is lowered without ``python3 scripts/pin.py`` would be one that nobody has tried."""
    project, lowest = PROJECT["project"], pins("lowest")
    for requirement in wanted(project["dependencies"], *project["optional-dependencies"].values()):
        (bound,) = (one.version for one in requirement.specifier if one.operator in {">=", "=="})
        versions = lowest[canonicalize_name(requirement.name)]
        assert all(f"{version}.".startswith(f"{bound}.") for version in versions), (requirement, versions)
