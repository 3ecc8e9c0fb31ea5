"""Leases: who has which stream, and how it changes hands.

A lease begins under a new lease epoch and follows `LEASE_TRANSITIONS`; a stream without a lease is free, and
the next plan gives it to somebody. It is granted once it stands durably where consumers commit: from then on
the former owner commits nothing more, and it is known how far it came (`written`). The message that belongs
to the state of a lease is sent when it gets into that state, and again until it is answered (`telling`). What
plans and operators want of it is in `orders`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from streamlease.leader.core.config import LeaderConfig
from streamlease.leader.core.happenings import (
    Freed,
    GivenBack,
    GrantsAnswered,
    Overdue,
)
from streamlease.leader.core.in_turns import AskedBack, BegunLeases
from streamlease.leader.core.lease import LEASE_TRANSITIONS, Lease, LeaseEvent, LeaseState, OnTheirWay
from streamlease.leader.core.parts import telling, wishes
from streamlease.leader.core.parts.failures import Failures
from streamlease.leader.core.parts.hand_overs import HandOvers
from streamlease.leader.core.parts.ledger import Ledger, Table
from streamlease.leader.core.parts.noted_progress import NotedProgress
from streamlease.leader.core.parts.peers import Peers
from streamlease.leader.core.peer import Peer
from streamlease.leader.core.state.records import Committed, Leased, Released
from streamlease.protocol.group_options import GroupOptions
from streamlease.protocol.messages import Progress

CALM_STREAMS = 1000
"""For each so many streams of a group, what is not answered waits one more ``resend_interval``: a thousand
repetitions a second are bearable, and more would themselves delay the answers."""


@dataclass(slots=True)
class Leases(Table[Lease]):
    """The present lease of each stream that has one."""

    ledger: Ledger
    config: LeaderConfig
    options: GroupOptions
    peers: Peers
    failures: Failures
    hand_overs: HandOvers
    asked_back: AskedBack
    begun: BegunLeases
    on_their_way: OnTheirWay = field(default_factory=OnTheirWay)
    forced: dict[str, int] = field(default_factory=dict)
    """Stream -> highest lease epoch that was ended by force in this term: its owner may not know it yet."""

    # ------------------------------------------------------------ one lease

    def recovered(self, now: int) -> None:
        """Take over the leases of the former term: their owners are expected back."""
        for stream, progress in self.ledger.durable.streams.items():
            if progress.owner is not None and progress.session is not None:
                lease_epoch = progress.lease_epoch
                self._rows[stream] = Lease(progress.owner, lease_epoch, LeaseState.GRANTED, now, now)

    def _move(self, stream: str, lease: Lease, event: LeaseEvent) -> bool:
        target = LEASE_TRANSITIONS.get((lease.state, event))
        if target is None:
            self.ledger.refuse()
            return False
        lease.state = target
        self.on_their_way.note(stream, target)
        if target is LeaseState.ENDED:
            self.asked_back.over(stream)
        return True

    def begin(self, stream: str, peer: Peer, now: int) -> None:
        """Begin a new lease of `stream`, under the next lease epoch."""
        durable = self.ledger.durable
        lease_epoch = durable.next_lease_epoch(stream)
        self.ledger.record(
            Leased(
                stream=stream,
                lease_epoch=lease_epoch,
                name=peer.name,
                session=peer.session,
                session_timeout_ms=peer.timeout,
            )
        )
        since = durable.streams[stream].held_since
        resumes = since if since < lease_epoch else None
        lease = self._rows[stream] = Lease(peer.name, lease_epoch, LeaseState.GRANTING, now, None, resumes)
        self.begun.begin(stream, lease)
        self.on_their_way.note(stream, LeaseState.GRANTING)

    def written(self, committed: Mapping[str, int], now: int) -> list[str]:
        """The leases that began so far stand in Redis: grant them.

        Args:
            committed: streams of which more was committed than was known, and how far they are.

        Returns:
            those streams.
        """
        streams = self.ledger.durable.streams
        further = {s: offset for s, offset in committed.items() if offset > streams[s].committed}
        if further:
            self.ledger.record(Committed(offsets=further))
        self.begun.written()
        self._tell_next(now)
        return list(further)

    def _tell_next(self, now: int) -> None:
        """Grant what stands in Redis, to each owner as much as it may be told now."""
        for name, leases in self.begun.next(self._rows, now):
            self._tell_begun(leases, self.peers[name], now)

    def ask_back(self, stream: str, now: int) -> bool:
        """Let the owner give the stream back; False if it need not be asked, or not now."""
        lease = self._rows[stream]
        if not self._move(stream, lease, LeaseEvent.REVOKE_DECIDED):
            return False
        lease.since = now
        self.asked_back.begin(stream, now)
        self._tell(stream, lease, self.peers[lease.name], now)
        return True

    def _free(self, stream: str, lease: Lease, event: LeaseEvent) -> bool:
        if not self._move(stream, lease, event):
            return False
        del self._rows[stream]
        self.ledger.record(Released(stream=stream, lease_epoch=lease.lease_epoch))
        return True

    def _tell(self, stream: str, lease: Lease, peer: Peer, now: int) -> None:
        """Send the message that belongs to the state of the lease, now and until it is answered."""
        lease.resend_at = self._resend_at(now)
        message = telling.about(self.ledger, stream, lease, peer, self.failures.retry_after(stream, now))
        self.ledger.send(peer.mailbox, message)

    def _tell_begun(self, leases: list[tuple[str, Lease]], peer: Peer, now: int) -> None:
        """Grant a borrower what began: in one message, if that is much."""
        together, alone = telling.apart(self.ledger, leases)
        for some in together:
            for _, lease in some:
                lease.resend_at = self._resend_at(now)
            self.ledger.send(peer.mailbox, telling.granted(self.ledger, some, peer))
        for stream, lease in alone:
            self._tell(stream, lease, peer, now)

    def _resend_at(self, now: int) -> int:
        calm = max(1, len(self.ledger.durable.streams) // CALM_STREAMS)
        return now + self.config.resend_interval * calm

    # ------------------------------------------------------------ what owners say

    def of(self, peer: Peer, stream: str, lease_epoch: int) -> Lease | None:
        """The lease that a borrower speaks of, or None if it is not (any more) its own."""
        lease = self._rows.get(stream)
        if lease is None or lease.name != peer.name or lease.lease_epoch != lease_epoch:
            self.ledger.refuse()
            return None
        return lease

    def progress(self, peer: Peer, entries: Iterable[Progress], now: int) -> tuple[Progress, ...]:
        """Take the progress of some streams; those entries that are the owner's word."""
        answered: list[str] = []
        noted = NotedProgress(self.ledger)
        taken = tuple(entry for entry in entries if self._progress(peer, entry, answered, noted, now))
        noted.record()
        if answered:
            self.ledger.happened(GrantsAnswered(tuple(answered)))
        return taken

    def _progress(
        self, peer: Peer, entry: Progress, answered: list[str], noted: NotedProgress, now: int
    ) -> bool:
        """Whether it is the owner's word."""
        lease = self.of(peer, entry.stream, entry.lease_epoch)
        if lease is None:
            if entry.lease_epoch <= self.forced.get(entry.stream, 0):
                self.tell_forced_out(peer, entry.stream, entry.lease_epoch)
            return False
        before = lease.state
        said = LeaseEvent.FINAL_PROGRESS if entry.final else LeaseEvent.PROGRESS
        if not self._move(entry.stream, lease, said):
            return False
        noted.take(entry)
        if lease.state is not before and before is not LeaseState.REVOKING:
            lease.since = now
        if lease.state is LeaseState.GRANTED and before is LeaseState.GRANTING:
            self.hand_overs.end(entry.stream, now)
            answered.append(entry.stream)
        if lease.state is LeaseState.REVOKED:
            noted.record()
            self._tell(entry.stream, lease, peer, now)
        return True

    def commit(self, peer: Peer, progress: Iterable[Progress]) -> None:
        """Record progress that is above what is committed; only of leases that the peer has."""
        noted = NotedProgress(self.ledger)
        for entry in progress:
            lease = self._rows.get(entry.stream)
            if lease is not None and lease.name == peer.name and lease.lease_epoch == entry.lease_epoch:
                noted.take(entry)
        noted.record()

    def finish(self, peer: Peer, stream: str, lease_epoch: int) -> None:
        """The owner has forgotten the stream."""
        lease = self.of(peer, stream, lease_epoch)
        if lease is not None and self._free(stream, lease, LeaseEvent.REVOKE_FINISHED):
            self.ledger.happened(GivenBack(stream))

    # ------------------------------------------------------------ what befalls owners

    def free_all(self, peer: Peer, now: int, *, clean: bool) -> None:
        """A borrower is gone: its streams are free."""
        freed = [
            stream
            for stream, lease in list(self._rows.items())
            if lease.name == peer.name and self._free(stream, lease, LeaseEvent.OWNER_LOST)
        ]
        for stream in freed:
            self.hand_overs.begin(stream, now if clean else peer.last_seen, clean=clean)
        self.ledger.happened(Freed(tuple(freed)))

    def take_over(self, old: Peer, new: Peer, now: int) -> None:
        """A newcomer has the name of `old`: it gets the same streams, under new lease epochs, at once.

        Also those that an operator wants back, if the session had them: asked back once it has answered, it
        finishes what it was handed, which a free stream's next owner would be handed again.
        """
        durable, freed = self.ledger.durable, []
        for stream, lease in list(self._rows.items()):
            if lease.name != old.name:
                continue
            progress = durable.streams[stream]
            # Blocked: another program would process what becomes a dead letter, or stops the stream.
            unwanted = wishes.is_unwanted(durable.operated, self.peers, stream, lease)
            if progress.session != new.session and (progress.blocked or unwanted):
                self._free(stream, lease, LeaseEvent.OWNER_LOST)
                freed.append(stream)
            else:
                self._move(stream, lease, LeaseEvent.OWNER_LOST)
                self.begin(stream, new, now)
        self.ledger.happened(Freed(tuple(freed)))

    def forget(self, streams: Iterable[str]) -> list[str]:
        """These streams do not exist any more; the names of those who had them."""
        names = [self._rows.pop(stream).name for stream in streams if stream in self._rows]
        for stream in streams:
            self.on_their_way.note(stream, LeaseState.ENDED)
            self.asked_back.over(stream)
        self.hand_overs.forget(streams)
        return names

    def end_by_force(self, stream: str) -> tuple[Peer, int] | None:
        """End a lease that a record has ended already; who had it, and its lease epoch."""
        lease = self._rows.pop(stream, None)
        self.hand_overs.forget((stream,))
        if lease is None:
            return None
        self._move(stream, lease, LeaseEvent.OWNER_LOST)
        self.forced[stream] = lease.lease_epoch
        return self.peers[lease.name], lease.lease_epoch

    def tell_forced_out(self, peer: Peer, stream: str, lease_epoch: int) -> None:
        """Tell a borrower that it has the stream no more."""
        if peer.connected:
            self.ledger.send(peer.mailbox, telling.forced_out(self.ledger, stream, lease_epoch, peer))

    # ------------------------------------------------------------ time

    @property
    def moving(self) -> bool:
        """Whether a stream is on its way from one owner to another."""
        return bool(self.on_their_way)

    def tick(self, now: int) -> None:
        """Say again what is not answered; whoever keeps a stream for too long is overdue."""
        self._tell_next(now)
        overdue: set[str] = set()
        for stream in self.on_their_way.due(now):
            lease = self._rows[stream]
            if lease.name not in overdue:
                peer = self.peers[lease.name]
                if peer.connected and self._tick_lease(stream, lease, peer, now):
                    overdue.add(peer.name)
                    self.ledger.happened(Overdue(peer))

    def _tick_lease(self, stream: str, lease: Lease, peer: Peer, now: int) -> bool:
        """Whether its owner is overdue."""
        if lease.state in (LeaseState.REVOKING, LeaseState.REVOKED):
            taken_at = self.taken_at(stream, lease)
            if taken_at is None:
                lease.kept_until = now
            elif now >= taken_at:
                return True
        if lease.resend_at is not None and now >= lease.resend_at:
            self._tell(stream, lease, peer, now)
        return False

    def taken_at(self, stream: str, lease: Lease) -> int | None:
        """When (ms) a stream that is asked back is taken by force; None: it is waited for.

        A stream in an open cut is waited for as long as its session lives, unless the group's declaration
        says how long. The query is writing what it has read, or pauses between two triggers; somebody else
        would be handed the same messages. Whoever cannot wait releases the stream (`acts`).
        """
        waits = lease.state is LeaseState.REVOKING and self.ledger.durable.is_in_cut(stream)
        if waits and self.options.revocation_timeout_ms is None:
            return None
        timeout = self.options.revocation_timeout_ms or self.config.revocation_timeout
        return max(lease.since, lease.kept_until) + timeout
