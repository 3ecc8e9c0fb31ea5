"""Spark programs of a test's own: run to their end, or killed with all that they started."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.spark.classes import java_options

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PATIENCE = 400.0
"""How long (s) a Spark program may take to do something, on a busy machine."""


def environment(path: str | None) -> dict[str, str]:
    """Environment of a program of these tests, with `path` as PYTHONPATH."""
    paths = [str(ROOT / "src"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **os.environ,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "JAVA_TOOL_OPTIONS": java_options(),
        "PYTHONPATH": os.pathsep.join(paths) if path is None else path,
    }


def path_without_java(folder: Path) -> str:
    """A PATH, made in `folder`, with all programs of this machine except Java's."""
    folder.mkdir()
    for directory in map(Path, ("/usr/local/bin", "/usr/bin", "/bin")):
        for program in directory.iterdir() if directory.is_dir() else ():
            link = folder / program.name
            if not program.name.startswith("java") and not link.is_symlink():
                link.symlink_to(program)
    return str(folder)


def run_program(
    script: Path, folder: Path, arguments: dict[str, Any], seconds: float = 300, path: str | None = None
) -> list[Any]:
    """Run a program to its end; the lines of JSON that it printed."""
    ran = subprocess.run(
        [sys.executable, str(script), json.dumps(arguments)],
        env=environment(path),
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds,
    )
    assert ran.returncode == 0, ran.stderr[-6000:]
    return [json.loads(line) for line in ran.stdout.splitlines() if line.startswith(("{", "[", '"', "null"))]


class Program:
    """A program that runs until it is killed."""

    stdin = subprocess.DEVNULL

    def __init__(self, script: Path, folder: Path, arguments: dict[str, Any]) -> None:
        self.log = folder / f"{script.stem}-{len(list(folder.glob('*.log')))}.log"
        with self.log.open("w") as out:
            self.process = subprocess.Popen(
                [sys.executable, str(script), json.dumps(arguments)],
                env=environment(None),
                cwd=folder,
                stdin=self.stdin,
                stdout=out,
                stderr=subprocess.STDOUT,
                text=True,
            )

    def wait_for(self, condition: Callable[[], bool], seconds: float = PATIENCE) -> None:
        """Wait until the condition holds, while the program runs.

        What takes long to look at, such as all processes or the whole sink, is looked at less often.
        """
        deadline = time.monotonic() + seconds
        looked = time.monotonic()
        while not condition():
            code = self.process.poll()
            assert code is None, f"the program ended with {code}: {self.log.read_text()[-4000:]}"
            assert time.monotonic() < deadline, f"not within {seconds} s: {self.log.read_text()[-4000:]}"
            time.sleep(min(0.02 + 4 * (time.monotonic() - looked), 0.5))
            looked = time.monotonic()

    def kill(self) -> None:
        """SIGKILL for the driver, its Java and all Python workers, none of which may notice it first."""
        self.signal(signal.SIGSTOP)
        self.signal(signal.SIGKILL)
        self.process.wait()

    def signal(self, how: signal.Signals) -> None:
        """Send a signal to the driver, its Java and all Python workers."""
        for pid in (self.process.pid, *descendants(self.process.pid)):
            with suppress(ProcessLookupError):
                os.kill(pid, how)


class Interactive(Program):
    """A Spark application that runs ``fault_program.py`` and does what it is asked."""

    stdin = subprocess.PIPE

    def __init__(self, folder: Path, cores: int = 6) -> None:
        super().__init__(HERE / "fault_program.py", folder, {"cores": cores})
        self._seen = 0
        """Where in the log the answers begin that were not read yet."""

    @property
    def is_running(self) -> bool:
        """Whether it can be asked."""
        return self.process.poll() is None

    def ask(self, do: str, **more: Any) -> Any:
        """Have something done; the answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, **more}) + "\n")
        self.process.stdin.flush()
        told: list[str] = []

        def is_told() -> bool:
            with self.log.open() as file:
                file.seek(self._seen)
                told[:] = re.findall(r'\{"answer".*\n', file.read())
            return bool(told)

        self.wait_for(is_told)
        self._seen = self.log.stat().st_size
        return json.loads(told[-1])["answer"]

    def kill(self) -> None:
        """As every program; nothing can be asked any more."""
        super().kill()
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.close()

    def sources(self) -> list[int]:
        """The Python processes of the queries' readers, beside the driver."""
        return [p for p in descendants(self.process.pid) if "python_streaming_source_runner" in command(p)]


def command(pid: int) -> str:
    """What a process runs; nothing if it is gone."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    return ""


def parent(pid: int) -> int | None:
    """The parent of a process; None if it is gone."""
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return None


def descendants(pid: int) -> list[int]:
    """All living descendants of a process."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            above = parent(int(entry.name))
            if above is not None:
                parents.setdefault(above, []).append(int(entry.name))
    found = [pid]
    for one in found:
        found += parents.get(one, [])
    return found[1:]
