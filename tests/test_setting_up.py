"""The first command on a new machine: old Pythons, no network, an interruption, and how far it is."""

from __future__ import annotations

import ast
import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest

from tests.servers import ROOT

RUN = ROOT / "run.py"


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module that installs packages, with notes and log of its own."""
    from scripts.setting_up import packages, progress

    (tmp_path / ".venv").mkdir()
    monkeypatch.setattr(packages, "NOTES", tmp_path / ".venv" / "unfinished")
    monkeypatch.setattr(packages, "CACHE", tmp_path)
    monkeypatch.setattr(progress, "LOG", tmp_path / "setup.log")
    monkeypatch.setattr(progress, "ROOT", tmp_path)
    return packages


def old_pythons() -> Iterator[str]:
    """Those of this machine that are too old, on PATH or beside the Python that runs this."""
    names = ("python2", "python2.7", "python3.6", "python3.8", "python3.10")
    places = [*Path(sys.base_prefix).parent.glob("*/bin")]
    for found in [shutil.which(name) for name in names] + [str(one / "python") for one in places]:
        if found is None or not Path(found).exists():
            continue
        told = "import sys; print(sys.version_info[:2] < (3, 11))"
        asked = subprocess.run([found, "-c", told], capture_output=True, check=False)
        if asked.stdout.strip() == b"True":
            yield found


def test_an_old_python_is_told_in_one_line() -> None:
    for python in old_pythons():
        done = subprocess.run([python, str(RUN), "demo"], capture_output=True, text=True, check=False)
        (line,) = done.stderr.splitlines()
        assert done.returncode == 1
        assert line.startswith("run.py: this is Python "), (python, line)


def test_run_py_is_a_program_for_any_python() -> None:
    """All that stands in it is in the grammars of Python 2.7 and 3.6, also where none of these is at hand."""
    text = RUN.read_bytes()
    tree = ast.parse(text, feature_version=(3, 6))
    assert foreign_to_old_pythons(tree) == []
    assert text.isascii(), "2.7 takes other characters only where the file says how they are encoded"
    numbers = [
        one.string for one in tokenize.tokenize(io.BytesIO(text).readline) if one.type == tokenize.NUMBER
    ]
    assert all(number.isdecimal() for number in numbers)


OF_ALL_PYTHONS = (
    ast.Module | ast.FunctionDef | ast.arguments | ast.arg | ast.Return | ast.Assign | ast.For | ast.While
    | ast.If | ast.With | ast.withitem | ast.Try | ast.ExceptHandler | ast.Raise | ast.Import | ast.ImportFrom
    | ast.alias | ast.Expr | ast.Pass | ast.BoolOp | ast.And | ast.Or | ast.BinOp | ast.operator | ast.UnaryOp
    | ast.unaryop | ast.Compare | ast.cmpop | ast.Call | ast.keyword | ast.Constant | ast.Attribute
    | ast.Subscript | ast.Slice | ast.Name | ast.Load | ast.Store | ast.List | ast.Tuple | ast.Dict
    | ast.ListComp | ast.GeneratorExp | ast.comprehension
)  # fmt: skip
"""Nodes that Python 2.7 has, too, as far as `foreign_to_old_pythons` lets them pass. What is not named here,
such as a string with fields, a walrus, ``async``, ``nonlocal`` or ``match``, is new."""


def foreign_to_old_pythons(tree: ast.AST) -> list[str]:
    """What is not in the grammar of Python 2.7, or means something else there."""
    found = []
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(returns=returns, args=args):
                new = args.kwonlyargs or args.posonlyargs or any(one.annotation for one in args.args)
                wrong = bool(returns or new)
            case ast.Raise(cause=cause):
                wrong = cause is not None
            case ast.ImportFrom(module=module):
                wrong = module == "__future__"
            case ast.Call(func=ast.Name(id="print" | "super")):
                wrong = True
            case ast.Dict(keys=keys):
                wrong = None in keys
            case ast.Constant(value=value):
                wrong = isinstance(value, bytes | complex) or value is ...
            case ast.MatMult() | ast.Div():  # 2.7 divides integers without a rest
                wrong = True
            case _:
                wrong = not isinstance(node, OF_ALL_PYTHONS)
        if wrong:
            found.append(f"line {getattr(node, 'lineno', 0)}: {type(node).__name__}")
    return found


@pytest.mark.parametrize(
    "new",
    [
        "f'{1}'", "x: int = 1", "(y := 1)", "print('x')", "def f(*, a): pass", "def f(a: int): pass",
        "def f() -> int: pass", "[*a]", "f(*a, *b)", "a = b''", "a @ b", "a / b", "raise a from b",
        "from __future__ import annotations", "async def f(): pass", "x = ...", "{1: 2, **a}", "{1, 2}",
        "match a:\n case 1: pass", "try: pass\nexcept* A: pass",
    ],
)  # fmt: skip
def test_what_old_pythons_cannot_read_is_found(new: str) -> None:
    assert foreign_to_old_pythons(ast.parse(new))


@pytest.mark.parametrize(
    ("there", "said"),
    [
        ({"python3.12", "uv"}, "run 'python3.12 run.py demo', which is here"),
        ({"uv"}, "run 'uv run --no-project --python 3.13 run.py demo', which brings one"),
        (set(), "install one of these, and run such as 'python3.13 run.py demo'"),
    ],
)
def test_it_says_which_python_will_do(there: set[str], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import run

    monkeypatch.setattr(run, "runs", there.__contains__)
    monkeypatch.setattr(sys, "argv", ["run.py", "demo"])
    for version in ((2, 7), (3, 6), (3, 10), (3, 14)):
        assert run.refusal(version, False).endswith(said)
    assert [run.refusal((3, minor), False) for minor in (11, 12, 13)] == ["", "", ""]
    assert "WSL" in run.refusal((3, 12), True)


def test_an_interrupted_installation_goes_on_with_the_portion_that_was_under_way(
    packages: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[list[str], bool]] = []
    left = 3

    def install(command: list[Any], **_: object) -> None:
        nonlocal left
        names = [one.partition("==")[0] for one in packages.requirements_of(Path(command[-1]).read_text())]
        asked.append((names, "--ignore-installed" in command))
        left -= 1
        if left == 0:
            raise KeyboardInterrupt

    monkeypatch.setattr(packages, "watched", install)
    packages.note({"fresh": True, "done": []})
    with pytest.raises(KeyboardInterrupt):
        packages.install_with_pip("base")
    assert len(packages.notes()["done"]) == 2
    packages.install_with_pip("base")
    wanted = [
        [pin.partition("==")[0] for pin in some]
        for name in ("build", "base")
        for some in packages.portions(packages.requirements(name))
    ]
    assert [names for names, _ in asked] == [*wanted[:3], *wanted[2:]]
    assert [again for _, again in asked] == [False, False, False, True, *[False] * (len(wanted) - 3)]
    flat = [name for some in wanted for name in some]
    assert len(flat) == len(set(flat)) + 1  # setuptools is in both
    assert ["pyspark"] in wanted


def test_an_interrupted_update_begins_anew(packages: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def install(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(packages, "watched", install)
    with pytest.raises(KeyboardInterrupt):
        packages.install_with_pip("base")
    assert packages.notes() is None
    assert packages.venv_is_usable() is False


@pytest.mark.parametrize("content", ["", "{", "[]", '{"fresh": true}', "null"])
def test_notes_that_make_no_sense_begin_anew(packages: ModuleType, content: str) -> None:
    packages.NOTES.write_text(content)
    assert packages.notes() is None
    assert packages.venv_is_usable() is False


def test_uv_installs_what_is_pinned_and_pip_has_nothing_to_do(
    packages: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    uv, told = tmp_path / "uv", tmp_path / "told"
    uv.write_text(f'#!/bin/sh\necho "$@" >> {told}\n')
    uv.chmod(0o755)
    assert packages.install_with_uv(str(uv), "base") is True
    python = packages.PYTHON
    assert told.read_text().splitlines() == [
        f"pip install --python {python} --require-hashes --no-build-isolation -r requirements/{name}.txt"
        for name in ("build", "base")
    ]
    assert packages.notes() is None, "an interrupted update begins anew"


def test_where_uv_fails_pip_tries(
    packages: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    packages.note({"fresh": True, "done": []})
    assert packages.install_with_uv("/bin/false", "base") is False
    assert json.loads(packages.NOTES.read_text()) == {"fresh": True, "done": []}
    assert "trying pip" in capsys.readouterr().err


OFFLINE = """
WARNING: Retrying (Retry(total=4)) after connection broken by 'NewConnectionError("Failed to establish")'
ERROR: Could not find a version that satisfies the requirement setuptools==83.0.0 (from versions: none)
ERROR: No matching distribution found for setuptools==83.0.0
"""


@pytest.mark.parametrize(
    ("printed", "said"),
    [
        (OFFLINE, "the package index cannot be reached"),
        (OFFLINE.replace("NewConnectionError", "SSLError('CERTIFICATE_VERIFY_FAILED')"), "SSL_CERT_FILE"),
        ("ERROR: No space left on device\nmore", "ERROR: No space left on device"),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES\n", "ERROR: THESE PACKAGES"),
        ("", "it ended with status 3"),
    ],
)
def test_what_went_wrong_is_one_line(
    packages: ModuleType, printed: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from scripts.setting_up.progress import watched
    from scripts.setting_up.steps import SetupError

    program = f"import sys; print({printed!r}); sys.exit(3)"
    with pytest.raises(SetupError, match=said) as caught:
        watched([sys.executable, "-c", program], failed="cannot install the packages")
    assert "\n" not in str(caught.value)
    assert ("does not answer; trying again" in capsys.readouterr().err) is ("Retrying" in printed)


def test_how_far_pip_is(tmp_path: Path) -> None:
    from scripts.setting_up.progress import PipProgress

    progress = PipProgress(40)
    progress.downloads = tmp_path
    progress.skip(12)
    told = []
    (tmp_path / "pip-unpack-1").mkdir()
    (tmp_path / "pip-unpack-1" / "pyspark-4.3.0.tar.gz").write_bytes(b"x" * 3_000_000)
    for line in (
        "Ignoring colorama: markers 'sys_platform == \"win32\"' don't match your environment",
        "Collecting pyspark==4.3.0 (from -r requirements)",
        "  Downloading pyspark-4.3.0.tar.gz (456.1 MB)",
        "  Building wheel for pyspark (pyproject.toml): started",
        "Installing collected packages: pyspark",
    ):
        progress.hear(line)
        told.append(progress.text())
    progress.skip(0)
    assert told == [
        "package 13 of 40",
        "package 14 of 40: pyspark",
        "package 14 of 40: downloading pyspark-4.3.0.tar.gz, 3 of 456 MB",
        "package 14 of 40: building pyspark",
        "package 14 of 40: writing files",
    ]
    assert progress.text() == "package 14 of 40"


def test_the_first_command_without_a_network_and_with_ctrl_c(tmp_path: Path) -> None:
    """By a real pip: an index that refuses connections, and then one that takes them and says nothing."""
    for name in ("run.py", "pyproject.toml", "requirements", "scripts"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / name)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        environment = {
            "HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "PIP_RETRIES": "1", "PIP_NO_CACHE_DIR": "1",
        }  # fmt: skip
        command = [str(Path(sys.base_prefix) / "bin" / "python3"), "run.py", "setup"]

        def begun(index: str) -> subprocess.Popen[str]:
            settings = tmp_path / "pip.conf"
            settings.write_text(f"[global]\nindex-url = {index}\n")
            return subprocess.Popen(
                command, cwd=tmp_path, env=environment | {"PIP_CONFIG_FILE": str(settings)},
                start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )  # fmt: skip

        refused = begun("http://127.0.0.1:9/simple")
        said, _ = refused.communicate(timeout=200)
        assert refused.returncode == 1, said
        assert "the package index cannot be reached" in said.splitlines()[-1]
        assert "Traceback" not in said

        waits = begun(f"http://127.0.0.1:{port}/simple")
        silent.settimeout(200)
        asked, _ = silent.accept()
        with asked:
            os.killpg(waits.pid, signal.SIGINT)
            said, _ = waits.communicate(timeout=100)
        assert waits.returncode == 130, said
        assert said.splitlines()[-1] == "run.py: interrupted; the same command goes on where it stopped"
        assert "Traceback" not in said
        kept = json.loads((tmp_path / ".venv" / "unfinished").read_text())
        assert (kept["fresh"], kept["done"], len(kept["under_way"])) == (True, [], 1)
        psutil.wait_procs(of_group(waits.pid), timeout=60)
        assert of_group(waits.pid) == [], "pip goes on"


def of_group(group: int) -> list[psutil.Process]:
    """The processes of a group that still run."""
    found = []
    for process in psutil.process_iter():
        with suppress(ProcessLookupError, psutil.NoSuchProcess):
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found
