"""What operators' acts come to: decided from what the parts hold now, without changing anything."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from streamlease.leader.core import generations
from streamlease.leader.core.parts.leases import Leases
from streamlease.leader.core.parts.ledger import Ledger
from streamlease.leader.core.parts.peers import Peers
from streamlease.leader.core.parts.plans import Plans
from streamlease.leader.core.parts.streams import Streams
from streamlease.leader.core.peer import Peer
from streamlease.leader.core.state import outcomes as o
from streamlease.leader.core.state.group_state import GroupState
from streamlease.leader.core.state.operated import Acted, RefusedAct
from streamlease.protocol import acts as a
from streamlease.protocol.messages import Command
from streamlease.protocol.nearest import nearest
from streamlease.protocol.plurals import counted
from streamlease.protocol.quantities import LATEST


class Refused(Exception):
    """The act cannot be done; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Decisions:
    """Decides acts on one group."""

    ledger: Ledger
    peers: Peers
    leases: Leases
    streams: Streams
    plans: Plans

    @property
    def durable(self) -> GroupState:
        """What is set on the group."""
        return self.ledger.durable

    @property
    def group(self) -> str:
        """The group's name, for refusals."""
        return self.ledger.group

    def decide(self, message: Command, wall: int) -> Acted | RefusedAct:
        """The record of an act, or of its refusal.

        Args:
            wall: the time of day in milliseconds since 1970, 0 if unknown.
        """
        act, at = message.act, message.at or wall
        assert not isinstance(act, a.DescribeGroup)
        try:
            outcome = self._decide(act, at)
        except Refused as refusal:
            return RefusedAct(
                act=act.act,
                who=message.who,
                request=message.request,
                at=at,
                what=_object_of(act),
                error=str(refusal),
            )
        return Acted(who=message.who, request=message.request, at=at, outcome=outcome)

    def _decide(self, act: a.LastingAct, at: int) -> o.Outcome:
        match act:
            case a.RebalanceGroup():
                return self._decide_rebalance()
            case a.StepDown():
                return o.SteppedDown(host=self.ledger.host, term=self.ledger.term)
            case a.PauseGroup():
                return self._decide_pause(act, at)
            case a.ResumeGroup():
                return self._decide_resume()
            case a.DrainBorrower():
                return self._decide_drain(act)
            case a.UndrainBorrower():
                return self._decide_undrain(act)
            case a.MoveStream():
                return self._decide_move(act)
            case a.ReleaseStream():
                return self._decide_release(act)
            case a.RetryMessage():
                return o.Retried(stream=act.stream, offset=self._stopped_at(act))
            case a.PutDeadLetter():
                return o.SentToDeadLetters(stream=act.stream, offset=self._stopped_at(act))
            case a.ResetProgress():
                return self._decide_reset(act)
            case a.ExpireGroup():
                self._may_end("stop them first")
                return o.HoldsNothing()
            case a.DeleteGroup():
                if not act.force:
                    self._may_end("stop them first, or delete it with --force if they are gone")
                return o.Deleted()
            case _:
                assert_never(act)

    def _decide_rebalance(self) -> o.Rebalanced:
        if self.durable.operated.paused is not None:
            raise Refused(f"group {self.group} is paused: resume it first")
        return o.Rebalanced(plan=self.plans.propose(pinned=False))

    def _decide_pause(self, act: a.PauseGroup, at: int) -> o.GroupPaused:
        if act.until is not None and act.until <= at:
            raise Refused(f"the time to pause group {self.group} until has passed: give a later one")
        if act.until is not None and act.until > LATEST:
            raise Refused(
                f"the time to pause group {self.group} until is {act.until} ms since 1970: give one "
                f"before the year 10000"
            )
        return o.GroupPaused(until=act.until)

    def _decide_resume(self) -> o.Resumed:
        if self.durable.operated.paused is None:
            raise Refused(f"group {self.group} is not paused")
        return o.Resumed()

    def _decide_drain(self, act: a.DrainBorrower) -> o.Drained:
        peer = self._named(act.borrower)
        if not any(self.peers.takes(name) for name in self.peers if name != peer.name):
            raise Refused(
                f"borrower {peer.name} is the last one of group {self.group} that takes streams: "
                f"start another one, or pause the group"
            )
        streams = sorted(stream for stream, lease in self.leases.items() if lease.name == peer.name)
        return o.Drained(borrower=peer.name, streams=tuple(streams))

    def _decide_undrain(self, act: a.UndrainBorrower) -> o.Undrained:
        drained = self.durable.operated.drained
        name = self.peers.names.get(act.borrower, act.borrower)
        if name not in drained:
            raise Refused(f"borrower {name} of group {self.group} is not drained; {nearest(name, drained)}")
        return o.Undrained(borrower=name)

    def _decide_move(self, act: a.MoveStream) -> o.Moved:
        stream, peer = self._stream(act.stream), self._named(act.borrower)
        progress = self.durable.streams[stream]
        if self.durable.operated.paused is not None:
            raise Refused(f"group {self.group} is paused: resume it first")
        if not peer.connected:
            raise Refused(f"borrower {peer.name} is not connected now: wait until it is back")
        if peer.name in self.durable.operated.drained:
            raise Refused(f"borrower {peer.name} is drained: undrain it first")
        if progress.finished:
            raise Refused(f"stream {stream} is sealed and consumed to its end: nobody gets it again")
        if progress.waiting:
            raise Refused(f"stream {stream} waits until its former generation is consumed")
        lease = self.leases.get(stream)
        return o.Moved(stream=stream, owner=lease.name if lease is not None else None, borrower=peer.name)

    def _decide_release(self, act: a.ReleaseStream) -> o.StreamTaken:
        stream = self._stream(act.stream)
        lease = self.leases.get(stream)
        if lease is None:
            raise Refused(f"stream {stream} is nobody's now: there is nothing to release")
        return o.StreamTaken(stream=stream, owner=lease.name, lease_epoch=lease.lease_epoch)

    def _stopped_at(self, act: a.StoppedAct) -> int:
        """The offset of the message at which the stream is stopped."""
        failure = self.durable.streams[self._stream(act.stream)].failure
        if failure is None or failure.fate != "stop":
            raise Refused(f"stream {act.stream} is not stopped at a message that failed")
        return failure.offset

    def _decide_reset(self, act: a.ResetProgress) -> o.Reset:
        if not act.offsets:
            raise Refused("the reset names no stream")
        streams = self.durable.streams
        for stream in act.offsets:
            self._stream(stream)
        listing = self.streams.listing
        assert listing is not None
        unread = sorted(listing.unread & act.offsets.keys())
        if unread:
            raise Refused(
                f"the definition of the space of {unread[0]} is damaged, so the order of its streams is not "
                f"known: see 'streamlease doctor'"
            )
        back = [s for s, at in act.offsets.items() if not self.streams.is_at_end(s, at)]
        return o.Reset(
            moves={stream: (streams[stream].committed, at) for stream, at in act.offsets.items()},
            behind=generations.behind(self.durable, listing, back),
        )

    def _may_end(self, remedy: str) -> None:
        connected = sorted(peer.name for peer in self.peers.values())
        if connected:
            some = counted(len(connected), "borrower")
            raise Refused(f"group {self.group} has {some}, such as {connected[0]}: {remedy}")

    def _stream(self, stream: str) -> str:
        if stream not in self.durable.streams:
            raise Refused(
                f"group {self.group} has no stream {stream}; {nearest(stream, self.durable.streams)}"
            )
        return stream

    def _named(self, borrower: str) -> Peer:
        """The borrower of that name or id."""
        name = self.peers.names.get(borrower, borrower)
        if name not in self.peers:
            raise Refused(f"group {self.group} has no borrower {borrower}; {nearest(name, self.peers)}")
        return self.peers[name]


def _object_of(act: a.LastingAct) -> str:
    """What a refused act was to be done to."""
    match act:
        case a.MoveStream() | a.ReleaseStream() | a.RetryMessage() | a.PutDeadLetter():
            return act.stream
        case a.DrainBorrower() | a.UndrainBorrower():
            return act.borrower
        case a.RebalanceGroup() | a.StepDown() | a.PauseGroup() | a.ResumeGroup():
            return ""
        case a.ResetProgress() | a.ExpireGroup() | a.DeleteGroup():
            return ""
        case _:
            assert_never(act)
