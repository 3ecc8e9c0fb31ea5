"""A forked process is what a started one would be: words, environment, folder, streams, signals, status."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.forking import Forked, Launcher, launcher

HERE = {"PATH": os.defpath, "GREETING": "good day"}
WAITS = "import sys\nprint('waits', flush=True)\nsys.stdin.read()\n"


def forked(folder: Path, program: str, *words: str, by: Launcher | None = None) -> Forked:
    """A process that runs `program`, its standard error in ``stderr``."""
    script = folder / "program.py"
    script.write_text(program)
    with (folder / "stderr").open("wb") as log:
        return (by or launcher()).start([str(script), *words], subprocess.PIPE, subprocess.PIPE, log, HERE)


@pytest.mark.parametrize(
    ("program", "code", "said"),
    [
        ("", 0, ""),
        ("import sys; sys.exit()", 0, ""),
        ("import sys; sys.exit(3)", 3, ""),
        ("import sys; sys.exit(300)", 44, ""),
        ("import sys; sys.exit('no')", 1, "no\n"),
        ("1 / 0", 1, "ZeroDivisionError: division by zero\n"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM); signal.pause()", -15, ""),
        ("raise KeyboardInterrupt", -2, "KeyboardInterrupt\n"),
        ("import atexit, sys; atexit.register(print, 'left', file=sys.stderr); sys.exit(1)", 1, "left\n"),
    ],
)
def test_it_ends_as_python_does(tmp_path: Path, program: str, code: int, said: str) -> None:
    process = forked(tmp_path, program)
    assert (process.communicate(30), process.returncode) == ((b"", None), code)
    assert (tmp_path / "stderr").read_text().endswith(said)
    started = subprocess.run(["python", tmp_path / "program.py"], capture_output=True, check=False)
    assert started.returncode == code


def test_it_has_words_environment_and_folder_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    process = forked(
        tmp_path,
        "import os, sys\nprint(sys.argv[1:], sys.orig_argv[2:], dict(os.environ), os.getcwd())",
        "a",
        "\udcff",
    )
    words = ["a", "\udcff"]
    assert process.communicate(30)[0].decode() == f"{words} {words} {HERE} {tmp_path}\n"


def test_its_streams_are_pipes_and_it_hears_signals(tmp_path: Path) -> None:
    first, second = (forked(tmp_path, WAITS) for _ in range(2))
    for process in (first, second):
        assert process.stdout is not None and process.stdout.readline() == b"waits\n"
        assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        first.communicate(0)
    second.send_signal(signal.SIGSTOP)
    second.kill()
    assert second.wait(30) == -signal.SIGKILL
    assert first.poll() is None, "the end of one is not the end of another"
    assert first.stdin is not None
    first.stdin.close()
    assert (first.communicate(30), first.returncode, first.poll()) == ((b"", None), 0, 0)
    second.communicate(30)


@pytest.mark.slow
def test_all_end_with_the_process_that_forks(tmp_path: Path) -> None:
    one = Launcher()
    process = forked(tmp_path, WAITS, by=one)
    assert process.stdout is not None and process.stdout.readline() == b"waits\n"
    one.close()
    assert process.stdout.read() == b""
    process.stdout.close()
    assert process.stdin is not None
    process.stdin.close()
    with pytest.raises(RuntimeError, match=r"the process that forks ended, and so did .*program\.py"):
        process.wait(30)
