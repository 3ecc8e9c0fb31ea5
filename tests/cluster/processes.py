"""Processes of a small cluster: hosts, consumers, and what they said."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.admin.command import SCRIPT, Command
from tests.forking import launcher

CONSUMER = Path(__file__).with_name("consumer.py")


def until(condition: Callable[[], Any], what: str, seconds: float = 60.0) -> Any:
    """What `condition` gives once that is true; the test fails after `seconds`.

    A look that runs a command is taken less often than one that reads a list.
    """
    deadline = time.monotonic() + seconds
    looked = time.monotonic()
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(min(0.02 + 2 * (time.monotonic() - looked), 0.5))
        looked = time.monotonic()
    return found


class Process:
    """One process of the cluster; its log is in a file, its output is kept."""

    def __init__(self, words: list[str], log: Path, environment: dict[str, str]) -> None:
        self.log = log
        with log.open("ab") as file:
            self.process = launcher().start(words, subprocess.PIPE, subprocess.PIPE, file, environment)
        self.events: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self.process.pid

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def answer(self) -> None:
        """Let a consumer that holds go on."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"\n")
        self.process.stdin.flush()

    def numbers(self, event: str) -> list[int]:
        """The numbers of all events of that name."""
        return [n for entry in list(self.events) if entry["event"] == event for n in entry["numbers"]]

    def said(self, event: str) -> list[dict[str, Any]]:
        return [entry for entry in list(self.events) if entry["event"] == event]

    def end(self) -> int:
        """Kill it if it still runs."""
        if self.process.poll() is None:
            self.process.kill()
        code = self.process.wait(20)
        self._reader.join(20)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    continue
        return code

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.events.append(json.loads(line))


class Cluster:
    """Makes processes on one Redis and ends them all."""

    def __init__(self, url: str, directory: Path) -> None:
        self.url = url
        self._directory = directory
        self._environment = {**os.environ, "STREAMLEASE_REDIS_URL": url, "PYTHONUNBUFFERED": "1"}
        self._command = Command(directory, url)
        self._all: list[Process] = []

    def _start(self, words: list[str]) -> Process:
        log = self._directory / f"{len(self._all)}.log"
        process = Process(words, log, self._environment)
        self._all.append(process)
        return process

    def host(self) -> Process:
        """A leader host that is ready."""
        name = f"host{len(self._all)}"
        process = self._start([str(SCRIPT), "serve", "--name", name, "--http-port", "0"])
        until(
            lambda: any(host["pid"] == process.pid for host in self.run("status")["hosts"]),
            f"{name} is registered: {process.log}",
        )
        return process

    def consumer(self, subscription: str, *words: str) -> Process:
        process = self._start([str(CONSUMER), self.url, subscription, *words])
        until(lambda: process.events, f"the consumer is ready: {process.log.read_text()}")
        return process

    def run(self, *words: str, text: bytes = b"") -> Any:
        """A command of ``streamlease``, its document."""
        done = self._command(*words, "--json", text=text)
        assert done.code == 0, done
        return done.document

    def publish(self, numbers: range, topics: int = 8) -> None:
        """Message n goes to topic ``a/(n mod topics)``."""
        rows = "".join(json.dumps({"n": n, "t": n % topics}) + "\n" for n in numbers)
        script = (
            "import asyncio,json,sys,streamlease\n"
            "async def main():\n"
            "    async with streamlease.connect() as c, c.publisher() as p:\n"
            "        for line in sys.stdin:\n"
            "            row = json.loads(line)\n"
            "            await p.submit(f\"a/{row['t']}\", str(row['n']))\n"
            "asyncio.run(main())\n"
        )
        subprocess.run(
            [sys.executable, "-c", script], input=rows.encode(), env=self._environment, check=True, timeout=60
        )

    def close(self) -> None:
        for process in self._all:
            process.end()
