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


class ReadyLanes:
    """Lanes in the order in which their parts are sent.

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
        self._lanes: dict[StreamId, Lane] = {}

    def __bool__(self) -> bool:
        return bool(self._lanes)

    def __iter__(self) -> Iterator[Lane]:
        return iter([*self._lanes.values()])

    def add(self, lane: Lane) -> None:
        """`lane` has a part to send."""
        self._lanes[lane.stream] = lane
        self._duty.call()

    def drop(self, lane: Lane) -> None:
        """`lane` has none, or holds still."""
        self._lanes.pop(lane.stream, None)

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
        if not self._linger:
            return True
        now = self._clock()
        due = min(map(self._due_at, self._lanes.values()))
        if due <= now:
            return True
        await self._duty.called_again(due if beside is None else min(due, max(now, beside)))
        return False

    def take(self) -> Iterator[Flight]:
        """Take the first part of each lane, those that wait left out, until they are enough for a round."""
        size, now = 0, self._clock()
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
            yield lane, part

    def _due_at(self, lane: Lane) -> float:
        """When the first part of a lane is to be sent."""
        part = lane.queue[0]
        waits = self._linger and not self._hurries and part is lane.open
        return part.born + self._linger if waits else 0.0
