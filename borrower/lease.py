"""A lease: one grant of one stream, from the borrower's point of view, and every legal move of it.

Source: EIP-0028, "Individual stream states". There is no cycle: a stream that comes back comes back under
another lease, with a higher lease epoch. Whether the work on it goes on then is told by the
consumer's book: see `streamlease.borrower.book`.

::

    granted --> revoking --> gone
       |                      ^
       +----------------------+
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from streamlease.protocol.messages import Hole, MessageFailed, Progress


class StreamState(Enum):
    """Where a lease is in its life."""

    GRANTED = "granted"
    REVOKING = "revoking"
    """The leader, or a session that leaves, asks for final progress."""
    GONE = "gone"


class StreamEvent(Enum):
    """What can move a lease."""

    REVOKE = "revoke"
    REVOKED = "revoked"
    REPLACED = "replaced"
    """The leader granted the stream again under a higher lease epoch."""
    ENDED = "ended"
    """The borrower's life is over."""


_S, _V = StreamState, StreamEvent

STREAM_TRANSITIONS: dict[tuple[StreamState, StreamEvent], StreamState] = {
    (_S.GRANTED, _V.REVOKE): _S.REVOKING,
    (_S.GRANTED, _V.REVOKED): _S.GONE,
    (_S.GRANTED, _V.REPLACED): _S.GONE,
    (_S.GRANTED, _V.ENDED): _S.GONE,
    (_S.REVOKING, _V.REVOKED): _S.GONE,
    (_S.REVOKING, _V.REPLACED): _S.GONE,
    (_S.REVOKING, _V.ENDED): _S.GONE,
}
"""All legal moves of a lease; every other pair is refused and changes nothing (invariant 10)."""


@dataclass(slots=True)
class Borrowed:
    """One lease: where it is in its life, and what the leader was told under it."""

    stream: str
    lease_epoch: int
    """The number of the grant; it goes into all that is said about it."""
    offset: int
    """How far the leader was told the stream is."""
    final: bool = False
    """Whether it was told that nothing more comes."""
    holes: tuple[Hole, ...] = ()
    """What it was told is lost below `offset`."""
    state: StreamState = StreamState.GRANTED
    asked_back: bool = False
    """Whether it has been revoking."""
    acknowledged: int = -1
    """Everything below is durable, and was made so under this lease; -1: that is not known of anything."""
    heard: int = -1
    """Everything below is known to the leader, by its answers under this lease; -1: there was none."""
    failed: MessageFailed | None = None
    """A failure that the leader has not answered."""
    report_at: int = 0
    """When (ms) what was told is told again, if it is not answered."""

    @property
    def told(self) -> Progress:
        """The newest report of progress."""
        return self._report(final=self.final)

    @property
    def last_word(self) -> Progress:
        """The same, if nothing more comes."""
        return self._report(final=True)

    def _report(self, *, final: bool) -> Progress:
        return Progress(
            stream=self.stream,
            lease_epoch=self.lease_epoch,
            offset=self.offset,
            final=final,
            holes=self.holes,
        )

    def move(self, event: StreamEvent) -> bool:
        """Take one step through the table; False, and no change, if it has none."""
        target = STREAM_TRANSITIONS.get((self.state, event))
        if target is None:
            return False
        self.state = target
        self.asked_back |= target is StreamState.REVOKING
        return True

    @property
    def is_answered(self) -> bool:
        """Whether the leader has answered all that it was told."""
        return self.failed is None and self.heard >= self.offset
