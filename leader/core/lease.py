"""Every legal transition of a lease, as its leader sees it.

Source: EIP-0028, "Leader's logic": the stream assignment statuses. A lease begins in `granting` under a new
lease epoch and never goes back; after `ended` the stream is free and its next lease has a higher lease epoch.

::

    granting --> granted --> revoking --> revoked --> ended
        |           |            |           |          ^
        +-----------+------------+-----------+----------+   owner lost
        |           |                        ^
        +-----------+------------------------+              an unsubscribing owner gives the stream back
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class LeaseState(Enum):
    """Where a lease is in its life."""

    GRANTING = "granting"
    """`Grant` was sent and is sent again until the borrower reports progress."""
    GRANTED = "granted"
    """The borrower has the stream."""
    REVOKING = "revoking"
    """`Revoke` was sent and is sent again until the borrower reports final progress."""
    REVOKED = "revoked"
    """`Revoked` was sent and is sent again until the borrower answers `RevokeFinished`."""
    ENDED = "ended"


class LeaseEvent(Enum):
    """What can move a lease."""

    PROGRESS = "progress"
    FINAL_PROGRESS = "final_progress"
    REVOKE_DECIDED = "revoke_decided"
    REVOKE_FINISHED = "revoke_finished"
    OWNER_LOST = "owner_lost"
    """The owner disconnected, fell silent, was replaced, or let the revocation deadline pass."""


_S, _E = LeaseState, LeaseEvent

LEASE_TRANSITIONS: dict[tuple[LeaseState, LeaseEvent], LeaseState] = {
    (_S.GRANTING, _E.PROGRESS): _S.GRANTED,
    (_S.GRANTING, _E.FINAL_PROGRESS): _S.REVOKED,
    (_S.GRANTING, _E.OWNER_LOST): _S.ENDED,
    (_S.GRANTED, _E.PROGRESS): _S.GRANTED,
    (_S.GRANTED, _E.FINAL_PROGRESS): _S.REVOKED,
    (_S.GRANTED, _E.REVOKE_DECIDED): _S.REVOKING,
    (_S.GRANTED, _E.OWNER_LOST): _S.ENDED,
    (_S.REVOKING, _E.PROGRESS): _S.REVOKING,
    (_S.REVOKING, _E.FINAL_PROGRESS): _S.REVOKED,
    (_S.REVOKING, _E.OWNER_LOST): _S.ENDED,
    (_S.REVOKED, _E.PROGRESS): _S.REVOKED,
    (_S.REVOKED, _E.FINAL_PROGRESS): _S.REVOKED,
    (_S.REVOKED, _E.REVOKE_FINISHED): _S.ENDED,
    (_S.REVOKED, _E.OWNER_LOST): _S.ENDED,
}
"""All legal moves of a lease; every other pair is refused and changes nothing (invariant 10)."""


@dataclass(slots=True)
class Lease:
    """The present lease of one stream."""

    name: str
    lease_epoch: int
    state: LeaseState
    since: int
    resend_at: int | None
    """When its owner is told of its state again (ms); None: it is not told yet of this lease."""
    resumes: int | None = None
    kept_until: int = 0
    """When an open cut was last seen to keep it from being given back: its deadline counts from then."""


STREAMS_PER_PAUSE = 100
"""For so many leases on their way a timer looks at them one millisecond later again."""


@dataclass(slots=True)
class OnTheirWay:
    """The streams whose leases are anything but granted: only at these a timer looks."""

    _streams: dict[str, None] = field(default_factory=dict)
    _look_at: int = 0
    """When (ms) they are looked at next."""

    def __bool__(self) -> bool:
        return bool(self._streams)

    def note(self, stream: str, state: LeaseState) -> None:
        """The lease of a stream has got into this state."""
        if state is LeaseState.GRANTED or state is LeaseState.ENDED:
            self._streams.pop(stream, None)
        else:
            self._streams[stream] = None

    def due(self, now: int) -> list[str]:
        """All of them, or none if that was so a moment ago and they are many."""
        if now < self._look_at:
            return []
        self._look_at = now + len(self._streams) // STREAMS_PER_PAUSE
        return [*self._streams]
