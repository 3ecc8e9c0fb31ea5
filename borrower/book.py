"""One consumer's book: per stream, what is held, how far it is read, delivered, committed, and what failed.

A lease (`Borrowed`) ends with its borrower, with its leader, or when it is revoked. The work on a stream need
not: the book keeps it, and when the stream is granted again it goes on, if nobody else had the stream in
between. The book is stepped with what a borrower tells its session (`streamlease.borrower.events`), and with
what the consumer does. It is free of I/O; who waits for an answer is the business of those who use it.

What becomes of a held stream, by the state of its lease (`STREAM_TRANSITIONS`):

=========  =========================================================================================
granted    is read, delivered and committed
revoking   nothing more is delivered; with the last commit of what was delivered its progress is final
gone       all that was delivered is committed: it is `given_back`. Otherwise it waits for the next grant;
           what was read may be delivered, unless the stream was asked back
granted    goes on: from what was delivered, or behind what was decided elsewhere
again      is begun anew, if somebody else had it: nothing of the work before counts any more
=========  =========================================================================================

Per stream always ``acknowledged <= committed <= delivered <= position``, but for what a leader lost.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from streamlease.borrower.events import (
    Failed,
    FailureAnswered,
    ProgressAcknowledged,
    Progressed,
    StreamGone,
    StreamGranted,
    StreamRevoking,
)
from streamlease.borrower.lease import Borrowed, StreamEvent, StreamState
from streamlease.protocol.messages import Hole, Verdict

MOST_HOLES = 100
"""So many holes of one stream are reported apart."""


@dataclass(frozen=True, slots=True)
class Failing:
    """A failure that is not answered yet."""

    offset: int
    failure: str
    """Its identity: it may be told again, also under a later lease, and counts once."""
    cause: str


@dataclass(slots=True, eq=False)
class Held:
    """One stream, for as long as the work on it goes on from lease to lease."""

    stream: str
    slot: int
    lease: Borrowed
    position: int
    """Next offset to read."""
    delivered: int
    """Next offset to hand to the consumer."""
    committed: int
    """Next offset that the consumer has not committed."""
    acknowledged: int
    """Next offset that is not durably committed."""
    since: int = 0
    """The lease epoch since which the consumer has had the stream without a break."""
    follows: int | None = None
    """The lease epoch before this one; None: not known."""
    pinned_end: int | None = None
    """Where the next cut must end: see `Grant`."""
    waited: float = 0.0
    """Without a lease: for how many seconds the session has been connected again."""
    skips: dict[int, int] = field(default_factory=dict)
    """Start -> end of ranges in which nothing is for the consumer, above what is committed."""
    holes: dict[int, int] = field(default_factory=dict)
    """Start -> end of what Redis lost, above what is acknowledged."""
    failing: Failing | None = None
    """While it waits, nothing of the stream is handed out."""
    damaged_at: int | None = None
    """What stands there cannot be decoded; it fails by itself once all before it is committed."""
    damaged_until: int = 0
    """Of a damaged entry a message is among the dead letters: the others up to here need not wait."""
    retry_at: float | None = None
    """Nothing is read before, by the consumer's clock in seconds: the next message failed."""
    turn: int = 0
    """Rises when messages that were handed out are to be handed out again."""
    entries: int | None = None
    """How many entries the next read asks for at first; None: as many as any."""
    merged: bool = False
    """Whether it asks for merged entries first."""
    end_unknown: bool = False
    """Whether it is to be read though nobody knows where the stream ends."""

    @classmethod
    def begin(
        cls, slot: int, stream: str, lease_epoch: int, offset: int, lease: Borrowed | None = None
    ) -> Held:
        """A stream on which nothing is done yet; its work begins at `offset`."""
        lease = lease or Borrowed(stream, lease_epoch, offset)
        return cls(stream, slot, lease, offset, offset, offset, offset, since=lease_epoch)

    # ------------------------------------------------------------ the lease

    @property
    def lease_epoch(self) -> int:
        """That of the newest lease."""
        return self.lease.lease_epoch

    @property
    def is_granted(self) -> bool:
        """Whether the stream is the consumer's, and not asked back."""
        return self.lease.state is StreamState.GRANTED

    @property
    def revoking(self) -> bool:
        """Whether the stream is asked back, and not yet given."""
        return self.lease.state is StreamState.REVOKING

    @property
    def limbo(self) -> bool:
        """Whether the lease is over; the stream may come back."""
        return self.lease.state is StreamState.GONE

    # ------------------------------------------------------------ reading

    @property
    def is_read(self) -> bool:
        """Whether more of the stream may be read now."""
        waits = self.failing is not None or self.damaged_at is not None or self.retry_at is not None
        return self.is_granted and not waits

    def read_up_to(self, next: int | None) -> int | None:
        """Where a read must end: at the end of the stream, or at a hole that is known; None: not known."""
        if not self.holes:
            return next
        ends = [start for start in self.holes if start > self.position]
        return min(ends if next is None else (next, *ends), default=None)

    def read(self, start: int, end: int) -> bool:
        """Offsets ``start <= offset < end`` were read; False if they are not the next ones (any more)."""
        if self.position != start:
            return False
        self.position = end
        return True

    def skip(self, start: int, end: int) -> bool:
        """Nothing there is for the consumer; whether that is progress already."""
        self.skips[start] = end
        if self.committed != start:
            return False
        self.advance(start)
        return True

    def rewind(self) -> None:
        """What was read and not delivered is to be read again."""
        self.position = self.delivered
        self.damaged_at = None
        self.skips = {start: end for start, end in self.skips.items() if start < self.delivered}

    # ------------------------------------------------------------ progress

    def advance(self, end: int) -> None:
        """Everything below `end` is done, and what is skipped right behind it."""
        self.committed = max(self.committed, end)
        while self.skips and (skipped := self.skips.pop(self.committed, None)) is not None:
            self.committed = skipped
        self.delivered = max(self.delivered, self.committed)
        if self.pinned_end is not None and self.committed >= self.pinned_end:
            self.pinned_end = None

    def follow(self, offset: int) -> None:
        """The stream is at `offset` now, by the word of its leader, who may have lost what was committed."""
        if offset >= self.committed:
            self.advance(offset)
            self.position = max(self.position, self.delivered)
        else:
            self.committed = self.delivered = self.position = offset

    def acknowledge(self, offset: int) -> int:
        """Everything below `offset` is durable; how many messages more than before."""
        more = max(0, offset - self.acknowledged)
        self.acknowledged += more
        if self.holes:
            self.holes = {start: end for start, end in self.holes.items() if end > self.acknowledged}
        return more

    def lost(self) -> tuple[Hole, ...]:
        """The holes below what is committed; the oldest ones joined, if they are many."""
        found = sorted((start, end) for start, end in self.holes.items() if end <= self.committed)
        if len(found) > MOST_HOLES:
            joined = found[: 1 - MOST_HOLES]
            last = joined[-1][1]
            found = [(last - sum(end - start for start, end in joined), last), *found[1 - MOST_HOLES :]]
        return tuple(found)

    def progress(self, *, leaving: bool = False) -> Progressed:
        """What the leader is to be told.

        Args:
            leaving: the consumer commits nothing more; otherwise what was delivered must be committed before
                a stream that is asked back is given.
        """
        durable = self.acknowledged >= self.committed
        final = self.revoking and (leaving or self.committed >= self.delivered)
        holes = self.lost() if self.holes else ()
        return Progressed(self.stream, self.lease_epoch, self.committed, final, holes, durable)

    # ------------------------------------------------------------ failures

    def fail(self, offset: int, failure: str, cause: str) -> None:
        """The message at `offset` could not be processed; everything before it is done."""
        self.advance(offset)
        self.failing = Failing(offset, failure, cause)

    def failure(self) -> Failed | None:
        """What the leader is to be told of the message that failed."""
        one = self.failing
        if one is None:
            return None
        return Failed(self.stream, self.lease_epoch, one.offset, one.failure, one.cause)

    def settle(self, verdict: Verdict) -> None:
        """The failure is answered: what was handed out behind the message is void, and comes again."""
        failing, self.failing = self.failing, None
        if failing is not None:
            self.go_on_at(failing.offset + (verdict == "passed"))
            self.acknowledge(failing.offset + (verdict == "passed"))

    def go_on_at(self, offset: int) -> None:
        """All below `offset` is decided, here or elsewhere; what was handed out is void and comes again."""
        self.turn += 1
        self.advance(offset)
        self.delivered = self.committed
        self.rewind()


