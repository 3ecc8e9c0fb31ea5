"""Leases: who has which stream, and how it changes hands.

A lease begins under a new lease epoch and follows `LEASE_TRANSITIONS`; a stream without a lease is free, and
the next plan gives it to somebody. The message that belongs to the state of a lease is sent when it gets into
that state, and again until it is answered (`telling`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from streamlease.leader.core.config import LeaderConfig
from streamlease.leader.core.happenings import (
    Freed,
    GivenBack,
    GrantsAnswered,
    Overdue,
    Passed,
    SituationChanged,
    TakenByForce,
)
from streamlease.leader.core.parts import commits, telling
from streamlease.leader.core.parts.failures import Failures
from streamlease.leader.core.parts.hand_overs import HandOvers
from streamlease.leader.core.parts.ledger import Ledger, Table
from streamlease.leader.core.parts.peers import Peers
from streamlease.leader.core.planning.planner import Plan
from streamlease.leader.core.records import Leased, Released
from streamlease.leader.core.state import LEASE_TRANSITIONS, Lease, LeaseEvent, LeaseState, Peer
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
    forced: dict[str, int] = field(default_factory=dict)
    """Stream -> highest lease epoch that an operator ended in this term: its owner may not know it yet."""

    # ------------------------------------------------------------ one lease

    def recovered(self, now: int) -> None:
        """Take over the leases of the former term: their owners are expected back."""
        for stream, progress in self.ledger.durable.streams.items():
            if progress.owner is not None and progress.session is not None:
                lease_epoch = progress.lease_epoch
                self._rows[stream] = Lease(progress.owner, lease_epoch, LeaseState.GRANTED, now, now)

    def _move(self, lease: Lease, event: LeaseEvent) -> bool:
        target = LEASE_TRANSITIONS.get((lease.state, event))
        if target is None:
            self.ledger.refuse()
            return False
        lease.state = target
        return True

    def _begin(self, stream: str, peer: Peer, now: int) -> None:
        """Begin a new lease of `stream`, under the next lease epoch."""
        durable = self.ledger.durable
        lease_epoch = max(durable.streams[stream].lease_epoch, durable.lease_epoch_floor) + 1
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
        lease = Lease(peer.name, lease_epoch, LeaseState.GRANTING, now, 0, resumes)
        self._rows[stream] = lease
        self._tell(stream, lease, peer, now)

    def ask_back(self, stream: str, now: int) -> bool:
        """Let the owner give the stream back; False if it need not be asked, or not now."""
        lease = self._rows[stream]
        if not self._move(lease, LeaseEvent.REVOKE_DECIDED):
            return False
        lease.since = now
        self._tell(stream, lease, self.peers[lease.name], now)
        return True

    def _free(self, stream: str, lease: Lease, event: LeaseEvent) -> bool:
        if not self._move(lease, event):
            return False
        del self._rows[stream]
        self.ledger.record(Released(stream=stream, lease_epoch=lease.lease_epoch))
        return True

    def _tell(self, stream: str, lease: Lease, peer: Peer, now: int) -> None:
        """Send the message that belongs to the state of the lease, now and until it is answered."""
        calm = max(1, len(self.ledger.durable.streams) // CALM_STREAMS)
        lease.resend_at = now + self.config.resend_interval * calm
        message = telling.about(self.ledger, stream, lease, peer, self.failures.retry_after(stream, now))
        self.ledger.send(peer.mailbox, message)

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
        taken = tuple(entry for entry in entries if self._progress(peer, entry, answered, now))
        if answered:
            self.ledger.happened(GrantsAnswered(tuple(answered)))
        if taken:
            self.ledger.happened(Passed(tuple(entry.stream for entry in taken)))
        return taken

    def _progress(self, peer: Peer, entry: Progress, answered: list[str], now: int) -> bool:
        lease = self.of(peer, entry.stream, entry.lease_epoch)
        if lease is None:
            if entry.lease_epoch <= self.forced.get(entry.stream, 0):
                self._tell_forced_out(peer, entry.stream, entry.lease_epoch)
            return False
        before = lease.state
        if not self._move(lease, LeaseEvent.FINAL_PROGRESS if entry.final else LeaseEvent.PROGRESS):
            return False
        self.commit(peer, (entry,))
        if lease.state is not before and before is not LeaseState.REVOKING:
            lease.since = now
        if lease.state is LeaseState.GRANTED and before is LeaseState.GRANTING:
            self.hand_overs.end(entry.stream, now)
            answered.append(entry.stream)
        if lease.state is LeaseState.REVOKED:
            self._tell(entry.stream, lease, peer, now)
        return True

    def commit(self, peer: Peer, progress: Iterable[Progress]) -> None:
        """Record progress that is above what is committed; only of leases that the peer has."""
        commits.take(self.ledger, self._rows, peer, progress)

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
        freed = []
        for stream, lease in list(self._rows.items()):
            if lease.name != old.name:
                continue
            progress = self.ledger.durable.streams[stream]
            # Blocked: another program would process what becomes a dead letter, or stops the stream.
            if progress.session != new.session and (progress.blocked or self._unwanted(stream, lease)):
                self._free(stream, lease, LeaseEvent.OWNER_LOST)
                freed.append(stream)
            else:
                self._move(lease, LeaseEvent.OWNER_LOST)
                self._begin(stream, new, now)
        self.ledger.happened(Freed(tuple(freed)))

    def forget(self, streams: Iterable[str]) -> list[str]:
        """These streams do not exist any more; the names of those who had them."""
        names = [self._rows.pop(stream).name for stream in streams if stream in self._rows]
        self.hand_overs.forget(streams)
        return names

    # ------------------------------------------------------------ time

    @property
    def moving(self) -> bool:
        """Whether a stream is on its way from one owner to another."""
        return any(lease.state is not LeaseState.GRANTED for lease in self._rows.values())

    def tick(self, now: int) -> None:
        """Say again what is not answered; whoever keeps a stream for too long is overdue."""
        overdue: set[str] = set()
        for stream, lease in self._rows.items():
            if lease.state is not LeaseState.GRANTED and lease.name not in overdue:
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
        if now >= lease.resend_at:
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

    # ------------------------------------------------------------ what plans and operators want

    def carry_out(self, plan: Plan, now: int) -> None:
        """Grant and ask back as a plan says."""
        for stream, name in plan.grants:
            self._begin(stream, self.peers[name], now)
        for stream in plan.revokes:
            if self.ask_back(stream, now):
                self.hand_overs.begin(stream, now, clean=True)

    def _unwanted(self, stream: str, lease: Lease) -> bool:
        """Whether the holder of a stream is to give it up because of what operators have set."""
        operated = self.ledger.durable.operated
        if operated.paused is not None or lease.name in operated.drained:
            return True
        pin = operated.pins.get(stream)
        return pin is not None and pin != lease.name and self.peers.takes(pin)

    def ask_back_unwanted(self, streams: Iterable[str], now: int) -> None:
        """Ask back what operators want back; what is only being granted follows once that is answered."""
        for stream in self._granted(streams):
            asked = self._unwanted(stream, self._rows[stream]) and self.ask_back(stream, now)
            if asked and self.ledger.durable.operated.paused is None:
                self.hand_overs.begin(stream, now, clean=True)

    def ask_back_granted(self, streams: Iterable[str], now: int) -> None:
        """Ask back those that have an owner, who is connected."""
        for stream in self._granted(streams):
            self.ask_back(stream, now)

    def _granted(self, streams: Iterable[str]) -> list[str]:
        return [
            stream
            for stream in streams
            if (lease := self._rows.get(stream)) is not None
            and lease.state is LeaseState.GRANTED
            and self.peers[lease.name].connected
        ]

    def _force_out(self, stream: str) -> tuple[Peer, int] | None:
        """End a lease that a record has ended already; who had it, and its lease epoch."""
        lease = self._rows.pop(stream, None)
        self.hand_overs.forget((stream,))
        if lease is None:
            return None
        self._move(lease, LeaseEvent.OWNER_LOST)
        self.forced[stream] = lease.lease_epoch
        return self.peers[lease.name], lease.lease_epoch

    def _tell_forced_out(self, peer: Peer, stream: str, lease_epoch: int) -> None:
        if peer.connected:
            self.ledger.send(peer.mailbox, telling.forced_out(self.ledger, stream, lease_epoch, peer))

    def take_by_force(self, stream: str) -> None:
        """An operator released a stream: its owner has it no more."""
        forced = self._force_out(stream)
        assert forced is not None
        self._tell_forced_out(forced[0], stream, forced[1])
        self.ledger.happened(Freed((stream,)))
        self.ledger.happened(TakenByForce(stream, forced[0]))

    def give_to_another(self, stream: str, old: Peer, now: int) -> None:
        """A stream was taken by force: somebody else gets it, of another session if there is one."""
        progress, paused = self.ledger.durable.streams[stream], self.ledger.durable.operated.paused
        if progress.waiting or progress.finished or progress.blocked or paused is not None:
            return
        self.hand_overs.begin(stream, now, clean=False)
        counts = dict.fromkeys((name for name in self.peers if self.peers.takes(name)), 0)
        for lease in self._rows.values():
            if lease.name in counts:
                counts[lease.name] += 1
        pin = self.peers.pins().get(stream)

        def rank(name: str) -> tuple[bool, bool, bool, int, str]:
            same_session = self.peers[name].session == old.session
            return name == old.name, name != pin, same_session, counts[name], name

        if counts:
            self._begin(stream, self.peers[min(counts, key=rank)], now)
        self.ledger.happened(SituationChanged())

    def begin_new_lines(self, reset: Iterable[str], behind: tuple[str, ...], now: int) -> None:
        """Progress was reset: whoever has one of the streams goes on from there under a new lease epoch.

        Args:
            behind: streams that wait again, because one that they follow was reset.
        """
        for stream in (*behind, *reset):
            forced = self._force_out(stream)
            if forced is None:
                continue
            peer, lease_epoch = forced
            paused = self.ledger.durable.operated.paused is not None
            if self.peers.takes(peer.name) and not paused and stream not in behind:
                self._begin(stream, peer, now)
            else:
                self._tell_forced_out(peer, stream, lease_epoch)
        self.ledger.happened(Freed((*reset, *behind)))
        self.ledger.happened(SituationChanged())
