"""Messages that a query has read and that Redis has lost since, as in a failover.

The stream ends below what was read then, and would give the same offsets to other messages, which the query
takes for those that it has: they would be skipped. So the stream is told to go on behind what was read; what
was lost stays a hole. `Subscription` does the same for programs.

Where retention, forced, removes what is in no cut yet, the leader goes on at the oldest message. The query
hears of it when the leader leaves the stream out of its next cut, or when it is granted the stream again, and
fails if it is told to.

*Not noticed*: offsets that were given out again before the query saw the stream end below them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping

from streamlease.borrower.machine import StreamGranted
from streamlease.protocol.errors import HistoryTruncated, StreamleaseError
from streamlease.protocol.ids import StreamId
from streamlease.spark.cuts import QueryCuts
from streamlease.spark.offsets import CutOffset
from streamlease.streams.log import AsyncLog
from streamlease.streams.tails import Tails
from streamlease.streams.tasks import stop

log = logging.getLogger(__name__)


class Losses:
    """Streams that may end below what one query has read of them; they are looked at in `tick`."""

    def __init__(self, cuts: QueryCuts, streams: AsyncLog, tails: Tails) -> None:
        self._cuts = cuts
        self._log = streams
        self._tails = tails
        self._suspects: set[str] = set()
        self._looking: asyncio.Task[None] | None = None
        self._passed: dict[str, int] = {}
        self._came_to: dict[str, tuple[int, int]] = {}

    def suspect(self, streams: Iterable[str]) -> None:
        """Look at these streams as soon as it is known where they end."""
        self._suspects.update(streams)

    def tick(self) -> None:
        """Look at the suspects, unless that is under way."""
        while self._tails.lowered:
            self._suspects.add(str(self._tails.lowered.pop()))
        if self._suspects and (self._looking is None or self._looking.done()):
            self._looking = asyncio.create_task(self._look())

    def begin(self, done: CutOffset) -> None:
        """An earlier process of the query came to the end of that cut."""
        self._came_to = {part.stream: (part.lease_epoch, part.end) for part in done.ranges}

    def granted(self, grant: StreamGranted) -> None:
        """See where the stream goes on, if nobody had it since that cut."""
        epoch, end = self._came_to.pop(grant.stream, (0, 0))
        if epoch and grant.follows == epoch and grant.progress > end:
            self.went_on({grant.stream: end})
        self.suspect((grant.stream,))

    def went_on(self, streams: Mapping[str, int]) -> None:
        """The leader went on in these streams, from these offsets, without the query."""
        for stream, offset in streams.items():
            self._passed.setdefault(stream, offset)

    async def tell(self, *, fail: bool) -> None:
        """Warn of what retention removed in streams that went on.

        Raises:
            HistoryTruncated: it did, and `fail` is set.
            StoreUnavailable, StoreRefused: it is not known yet; the next call looks again.
        """
        if not self._passed:
            return
        states = await self._log.states(map(StreamId.parse, self._passed))
        passed, self._passed = self._passed, {}
        for stream, state in states.items():
            if state.floor > passed[str(stream)]:
                error = HistoryTruncated(str(stream), passed[str(stream)], state.floor)
                if fail:
                    raise error
                log.warning("%s", error, extra={"stream": str(stream)})

    async def close(self) -> None:
        """Stop looking."""
        if self._looking is not None:
            await stop([self._looking])

    async def _look(self) -> None:
        cut = self._cuts.open
        ends = {part.stream: part.end for part in cut.ranges} if cut is not None else {}
        for stream in list(self._suspects):
            held, id = self._cuts.held.get(stream), StreamId.parse(stream)
            end = self._tails.next_of(id)
            if held is None:
                self._suspects.discard(stream)
            elif end is not None:
                read = max(held.committed, held.pinned_end or 0, ends.get(stream, 0))
                if end >= read or await self._go_on_behind(id, read):
                    self._suspects.discard(stream)

    async def _go_on_behind(self, stream: StreamId, read: int) -> bool:
        """Whether the stream will; it is tried again at the next tick otherwise."""
        try:
            lost = await self._log.never_again(stream, read)
        except StreamleaseError as error:
            log.warning("%s", error)
            return False
        if lost is not None:
            log.warning(
                "stream %s ended at offset %d, but was read up to %d: Redis lost acknowledged messages",
                stream, lost, read, extra={"stream": str(stream)},
            )  # fmt: skip
        return True