class Granted(NamedTuple):
    """What a grant has come to."""

    held: Held
    goes_on: bool
    former: Held | None = None
    """The work that was begun before, and does not go on: nobody may wait for it any more."""
    passed: Failing | None = None
    """A failure that was answered meanwhile: the message is a dead letter."""
    behind: int | None = None
    """How far the consumer was, if the stream went on without it although nobody else had it."""


class ConsumerBook:
    """All streams of one consumer."""

    def __init__(self) -> None:
        self.streams: dict[str, Held] = {}
        self.given_back: dict[str, Held] = {}
        """Streams whose final progress was reported; a leader that did not hear it grants them once more."""
        self._left: dict[Held, None] = {}
        """All that have no lease, and some that have one again, or are given up."""

    def holds(self, held: Held) -> bool:
        """Whether the work on the stream goes on, or may go on with the next grant."""
        return self.streams.get(held.stream) is held

    def owned(self) -> list[Held]:
        """The streams that have a lease. From any thread."""
        return [held for held in list(self.streams.values()) if not held.limbo]

    def in_limbo(self) -> list[Held]:
        """The streams that wait for a lease."""
        if self._left:
            self._left = {held: None for held in self._left if held.limbo and self.holds(held)}
        return [*self._left]

    def granted(self, slot: int, grant: StreamGranted) -> Granted:
        """Go on with the stream if nobody else had it since the lease that is known here; else begin anew."""
        stream = grant.stream
        given_back = self.given_back.pop(stream, None)
        former = self.streams.get(stream, given_back)
        if former is not None and grant.resumes is not None and grant.resumes <= former.lease_epoch:
            done = Granted(former, True, None, *self._go_on(former, slot, grant))
        else:
            new = Held.begin(slot, stream, grant.lease_epoch, grant.progress, grant.lease)
            done = Granted(new, False, former)
        held = self.streams[stream] = done.held
        if grant.resumes is not None:
            held.since = grant.resumes
        held.follows, held.pinned_end = grant.follows, grant.pinned_end
        return done

    @staticmethod
    def _go_on(held: Held, slot: int, grant: StreamGranted) -> tuple[Failing | None, int | None]:
        if held.lease.asked_back:
            held.rewind()
        held.slot = slot
        held.lease = grant.lease or Borrowed(grant.stream, grant.lease_epoch, grant.progress)
        held.waited = 0.0
        failing, passed = held.failing, None
        behind = held.committed if grant.progress > held.committed else None
        if failing is not None and grant.progress > failing.offset:
            held.settle("passed")
            passed = failing
        if held.committed < grant.progress:
            held.go_on_at(grant.progress)
        held.acknowledge(grant.progress)
        return passed, behind

    def revoking(self, revoking: StreamRevoking) -> Held | None:
        """The stream is asked back; nothing for a late word."""
        held = self._of(revoking)
        if held is not None:
            held.lease.move(StreamEvent.REVOKE)
        return held

    def gone(self, gone: StreamGone, *, busy: bool = False) -> Held | None:
        """The lease is over: the stream is given back, or waits for the next grant; nothing for a late word.

        Args:
            busy: the consumer is not done with the stream, whatever is committed.
        """
        held = self._of(gone)
        if held is None:
            return None
        held.lease.move(StreamEvent.ENDED)
        self._left[held] = None
        if held.lease.asked_back and not busy and held.committed >= held.delivered:
            self.given_back[gone.stream] = self.streams.pop(gone.stream)
        return held

    def acknowledged(self, ack: ProgressAcknowledged) -> Held | None:
        """The stream of which this is an answer; nothing for a late word."""
        return self._of(ack)

    def answered(self, answer: FailureAnswered) -> Held | None:
        """The stream that waits for this answer, if one does."""
        held = self.streams.get(answer.stream)
        failing = held.failing if held is not None else None
        return held if failing is not None and failing.failure == answer.failure else None

    def give_up(self, held: Held) -> None:
        """The work on the stream does not go on, whoever gets it."""
        if self.holds(held):
            del self.streams[held.stream]

    def _of(self, event: StreamRevoking | StreamGone | ProgressAcknowledged) -> Held | None:
        held = self.streams.get(event.stream)
        return held if held is not None and held.lease_epoch == event.lease_epoch else None
