"""``python scripts/rooms.py BEFORE [AFTER]``: what each room weighs at two commits, as a table in Markdown.

It counts the Python and Lua files of the product and their lines. A room is a folder of the root; its fullest
folder and its longest module show how much there is to take in at one look.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import PurePosixPath
from typing import NamedTuple

ROOMS = (
    "protocol",
    "streams",
    "registry",
    "leader",
    "borrower",
    "catalog",
    "queries",
    "hosts",
    "executor",
    "agent",
    "http_client",
    "services",
    "channels",
    "gateway",
    "testing",
    "spark",
    "admin",
    "examples",
)


class Weight(NamedTuple):
    """Of one room at one commit."""

    files: int
    lines: int
    fullest: int
    """How many modules its fullest folder holds."""
    longest: int
    """Lines of its longest module."""


def git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], capture_output=True, text=True, check=True).stdout


def weights(commit: str) -> dict[str, Weight]:
    """The weight of every room, and under ``all`` that of the house."""
    found: dict[str, list[tuple[PurePosixPath, int]]] = {"all": []}
    for line in git("grep", "-c", "", commit, "--", *(f"{room}/" for room in ROOMS)).splitlines():
        _, name, count = line.split(":")
        path = PurePosixPath(name)
        if path.suffix in {".py", ".lua"}:
            for room in (path.parts[0], "all"):
                found.setdefault(room, []).append((path, int(count)))
    return {room: _weight(files) for room, files in found.items()}


def _weight(files: list[tuple[PurePosixPath, int]]) -> Weight:
    modules = [(path, lines) for path, lines in files if path.suffix == ".py" and path.stem != "__init__"]
    folders = Counter(path.parent for path, _ in modules)
    return Weight(
        len(files),
        sum(lines for _, lines in files),
        max(folders.values()),
        max(lines for _, lines in modules),
    )


def main() -> None:
    """Print the table."""
    if len(sys.argv) not in {2, 3}:
        sys.exit("usage: python scripts/rooms.py BEFORE [AFTER]")
    before, after = weights(sys.argv[1]), weights(sys.argv[2] if len(sys.argv) == 3 else "HEAD")
    table = ["| room | files | lines | modules in its fullest folder | lines of its longest module |"]
    table.append("|---|---|---|---|---|")
    nothing = Weight(0, 0, 0, 0)
    for room in (*ROOMS, "all"):
        pairs = zip(before.get(room, nothing), after.get(room, nothing), strict=True)
        table.append(f"| {room} | " + " | ".join(f"{old:,} -> {new:,}" for old, new in pairs) + " |")
    sys.stdout.write("\n".join(table) + "\n")


if __name__ == "__main__":
    main()
