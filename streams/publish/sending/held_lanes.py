"""Lanes that hold still, because their stream takes nothing: it is sealed, not yet open, or gone.

Between two rounds, when nothing is under way, `follow` decides what becomes of them. If it cannot, it is
asked again after growing waits.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence

from streamlease.protocol.errors import StoreRefused, StreamleaseError, UnknownSpace
from streamlease.protocol.ids import StreamId
from streamlease.streams.log.log import StreamPending
from streamlease.streams.publish.lanes import Lane
from streamlease.streams.publish.parts import Part
from streamlease.streams.publish.sending.duty import Duty
from streamlease.streams.publish.sending.endings import Endings, not_placed, or_indefinite
from streamlease.streams.publish.sending.ready_lanes import ReadyLanes

FIRST_WAIT = 0.05
LONGEST_WAIT = 2.0

Follow = Callable[[Sequence[Lane]], Awaitable[None]]

_logger = logging.getLogger(__name__)


class HeldLanes:
    """The lanes that hold still.

    Args:
        publisher: its id, for the log of this process.
        clock: seconds on the event loop.
        timeout: seconds for which a part is tried.
        follow: called with the held lanes while no part is in flight; it empties, fails or releases them, or
            raises what it could not do.
        offer: told of each lane that has something to send again.
    """

    def __init__(
        self,
        publisher: str,
        duty: Duty,
        ready: ReadyLanes,
        endings: Endings,
        clock: Callable[[], float],
        *,
        timeout: float,
        follow: Follow,
        offer: Callable[[Lane], None],
    ) -> None:
        self._publisher = publisher
        self._duty = duty
        self._ready = ready
        self._endings = endings
        self._clock = clock
        self._timeout = timeout
        self._follow = follow
        self._offer = offer
        self._lanes: dict[StreamId, Lane] = {}
        self._follow_at = 0.0
        self._wait = FIRST_WAIT

    def __bool__(self) -> bool:
        return bool(self._lanes)

    def __iter__(self) -> Iterator[Lane]:
        return iter([*self._lanes.values()])

    @property
    def follow_at(self) -> float | None:
        """When to look again what becomes of them; None if there are none."""
        return self._follow_at if self._lanes else None

    def hold(self, lane: Lane, part: Part, refusal: StreamleaseError) -> None:
        """The stream takes nothing: put the part back, and let the lane hold still."""
        if not isinstance(refusal, UnknownSpace):
            part.maybe, part.error = False, None
        elif part.written and part.error is not None:
            self._endings.failed(lane, part, part.error)
            return
        if isinstance(refusal, StreamPending) and part.born + self._timeout <= self._clock():
            self._endings.failed(lane, part, refusal)
            if lane.queue:
                self._offer(lane)
            return
        lane.queue.appendleft(part)
        lane.refusal = refusal
        self._ready.drop(lane)
        self._lanes[lane.stream] = lane

    def release(self, lane: Lane) -> None:
        """`lane` does not hold still any more."""
        lane.refusal = None
        self._lanes.pop(lane.stream, None)
        if lane.queue:
            self._offer(lane)
        else:
            self._ready.drop(lane)

    def fail(self, lane: Lane, part: Part, error: StreamleaseError) -> None:
        """A part that was taken from `lane`, and is not in flight, fails."""
        self._endings.failed(lane, part, or_indefinite(part, error))

    def fail_all(self, lane: Lane, error: StreamleaseError) -> None:
        """Everything in `lane` fails, and the lane does not hold still any more."""
        while lane.queue:
            self.fail(lane, lane.take(), error)
        self.release(lane)

    async def follow(self) -> None:
        """Have it decided what becomes of the held lanes; if that fails, again after growing waits."""
        if not self._lanes:
            return
        if self._clock() < self._follow_at:
            if not self._ready:
                await self._duty.called_again(self._follow_at)
            return
        pending = any(isinstance(lane.refusal, StreamPending) for lane in self)
        try:
            await self._follow([*self])
            if pending:  # should it stay so, look again after a pause
                self._look_later()
            else:
                self._wait = FIRST_WAIT
        except Exception as error:
            known = error if isinstance(error, StreamleaseError) else None
            if known is None:
                _logger.exception("publisher %s cannot follow a new generation", self._publisher)
            self._failed(known or StoreRefused(f"the publisher failed while looking: {error!r}"))

    def _failed(self, error: StreamleaseError) -> None:
        now = self._clock()
        for lane in self:
            while lane.queue and (not error.retriable or lane.queue[0].born + self._timeout <= now):
                self.fail(lane, lane.take(), not_placed(error))
            if not lane.queue:
                self.release(lane)
        self._look_later()

    def _look_later(self) -> None:
        self._follow_at = self._clock() + self._wait
        self._wait = min(LONGEST_WAIT, self._wait * 2)
