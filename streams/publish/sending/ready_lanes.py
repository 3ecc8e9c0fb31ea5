"""The lanes that have a part to send, and when that is due."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from streamlease.protocol.ids import StreamId
from streamlease.streams.publish.lanes import Lane
from streamlease.streams.publish.parts import Part
from streamlease.streams.publish.sending.duty import Duty

Flight = tuple[Lane, Part]
"""A part, and the lane that it was taken from, while it is being sent."""

REST_SECONDS = 0.00025
"""How long a round is followed by no other one, for each of its parts: some five times what a part of a few
messages costs this process and Redis."""

LONGEST_REST = 0.004

FEW = 64
"""A part of more messages than that is not to grow before it is sent."""


class ReadyLanes:
    """Lanes in the order in which their parts are sent.

    Behind a round of many parts, parts of a few messages gather for up to `LONGEST_REST`, if nobody waits for
    one of them: else a publisher that gets some messages for each stream every millisecond would write, and
    its readers read, an entry for each of them.

    Args:
        clock: seconds on the event loop.
        linger: seconds for which a part that is not full waits for more messages.
        round_bytes: most bytes of one write, unless a single part is larger.
    """

    def __init__(self, duty: Duty, clock: Callable[[], float], *, linger: float, round_bytes: int) -> None:
        self._duty = duty
        self._clock = clock
        self._linger = linger
        self._round_bytes = round_bytes
        self._hurries = 0
        self._rests_until = 0.0
        """Until then, a round is only for those who wait."""
        self._resting = False
        self._lanes: dict[StreamId, Lane] = {}

    def __bool__(self) -> bool:
        return bool(self._lanes)

    def __len__(self) -> int:
        return len(self._lanes)

    def __iter__(self) -> Iterator[Lane]:
        return iter([*self._lanes.values()])

    def add(self, lane: Lane) -> None:
        """`lane` has a part to send."""
        self._lanes[lane.stream] = lane
        if not self._resting or self._linger or self._due_at(lane) < self._rests_until:
            self._duty.call()

    def drop(self, lane: Lane) -> None:
        """`lane` has none, or holds still."""
        self._lanes.pop(lane.stream, None)

    def nudge(self) -> None:
        """Somebody waits for a part."""
        if self._resting:
            self._duty.call()

    @contextlib.contextmanager
    def hurried(self) -> Iterator[None]:
        """Within this, no part waits for more messages."""
        self._hurries += 1
        if self._lanes:
            self._duty.call()
        try:
            yield
        finally:
            self._hurries -= 1

    async def is_due(self, beside: float | None) -> bool:
        """Whether a lane has a part that waits no longer; if not, wait until that may have changed.

        Args:
            beside: when something else is to be done, on the clock.
        """
        now = self._clock()
        if not self._linger and self._rests_until <= now:
            return True
        due = min(map(self._due_at, self._lanes.values()))
        if due <= now:
            return True
        self._resting = True
        await self._duty.called_again(due if beside is None else min(due, max(now, beside)))
        self._resting = False
        return False

    def take(self) -> Iterator[Flight]:
        """Take the first part of each lane, those that wait left out, until they are enough for a round."""
        size, now = 0, self._clock()
        self._rests_until = now
        for lane in self:
            if size >= self._round_bytes:
                return
            if self._linger and self._due_at(lane) > now:
                continue
            del self._lanes[lane.stream]
            part = lane.take()
            if lane.queue:
                self._lanes[lane.stream] = lane  # behind the others
            size += part.size
            self._rests_until = min(now + LONGEST_REST, self._rests_until + REST_SECONDS)
            yield lane, part

    def _due_at(self, lane: Lane) -> float:
        """When the first part of a lane is to be sent."""
        part = lane.queue[0]
        if self._hurries or part is not lane.open:
            return 0.0
        if self._linger:
            return part.born + self._linger
        return 0.0 if part.count > FEW or part.is_awaited else self._rests_until
