"""A borrower's life: every legal move of it, and its timers (EIP-0028, "Borrower's statuses").

There is no cycle: on an inconsistent message a borrower ends, and its agent makes a new one with a new id.
Timers are due at fixed times that messages never move. All borrowers of a process ping at the same times, so
that the pings for one host, and its answers, are one letter.

::

    connecting --> connected --> unsubscribing --> ended
        |              |                             ^
        +--------------+-----------------------------+
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from streamlease.protocol.errors import InvalidOption

STOOD_STILL = 500
"""A longer time (ms) between two ticks: the process stood still, and has not heard what came for it."""


class BorrowerState(Enum):
    """Where a borrower is in its life."""

    CONNECTING = "connecting"
    CONNECTED = "connected"
    UNSUBSCRIBING = "unsubscribing"
    ENDED = "ended"


class BorrowerEvent(Enum):
    """What can move a borrower."""

    ACCEPTED = "accepted"
    """The leader's connect response."""
    UNSUBSCRIBED = "unsubscribed"
    """The session wants no more messages."""
    DRAINED = "drained"
    """All streams are finished, or the unsubscribe timeout has passed."""
    DISCONNECTED = "disconnected"
    """The session goes away at once."""
    INVALIDATED = "invalidated"
    """The leader disowned it, is silent, or contradicts itself."""


_B, _E = BorrowerState, BorrowerEvent

BORROWER_TRANSITIONS: dict[tuple[BorrowerState, BorrowerEvent], BorrowerState] = {
    (_B.CONNECTING, _E.ACCEPTED): _B.CONNECTED,
    (_B.CONNECTING, _E.UNSUBSCRIBED): _B.ENDED,
    (_B.CONNECTING, _E.DISCONNECTED): _B.ENDED,
    (_B.CONNECTING, _E.INVALIDATED): _B.ENDED,
    (_B.CONNECTED, _E.UNSUBSCRIBED): _B.UNSUBSCRIBING,
    (_B.CONNECTED, _E.DISCONNECTED): _B.ENDED,
    (_B.CONNECTED, _E.INVALIDATED): _B.ENDED,
    (_B.UNSUBSCRIBING, _E.DRAINED): _B.ENDED,
    (_B.UNSUBSCRIBING, _E.DISCONNECTED): _B.ENDED,
    (_B.UNSUBSCRIBING, _E.INVALIDATED): _B.ENDED,
}
"""All legal moves of a borrower; every other pair is refused and changes nothing (invariant 10)."""


@dataclass(frozen=True, slots=True)
class BorrowerConfig:
    """Timers of a borrower, in milliseconds (EIP-0028: "The Borrower has the following timers").

    Raises:
        InvalidOption: a value is not positive, or the ping timeout does not exceed the ping interval.
    """

    find_leader_interval: int = 500
    ping_interval: int = 1000
    ping_timeout: int = 3000
    resend_interval: int = 1000
    """Progress that the leader has not acknowledged for so long is reported again."""
    unsubscribe_timeout: int = 5000
    session_timeout: int = 10_000

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            if getattr(self, name) <= 0:
                raise InvalidOption(f"{name} is {getattr(self, name)} ms: it must be above 0")
        for name in ("ping_timeout", "session_timeout"):
            if getattr(self, name) <= self.ping_interval:
                raise InvalidOption(
                    f"{name} is {getattr(self, name)} ms: it must be above ping_interval "
                    f"({self.ping_interval} ms)"
                )


class Due(Enum):
    """A timer that has run out."""

    FIND = "find"
    SILENT = "silent"
    PING = "ping"
    GIVE_UP = "give up"


@dataclass(slots=True)
class Life:
    """The state of a borrower, and when what is due (ms)."""

    config: BorrowerConfig
    state: BorrowerState = BorrowerState.CONNECTING
    find_at: int = 0
    ping_at: int = 0
    silent_at: int = 0
    give_up_at: int = 0

    def move(self, event: BorrowerEvent) -> bool:
        """Take one step through the table; False, and no change, if it has none."""
        target = BORROWER_TRANSITIONS.get((self.state, event))
        if target is None:
            return False
        self.state = target
        return True

    def begin(self, now: int) -> None:
        """The search for a leader begins."""
        self.find_at = now + self.config.find_leader_interval

    def accept(self, now: int) -> None:
        """A leader has accepted the borrower."""
        if self.move(BorrowerEvent.ACCEPTED):
            self.ping_at = self._next_ping(now)
            self.hear(now)

    def hear(self, now: int) -> None:
        """The leader has answered a ping."""
        self.silent_at = now + self.config.ping_timeout

    def unsubscribe(self, now: int) -> bool:
        """The session leaves, once its streams are finished or the time for that is over."""
        if not self.move(BorrowerEvent.UNSUBSCRIBED):
            return False
        self.give_up_at = now + self.config.unsubscribe_timeout
        return True

    @property
    def due_at(self) -> int:
        """Before this time (ms) nothing is due, unless the process stands still."""
        match self.state:
            case BorrowerState.CONNECTING:
                return self.find_at
            case BorrowerState.UNSUBSCRIBING:
                return min(self.silent_at, self.ping_at, self.give_up_at)
            case _:
                return min(self.silent_at, self.ping_at)

    def tick(self, now: int, since: int = 0) -> tuple[Due, ...]:
        """What is due now, and is not due again before the next interval.

        Args:
            since: how long (ms) the process did not look at the time before.
        """
        if self.state is BorrowerState.CONNECTING:
            if now < self.find_at:
                return ()
            self.begin(now)
            return (Due.FIND,)
        self._count_standstill(since)
        if now >= self.silent_at:
            return (Due.SILENT,)
        due: tuple[Due, ...] = ()
        if now >= self.ping_at:
            self.ping_at = self._next_ping(now)
            due = (Due.PING,)
        if self.state is BorrowerState.UNSUBSCRIBING and now >= self.give_up_at:
            due += (Due.GIVE_UP,)
        return due

    def _next_ping(self, now: int) -> int:
        interval = self.config.ping_interval
        return now - now % interval + interval

    def _count_standstill(self, stood: int) -> None:
        """What the process did not hear while it stood still is not its leader's silence.

        Unless the leader has given it up meanwhile: then it must hand out nothing more.
        """
        if stood >= STOOD_STILL and stood < self.config.session_timeout - self.config.ping_interval:
            self.silent_at += stood
