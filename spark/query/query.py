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
import threading
from collections.abc import Callable
from types import FrameType

from streamlease.agent.loop import Bridge, LoopThread, at_once, waiting
from streamlease.spark.options import SourceOptions
from streamlease.spark.query.async_query import AsyncQuery
from streamlease.spark.setup.source_process import is_source_process

MOST_SECONDS = 10.0
"""After so long the process ends anyway, such as when Redis is away."""


class QuerySession(Bridge[AsyncQuery]):
    """One query, as `AsyncQuery` says, for a thread that waits."""

    def __init__(self, options: SourceOptions) -> None:
        self.thread = LoopThread("streamlease-query")
        self.query = AsyncQuery(options)
        super().__init__(self.thread, self.query)

    initial = at_once(AsyncQuery.initial)
    next_cut = waiting(AsyncQuery.next_cut)
    ranges_of = waiting(AsyncQuery.ranges_of)
    by_slot = at_once(AsyncQuery.by_slot)
    mailbox = at_once(AsyncQuery.mailbox)
    vouched = waiting(AsyncQuery.vouched)
    prepare_available_now = waiting(AsyncQuery.prepare_available_now)
    prepare_once = waiting(AsyncQuery.prepare_once)
    report = waiting(AsyncQuery.report)

    def note_late(self) -> None:
        """Spark writes the checkpoint later than micro-batches end, so a restart may find an older one."""
        self.thread.call(self.query.finder.note_late())

    def stop(self) -> None:
        """Give all streams back, unless a cut is open, and end the loop. A second call does nothing."""
        if self.thread.runs:
            self.thread.call(self.query.stop())
            self.thread.stop()


def leave_at_the_end(leave: Callable[[], None]) -> None:
    """Call `leave` when Spark ends this process, and end then; does nothing in any other process."""
    if is_source_process():
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
