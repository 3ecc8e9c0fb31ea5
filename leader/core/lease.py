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

from collections.abc import Mapping
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
    resend_at: int
    resumes: int | None = None
    kept_until: int = 0
    """When an open cut was last seen to keep it from being given back: its deadline counts from then."""


@dataclass(slots=True)
class OnTheirWay:
    """The streams whose leases are anything but granted: only at these a timer looks."""

    _streams: dict[str, None] = field(default_factory=dict)
    """With some that have come to rest since, or are gone."""

    def note(self, stream: str, lease: Lease) -> None:
        """The lease of a stream has begun, or was moved."""
        if lease.state is not LeaseState.GRANTED:
            self._streams[stream] = None

    def among(self, leases: Mapping[str, Lease]) -> list[tuple[str, Lease]]:
        """Those of them that are still on their way, with their leases."""
        if not self._streams:
            return []
        found = [(stream, leases[stream]) for stream in self._streams if stream in leases]
        moving = [one for one in found if one[1].state is not LeaseState.GRANTED]
        self._streams = dict.fromkeys([stream for stream, _ in moving])
        return moving
