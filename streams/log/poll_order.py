"""Which streams a poll reads: all, or what is new and a share of the others in turn.

A poll reads all streams where nothing is pushed. Where their news are pushed, it reads what is due, what the
last poll failed to read, and so many of the others that all have had their turn after ``ROUND_SECONDS``, at
least ``LEAST_SHARE`` and at most ``POLL_SHARE``. So a push that got lost is made up for, and that costs
little.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Set

from streamlease.protocol.ids import StreamId

POLL_SHARE = 250
"""How many streams one poll reads in turn at most."""

LEAST_SHARE = 8
ROUND_SECONDS = 40.0
"""How long it takes, as long as `POLL_SHARE` suffices, until each stream has been polled once."""


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

    def changed(self) -> None:
        """A stream came or went."""
        self._whole = False

    def next(self, unread: Collection[StreamId], *, trusted: bool) -> list[StreamId]:
        """What the next poll reads, where news are pushed.

        Args:
            unread: what the last poll failed to read.
            trusted: whether a push that does not come is surely no news, as far as anybody can see.
        """
        count = self._share() if trusted else POLL_SHARE
        if len(self._streams) <= count:
            return list(self._streams)
        if not self._whole:
            self._turn, self._whole = deque(self._streams), True
        share = [self._turn.popleft() for _ in range(count)]
        self._turn.extend(share)
        wanted = (self.due & self._streams).union(unread)
        return [*share, *wanted.difference(share)]

    def _share(self) -> int:
        in_time = math.ceil(len(self._streams) * self._interval / ROUND_SECONDS)
        return min(POLL_SHARE, max(LEAST_SHARE, in_time))
