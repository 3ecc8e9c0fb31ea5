"""The user's function in a thread of its own: pings and revocations are answered while it works.

To hand a batch to another thread and to hear of its end costs more than many a function does. So batches go
over in groups, of one at first; a group grows as long as the function is quick, and its thread gives back
what it has not begun once it took too long: nobody waits for more than a few calls.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import copy_context
from queue import SimpleQueue
from typing import NamedTuple

import pyarrow as pa

GROUP_SECONDS = 0.01
"""After so long a group is cut short."""

MOST_BATCHES = 16
"""Most batches of a group."""


class Outcome(NamedTuple):
    """What became of a group."""

    done: int
    """For how many of its batches, from the first on, the function returned."""
    error: BaseException | None = None
    """What the function raised for the batch behind them."""


_Order = tuple[Sequence[pa.RecordBatch], "asyncio.Future[Outcome]"]


class FunctionThread:
    """Calls `function` in one thread, the same for all batches. Used on one event loop; close it."""

    def __init__(self, function: Callable[[pa.RecordBatch], object]) -> None:
        self._function = function
        self._loop = asyncio.get_running_loop()
        self._orders: SimpleQueue[_Order | None] = SimpleQueue()
        self._halted = False
        self.batches = 1
        """How many batches the next group may have."""
        self._thread = threading.Thread(
            target=copy_context().run, args=(self._work,), name="streamlease-function", daemon=True
        )
        self._thread.start()

    async def call(self, group: Sequence[pa.RecordBatch]) -> Outcome:
        """Call the function with each batch of `group`, in order, until it fails or time is up."""
        answer: asyncio.Future[Outcome] = self._loop.create_future()
        began = self._loop.time()
        self._orders.put((group, answer))
        outcome = await answer
        quick = self._loop.time() - began < GROUP_SECONDS
        self.batches = min(MOST_BATCHES, self.batches * 2) if quick else 1
        return outcome

    def halt(self) -> None:
        """Begin no further batch; the one at hand is finished."""
        self._halted = True

    def close(self) -> None:
        """End the thread once it has nothing at hand."""
        self._orders.put(None)

    def _work(self) -> None:
        while (order := self._orders.get()) is not None:
            group, answer = order
            outcome = self._through(group)
            with suppress(RuntimeError):  # the loop is closed: nobody waits
                self._loop.call_soon_threadsafe(_tell, answer, outcome)

    def _through(self, group: Sequence[pa.RecordBatch]) -> Outcome:
        limit = time.monotonic() + GROUP_SECONDS
        for done, batch in enumerate(group):
            if self._halted or (done and time.monotonic() >= limit):
                return Outcome(done)
            try:
                self._function(batch)
            except BaseException as error:
                return Outcome(done, error)
        return Outcome(len(group))


def _tell(answer: asyncio.Future[Outcome], outcome: Outcome) -> None:
    if not answer.done():
        answer.set_result(outcome)
