"""The process that Spark starts for a stream source: its processor time until its first cut, without Java.

It is the program that Spark starts, on the same path, asked what Spark asks, in Spark's order; its group is
new, and it hosts the leader. PySpark comes from the zip file that Spark puts in front of its path, or from a
folder that was made of it (``streamlease.spark.setup.unpacking``). The processes take turns; the first of
each kind, which may have to compile this package, does not count. That Spark has each process forget the
lists of files on its path is in "the source".
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

import pyspark
from pyspark.serializers import CPickleSerializer
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.streaming import python_streaming_source_runner as runner

from bench.frame import Frame, Table
from bench.sparks import fill
from streamlease.spark.setup.unpacking import PACKED, default_zip, unpack
from streamlease.spark.source import StreamleaseSource

STREAMS = 16
SPACE = "bench"
MOST_MESSAGES = 1600
JAR = next(Path(pyspark.__file__).parent.glob("jars/spark-core_*.jar"))
"""Spark puts it onto the path of its Python processes as well."""


def measure(frame: Frame) -> Iterator[Table]:
    """Milliseconds of each part, and of the whole."""
    messages = min(frame.messages, MOST_MESSAGES)
    with frame.server() as url, TemporaryDirectory() as name:
        fill(url, SPACE, messages, STREAMS, messages // STREAMS or 1)
        kinds = {"zip file": Path(name, "packed"), "folder": Path(name, "unpacked")}
        for folder in kinds.values():
            folder.mkdir()
            for archive in default_zip().parent.glob("py*.zip"):
                _copy(archive, folder / archive.name)
        unpack(kinds["folder"] / "pyspark.zip")
        found: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds}
        for turn in range(frame.runs + 1):
            for kind, folder in kinds.items():
                parts = _first_cut(url, folder, f"$shared/{kind[:3]}-{turn}/{SPACE}/#")
                if turn:
                    found[kind].append(parts)
    table = Table(f"Processor ms of a source's process, medians of {frame.runs}", ("", *kinds))
    for row in found["folder"][0]:
        medians = (statistics.median(parts[row] for parts in found[kind]) for kind in kinds)
        table.rows.append((row, *(f"{median * 1000:.0f}" for median in medians)))
    yield table


def _copy(archive: Path, to: Path) -> None:
    """A copy of an archive, also of one of which a folder was made here."""
    packed = archive.with_name(archive.name + PACKED)
    shutil.copy(packed if packed.is_file() else archive, to)


@dataclass
class _Asked:
    """The process, asked as Spark asks it."""

    process: subprocess.Popen[bytes]
    line: IO[bytes]
    parts: dict[str, float] = field(default_factory=dict)
    used: float = 0.0

    def part(self, name: str) -> None:
        """What came since the last call of this was that part."""
        used = time.clock_gettime((~self.process.pid << 3) | 2)  # the processor time of that process
        self.parts[name], self.used = used - self.used, used

    def number(self) -> int:
        found: int = struct.unpack("!i", self.line.read(4))[0]
        return found

    def text(self) -> bytes:
        size = self.number()
        if size < 0:
            raise SystemExit(self.line.read(self.number()).decode())
        return self.line.read(size)

    def say(self, *words: int | bytes) -> None:
        for word in words:
            self.line.write(struct.pack("!i", word if isinstance(word, int) else len(word)))
            self.line.write(b"" if isinstance(word, int) else word)
        self.line.flush()


def _first_cut(url: str, folder: Path, subscribe: str) -> dict[str, float]:
    """Processor seconds of each part of one process."""
    options = {"redis": url, "subscribe": subscribe, "startingOffsets": "earliest", "slots": "2"}
    source = StreamleaseSource(CaseInsensitiveDict(options))
    archives = sorted(folder.glob("*.zip"), reverse=True)  # that of PySpark comes first
    path = [*map(str, [*archives, JAR]), *filter(None, [os.environ.get("PYTHONPATH")])]
    with socket.create_server(("127.0.0.1", 0)) as server:
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(path),
            "PYTHON_WORKER_FACTORY_PORT": str(server.getsockname()[1]),
            "PYTHON_WORKER_FACTORY_SECRET": secrets.token_hex(8),
        }
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        process = subprocess.Popen([sys.executable, "-m", runner.__name__], env=environment, cwd=folder)
        try:
            with server.accept()[0] as line, line.makefile("rwb") as file:
                asked = _Asked(process, file)  # type: ignore[arg-type]
                asked.text()
                asked.say(b"ok")
                asked.number()
                asked.part("Spark's imports")
                asked.say(b"%d.%d" % sys.version_info[:2], str(folder / "files").encode(), 0)
                schema = source.schema().json().encode()
                asked.say(CPickleSerializer().dumps(source), schema, 10_000)
                asked.number()
                asked.part("the source")
                asked.say(runner.GET_DEFAULT_READ_LIMIT_FUNC_ID)
                limit = asked.text()
                asked.say(runner.INITIAL_OFFSET_FUNC_ID)
                start = asked.text()
                asked.part("the query")
                calls, end = 0, start
                while end == start:
                    calls += 1
                    asked.say(runner.LATEST_OFFSET_ADMISSION_CONTROL_FUNC_ID, start, limit)
                    end = asked.text()
                asked.part("its leader, the first cut")
        finally:
            process.terminate()
            process.wait()
    whole = sum(asked.parts.values())
    return {**asked.parts, "all": whole, "calls of latestOffset": calls / 1000}
