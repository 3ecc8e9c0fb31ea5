"""When the program of a worker is to end: the machine of the guard beside it. Pure.

::

    guarding ----> ending ----> killed          and from each of them, once the program has exited: over
        |                         ^
        +-------------------------+

The executor has a lease, and whoever sees it over may have the query run elsewhere. So the guard of a query
that is to be placed anew holds a deadline, which the executor moves whenever it has renewed its lease; at
the deadline the program is killed, also if the executor hangs, is stopped, or cannot reach Redis. If the
executor dies, the program is told to end, and killed some seconds later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType

LEFT_ALONE_SECONDS = 3.0
"""How long a program may take to end when its executor has died."""


class GuardState(StrEnum):
    GUARDING = "guarding"
    ENDING = "ending"
    """The program was told to end (SIGTERM)."""
    KILLED = "killed"
    """It was killed (SIGKILL)."""
    OVER = "over"


class GuardEvent(StrEnum):
    """What happens to a guard."""

    WANTED = "wanted"
    """The executor wants the program's end."""
    ALONE = "alone"
    """The executor died."""
    TIME = "time"
    """The deadline has come."""
    EXITED = "exited"


_GUARDING, _ENDING, _KILLED, _OVER = GuardState

TABLE: Mapping[tuple[GuardState, GuardEvent], GuardState] = MappingProxyType(
    {
        (_GUARDING, GuardEvent.WANTED): _ENDING,
        (_GUARDING, GuardEvent.ALONE): _ENDING,
        (_GUARDING, GuardEvent.TIME): _KILLED,
        (_GUARDING, GuardEvent.EXITED): _OVER,
        (_ENDING, GuardEvent.WANTED): _ENDING,
        (_ENDING, GuardEvent.ALONE): _ENDING,
        (_ENDING, GuardEvent.TIME): _KILLED,
        (_ENDING, GuardEvent.EXITED): _OVER,
        (_KILLED, GuardEvent.EXITED): _OVER,
    }
)


@dataclass(frozen=True, slots=True)
class Guard:
    """A guard; times in seconds of the clock of this machine."""

    state: GuardState = GuardState.GUARDING
    lease_until: float | None = None
    """None: the query may outlast the lease of its executor, for nobody runs it elsewhere."""
    kill_at: float | None = None
    lapsed: bool = False
    """The program was killed because the lease was over."""

    @property
    def deadline(self) -> float | None:
        """When the program is killed."""
        if self.state in (GuardState.KILLED, GuardState.OVER):
            return None
        times = [one for one in (self.lease_until, self.kill_at) if one is not None]
        return min(times, default=None)


def renewed(guard: Guard, until: float) -> Guard:
    """The executor has its lease until then; a deadline never comes nearer by that."""
    if guard.lease_until is not None and guard.lease_until >= until:
        return guard
    return replace(guard, lease_until=until)


def step(guard: Guard, event: GuardEvent, now: float, grace: float = 0.0) -> Guard:
    """The guard behind an event; the same one if that changes nothing. Who sees it `ending` or `killed` for
    the first time sends the signal."""
    state = TABLE.get((guard.state, event))
    if state is None or (event is GuardEvent.TIME and (guard.deadline is None or now < guard.deadline)):
        return guard
    match event:
        case GuardEvent.WANTED | GuardEvent.ALONE:
            seconds = grace if event is GuardEvent.WANTED else LEFT_ALONE_SECONDS
            kill_at = now + seconds if guard.kill_at is None else min(guard.kill_at, now + seconds)
            return replace(guard, state=state, kill_at=kill_at)
        case GuardEvent.TIME:
            lapsed = guard.lease_until is not None and now >= guard.lease_until
            return replace(guard, state=state, lapsed=lapsed)
        case GuardEvent.EXITED:
            return replace(guard, state=state)
