"""Messages that a query has read and that Redis has lost since, as in a failover.

The stream ends below what was read then, and would give the same offsets to other messages, which the query
takes for those that it has: they would be skipped. So the stream is told to go on behind what was read; what
was lost stays a hole. `Subscription` does the same for programs.

Where retention, forced, removes what is in no cut yet, the leader goes on at the oldest message. The query
hears of it when the leader leaves the stream out of its next cut, says how far it is, or grants it again, as
a new leader does. It fails if it is told to, once: that it did is noted, for its next process.

*Not noticed*: offsets that were given out again before the query saw the stream end below them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from streamlease.borrower.events import StreamGranted
from streamlease.protocol.errors import HistoryTruncated, StreamleaseError
from streamlease.protocol.ids import StreamId
from streamlease.registry import runs
from streamlease.spark.core.checkpoint import CutOffset
from streamlease.spark.core.cuts import QueryCuts
from streamlease.streams.log.log import AsyncLog
from streamlease.streams.log.tails import Tails
from streamlease.streams.redis.connection import AsyncRedis
from streamlease.streams.tasks import Supervisor

log = logging.getLogger(__name__)


class Losses:
    """Streams that may end below what one query has read of them; they are looked at in `tick`."""

    def __init__(self, cuts: QueryCuts, redis: AsyncRedis, tails: Tails) -> None:
        self._cuts = cuts
        self._redis = redis
        self._log = AsyncLog(redis)
        self._tails = tails
        self._suspects: set[str] = set()
        self._tasks = Supervisor("lost messages", lambda _, error: self._failed(error))
        self._error: StreamleaseError | None = None
        self._passed: dict[str, int] = {}
        """Streams that went on, and how far the query was."""
        self._came_to: dict[str, tuple[int, int]] = {}
        self._ends: dict[str, int] = {}
        """How far an earlier process came, in the streams of its last cut."""

    def suspect(self, streams: Iterable[str]) -> None:
        """Look at these streams as soon as it is known where they end."""
        self._suspects.update(streams)

    def tick(self) -> None:
        """Look at the suspects, unless that is under way."""
        while self._tails.lowered:
            self._suspects.add(str(self._tails.lowered.pop()))
        if self._suspects and not self._tasks:
            self._tasks.start("looking", self._look())

    def _failed(self, error: StreamleaseError) -> None:
        self._error = error

    def begin(self, done: CutOffset) -> None:
        """An earlier process of the query came to the end of that cut."""
        self._came_to = {part.stream: (part.lease_epoch, part.end) for part in done.ranges}
        self._ends = {part.stream: part.end for part in done.ranges}

    def granted(self, grant: StreamGranted) -> None:
        """See where the stream goes on, if nobody had it since that cut."""
        epoch, end = self._came_to.pop(grant.stream, (0, 0))
        if epoch and grant.follows == epoch and grant.progress > end:
            self.went_on({grant.stream: end})
        self.suspect((grant.stream,))

    def forget(self) -> None:
        """That cut was not the last one: how far the process came is not known."""
        self._came_to.clear()
        self._passed.clear()

    def went_on(self, streams: Mapping[str, int]) -> None:
        """The leader went on in these streams, from these offsets, without the query."""
        for stream, offset in streams.items():
            self._passed.setdefault(stream, max(offset, self._ends.get(stream, 0)))

    async def tell(self, *, fail: bool) -> None:
        """Warn of what retention removed in streams that went on.

        Raises:
            HistoryTruncated: it did, and `fail` is set, and no earlier process of the query has told it.
            TaskFailed: nobody looks any more, by a defect.
            StoreUnavailable, StoreRefused: it is not known yet; the next call looks again.
        """
        if self._error is not None:
            raise self._error
        passed = dict(self._passed)
        if not passed:
            return
        states = await self._log.states(map(StreamId.parse, passed))
        floors = {str(stream): state.floor for stream, state in states.items()}
        gone = {stream: offset for stream, offset in passed.items() if floors.get(stream, 0) > offset}
        if gone and fail:
            gone = await runs.untold(self._redis, self._cuts.group, self._cuts.session, gone)
            await runs.note_told(self._redis, self._cuts.group, self._cuts.session, gone)
        for stream, offset in passed.items():
            if self._passed.get(stream) == offset:
                del self._passed[stream]
        errors = [_went_on(stream, offset, floors[stream]) for stream, offset in gone.items()]
        for error in errors:
            log.warning("%s", error, extra={"stream": error.stream})
        if errors and fail:
            raise errors[0]

    async def close(self) -> None:
        """Stop looking."""
        await self._tasks.close()

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


def _went_on(stream: str, offset: int, floor: int) -> HistoryTruncated:
    return HistoryTruncated(
        stream,
        offset,
        floor,
        "the group went on there, and so does the query when it is started again; with option "
        "'failOnDataLoss' 'false' it only warns",
    )
