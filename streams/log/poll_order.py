"""Which streams a poll reads: all, or what is new and a share of the others in turn.

A poll reads all streams where nothing is pushed. Where their news are pushed, it reads what is due, what the
last poll failed to read, and so many of the others that all have had their turn after ``ROUND_SECONDS``, at
least ``LEAST_SHARE`` and at most ``POLL_SHARE``. So a push that got lost is made up for, and that costs
little.

A stream that is new has to be read once its news are pushed, for what was appended before. If many are new at
once, they are not read before that as well, unless it takes long.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Collection, Set

from streamlease.protocol.ids import StreamId

POLL_SHARE = 250
"""How many streams one poll reads in turn at most."""

LEAST_SHARE = 8
ROUND_SECONDS = 40.0
"""How long it takes, as long as `POLL_SHARE` suffices, until each stream has been polled once."""


MANY_NEW = 256
"""So many new streams are not read before their news are pushed."""

COMING_SECONDS = 1.0
"""But for so long: while leases of so many streams come, the event loop has no time for what is pushed."""


class PollOrder:
    """The order of the polls of some streams.

    Args:
        streams: those that are watched; whoever changes them says so by `changed`.
        interval: seconds between two polls.
    """

    def __init__(self, streams: Set[StreamId], interval: float) -> None:
        self.due: set[StreamId] = set()
        """Streams that the next poll must read: they are new, or their news are pushed from now on."""
        self._streams = streams
        self._interval = interval
        self._turn: deque[StreamId] = deque()
        self._whole = True
        """Whether the turn has all streams, and no others."""
        self._coming: OrderedDict[StreamId, float] = OrderedDict()
        """New streams whose news will be pushed soon, and until when that is waited for. They leave from the
        front, where a dictionary would look through all that have left, each time."""
        self._turn_at = -math.inf
        """When others had their turn last."""

    def joins(self, stream: StreamId, now: float, *, pushed: bool) -> None:
        """A stream is new; `pushed`: its news will be pushed."""
        self.changed()
        self.due.add(stream)
        if pushed:
            self._coming[stream] = now + COMING_SECONDS

    def is_pushed(self, stream: StreamId) -> None:
        """From now on the news of a stream are pushed."""
        self._coming.pop(stream, None)
        self.due.add(stream)

    def is_read(self, stream: StreamId) -> None:
        """From now on the news of a stream are pushed, and whoever watches it reads it by itself."""
        self._coming.pop(stream, None)
        self.due.discard(stream)

    def leaves(self, stream: StreamId) -> None:
        """A stream is not watched any more."""
        self.changed()
        self._coming.pop(stream, None)

    def coming(self, now: float) -> Collection[StreamId]:
        """The streams that are not to be read yet."""
        while self._coming and self._coming[next(iter(self._coming))] <= now:
            self._coming.popitem(last=False)
        return self._coming.keys() if len(self._coming) >= MANY_NEW else ()

    def changed(self) -> None:
        """A stream came or went."""
        self._whole = False

    def next(self, unread: Collection[StreamId], now: float, *, trusted: bool) -> list[StreamId]:
        """What the next poll reads, where news are pushed.

        Args:
            unread: what the last poll failed to read.
            trusted: whether a push that does not come is surely no news, as far as anybody can see.
        """
        count = self._share() if trusted else POLL_SHARE
        if len(self._streams) <= count:
            return list(self._streams)
        wanted = (self.due & self._streams).union(unread)
        if now - self._turn_at < self._interval / 2:
            return [*wanted]  # something is due before its time, perhaps again and again
        self._turn_at = now
        if not self._whole:
            self._turn, self._whole = deque(self._streams), True
        share = [self._turn.popleft() for _ in range(count)]
        self._turn.extend(share)
        return [*share, *wanted.difference(share)]

    def _share(self) -> int:
        in_time = math.ceil(len(self._streams) * self._interval / ROUND_SECONDS)
        return min(POLL_SHARE, max(LEAST_SHARE, in_time))
