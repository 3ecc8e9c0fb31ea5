"""Weights: what is measured of the streams, and how many of them may move because of that.

In groups whose strategy measures streams, weights ask for plans as well::

    Measured --> smoothed weights --> no plan of this kind for `weight_interval`? --> plan --> a few moves

Such plans are bounded thrice: they come no more often than that, begin to move no stream before two borrowers
differ by a good part (`weighted`), and together move at most one stream in `WEIGHED_PART`, until the next
one is due. A new leader knows no weights: as long as it does not (`WARM_UP` at most) it gives away what is
free and takes nothing, or else each change of leader would move streams there and back.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from streamlease.leader.core.events import Measured
from streamlease.leader.core.planning.weights import Measure, Weights
from streamlease.leader.core.state.progress import StreamProgress
from streamlease.leader.core.taking import TAKING_TRANSITIONS, Taking, TakingEvent

WARM_UP = 30_000
"""How long (ms) a new leader waits for weights at most before it takes streams from somebody."""

WEIGHED_PART = 10
"""Weights alone move at most one stream in so many, and at least one, in a `weight_interval`."""


@dataclass(slots=True)
class Weighing:
    """The weights of one group, and what they may move."""

    interval: int
    """How long (ms) at least from one plan that weights alone ask for to the next."""
    taking: Taking = Taking.AS_MANY_AS_NEEDED
    left: int = 0
    """How many streams weights may still take, if `taking` bounds them."""
    weights: Weights = field(default_factory=Weights)
    """What is measured of the streams, if the strategy wants it."""
    asked_at: int = 0
    """When weights alone asked for a plan."""
    warm_until: int | None = None
    """Until when streams stay where they are at the latest, because their weights are not known yet."""

    def recovered(self, now: int, *, warm_up: bool) -> None:
        """A leader begins; if it is to `warm_up`, streams stay where they are until weights are known."""
        self.asked_at = now
        if warm_up:
            self.warm_until = now + WARM_UP

    def warm(self, now: int) -> None:
        """Weights are known, or have been waited for long enough."""
        self.warm_until = None
        self.asked_at = now

    def take(self, measure: Measure, event: Measured, streams: Mapping[str, StreamProgress]) -> None:
        """Take over what was measured of `streams`."""
        committed = {s: streams[s].committed for s in event.ends if s in streams}
        self.weights.take(measure, event.ends, committed, event.at)
        if len(self.weights.seen) > len(streams):
            self.weights.keep(streams)

    def is_due(self, now: int) -> bool:
        """Whether weights alone may ask for a plan now."""
        return self.taking is Taking.AT_REST and now >= self.asked_at + self.interval

    def ask(self, streams: Collection[str], now: int) -> None:
        """They ask: a few of `streams` may move."""
        self.asked_at = now
        self._move(TakingEvent.WEIGHTS_DUE, left=max(1, len(streams) // WEIGHED_PART))

    # ------------------------------------------------------------ how many

    @property
    def most(self) -> int | None:
        """So many streams may be taken because of weights; None: any number."""
        return None if self.taking is Taking.AS_MANY_AS_NEEDED else self.left

    def lift_bound(self) -> None:
        """From now on plans take as many streams as needed."""
        self._move(TakingEvent.NEEDED)

    def carried_out(self, taken: int, *, held_back: bool) -> None:
        """A plan took so many streams, and could not take others yet if it was `held_back`."""
        if not taken and not held_back:
            self._move(TakingEvent.SETTLED)
        elif self.taking is Taking.UP_TO_SO_MANY:
            self.left -= taken
            if self.left <= 0:
                self._move(TakingEvent.USED_UP)

    def _move(self, event: TakingEvent, left: int = 0) -> None:
        target = TAKING_TRANSITIONS.get((self.taking, event))
        if target is not None:
            self.taking, self.left = target, left
