"""Every room is a package that is listed, packed and importable."""

from __future__ import annotations

import importlib
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tests.house.plan import FOLDERS, MODULES, NO_ROOMS, PACKAGE_DATA, PACKAGES, ROOMS, ROOT, committed


def test_every_package_is_listed_and_every_listed_one_is_there() -> None:
    assert sorted(PACKAGES) == sorted(FOLDERS)


def test_every_top_level_package_is_a_room() -> None:
    tops = {path.parent.name for path in ROOT.glob("*/__init__.py")} - NO_ROOMS
    assert tops == {folder.name for room, folder in ROOMS.items() if "." not in room}


def test_the_links_below_src_lead_to_the_rooms() -> None:
    links = {path.name: path for path in (ROOT / "src" / "streamlease").iterdir() if path.is_symlink()}
    assert {name: link.readlink() for name, link in links.items()} == {
        room: Path("..") / ".." / folder.relative_to(ROOT)
        for room, folder in ROOMS.items()
        if "." not in room
    }


def test_files_that_are_no_modules_are_packed_too() -> None:
    """A wheel without its Lua files would be found out by a user only."""
    for path in committed():
        homes = [(name, folder) for name, folder in FOLDERS.items() if path.is_relative_to(folder)]
        if path.suffix == ".py" or not homes:
            continue
        name, folder = max(homes, key=lambda home: len(home[1].parts))
        patterns = [*PACKAGE_DATA.get("*", []), *PACKAGE_DATA.get(name, [])]
        inside = path.relative_to(folder).as_posix()
        assert any(fnmatch(inside, p) and p.count("/") == inside.count("/") for p in patterns), (
            f"{path.relative_to(ROOT)} is in no pattern of tool.setuptools.package-data"
        )


@pytest.mark.parametrize("module", [name for name in MODULES if not name.endswith("__main__")])
def test_every_module_can_be_imported(module: str) -> None:
    assert importlib.import_module(module).__name__ == module
