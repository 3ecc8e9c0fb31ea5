"""Write ``requirements/*.txt``: every package that is installed, at one version, with its hashes.

Run it after a change of the dependencies in pyproject.toml: ``python3 scripts/pin.py``. Pins that still
fit are kept; ``--upgrade`` takes the newest of everything. It needs ``uv`` (``pip install uv``).

========== =============================================================================
build.txt  what building source packages needs; installed first, so builds are pinned too
base.txt   the project with Spark, the page, the gateway, traces and the demo's data
dev.txt    base.txt at the same versions, and all that format, lint, types and tests need
lowest.txt the project at the oldest versions that pyproject.toml takes, for a test of them
========== =============================================================================

A lock file of uv or a pylock.toml would name the package index that it was made from; these files do
not, so that they serve any mirror.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "requirements"
OLDEST_PYTHON = "3.11"
HEADER = "# Written by scripts/pin.py; do not edit.\n"
PIN = re.compile(r"[a-z0-9][a-z0-9._-]*==\S+( ; [^\\]+)? \\")
HASH = re.compile(r"    --hash=sha256:[0-9a-f]{64}( \\)?")


def uv_command() -> list[str]:
    found = shutil.which("uv")
    if found is not None:
        return [found]
    if importlib.util.find_spec("uv") is not None:
        return [sys.executable, "-m", "uv"]
    sys.exit("pin: uv is missing: run 'pip install uv' and try again")


def pin(name: str, wanted: str, options: list[str], *, upgrade: bool) -> None:
    """Resolve ``wanted`` (lines of requirements) for all supported Pythons into ``requirements/name``."""
    target = REQUIREMENTS / name
    with tempfile.TemporaryDirectory() as scratch:
        output = Path(scratch) / name
        if target.exists():
            output.write_text(target.read_text())  # uv keeps the pins that it finds there
        command = [
            *uv_command(),
            *("pip", "compile", "-", "--universal", "--generate-hashes", "--no-header", "--no-annotate"),
            *("--python-version", OLDEST_PYTHON, "--no-emit-package", "streamlease"),
            *("--quiet", "--output-file", str(output)),
            *(["--upgrade"] if upgrade else []),
            *options,
        ]
        result = subprocess.run(command, input=wanted, text=True, cwd=ROOT, check=False)
        if result.returncode != 0:
            sys.exit(f"pin: uv could not resolve {name}; it says why above")
        lines = output.read_text().splitlines()
    for line in lines:
        if not (PIN.fullmatch(line) or HASH.fullmatch(line) or line.startswith("#")):
            sys.exit(f"pin: {name} would hold a line that is neither a pin nor a hash: {line.strip()}")
    pins = [line for line in lines if not line.startswith("#")]
    target.write_text(HEADER + "\n".join(pins) + "\n")
    print(f"pin: wrote requirements/{name}: {sum('==' in line for line in pins)} packages")  # noqa: T201


def main() -> None:
    parser = argparse.ArgumentParser(description="Write requirements/*.txt from pyproject.toml.")
    parser.add_argument(
        "--upgrade", action="store_true", help="take the newest versions, not the pinned ones"
    )
    upgrade = parser.parse_args().upgrade
    REQUIREMENTS.mkdir(exist_ok=True)
    project = ".[demo,ui,gateway,otel,mqtt,http,archive,testing]\n"
    groups = ["--group", "pyproject.toml:dev", "--group", "pyproject.toml:helm"]
    pin("dev.txt", project, groups, upgrade=upgrade)
    same = ["--constraint", "requirements/dev.txt"]
    pin("base.txt", project, same, upgrade=upgrade)
    pin("build.txt", "setuptools>=80\n", same, upgrade=upgrade)
    pin("lowest.txt", project, ["--resolution", "lowest-direct"], upgrade=True)  # a kept pin may be too new


if __name__ == "__main__":
    main()
