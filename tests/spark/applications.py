"""Spark applications that run `telling_program.py`, what they told and delivered, and a cluster for them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pyspark

from streamlease.spark.setup.java import ensure_java
from tests.spark.programs import HERE, PATIENCE, Program, command, descendants, environment, parent
from tests.spark.world import World

PATIENT = 30_000
"""How long (ms) leaders and sessions may be silent. Nobody is given up because a machine is busy."""

SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"


def options(world: World, group: str = "g", **more: Any) -> dict[str, str]:
    named = {
        "redis": world.url,
        "subscribe": f"$shared/{group}/t/#",
        "startingOffsets": "earliest",
        "sessionTimeoutMs": str(PATIENT),
    }
    return named | {name: str(value) for name, value in more.items()}


def once_each(world: World) -> Counter[tuple[str, int]]:
    return Counter((stream, offset) for stream in world.streams for offset in range(world.published[stream]))


def leases(world: World) -> dict[str, tuple[int, str | None, str | None]]:
    """Lease epoch, session and borrower of each stream: a rebalance would raise the first."""
    return {
        stream: (progress.lease_epoch, progress.session, progress.owner)
        for stream, progress in world.state().streams.items()
    }


class Application(Program):
    """An application of its own, in a folder of its own; its runs begin and end when told so."""

    def __init__(
        self,
        folder: Path,
        *runs: dict[str, str],
        master: str = "local[2,4]",
        conf: dict[str, str] | None = None,
    ) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.runs = 0
        self._files: dict[str, list[tuple[str, int]]] = {}
        given = {"master": master, "conf": conf or {}, "folder": str(folder), "runs": runs}
        super().__init__(HERE / "telling_program.py", folder, given)

    def start(self) -> None:
        """Let the next run begin."""
        (self.folder / f"start-{self.runs}").touch()

    def stop(self) -> None:
        """End the run in good order, and the application with its last run."""
        number = self.runs
        self.runs += 1
        (self.folder / f"stop-{number}").touch()
        self.wait_for(lambda: f'{{"stopped": {number}}}' in self.log.read_text())

    def workers(self) -> list[int]:
        """The Python workers that run tasks of the driver's own executor, or wait for some."""
        family = descendants(self.process.pid)
        daemons = [pid for pid in family if "pyspark.daemon" in command(pid)]
        return [pid for pid in family if parent(pid) in daemons]

    def told(self) -> list[dict[str, Any]]:
        """A line for each batch that a task handed on, in the order of time."""
        file = self.folder / "told"
        lines = file.read_text().splitlines(keepends=True) if file.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def progress(self) -> dict[str, Any]:
        """What ``StreamingQueryProgress`` shows of the source; nothing before its first."""
        file = self.folder / "progress"
        found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
        return found

    def delivered(self) -> list[list[tuple[str, int]]]:
        """Stream and offset of the rows in the sink, batch by batch, in the order of each file."""
        folder = self.folder / "out" / "_spark_metadata"
        logs = {int(path.name.partition(".")[0]): path for path in sorted(folder.glob("[0-9]*"))}
        found: dict[int, dict[str, None]] = {}
        for number, log in sorted(logs.items()):
            # A compacted log repeats what was before it.
            lines = [json.loads(line)["path"] for line in log.read_text().splitlines()[1:]]
            seen = {path for files in found.values() for path in files}
            found[number] = {path: None for path in lines if path not in seen}
        batches = []
        for files in found.values():
            batches.append([row for path in files for row in self._read(path.rpartition("/")[2])])
        return batches

    def _read(self, name: str) -> list[tuple[str, int]]:
        if name not in self._files:
            table = pq.ParquetFile(self.folder / "out" / name).read(["stream", "offset"])
            columns = (table.column(column).to_pylist() for column in ("stream", "offset"))
            self._files[name] = [*zip(*columns, strict=True)]
        return self._files[name]

    def rows(self) -> list[tuple[str, int]]:
        """All rows in the sink."""
        return [row for batch in self.delivered() for row in batch]

    def wait_for_rows(self, count: int) -> None:
        """Wait until so many rows, different or not, are in the sink."""
        self.wait_for(lambda: len(self.rows()) >= count)

    def held(self) -> int:
        """Wait for the task that stands in the middle of its read; the id of its Python worker."""
        self.wait_for(lambda: bool([*self.folder.glob("held-*")]))
        (file,) = self.folder.glob("held-*")
        file.unlink()
        return int(file.name.partition("-")[2])


def connections_to(port: int, pid: int) -> int:
    """How many connections to that port of this machine a process has."""
    sockets = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            sockets.add(str(link.readlink()))
    found = 0
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        found += words[2].endswith(f":{port:04X}") and f"socket:[{words[9]}]" in sockets
    return found


class Standalone:
    """A standalone cluster: a Master and two Workers with a core each, all on this machine.

    The Workers are two hosts by name, since Spark runs no two copies of a task on one host.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: list[subprocess.Popen[bytes]] = []
        self._environment = {
            **environment(None),
            "JAVA_HOME": str(ensure_java().home),
            "SPARK_HOME": str(SPARK_CLASS.parent.parent),
            "SPARK_DAEMON_MEMORY": "128m",
            "SPARK_NO_DAEMONIZE": "1",
        }
        try:
            said = self._start("master.Master", "master", "--host", "127.0.0.1", "--port", "0")
            self.url = self._wait_for(said, r"Starting Spark master at (spark://\S+)")
            for name, host in (("worker-1", "127.0.0.1"), ("worker-2", "localhost")):
                words = ("--cores", "1", "--memory", "512m", "--work-dir", str(folder / name), self.url)
                said = self._start("worker.Worker", name, "--host", host, "--port", "0", *words)
                self._wait_for(said, f"Successfully registered with master ({self.url})")
        except BaseException:
            self.stop()
            raise

    def _start(self, program: str, name: str, *words: str) -> Path:
        log = self._folder / f"{name}.txt"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [str(SPARK_CLASS), f"org.apache.spark.deploy.{program}", "--webui-port", "0", *words],
                env=self._environment,
                cwd=self._folder,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        self._started.append(process)
        return log

    def _wait_for(self, log: Path, said: str) -> str:
        deadline = time.monotonic() + PATIENCE
        while (found := re.search(said, log.read_text())) is None:
            assert self._started[-1].poll() is None, log.read_text()[-4000:]
            assert time.monotonic() < deadline, log.read_text()[-4000:]
            time.sleep(0.02)
        return found[1]

    def executors(self) -> list[int]:
        """The processes of the executors."""
        family = [pid for process in self._started for pid in descendants(process.pid)]
        return [pid for pid in family if "CoarseGrainedExecutorBackend" in command(pid)]

    def executor_of(self, worker: int) -> int:
        """The executor that a Python worker belongs to."""
        pid: int | None = worker
        executors = self.executors()
        while pid not in executors:
            assert pid is not None, f"process {worker} belongs to none of {executors}"
            pid = parent(pid)
        return pid

    def stop(self) -> None:
        """End it with all that it started."""
        family = [pid for process in self._started for pid in [process.pid, *descendants(process.pid)]]
        for pid in family:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for process in self._started:
            process.wait()
