"""Nothing that is committed depends on where it was written."""

from __future__ import annotations

import re

import pytest

from tests.house.plan import ROOT, committed

# Written in two halves, so that this file does not name them itself.
PACKAGE_HOSTS = [
    first + second
    for first, second in [
        ("pypi", ".org"), ("python", "hosted"), ("pypi", ".python"), ("test.", "pypi"), ("deb.", "debian"),
        ("security.", "debian"), ("archive.", "ubuntu"), ("registry.", "npmjs"), ("npmjs", ".com"),
        ("anaconda", ".org"), ("repo.", "maven"), ("repo1.", "maven"), ("crates", ".io"),
        ("proxy.", "golang"), ("--index", "-url"), ("--extra", "-index"), ("--find", "-links"),
        ("PIP_", "INDEX"), ("PIP_", "EXTRA"), ("PIP_", "FIND"), ("UV_", "INDEX"), ("UV_DEFAULT", "_INDEX"),
    ]
]  # fmt: skip
HOST = re.compile("|".join(map(re.escape, PACKAGE_HOSTS)), re.IGNORECASE)
HOMES = "|".join(["wo" + "rk", "ro" + "ot", "Us" + "ers", "op" + "t/(?!streamlease|spark)"])
DEVELOPMENT_PATH = re.compile(r"(?<![\w.})*/-])/(?:" + HOMES + r")\b")


def test_no_committed_file_names_a_package_host_or_a_development_path() -> None:
    found = []
    for path in committed():
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            for kind, pattern in (("host", HOST), ("path", DEVELOPMENT_PATH)):
                hit = pattern.search(line)
                if hit is not None:
                    found.append(f"{path.relative_to(ROOT)}:{number}: {kind} {hit.group()}")
    assert found == []


@pytest.mark.parametrize(
    ("line", "is_path"),
    [
        ("cd /wo" "rk/main", True),
        ('"/ro' 'ot/.cache"', True),
        ("PATH=/op" "t/wheels", True),
        ("/op" "t/streamlease/bin", False),
        ("docs/work/notes.md and src/root/x", False),
        ("the work/life balance", False),
    ],
)  # fmt: skip
def test_development_paths_are_recognised(line: str, is_path: bool) -> None:
    assert bool(DEVELOPMENT_PATH.search(line)) is is_path
