"""Commits that nobody awaits: entered at once, written with the others, told of when somebody asks.

Of each stream one offset is kept until it is durable, and one failure until it is told: by ``flush``, by an
awaited commit of the stream, or by the end of the subscription. While few are untold, each is logged at once.

How they are written is not decided here: an offset that was entered goes the way of every other commit
(`agent/settling.py`), so commits of one stream never overtake each other, whoever awaits which.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any, NamedTuple

from streamlease.protocol.errors import Fenced, Indefinite, StreamleaseError
from streamlease.protocol.ids import StreamId
from streamlease.registry.commit_writing import Consumed
from streamlease.streams.publish.traces import Traces

log = logging.getLogger(__name__)

MOST_NAMED = 10
"""So many streams are named beside the one whose failure is raised, and so many failures logged untold."""


class _Entered(NamedTuple):
    """All below `end` is done."""

    end: int
    at: int
    """When it was entered, in ns since 1970; 0 where nothing is traced."""
    received: Any
    """The span context of the delivery."""


class GatheredCommits:
    """What one consumer has entered and does not wait for."""

    def __init__(self, traced: Traces | None) -> None:
        self._traces = traced
        self.entered: dict[Consumed, _Entered] = {}
        """What is neither durable nor lost."""
        self.failures: dict[str, StreamleaseError] = {}
        """By stream: the first that was not told."""
        self._flushes: list[dict[str, StreamleaseError]] = []
        """What has failed since each of those began that wait now: each is told, whoever else is."""
        self._moved = asyncio.Event()
        """Something was settled since a flush looked last."""

    def enter(self, held: Consumed, end: int, received: Any) -> None:
        """All below `end` is done, and its commit on its way."""
        former = self.entered.get(held)
        if former is None or former.end < end:
            self.entered[held] = _Entered(end, time.time_ns() if self._traces is not None else 0, received)

    def settle(self, held: Consumed) -> None:
        """More of a stream with something entered is durable."""
        one = self.entered[held]
        self._moved.set()  # a flush may want less than was entered since
        if one.end <= held.acknowledged:
            del self.entered[held]
            self._trace(held, one, None)

    def lose(self, held: Consumed, why: StreamleaseError | None) -> None:
        """Nothing more becomes durable of this stream; None: it was taken away."""
        one = self.entered.pop(held, None)
        if one is None:
            return
        self._moved.set()
        error = why or Fenced(
            f"stream {held.stream} was taken away before its commit up to offset {one.end} was durable: "
            f"its messages from offset {held.acknowledged} on may be delivered again"
        )
        self._trace(held, one, error)
        self.keep(held.stream, error)

    def keep(self, stream: str, error: StreamleaseError) -> None:
        """A commit that nobody awaits has failed: whoever asks next is told."""
        if len(self.failures) < MOST_NAMED:
            log.warning("%s", error, extra={"stream": stream})
        for failures in (self.failures, *self._flushes):
            failures.setdefault(stream, error)

    async def flush(self, seconds: float) -> None:
        """Wait until all that was entered so far is durable or lost.

        Raises:
            StreamleaseError: the first failure that was not told; its notes name other streams.
            Indefinite: not all of it was confirmed within `seconds`; it stays entered.
        """
        wanted = {held: one.end for held, one in self.entered.items()}
        failed: dict[str, StreamleaseError] = {}
        self._flushes.append(failed)
        try:
            async with asyncio.timeout(seconds):
                while wanted := self._open(wanted):
                    self._moved.clear()
                    await self._moved.wait()
        except TimeoutError:
            failed |= {held.stream: unconfirmed(held.stream, end, seconds) for held, end in wanted.items()}
        finally:
            self._flushes = [other for other in self._flushes if other is not failed]
        failed, self.failures = self.failures | failed, {}
        for stream, error in failed.items():
            others = [other for other in failed if other != stream]
            if others:
                more = f" and {len(others) - MOST_NAMED} more" if len(others) > MOST_NAMED else ""
                error.add_note(f"not all is committed either of {', '.join(others[:MOST_NAMED])}{more}")
            raise error

    def _open(self, wanted: dict[Consumed, int]) -> dict[Consumed, int]:
        return {held: end for held, end in wanted.items() if held in self.entered and end > held.acknowledged}

    def _trace(self, held: Consumed, one: _Entered, error: StreamleaseError | None) -> None:
        if self._traces is not None:
            self._traces.settled(StreamId.parse(held.stream), one.end, one.received, one.at, error)


def unconfirmed(stream: str, end: int, seconds: float) -> Indefinite:
    """The error of who waited so long for a commit."""
    return Indefinite(
        f"neither Redis nor a leader confirmed the commit of {stream} up to offset {end} "
        f"within {seconds:.0f} s: it may be committed, or its messages may come again"
    )
