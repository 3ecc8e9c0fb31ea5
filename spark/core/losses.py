"""Messages that a query has read and that Redis has lost since, as in a failover: a part of its machine.

The stream ends below what was read then, and would give the same offsets to other messages, which the query
takes for those that it has: they would be skipped. So the stream is told to go on behind what was read; what
was lost stays a hole. `Subscription` does the same for programs.

Where retention, forced, removes what is in no cut yet, the leader goes on at the oldest message. The query
hears of it when the leader leaves the stream out of its next cut, says how far it is, or grants it again, as
a new leader does. It fails if it is told to, once: that it did is noted, for its next process.

*Not noticed*: offsets that were given out again before the query saw the stream end below them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from streamlease.borrower.events import StreamGranted
from streamlease.protocol.errors import HistoryTruncated
from streamlease.spark.core.checkpoint import CutOffset
from streamlease.spark.core.query_cuts import QueryCuts


class Losses:
    """Streams that may end below what one query has read of them, and streams that went on without it."""

    def __init__(self, cuts: QueryCuts) -> None:
        self._cuts = cuts
        self._suspects: dict[str, None] = {}
        self._under_way: set[str] = set()
        self._passed: dict[str, int] = {}
        """Streams that went on, and how far the query was."""
        self._came_to: dict[str, tuple[int, int]] = {}
        """Lease epoch and end of the streams in the last cut of an earlier process."""
        self._ends: dict[str, int] = {}
        """How far that process came, in those streams."""

    # ------------------------------------------------------------ ends that are below what was read

    def suspect(self, streams: Iterable[str]) -> None:
        """Look at these streams as soon as it is known where they end."""
        self._suspects.update(dict.fromkeys(streams))

    def found(self) -> dict[str, int]:
        """The streams that end below what was read, and up to where that was; they are under way now."""
        if not self._suspects:
            return {}
        cut, unread = self._cuts.open, self._cuts.unread
        ends = {part.stream: part.end for part in cut.ranges} if cut is not None else {}
        short: dict[str, int] = {}
        for stream in [*self._suspects]:
            held, end = self._cuts.held.get(stream), unread.end_of(stream)
            if held is None:
                del self._suspects[stream]
            elif end is not None and stream not in self._under_way:
                read = max(held.committed, held.pinned_end or 0, ends.get(stream, 0))
                if end >= read:
                    del self._suspects[stream]
                else:
                    short[stream] = read
        self._under_way.update(short)
        return short

    def went_behind(self, stream: str, *, done: bool) -> None:
        """The stream goes on behind what was read; it is tried again otherwise."""
        self._under_way.discard(stream)
        if done:
            self._suspects.pop(stream, None)

    # ------------------------------------------------------------ streams that went on without the query

    def begin(self, done: CutOffset) -> None:
        """An earlier process of the query came to the end of that cut."""
        self._came_to = {part.stream: (part.lease_epoch, part.end) for part in done.ranges}
        self._ends = {part.stream: part.end for part in done.ranges}

    def granted(self, grant: StreamGranted) -> None:
        """See where the stream goes on, if nobody had it since that cut."""
        lease_epoch, end = self._came_to.pop(grant.stream, (0, 0))
        if lease_epoch and grant.follows == lease_epoch and grant.progress > end:
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

    def passed(self) -> dict[str, int]:
        """The streams that went on, of which it was not told yet whether something is gone."""
        return dict(self._passed)

    def told(self, passed: Mapping[str, int]) -> None:
        """It was told of these."""
        for stream, offset in passed.items():
            if self._passed.get(stream) == offset:
                del self._passed[stream]


def gone_on(stream: str, offset: int, floor: int) -> HistoryTruncated:
    """The error of a query that was at `offset` of a stream whose oldest message is at `floor` now."""
    return HistoryTruncated(
        stream,
        offset,
        floor,
        "the group went on there, and so does the query when it is started again; with option "
        "'failOnDataLoss' 'false' it only warns",
    )
