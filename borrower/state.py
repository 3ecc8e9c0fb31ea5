"""Every legal transition of a borrower and of a stream that it holds.

Source: EIP-0028, "Borrower's statuses" and "Individual stream states". Neither table has a cycle: on an
inconsistent message a borrower ends, and its agent makes a new one with a new id.

::

    connecting --> connected --> unsubscribing --> ended        granted --> revoking --> gone
        |              |                             ^             |                      ^
        +--------------+-----------------------------+             +----------------------+
"""

from __future__ import annotations

from enum import Enum


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


class StreamState(Enum):
    """Where a held stream is in its life."""

    GRANTED = "granted"
    REVOKING = "revoking"
    GONE = "gone"


class StreamEvent(Enum):
    """What can move a held stream."""

    REVOKE = "revoke"
    REVOKED = "revoked"
    REPLACED = "replaced"
    """The leader granted the stream again under a higher lease epoch."""


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

_S, _V = StreamState, StreamEvent

STREAM_TRANSITIONS: dict[tuple[StreamState, StreamEvent], StreamState] = {
    (_S.GRANTED, _V.REVOKE): _S.REVOKING,
    (_S.GRANTED, _V.REVOKED): _S.GONE,
    (_S.GRANTED, _V.REPLACED): _S.GONE,
    (_S.REVOKING, _V.REVOKED): _S.GONE,
    (_S.REVOKING, _V.REPLACED): _S.GONE,
}
"""All legal moves of a held stream; every other pair is refused and changes nothing (invariant 10)."""
