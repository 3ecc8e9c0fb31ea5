"""Executors as processes of their own, and programs that are submitted to them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

from tests.admin.command import Command, Outcome, until

KEY = "a key of tests, 0123456789"
EXECUTOR_SECONDS = 60.0
LEASE = "15s"
"""Of the command; what is about dead executors takes less."""


class Executors:
    """Starts executors on one Redis, and submits to them; all end with the test."""

    def __init__(self, command: Command, folder: Path) -> None:
        assert command.url is not None
        self.command = command
        self.folder = folder
        self.command.environment["STREAMLEASE_SUBMIT_KEY"] = KEY
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, *names: str, lease: str = LEASE, more: tuple[str, ...] = (), **environment: str) -> None:
        """Start executors, and wait until they are there."""
        for place, name in enumerate(names):
            first = first_port(len(self.processes) + place)
            words = [
                sys.executable, "-m", "streamlease.admin", "executor", "--name", name, "--lease", lease,
                "--ports", f"{first}-{first + 9}", "--address", "127.0.0.1", *more,
            ]  # fmt: skip
            env = self.command.environment | environment
            with self.log(name).open("ab") as log:
                self.processes[name] = subprocess.Popen(
                    words, stdin=subprocess.DEVNULL, stderr=log, env=env, cwd=self.folder
                )
        for name in names:
            until(lambda name=name: name in self.names() or self.processes[name].poll() is not None)
            assert self.processes[name].poll() is None, self.log(name).read_text()

    def log(self, name: str) -> Path:
        """What an executor says."""
        return self.folder / f"executor-{name}.log"

    def names(self) -> list[str]:
        """The executors in the catalog."""
        return sorted(one["executor"] for one in self.items("executors"))

    def items(self, collection: str) -> list[Any]:
        items: list[Any] = self.command.ok("catalog", collection, "--json").document["items"]
        return items

    def program(self, text: str, name: str = "job.py") -> str:
        """A program's file."""
        file = self.folder / name
        file.write_text(text)
        return str(file)

    def submit(self, *words: str) -> str:
        """Submit; the query's id."""
        query: str = self.command.ok("submit", "--json", *words).document["query"]
        return query

    def show(self, query: str) -> Any:
        return self.command.ok("query", "show", query, "--json").document

    def state(self, query: str) -> str:
        state: str = self.show(query)["state"]
        return state

    def until(self, query: str, *states: str) -> Any:
        """The query once it is in one of the states."""
        until(lambda: self.state(query) in states)
        return self.show(query)

    def output(self, query: str, worker: int = 0) -> str:
        """What a worker has written."""
        found = self.command.ok("query", "logs", query, "--json").documents
        return "".join(one["text"] for one in found if one["worker"] == worker)

    def refused(self, *words: str) -> Outcome:
        """A call that fails with one line."""
        outcome = self.command(*words)
        assert outcome.code in (1, 2), outcome
        assert outcome.err.startswith("error: ") and outcome.err.count("\n") == 1, outcome
        return outcome

    def tree(self, name: str) -> list[psutil.Process]:
        """An executor and all that it has started."""
        process = psutil.Process(self.processes[name].pid)
        return [process, *process.children(recursive=True)]

    def stop(self) -> None:
        """End all of it."""
        for name, process in self.processes.items():
            found = []
            with contextlib.suppress(psutil.NoSuchProcess):
                found = self.tree(name)
            for one in found:
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.send_signal(signal.SIGCONT)
            if process.poll() is None:
                process.terminate()
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            _, left = psutil.wait_procs(found, 10)
            for one in left:
                one.kill()


def first_port(number: int) -> int:
    """Ports that other tests, and workers of this run, do not use."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    return 21000 + 1000 * worker + 10 * number


def lines_of_file(file: Path) -> list[Any]:
    """JSON lines that programs have written so far."""
    with contextlib.suppress(FileNotFoundError):
        return [json.loads(line) for line in file.read_text().splitlines()]
    return []


def holds_for(condition: Callable[[], Any], seconds: float) -> None:
    """The condition must hold all the time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert condition()
        time.sleep(0.05)


def alive(pid: int) -> bool:
    """Whether a process runs."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def running(command: Command, folder: Path) -> Iterator[Executors]:
    """Executors for a test."""
    executors = Executors(command, folder)
    try:
        yield executors
    finally:
        executors.stop()
