"""The README's blocks, in their order and as printed, on a machine that has neither Redis nor Java.

One shell runs them all, in a copy of the checkout and with a home of its own; what stands behind a ``$`` is
run, and what is printed below it must come out. Two things are other than on a fresh machine: pip finds those
packages that the wheel requires, and no others, here already, and the two commands of the set-up, which
tests/demo and CI run, are only looked at.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Iterable, Iterator
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.house.plan import MODULES, PROJECT, committed
from tests.servers import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
NAMED = re.compile(r"# (\w+\.py)\n")
MARK = "-- next: "
MACHINE = ("redis", "valkey", "java", "jps", "keytool", "spark", "streamlease")
"""Programs whose names begin so are not there."""


def blocks() -> Iterator[tuple[str, str]]:
    """Kind and text of every block, from the installation on."""
    _, _, begin = README.partition("## Your own data")
    for found in BLOCK.finditer(begin):
        yield found[1], found[2]


def steps() -> Iterator[tuple[str, str | None]]:
    """What a reader does, as shell: each with what is printed about it, or None."""
    for kind, text in blocks():
        if kind == "python":
            name = NAMED.match(text)
            assert name is not None, f"which file is this? {text[:40]}"
            yield f"cat > {name[1]} <<'END OF FILE'\n{text}END OF FILE", None
        elif kind == "sh":
            yield text, None
        else:
            assert kind == "console", f"who runs {kind or 'this'}? {text[:40]}"
            for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
                command, _, printed = part.partition("\n")
                yield command, printed or None


def test_the_readme_has_steps() -> None:
    assert len([*steps()]) >= 10
    assert sum(printed is not None for _, printed in steps()) >= 4


def test_every_other_block_is_a_command_of_the_set_up_or_what_it_prints() -> None:
    before, _, _ = README.partition("## Your own data")
    given = [text for kind, text in BLOCK.findall(before) if not kind]
    assert [text for text in given if text.startswith("python3 run.py")] == [
        "python3 run.py demo\n",
        "python3 run.py test\n",
    ]
    assert len(given) == 3


def test_the_wheel_it_names_is_the_one_that_is_built() -> None:
    (name,) = re.findall(r"\./(streamlease-[\w.]+-py3-none-any\.whl)\[spark\]", README)
    assert name == f"streamlease-{PROJECT['project']['version']}-py3-none-any.whl"


def machine(folder: Path) -> Path:
    """The programs of this machine without those that a fresh one lacks."""
    programs = folder / "programs"
    programs.mkdir()
    for place in (Path("/bin"), Path("/usr/bin")):
        for program in place.iterdir():
            link = programs / program.name
            if not program.name.startswith((*MACHINE, "python")) and not link.is_symlink():
                link.symlink_to(program)
    (programs / "python3").symlink_to(Path(sys.base_prefix) / "bin" / "python3")
    return programs


def packages(folder: Path) -> Path:
    """What ``pip install streamlease[spark]`` brings of all that is installed here, and what builds."""
    found = folder / "packages"
    found.mkdir()
    within = Path(sysconfig.get_path("purelib"))
    metadata = PROJECT["project"]
    for one in closure(
        [*metadata["dependencies"], *metadata["optional-dependencies"]["spark"], "setuptools"]
    ):
        for name in {file.parts[0] for file in distribution(one).files or ()} - {"..", "__pycache__"}:
            if not (found / name).exists():
                (found / name).symlink_to(within / name)
    return found


def closure(requirements: Iterable[str]) -> set[str]:
    """The distributions that these requirements bring, and what those require."""
    left, seen, names = [(Requirement(one), "") for one in requirements], set[tuple[str, str]](), set[str]()
    while left:
        one, extra = left.pop()
        if one.marker is not None and not one.marker.evaluate({"extra": extra}):
            continue
        names.add(one.name)
        for further in {"", *one.extras}:
            if (one.name, further) not in seen:
                seen.add((one.name, further))
                left += [(Requirement(text), further) for text in distribution(one.name).requires or ()]
    return names


def checkout(folder: Path) -> Path:
    """A clone of what is here."""
    clone = folder / "checkout"
    listed = [*committed(), *(path for path in (ROOT / "src" / "streamlease").iterdir() if path.is_symlink())]
    with tarfile.open(folder / "clone.tar", "w") as archive:
        for path in listed:
            archive.add(path, path.relative_to(ROOT))
    with tarfile.open(folder / "clone.tar") as archive:
        archive.extractall(clone, filter="fully_trusted")
    return clone


@pytest.mark.spark
@pytest.mark.timeout(900)
def test_its_blocks_run_in_their_order_as_printed(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    script = "set -eu\n" + "".join(
        f"printf '%s%s %s\\n' {shlex.quote(MARK)} {number} \"$EPOCHREALTIME\"\n{command}\n"
        for number, (command, _) in enumerate(steps())
    )
    script += f"printf '%s%s %s\\n' {shlex.quote(MARK)} end \"$EPOCHREALTIME\"\n"
    environment = {
        "HOME": str(home),
        "PATH": str(machine(tmp_path)),
        "PYTHONPATH": str(packages(tmp_path)),
        "PIP_NO_INDEX": "1",
        "PIP_NO_BUILD_ISOLATION": "0",  # pip takes 0 for: do not isolate
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_COMPILE": "1",
        "TMPDIR": str(tmp_path),
        "LC_ALL": "C.UTF-8",
    }
    try:
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=checkout(tmp_path), env=environment, capture_output=True, text=True, timeout=800, check=False,
        )  # fmt: skip
    finally:
        stop = [str(home / "streams" / "bin" / "streamlease"), "redis", "stop"]
        if Path(stop[0]).exists():
            subprocess.run(stop, env=environment, capture_output=True, timeout=60, check=False)
    log = home / "streams" / "query.log"
    assert done.returncode == 0, (done.stdout, done.stderr, log.read_text() if log.exists() else "")
    parts = [part.split("\n", 1) for part in done.stdout.split(MARK)[1:]]
    said = {head.split()[0]: text for head, text in parts}
    for number, (command, printed) in enumerate(steps()):
        if printed is not None:
            assert said[str(number)] == printed, command
    began = [float(head.split()[1]) for head, _ in parts]
    for (command, _), start, end in zip(steps(), began, began[1:], strict=False):
        sys.stdout.write(f"{end - start:6.1f} s  {command.splitlines()[0]}\n")
    sys.stdout.write(f"{began[-1] - began[0]:6.1f} s  all of them, without a download\n")
    (wheel,) = (home / "streams").glob("*.whl")
    check_wheel(wheel)


def check_wheel(wheel: Path) -> None:
    """It has all modules, the mark of its types, and the examples with their files."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    missing = [name for name in MODULES if not {f"{name.replace('.', '/')}.py",
                                                f"{name.replace('.', '/')}/__init__.py"} & names]  # fmt: skip
    assert missing == []
    assert {"streamlease/py.typed", "streamlease/examples/data.py"} <= names
    assert "streamlease/examples/other_languages/gateway.mts" in names
