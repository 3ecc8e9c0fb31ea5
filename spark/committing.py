"""Telling the leader how far the user's function has come, once for many batches.

A commit is a script in Redis, and a word to the leader. In continuous mode a batch may be a
single message, so what the function has done is gathered: per stream one commit is on its way, and what was
done meanwhile goes into the next one, at most every ``PACE_SECONDS``. A crash repeats that much more.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from streamlease.agent.batch import Batch
from streamlease.borrower.book import Held
from streamlease.protocol.errors import StreamleaseError
from streamlease.streams.tasks import Supervisor, stop

log = logging.getLogger(__name__)

PACE_SECONDS = 0.02

Lease = tuple[Held, int]
"""The lease under which batches were handed out, and its turn: only of the same ones is the last enough."""


@dataclass(slots=True)
class _Span:
    """Batches of one stream, one behind the other, that the function is done with."""

    start: int
    last: Batch
    messages: int
    batches: int


class Commits:
    """Commits what is done, on the running event loop.

    Args:
        most: how many messages may be done and not committed.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: dict[Lease, _Span] = {}
        self._under_way: dict[Lease, asyncio.Task[None]] = {}
        self._error: StreamleaseError | None = None
        self._open = 0
        self._news = asyncio.Event()
        self._settled = asyncio.Event()
        self._tasks = Supervisor("commits", lambda _, error: self._failed(error))
        self._keeper = self._tasks.start("pacing", self._keep(), endless=True)
        self.messages = 0
        """Committed so far."""
        self.batches = 0

    def done(self, batch: Batch) -> None:
        """The function has returned for `batch`, and for all before it of the stream."""
        lease = (batch.held, batch.turn)
        span = self._waiting.get(lease)
        if span is None:
            span = self._waiting[lease] = _Span(batch.start, batch, 0, 0)
        span.last = batch
        span.messages += len(batch)
        span.batches += 1
        self._open += len(batch)
        self._news.set()

    async def room(self) -> None:
        """Wait while too much is done and not committed.

        Raises:
            TaskFailed: nothing is committed any more, by a defect.
        """
        while self._open >= self._most and self._error is None:
            self._settled.clear()
            await self._settled.wait()
        if self._error is not None:
            raise self._error

    async def finish(self) -> None:
        """Commit all that is done."""
        await stop([self._keeper])
        while self._waiting or self._under_way:
            self._begin()
            await asyncio.wait(self._under_way.values(), return_when=asyncio.FIRST_COMPLETED)

    def _failed(self, error: StreamleaseError) -> None:
        self._error = error
        self._settled.set()

    async def _keep(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            self._begin()
            await asyncio.sleep(PACE_SECONDS)

    def _begin(self) -> None:
        """Put on its way what waits for no commit of its stream."""
        for lease in [lease for lease in self._waiting if lease not in self._under_way]:
            task = self._tasks.start("committing", self._commit(lease, self._waiting.pop(lease)))
            self._under_way[lease] = task

    async def _commit(self, lease: Lease, span: _Span) -> None:
        try:
            await span.last.commit()
            self.messages += span.messages
            self.batches += span.batches
        except StreamleaseError as error:
            batch = span.last
            log.warning(
                "offsets %d to %d of %s may come again: %s", span.start, batch.end, batch.stream, error,
                extra={"stream": str(batch.stream)},
            )  # fmt: skip
        finally:
            del self._under_way[lease]
            self._open -= span.messages
            self._settled.set()
            if lease in self._waiting:
                self._news.set()
