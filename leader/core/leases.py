"""Leases: who has which stream, what is said to whom about it, and how streams change hands.

A lease begins under a new lease epoch and follows `LEASE_TRANSITIONS`; a stream without a lease is free, and
the next plan (`plans`) gives it to somebody. Plans are made a moment after the first wish for one, so that
joins and leaves within `rebalance_delay` make one plan.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from streamlease.leader.core import generations, healing
from streamlease.leader.core.book import ABSENT_TIMEOUT, MAX_ARRIVALS, Book
from streamlease.leader.core.events import StreamsListed
from streamlease.leader.core.operated import BorrowerLeft
from streamlease.leader.core.records import (
    Leased,
    Released,
    SessionForgotten,
    StreamsAdded,
    StreamsForgotten,
    Truncated,
)
from streamlease.leader.core.state import LEASE_TRANSITIONS, Lease, LeaseEvent, LeaseState, Peer
from streamlease.protocol.messages import Grant, Progress, Revoke, Revoked


@dataclass(slots=True)
class Leases(Book):
    """The streams of a group and their leases."""

    # ------------------------------------------------------------ one lease

    def _revoke(self, stream: str, lease: Lease, now: int) -> bool:
        if not self._move(lease, LeaseEvent.REVOKE_DECIDED):
            return False
        lease.since = now
        lease.resend_at = self._resend_at(now)
        self._tell(stream, lease, self.peers[lease.name], now)
        return True

    def _move(self, lease: Lease, event: LeaseEvent) -> bool:
        target = LEASE_TRANSITIONS.get((lease.state, event))
        if target is None:
            self.refused += 1
            return False
        lease.state = target
        return True

    def _lease(self, stream: str, peer: Peer, now: int) -> None:
        """Begin a new lease of `stream`, under the next epoch."""
        epoch = max(self.durable.streams[stream].lease_epoch, self.durable.epoch_floor) + 1
        self._record(
            Leased(
                stream=stream,
                lease_epoch=epoch,
                name=peer.name,
                session=peer.session,
                session_timeout_ms=peer.timeout,
            )
        )
        since = self.durable.streams[stream].held_since
        resumes = since if since < epoch else None
        lease = Lease(peer.name, epoch, LeaseState.GRANTING, now, self._resend_at(now), resumes)
        self.leases[stream] = lease
        self._tell(stream, lease, peer, now)

    def _free(self, stream: str, lease: Lease, event: LeaseEvent, now: int) -> bool:
        """End a lease; the stream is free, or finished."""
        if not self._move(lease, event):
            return False
        del self.leases[stream]
        self._record(Released(stream=stream, lease_epoch=lease.lease_epoch))
        self._advance((stream,), now)
        return True

    def _lose(self, peer: Peer, now: int, *, clean: bool = False) -> None:
        """A borrower is gone: its streams are free, its session too if it was the last one."""
        for stream, lease in list(self.leases.items()):
            lost = lease.name == peer.name and self._free(stream, lease, LeaseEvent.OWNER_LOST, now)
            if lost and not self.durable.streams[stream].finished:
                self.given_up[stream] = (now, True) if clean else (peer.last_seen, False)
        self.peers.pop(peer.name, None)
        self.names.pop(peer.borrower, None)
        self._forget_absent_session(peer.session)
        self._want_rebalance(now)

    def _take_over(self, old: Peer, new: Peer, now: int) -> None:
        """A newcomer has the name of `old`: it gets the same streams, under new epochs, at once.

        Also those that an operator wants back, if the session had them: asked back once it has answered, it
        finishes what it was handed, which a free stream's next owner would be handed again.
        """
        for stream, lease in list(self.leases.items()):
            if lease.name != old.name:
                continue
            same = self.durable.streams[stream].session == new.session
            # Blocked: another program would process what becomes a dead letter, or stops the stream.
            if not same and (self.durable.streams[stream].blocked or self._unwanted(stream, lease)):
                self._free(stream, lease, LeaseEvent.OWNER_LOST, now)
            else:
                self._move(lease, LeaseEvent.OWNER_LOST)
                self._lease(stream, new, now)
        self._forget_absent_session(old.session)

    @property
    def revocation_timeout(self) -> int:
        return self.options.revocation_timeout_ms or self.config.revocation_timeout

    def taken_at(self, stream: str, lease: Lease) -> int | None:
        """When (ms) a stream that is asked back is taken by force; None: it is waited for.

        A stream in an open cut is waited for as long as its session lives, unless the group's declaration
        says how long. The query is writing what it has read, or pauses between two triggers; somebody else
        would be handed the same messages. Whoever cannot wait releases the stream (`acts`).
        """
        waits = lease.state is LeaseState.REVOKING and self._is_in_cut(stream)
        if waits and self.options.revocation_timeout_ms is None:
            return None
        return max(lease.since, lease.kept_until) + self.revocation_timeout

    def _is_in_cut(self, stream: str) -> bool:
        session = self.durable.streams[stream].session
        known = self.durable.sessions.get(session) if session is not None else None
        return known is not None and stream in known.ranges

    def _tick_lease(self, stream: str, lease: Lease, now: int) -> None:
        peer = self.peers.get(lease.name)
        if peer is None or not peer.borrower:
            return
        if lease.state in (LeaseState.REVOKING, LeaseState.REVOKED):
            taken_at = self.taken_at(stream, lease)
            if taken_at is None:
                lease.kept_until = now
            elif now >= taken_at:
                self._invalidate(peer.mailbox, peer.borrower, "revocation_timeout")
                self._lose(peer, now)
                return
        if lease.state is not LeaseState.GRANTED and now >= lease.resend_at:
            lease.resend_at = self._resend_at(now)
            self._tell(stream, lease, peer, now)

    def _tell(self, stream: str, lease: Lease, peer: Peer, now: int) -> None:
        """Send the message that belongs to the state of the lease."""
        if lease.state is LeaseState.GRANTING:
            progress = self.durable.streams[stream]
            self._send(
                peer.mailbox,
                Grant(
                    group=self.group,
                    borrower=peer.borrower,
                    term=self.term,
                    stream=stream,
                    lease_epoch=lease.lease_epoch,
                    progress=progress.committed,
                    pinned_end=progress.pinned_end,
                    resumes=lease.resumes,
                    follows=progress.follows,
                    retry_after_ms=self._retry_after(stream, now),
                ),
            )
        elif lease.state is LeaseState.REVOKING:
            self._send(
                peer.mailbox,
                Revoke(
                    group=self.group,
                    borrower=peer.borrower,
                    term=self.term,
                    stream=stream,
                    lease_epoch=lease.lease_epoch,
                ),
            )
        elif lease.state is LeaseState.REVOKED:
            self._send(
                peer.mailbox,
                Revoked(
                    group=self.group,
                    borrower=peer.borrower,
                    term=self.term,
                    stream=stream,
                    lease_epoch=lease.lease_epoch,
                ),
            )

    def _put_off(self, stream: str, now: int) -> None:
        """If a message of the stream failed and is to be tried again, let it wait from now on."""
        failure = self.durable.streams[stream].failure
        if failure is not None and failure.fate == "retry":
            self.retry_at[stream] = now + self.options.retry_delay(len(failure.failures))
        else:
            self.retry_at.pop(stream, None)

    def _retry_after(self, stream: str, now: int) -> int:
        """How long (ms) what is next in the stream is not to be processed, because it failed before."""
        failure = self.durable.streams[stream].failure
        if failure is None or failure.fate != "retry":
            self.retry_at.pop(stream, None)
        return max(0, self.retry_at.get(stream, now) - now)

    def _forget_absent_session(self, session: str) -> None:
        """Forget a session without borrowers. It has no streams, so its open cut is void already."""
        if all(peer.session != session for peer in self.peers.values()):
            if session in self.durable.sessions:
                self._record(SessionForgotten(session=session))
            self.cut_since.pop(session, None)
            self._forget_arrivals()

    def _forget_arrivals(self) -> None:
        """Keep the newest arrivals only: enough to refuse late messages, bounded in memory."""
        if len(self.arrivals) > MAX_ARRIVALS:
            for name in [n for n in self.arrivals if n not in self.peers][: MAX_ARRIVALS // 2]:
                del self.arrivals[name]

    # ------------------------------------------------------------ what operators have set

    def takes(self, name: str) -> bool:
        """Whether a borrower of that name is connected and may get streams."""
        peer = self.peers.get(name)
        return peer is not None and bool(peer.borrower) and name not in self.durable.operated.drained

    def _unwanted(self, stream: str, lease: Lease) -> bool:
        """Whether the holder of a stream is to give it up because of what operators have set."""
        operated = self.durable.operated
        if operated.paused is not None or lease.name in operated.drained:
            return True
        pin = operated.pins.get(stream)
        return pin is not None and pin != lease.name and self.takes(pin)

    def _revoke_unwanted(self, streams: Iterable[str], now: int) -> None:
        """Ask back what operators want back; what is only being granted follows once that is answered."""
        for stream in streams:
            lease = self.leases.get(stream)
            if lease is None or lease.state is not LeaseState.GRANTED or not self.peers[lease.name].borrower:
                continue
            revoked = self._unwanted(stream, lease) and self._revoke(stream, lease, now)
            if revoked and self.durable.operated.paused is None:
                self.given_up[stream] = (now, True)

    def _force_out(self, stream: str) -> tuple[Peer, int] | None:
        """End a lease that a record has ended already; who had it, and its epoch."""
        lease = self.leases.pop(stream, None)
        self.given_up.pop(stream, None)
        if lease is None:
            return None
        self._move(lease, LeaseEvent.OWNER_LOST)
        self.forced[stream] = lease.lease_epoch
        return self.peers[lease.name], lease.lease_epoch

    def _tell_forced_out(self, peer: Peer, stream: str, lease_epoch: int) -> None:
        if peer.borrower:
            self._send(
                peer.mailbox,
                Revoked(
                    group=self.group,
                    borrower=peer.borrower,
                    term=self.term,
                    stream=stream,
                    lease_epoch=lease_epoch,
                    forced=True,
                ),
            )

    def _forget_borrower(self, name: str) -> None:
        """A borrower is gone for good: what operators have set for it is void."""
        operated = self.durable.operated
        self.away.pop(name, None)
        if name in operated.drained or name in operated.pins.values():
            self._record(BorrowerLeft(name=name))

    def _forget_away(self, now: int) -> None:
        """Forget what was set for borrowers that did not come back in time."""
        operated = self.durable.operated
        for name in {*operated.drained, *operated.pins.values()}:
            if name in self.peers:
                self.away.pop(name, None)
            elif now >= self.away.setdefault(name, now) + ABSENT_TIMEOUT:
                self._forget_borrower(name)

    # ------------------------------------------------------------ streams and plans

    def _streams_listed(self, event: StreamsListed, now: int) -> None:
        starts = event.starts
        new = {s: start for s, start in starts.items() if s not in self.durable.streams}
        unlisted = [s for s in self.durable.streams if s not in starts]
        unread = frozenset(s for s in unlisted if s.partition(".")[0] in event.unread)
        gone = tuple(s for s in unlisted if s not in unread)
        self.listing = generations.Listing.of(event.ends, event.predecessors, unread)
        if new:
            waiting = generations.waiting(self.durable, new, event.predecessors)
            self._record(StreamsAdded(starts=new, waiting=waiting))
            self._believe([self.attested.pop(key) for key in list(self.attested) if key[0] in new], now)
        for stream in gone:
            lease = self.leases.pop(stream, None)
            self.given_up.pop(stream, None)
            if lease is not None:
                self._begin_anew(self.peers[lease.name])
        if gone:
            self._record(StreamsForgotten(streams=gone))
        held = self.durable.streams
        passed = {s: at for s, at in event.floors.items() if s in held and held[s].committed < at}
        blocked = any(held[stream].blocked for stream in passed)
        if passed:
            self._record(Truncated(floors=passed))
        if new or gone or blocked:
            self._want_rebalance(now)
        self._advance(tuple(self.durable.streams), now)

    def _believe(self, attested: Iterable[Progress], now: int) -> None:
        """Take over what others have seen and the journal has lost; see `healing`."""
        entries = tuple(attested)
        record = healing.news(self.durable, entries)
        if record is not None:
            blocked = any(self.durable.streams[stream].blocked for stream in record.streams)
            self._record(record)
            self._advance(record.streams, now)
            if blocked:
                self._want_rebalance(now)
        if self.durable.lost_from is not None and self.listing is None:
            for one in entries:
                key = (one.stream, one.lease_epoch)
                known = self.attested.get(key)
                if one.stream not in self.durable.streams and (known is None or one.offset > known.offset):
                    self.attested[key] = one

    def _begin_anew(self, peer: Peer) -> None:
        """The borrower holds what does not exist any more: let it come back for what does."""
        if peer.borrower:
            self._invalidate(peer.mailbox, peer.borrower, "unknown")
            self.names.pop(peer.borrower, None)  # another name may have come with the same id
            peer.borrower = ""

    def _advance(self, candidates: Iterable[str], now: int) -> None:
        """Finish the sealed streams that are consumed to their end, and let the next generation begin."""
        if self.listing is None:
            return
        found = generations.advance(self.durable, self.leases, self.listing, candidates)
        if found.record is not None:
            self._record(found.record)
            for stream in found.record.finished:
                self.given_up.pop(stream, None)
            self._want_rebalance(now)
        for stream in found.leaving:
            lease = self.leases[stream]
            if lease.state is LeaseState.GRANTED and self.peers[lease.name].borrower:
                self._revoke(stream, lease, now)

    def _want_rebalance(self, now: int, *, most: int | None = None) -> None:
        """Ask for a plan soon; requests that come before it is made join it, and never put it off.

        Args:
            most: how many streams plans may take because of their weights; None: what came, went or was set
                needs as many as it takes.
        """
        self.may_take = most
        if self.rebalance_at is None:
            self.rebalance_at = now + self.config.rebalance_delay

    def _pins(self) -> dict[str, str]:
        """Streams that operators moved to a borrower that takes them. They stand outside of the balance."""
        return {s: name for s, name in self.durable.operated.pins.items() if self.takes(name)}
