"""Queries of an `Interactive` program: each with options, a checkpoint, a table and a gate of its own."""

from __future__ import annotations

import json
import shutil
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.spark.gates import PLACES, Gate, Place
from tests.spark.programs import PATIENCE, Interactive
from tests.spark.table import Table


class Job:
    """One query, which may be started again and again, by this application or another one."""

    def __init__(self, folder: Path, name: str, url: str, subscribe: str, **options: Any) -> None:
        self.name = name
        self.folder = folder / name
        self.folder.mkdir()
        self.options = {
            "redis": url,
            "subscribe": subscribe,
            "startingOffsets": "earliest",
            "includeCut": "true",
            **{option: str(value) for option, value in options.items()},
        }
        self.checkpoint = self.folder / "checkpoint"
        self.table = Table(self.folder / "table.db")
        self.gate = Gate(self.folder / "gate")
        self._application: Interactive | None = None
        self._copies: list[Job] = []

    @property
    def application(self) -> Interactive:
        """Where it was started last."""
        assert self._application is not None
        return self._application

    def try_to_start(self, application: Interactive, *, once: bool = False, **options: Any) -> str | None:
        """Start the query; the error that it is refused with."""
        self._application = application
        changed = {name: str(value) for name, value in options.items()}
        refused: str | None = application.ask(
            "start",
            name=self.name,
            options=self.options | changed,
            gate=str(self.gate.folder),
            table=str(self.table.path),
            once=once,
            checkpoint=str(self.checkpoint),
        )
        return refused

    def start(self, application: Interactive, **more: Any) -> None:
        """Start the query, which must not be refused."""
        refused = self.try_to_start(application, **more)
        assert refused is None, refused

    def run(self, application: Interactive, **more: Any) -> None:
        """Read what is available now, to the end."""
        self.start(application, once=True, **more)
        assert self.error() is None

    def stop(self) -> None:
        """Stop the query in good order."""
        self.application.ask("stop", name=self.name)

    def close(self) -> None:
        """Stop the query and its copies, wherever they stand, if their application lives."""
        for copied in self._copies:
            copied.close()
        for place in PLACES:
            self.gate.let_go(place)
        if self._application is not None and self._application.is_running:
            self.stop()

    def run_to_error(self, application: Interactive, **more: Any) -> str | None:
        """Start the query and wait for its end; the error."""
        self.start(application, **more)
        return self.error()

    def copy(self, name: str) -> Job:
        """Another query, with a copy of the checkpoint as it is now, and the same table.

        Only Spark's own id of the query is another one: an application stops one of two that have the same.
        """
        copied = Job(self.folder.parent, name, "", "")
        copied.options = dict(self.options)
        copied.checkpoint = copied.folder / "checkpoint"
        shutil.copytree(self.checkpoint, copied.checkpoint)
        (copied.checkpoint / ".metadata.crc").unlink()
        (copied.checkpoint / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}))
        copied.table = self.table
        self._copies.append(copied)
        return copied

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition holds; the query must not end meanwhile."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            over, error = self.application.ask("ended", name=self.name)
            assert not over or condition(), f"query {self.name} has ended: {error}"
            assert time.monotonic() < deadline, f"not within {PATIENCE} s: {self._told()}"
            time.sleep(0.05)

    def _told(self) -> str:
        return self.application.log.read_text()[-4000:]

    def wait_at(self, place: Place) -> None:
        """Wait until the query is held at the place."""
        self.wait_for(lambda: self.gate.is_held(place))

    def error(self) -> str | None:
        """Wait until the query is over; the error that ended it."""
        told: list[Any] = []

        def is_over() -> bool:
            told[:] = self.application.ask("ended", name=self.name)
            return bool(told[0])

        self.application.wait_for(is_over)
        error: str | None = told[1]
        return error

    def offsets(self) -> int:
        """The newest micro-batch in the offset log; -1 if there is none."""
        return _newest(self.checkpoint / "offsets")

    def commits(self) -> int:
        """The newest micro-batch in the commit log; -1 if there is none."""
        return _newest(self.checkpoint / "commits")


def _newest(folder: Path) -> int:
    return max((int(path.name) for path in folder.glob("[0-9]*")), default=-1)


def one_line(error: str | None, name: str) -> str:
    """The one line in Spark's text in which an error of this package is told, from its name on."""
    assert error is not None, "the query ended without an error"
    found = [line for line in error.splitlines() if f".{name}: " in line]
    assert found, error
    return name + found[0].partition(name)[2]
