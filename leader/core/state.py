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

from dataclasses import dataclass
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


class Taking(Enum):
    """How many streams plans may take from their owners because of their weights."""

    AS_MANY_AS_NEEDED = "as many as needed"
    """Somebody came or went, or something was set."""
    UP_TO_SO_MANY = "up to so many"
    """Weights alone asked for plans: these move a few streams together."""
    AT_REST = "at rest"
    """None. Nothing is to be moved, or weights have moved what they may for now."""


class TakingEvent(Enum):
    """What changes how many streams plans may take."""

    NEEDED = "needed"
    WEIGHTS_DUE = "weights_due"
    SETTLED = "settled"
    """A plan took nothing, and had nothing to wait for."""
    USED_UP = "used_up"


_T, _W = Taking, TakingEvent

TAKING_TRANSITIONS: dict[tuple[Taking, TakingEvent], Taking] = {
    (_T.AS_MANY_AS_NEEDED, _W.NEEDED): _T.AS_MANY_AS_NEEDED,
    (_T.AS_MANY_AS_NEEDED, _W.SETTLED): _T.AT_REST,
    (_T.UP_TO_SO_MANY, _W.NEEDED): _T.AS_MANY_AS_NEEDED,
    (_T.UP_TO_SO_MANY, _W.SETTLED): _T.AT_REST,
    (_T.UP_TO_SO_MANY, _W.USED_UP): _T.AT_REST,
    (_T.AT_REST, _W.NEEDED): _T.AS_MANY_AS_NEEDED,
    (_T.AT_REST, _W.WEIGHTS_DUE): _T.UP_TO_SO_MANY,
    (_T.AT_REST, _W.SETTLED): _T.AT_REST,
}
"""All legal changes; every other pair changes nothing: weights wait while more is needed."""


@dataclass(slots=True)
class Peer:
    """A connected borrower, or the memory of one that the former leader had (`borrower` is empty then)."""

    name: str
    session: str
    borrower: str
    mailbox: str
    host: str
    arrival: int
    attempt: int
    timeout: int
    last_seen: int

    @property
    def connected(self) -> bool:
        """Whether it has spoken in this term."""
        return bool(self.borrower)


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
