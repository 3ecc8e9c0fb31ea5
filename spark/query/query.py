"""A query's session, beside the stream reader on Spark's driver: what Spark's thread calls.

Spark calls from its own thread, and waits. Everything else happens on a private event loop, in `async_query`.

Spark stops a streaming query by SIGTERM to the Python process beside the driver (PySpark 4.3,
``PythonStreamingSourceRunner.stop``), at once, so that ``stop()`` of the reader never runs. Without more, the
query's leases, and a leader in the same process, would live on until they expire, and the next query of the
group would wait for that. So the session leaves in good order then.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any, TypeVar

from streamlease.agent.loop import LoopThread
from streamlease.protocol import log_lines as logs
from streamlease.protocol.cuts import Ranges
from streamlease.spark.core.checkpoint import CutOffset
from streamlease.spark.core.limits import Limits
from streamlease.spark.core.query_cuts import QueryCuts
from streamlease.spark.options import SourceOptions
from streamlease.spark.query.async_query import AsyncQuery

RUNNER = "pyspark.sql.streaming.python_streaming_source_runner"
"""The program that has the reader of one query run, and nothing else."""

MOST_SECONDS = 10.0
"""After so long the process ends anyway, such as when Redis is away."""

_Result = TypeVar("_Result")


class QuerySession:
    """One query; see `AsyncQuery` for what is raised."""

    def __init__(self, options: SourceOptions) -> None:
        self.options = options
        self.thread = LoopThread("streamlease-query")
        self.query = AsyncQuery(options)
        self._group = options.subscription.id
        self._is_late = False

    @property
    def cuts(self) -> QueryCuts:
        """What it knows of its streams and cuts."""
        return self.query.machine.cuts

    @property
    def session_id(self) -> str:
        """Its identity; empty before it has begun."""
        return self.cuts.session

    @property
    def agent_id(self) -> str:
        """Mailbox of the session's agent, for the reports of tasks."""
        return self.query.agent_id

    def initial(self) -> CutOffset:
        """The offset of a query that has no checkpoint; the same at every call."""
        return self.query.initial()

    def next_cut(self, start: CutOffset, limits: Limits) -> CutOffset:
        """The cut that follows `start`, fixed durably, or `start` itself if there is nothing new."""
        return self._call(self.query.next_cut(start, limits))

    def ranges_of(self, cut: CutOffset) -> Ranges:
        """What is to be read for `cut`: after a restart, only what is still this query's."""
        return self._call(self.query.ranges_of(cut))

    def slots_of(self, ranges: Ranges) -> dict[str, int]:
        """The slots that hold the streams of these ranges, as far as the query holds them."""
        held = self.cuts.held
        return {stream: one.slot for stream in ranges.streams if (one := held.get(stream)) is not None}

    def prepare_available_now(self) -> None:
        """From now on, offer nothing beyond what is there now."""
        self._call(self.query.prepare_available_now(in_one_cut=False))

    def prepare_once(self) -> None:
        """The same, but there will be one cut only, so it holds all of that."""
        if self.query.machine.available.targets is None:
            self._call(self.query.prepare_available_now(in_one_cut=True))

    def note_late(self) -> None:
        """Spark writes the checkpoint later than micro-batches end, so a restart may find an older one."""
        if not self._is_late:
            self._call(self.query.finder.note_late())
            self._is_late = True

    def report(self) -> dict[str, Any]:
        """What `StreamingQueryProgress` shows as the latest offset: lag, and what the query holds."""
        return self._call(self._report())

    async def _report(self) -> dict[str, Any]:
        return self.query.report()

    def stop(self) -> None:
        """Give all streams back, unless a cut is open, and end the loop. A second call does nothing."""
        if self.thread.runs:
            self._call(self.query.stop())
            self.thread.stop()

    def _call(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Do `work` on the loop; what is logged meanwhile is about this query."""

        async def known() -> _Result:
            logs.begin(group=self._group, borrower=self.session_id)
            return await work

        return self.thread.call(known())


def leave_at_the_end(leave: Callable[[], None]) -> None:
    """Call `leave` when Spark ends this process, and end then; does nothing in any other process."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is not None and spec.name == RUNNER:
        leave_when_terminated(leave)


def leave_when_terminated(leave: Callable[[], None]) -> None:
    """Call `leave` at SIGTERM, for up to ``MOST_SECONDS``, and end by SIGTERM then.

    Does nothing outside of the main thread, or where a program has its own way with SIGTERM.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        return

    def terminated(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # Spark sends it twice
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, MOST_SECONDS)
        try:
            leave()
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)

    signal.signal(signal.SIGTERM, terminated)
