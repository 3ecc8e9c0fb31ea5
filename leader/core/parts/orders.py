"""Orders: what plans and operators want of leases, carried out."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from streamlease.leader.core.happenings import Freed, SituationChanged, TakenByForce
from streamlease.leader.core.lease import LeaseState
from streamlease.leader.core.parts import wishes
from streamlease.leader.core.parts.leases import Leases
from streamlease.leader.core.parts.ledger import Ledger
from streamlease.leader.core.parts.peers import Peers
from streamlease.leader.core.peer import Peer
from streamlease.leader.core.planning.planner import Plan


@dataclass(slots=True)
class Orders:
    """Has leases begin and end. It keeps nothing: what is wanted is durable, or a plan."""

    ledger: Ledger
    peers: Peers
    leases: Leases

    def carry_out(self, plan: Plan, now: int) -> None:
        """Grant and ask back as a plan says."""
        for stream, name in plan.grants:
            self.leases.begin(stream, self.peers[name], now)
        for stream in plan.revokes:
            if self.leases.ask_back(stream, now):
                self.leases.hand_overs.begin(stream, now, clean=True)

    def ask_back_unwanted(self, streams: Iterable[str], now: int) -> None:
        """Ask back what operators want back; what is only being granted follows once that is answered."""
        operated = self.ledger.durable.operated
        unwanted = [
            stream
            for stream in self._granted(streams)
            if wishes.is_unwanted(operated, self.peers, stream, self.leases[stream])
        ]
        for stream in unwanted[: self.leases.asked_back.fit(len(unwanted), now)]:
            if self.leases.ask_back(stream, now) and operated.paused is None:
                self.leases.hand_overs.begin(stream, now, clean=True)

    def ask_back_granted(self, streams: Iterable[str], now: int) -> None:
        """Ask back those that have an owner, who is connected."""
        for stream in self._granted(streams):
            self.leases.ask_back(stream, now)

    def _granted(self, streams: Iterable[str]) -> list[str]:
        return [
            stream
            for stream in streams
            if (lease := self.leases.get(stream)) is not None
            and lease.state is LeaseState.GRANTED
            and self.peers[lease.name].connected
        ]

    # ------------------------------------------------------------ by force

    def take_by_force(self, stream: str) -> None:
        """An operator released a stream: its owner has it no more."""
        forced = self.leases.end_by_force(stream)
        assert forced is not None
        self.leases.tell_forced_out(forced[0], stream, forced[1])
        self.ledger.happened(Freed((stream,)))
        self.ledger.happened(TakenByForce(stream, forced[0]))

    def give_to_another(self, stream: str, old: Peer, now: int) -> None:
        """A stream was taken by force: somebody else gets it."""
        durable = self.ledger.durable
        progress = durable.streams[stream]
        if progress.waiting or progress.finished or progress.blocked or durable.operated.paused is not None:
            return
        self.leases.hand_overs.begin(stream, now, clean=False)
        owner = wishes.next_owner(self.peers, self.leases, stream, old)
        if owner is not None:
            self.leases.begin(stream, owner, now)

    def begin_new_lines(self, reset: Collection[str], behind: tuple[str, ...], now: int) -> None:
        """Progress was reset: whoever has one of the streams goes on from there under a new lease epoch.

        Args:
            behind: streams that wait again, because one that they follow was reset.
        """
        paused = self.ledger.durable.operated.paused is not None
        for stream in (*behind, *reset):
            forced = self.leases.end_by_force(stream)
            if forced is None:
                continue
            peer, lease_epoch = forced
            if self.peers.takes(peer.name) and not paused and stream not in behind:
                self.leases.begin(stream, peer, now)
            else:
                self.leases.tell_forced_out(peer, stream, lease_epoch)
        self.ledger.happened(Freed((*reset, *behind)))
        self.ledger.happened(SituationChanged())
