"""A progress bar on standard error for long work, if standard error is a terminal."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

SECONDS = 0.2


class Bar:
    """What was done of how much, with the messages so far; nothing is shown without a terminal."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._progress: Progress | None = None
        self._shown_at = 0.0

    def __enter__(self) -> Bar:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[messages]:,} messages"),
                TimeElapsedColumn(),
                TimeRemainingColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._task = self._progress.add_task(self._what, total=None, messages=0)
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def show(self, done: int, total: int | None, messages: int) -> None:
        """How far it is: `done` of `total`, in whatever unit, None if nobody knows."""
        now = time.monotonic()
        if self._progress is not None and now - self._shown_at >= SECONDS:
            self._shown_at = now
            self._progress.update(self._task, completed=done, total=total, messages=messages)
