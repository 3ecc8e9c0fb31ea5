"""The libraries of the console are those that their table names, each with its licence."""

from __future__ import annotations

import hashlib
import re

from streamlease.admin.ui.app import STATIC

VENDOR = STATIC / "vendor"


def test_each_file_has_the_hash_and_the_licence_that_are_noted() -> None:
    lines = re.findall(r"^\| `([^`]+)` \|.*\| `([0-9a-f]{64})` \|", (VENDOR / "README.md").read_text(), re.M)
    noted = dict(lines)
    there = {file.name for file in VENDOR.iterdir() if file.suffix not in (".md", ".LICENSE")}
    assert noted.keys() == there
    for name, digest in noted.items():
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == digest, name
    for name in ("preact", "htm", "uPlot"):
        assert "copyright" in (VENDOR / f"{name}.LICENSE").read_text().lower()


def test_what_the_page_imports_is_there_and_nothing_comes_from_elsewhere() -> None:
    page = (STATIC / "index.html").read_text()
    names = re.findall(r'"(/static/[^"]+)"', page)
    for script in STATIC.glob("*.js"):
        text = script.read_text()
        names += [f"/static/{name}" for name in re.findall(r'(?:from|import\()\s*"\./([^"]+)"', text)]
        names += re.findall(r'"(/static/[^"]+)"', text)
        assert not re.search(r'["\']https?://', text), script.name
    assert len(names) > 20
    for name in names:
        assert (STATIC / name.removeprefix("/static/")).is_file(), name
