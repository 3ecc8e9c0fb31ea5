"""The leader machine: events in, effects out; no clock, no randomness, no I/O (EIP-0028, "Leader's logic").

Effects are ordered "persist before send": a `Persist` that stands before a `Send` must be durable under the
leader's term before the message leaves. If it cannot be made durable, the leader ends and nothing that
follows is done; its state, which is ahead of the journal then, dies with it.

What is durable lives in `GroupState` and changes only through records. What is not (who is connected, which
message is to be sent again) is rebuilt by the next leader from what borrowers say: a borrower that comes
back under its name gets its streams back at once, under a higher lease epoch; one that does not within its
session timeout loses them. All timers are due at fixed times; no traffic moves them.

Times are milliseconds of any clock that does not run backwards.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import assert_never

from streamlease.leader.core import cuts, healing
from streamlease.leader.core.acts import Acts
from streamlease.leader.core.book import (
    DEAF_AFTER,
    MAX_ARRIVALS,
    RETURN_TIMEOUT,
    InvalidateReason,
    LeaderConfig,
)
from streamlease.leader.core.events import (
    DeadLetterRefused,
    DeadLetterWritten,
    Effect,
    Event,
    Measured,
    Received,
    Recovered,
    StepDownWanted,
    StreamsListed,
    Tick,
)
from streamlease.leader.core.records import Committed, HandedOver, Returned, TermStarted, Truncated
from streamlease.leader.core.state import Lease, LeaseEvent, LeaseState, Peer
from streamlease.protocol.cuts import NO_RANGES
from streamlease.protocol.messages import (
    Command,
    Disconnect,
    FinishCut,
    FixCut,
    LeaderConnectResponse,
    LeaderWanted,
    MessageFailed,
    Ping,
    PingResponse,
    Progress,
    ProgressCommitted,
    ResumeCut,
    RevokeFinished,
    ToLeader,
    UpdateProgress,
)

__all__ = ["MAX_ARRIVALS", "Leader", "LeaderConfig"]


@dataclass(slots=True)
class Leader(Acts):
    """One leader in one term. All its state is in the fields of `Book`; only `step` changes them."""

    def step(self, event: Event, now: int, *, more: bool = False) -> list[Effect]:
        """Take one event at time `now` (ms) and return what is to be done, in order.

        Args:
            more: the next event of the same turn follows at once: plans wait for the last one.
        """
        if self.stopped:
            return []
        match event:
            case Recovered():
                self._recovered(now)
            case Received():
                self._received(event.sender, event.message, now)
            case StreamsListed():
                self._streams_listed(event, now)
            case Tick():
                if event.wall is not None:
                    self.wall_ahead = event.wall - now
                self._tick(event.heard, now)
            case StepDownWanted():
                self._step_down("drained")
            case DeadLetterWritten():
                self._dead_letter_written(event, now)
            case DeadLetterRefused():
                self._dead_letter_refused(event)
            case Measured():
                self._measured(event, now)
            case _:
                assert_never(event)
        if self.plan_due and not more and not self.stopped:
            self._rebalance(now)
        return self._flush()

    # ------------------------------------------------------------ life

    def _recovered(self, now: int) -> None:
        self._record(TermStarted(term=self.term, host=self.host, lineage=self.lineage))
        if healing.begins(self.durable, self.term):
            self.rebalance_at = now + healing.DELAY
        self.idle_since = now
        self.cut_since = dict.fromkeys(self.durable.sessions, now)
        for stream, progress in self.durable.streams.items():
            self._put_off(stream, now)
            if progress.owner is None or progress.session is None:
                continue
            timeout = max(progress.session_timeout_ms, RETURN_TIMEOUT)
            self.peers.setdefault(
                progress.owner,
                Peer(progress.owner, progress.session, "", "", "", 0, 0, timeout, now),
            )
            self.leases[stream] = Lease(progress.owner, progress.lease_epoch, LeaseState.GRANTED, now, now)
        for session in list(self.durable.sessions):
            self._forget_absent_session(session)
        self._begin_weighing(now)
        self._write_open_dead_letters()

    @property
    def moving(self) -> bool:
        """Whether something is under way, so that it needs ticks often."""
        return self.rebalance_at is not None or any(
            lease.state is not LeaseState.GRANTED for lease in self.leases.values()
        )

    def _excuse_silence(self, heard: int, now: int) -> None:
        """Give borrowers back the time in which they could not be heard."""
        if self.heard is not None and heard - self.heard > DEAF_AFTER:
            deaf = heard - self.heard - DEAF_AFTER
            for peer in self.peers.values():
                peer.last_seen = min(now, peer.last_seen + deaf)
        self.heard = heard

    def _tick(self, listened: int | None, now: int) -> None:
        heard = now if listened is None else min(listened, now)
        if listened is not None:
            self._excuse_silence(heard, now)
        for peer in list(self.peers.values()):
            if heard >= peer.last_seen + peer.timeout:
                self._lose(peer, now)
        moving = [one for one in self.leases.items() if one[1].state is not LeaseState.GRANTED]
        for stream, lease in moving:
            self._tick_lease(stream, lease, now)
        self._forget_away(now)
        self._resume_in_time(now)
        if self.warm_until is not None and now >= self.warm_until:
            self._warm(now)
        if self.rebalance_at is not None and now >= self.rebalance_at:
            self.rebalance_at = None
            self._rebalance(now)
        if self.peers:
            self.idle_since = None
        elif self.idle_since is None:
            self.idle_since = now
        elif now >= self.idle_since + self.config.idle_timeout:
            self._flush_then_stop("idle")

    # ------------------------------------------------------------ messages

    def _received(self, sender: str, message: ToLeader, now: int) -> None:
        match message:
            case LeaderWanted():
                self._leader_wanted(sender, message, now)
            case Ping() | UpdateProgress() | RevokeFinished() | MessageFailed() | Disconnect():
                self._of_borrower(sender, message, now)
            case FixCut() if self._is_newest(message.session, message.arrival):
                self._fix_cut(sender, message, now)
            case FinishCut() if self._is_newest(message.session, message.arrival):
                self._finish_cut(sender, message, now)
            case ResumeCut() if self._is_newest(message.session, message.arrival):
                self._resume_cut(sender, message, now)
            case FixCut() | FinishCut() | ResumeCut():
                pass  # of an earlier incarnation of its session, already counted
            case Command():
                self._command(sender, message, now)
            case _:
                assert_never(message)

    def _leader_wanted(self, sender: str, message: LeaderWanted, now: int) -> None:
        self._believe(message.attested, now)
        known = self.peers.get(message.name)
        if known is not None and known.borrower == message.borrower:
            known.last_seen = now
            self._accept(known)
            return
        highest = self.arrivals.get(message.name, (-1, -1))
        if (message.arrival, message.attempt) <= highest:
            self.refused += 1
            reason: InvalidateReason = "replaced" if message.arrival < highest[0] else "stale"
            self._invalidate(sender, message.borrower, reason)
            return
        if self.durable.expired_at is not None:
            self._record(Returned())
        self.arrivals[message.name] = (message.arrival, message.attempt)
        peer = Peer(
            message.name,
            message.session,
            message.borrower,
            sender,
            message.host,
            message.arrival,
            message.attempt,
            message.session_timeout_ms,
            now,
        )
        if known is not None and known.borrower:
            self.names.pop(known.borrower, None)  # another name may have come with the same id
            self._invalidate(known.mailbox, known.borrower, "replaced")
        self.peers[peer.name] = peer
        self.names[peer.borrower] = peer.name
        self._accept(peer)
        if known is not None:
            self._take_over(known, peer, now)
        self._want_rebalance(now)

    def _accept(self, peer: Peer) -> None:
        self._send(
            peer.mailbox,
            LeaderConnectResponse(group=self.group, borrower=peer.borrower, term=self.term, leader=self.host),
        )

    def _of_borrower(
        self,
        sender: str,
        message: Ping | UpdateProgress | RevokeFinished | MessageFailed | Disconnect,
        now: int,
    ) -> None:
        name = self.names.get(message.borrower)
        if name is None:
            self.refused += 1
            if not isinstance(message, Disconnect):
                self._invalidate(sender, message.borrower, "unknown")
            return
        peer = self.peers[name]
        peer.last_seen = now
        match message:
            case Ping():
                self._send(
                    peer.mailbox,
                    PingResponse(group=self.group, borrower=peer.borrower, term=self.term),
                )
            case UpdateProgress():
                taken = tuple(entry for entry in message.progress if self._progress(peer, entry, now))
                if taken:
                    self._send(
                        peer.mailbox,
                        ProgressCommitted(
                            group=self.group, borrower=peer.borrower, term=self.term, progress=taken
                        ),
                    )
            case RevokeFinished():
                lease = self._lease_of(peer, message.stream, message.lease_epoch)
                if lease is not None and self._free(message.stream, lease, LeaseEvent.REVOKE_FINISHED, now):
                    self._plan_soon(now)
            case MessageFailed():
                entry = Progress(
                    stream=message.stream, lease_epoch=message.lease_epoch, offset=message.offset
                )
                if self._progress(peer, entry, now):
                    self._failed(peer, message, now)
            case Disconnect():
                self._commit(peer, message.progress)
                self._lose(peer, now, clean=True)
                self._forget_borrower(peer.name)
                self._plan_soon(now)
            case _:
                assert_never(message)

    def _lease_of(self, peer: Peer, stream: str, lease_epoch: int) -> Lease | None:
        """The lease that a borrower speaks of, or None if it is not (any more) its own."""
        lease = self.leases.get(stream)
        if lease is None or lease.name != peer.name or lease.lease_epoch != lease_epoch:
            self.refused += 1
            return None
        return lease

    def _progress(self, peer: Peer, entry: Progress, now: int) -> bool:
        """Take one stream's progress; whether it is the owner's word."""
        lease = self._lease_of(peer, entry.stream, entry.lease_epoch)
        if lease is None:
            if entry.lease_epoch <= self.forced.get(entry.stream, 0):
                self._tell_forced_out(peer, entry.stream, entry.lease_epoch)
            return False
        before = lease.state
        event = LeaseEvent.FINAL_PROGRESS if entry.final else LeaseEvent.PROGRESS
        if not self._move(lease, event):
            return False
        self._commit(peer, (entry,))
        if lease.state is not before and before is not LeaseState.REVOKING:
            lease.since = now
        if lease.state is LeaseState.GRANTED and before is LeaseState.GRANTING:
            if self.held_back:
                self._want_rebalance(now, most=self.may_take)
            if entry.stream in self.given_up:
                since, clean = self.given_up.pop(entry.stream)
                self._record(HandedOver(stream=entry.stream, milliseconds=now - since, clean=clean))
            self._revoke_unwanted((entry.stream,), now)
        if lease.state is LeaseState.REVOKED:
            lease.resend_at = self._resend_at(now)
            self._tell(entry.stream, lease, peer, now)
        self._advance((entry.stream,), now)
        return True

    def _commit(self, peer: Peer, progress: Iterable[Progress]) -> None:
        """Record progress that is above what is committed; only of leases that the peer has."""
        entries = [
            entry
            for entry in progress
            if (lease := self.leases.get(entry.stream)) is not None
            and lease.name == peer.name
            and lease.lease_epoch == entry.lease_epoch
            and entry.offset > self.durable.streams[entry.stream].committed
        ]
        for entry in entries:
            self._pass_holes(entry)
        offsets = {
            entry.stream: entry.offset
            for entry in entries
            if entry.offset > self.durable.streams[entry.stream].committed
        }
        if offsets:
            self._record(Committed(offsets=offsets))

    def _pass_holes(self, entry: Progress) -> None:
        """What Redis lost before it was consumed is counted, as what retention removed is; each hole once."""
        stream = self.durable.streams[entry.stream]
        for start, end in entry.holes:
            if stream.committed < end <= entry.offset:
                if stream.committed < start:
                    self._record(Committed(offsets={entry.stream: start}))
                self._record(Truncated(floors={entry.stream: end}))

    # ------------------------------------------------------------ cuts

    def _hear_session(self, session: str) -> bool:
        """Whether some borrower of the session is connected."""
        return any(peer.session == session and peer.borrower for peer in self.peers.values())

    def _is_newest(self, session: str, arrival: int) -> bool:
        """Whether no later incarnation of the session is connected."""
        if any(peer.session == session and peer.arrival > arrival for peer in self.peers.values()):
            self.refused += 1
            return False
        return True

    def _close(self, session: str, finished: int, now: int) -> None:
        closed = cuts.closed(self.durable, session, finished)
        if closed is not None:
            # Those of a cut do not wait, so only what is sealed can be finished.
            ends = self.listing.ends if self.listing is not None else {}
            sealed = [stream for stream in self.durable.sessions[session].ranges if stream in ends]
            self._record(closed)
            self._advance(sealed, now)

    def _finish_cut(self, sender: str, message: FinishCut, now: int) -> None:
        if not cuts.is_certain(self.term, message):
            self.refused += 1
            return  # it comes again, with its ranges, once its session is connected to this leader
        went_through = [
            Progress(stream=part.stream, lease_epoch=part.lease_epoch, offset=part.end)
            for part in message.ranges or NO_RANGES
        ]
        self._believe(went_through, now)
        self._close(message.session, message.finished, now)
        self._send(sender, cuts.finished(self.durable, self.leases, self.term, message))

    def _fix_cut(self, sender: str, message: FixCut, now: int) -> None:
        self._close(message.session, message.finished, now)
        if cuts.is_late(self.durable, message):
            self.refused += 1
        elif self._hear_session(message.session) and self.durable.operated.paused is None:
            opened = cuts.opened(self.durable, self.leases, message)
            if opened is not None:
                self._record(opened)
                self.cut_since[message.session] = now
        self._send(sender, cuts.fixed(self.durable, self.leases, self.term, message))

    def _resume_cut(self, sender: str, message: ResumeCut, now: int) -> None:
        # Who comes to a cut has had all before it go through the sink; a failover may have lost that.
        self._close(message.session, message.cut - 1, now)
        lost = healing.reopened(self.durable, self.leases, message)
        if lost is not None:
            self._record(lost)
        self._send(sender, cuts.resumed(self.durable, self.term, message))
