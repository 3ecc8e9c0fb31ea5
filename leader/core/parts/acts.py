"""What operators' acts come to: decided from what the parts hold now, without changing anything."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, assert_never

from streamlease.leader.core import generations
from streamlease.leader.core.operated import Acted
from streamlease.leader.core.parts.leases import Leases
from streamlease.leader.core.parts.ledger import Ledger
from streamlease.leader.core.parts.peers import Peers
from streamlease.leader.core.parts.plans import Plans
from streamlease.leader.core.parts.streams import Streams
from streamlease.leader.core.records import GroupState
from streamlease.leader.core.state import Peer
from streamlease.protocol import acts as a
from streamlease.protocol.messages import Command
from streamlease.protocol.nearest import nearest
from streamlease.protocol.quantities import LATEST

MOVES_KEPT = 100
"""Of how many streams an act keeps from where to where a reset moved them."""


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

    def decide(self, message: Command, wall: int) -> Acted:
        """The record of an act, or of its refusal.

        Args:
            wall: the time of day in milliseconds since 1970, 0 if unknown.
        """
        act = message.act
        record = Acted(act=act.act, who=message.who, request=message.request, at=message.at or wall)
        assert not isinstance(act, a.DescribeGroup)
        try:
            return self._decide(act, record)
        except Refused as refusal:
            return record.model_copy(update={"error": str(refusal), "what": _object_of(act)})

    def _decide(self, act: a.LastingAct, record: Acted) -> Acted:
        match act:
            case a.RebalanceGroup():
                return self._decide_rebalance(record)
            case a.StepDown():
                return self._decide_step_down(record)
            case a.PauseGroup():
                return self._decide_pause(act, record)
            case a.ResumeGroup():
                return self._decide_resume(record)
            case a.DrainBorrower():
                return self._decide_drain(act, record)
            case a.UndrainBorrower():
                return self._decide_undrain(act, record)
            case a.MoveStream():
                return self._decide_move(act, record)
            case a.ReleaseStream():
                return self._decide_release(act, record)
            case a.RetryMessage() | a.PutDeadLetter():
                return self._decide_stopped(act, record)
            case a.ResetProgress():
                return self._decide_reset(act, record)
            case a.ExpireGroup():
                return self._decide_end(record, force=False)
            case a.DeleteGroup():
                return self._decide_end(record, force=act.force)
            case _:
                assert_never(act)

    def _decide_rebalance(self, record: Acted) -> Acted:
        if self.durable.operated.paused is not None:
            raise Refused(f"group {self.group} is paused: resume it first")
        return _with(record, {"plan": self.plans.propose(pinned=False).document()})

    def _decide_step_down(self, record: Acted) -> Acted:
        return _with(record, {"host": self.ledger.host, "term": self.ledger.term}, what=self.ledger.host)

    def _decide_pause(self, act: a.PauseGroup, record: Acted) -> Acted:
        if act.until is not None and act.until <= record.at:
            raise Refused(f"the time to pause group {self.group} until has passed: give a later one")
        if act.until is not None and act.until > LATEST:
            raise Refused(
                f"the time to pause group {self.group} until is {act.until} ms since 1970: give one "
                f"before the year 10000"
            )
        return _with(record, {"until_ms": act.until}, until=act.until)

    def _decide_resume(self, record: Acted) -> Acted:
        if self.durable.operated.paused is None:
            raise Refused(f"group {self.group} is not paused")
        return record

    def _decide_drain(self, act: a.DrainBorrower, record: Acted) -> Acted:
        peer = self._named(act.borrower)
        if not any(self.peers.takes(name) for name in self.peers if name != peer.name):
            raise Refused(
                f"borrower {peer.name} is the last one of group {self.group} that takes streams: "
                f"start another one, or pause the group"
            )
        streams = sorted(stream for stream, lease in self.leases.items() if lease.name == peer.name)
        body = {"borrower": peer.name, "streams": streams}
        return _with(record, body, what=peer.name, borrower=peer.name)

    def _decide_undrain(self, act: a.UndrainBorrower, record: Acted) -> Acted:
        drained = self.durable.operated.drained
        name = self.peers.names.get(act.borrower, act.borrower)
        if name not in drained:
            raise Refused(f"borrower {name} of group {self.group} is not drained; {nearest(name, drained)}")
        return _with(record, {"borrower": name}, what=name, borrower=name)

    def _decide_move(self, act: a.MoveStream, record: Acted) -> Acted:
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
        body = {"stream": stream, "from": lease.name if lease is not None else None, "to": peer.name}
        return _with(record, body, what=f"{stream} to {peer.name}", stream=stream, borrower=peer.name)

    def _decide_release(self, act: a.ReleaseStream, record: Acted) -> Acted:
        stream = self._stream(act.stream)
        lease = self.leases.get(stream)
        if lease is None:
            raise Refused(f"stream {stream} is nobody's now: there is nothing to release")
        body = {"stream": stream, "from": lease.name, "lease_epoch": lease.lease_epoch}
        return _with(record, body, what=stream, stream=stream)

    def _decide_stopped(self, act: a.StoppedAct, record: Acted) -> Acted:
        stream = self._stream(act.stream)
        failure = self.durable.streams[stream].failure
        if failure is None or failure.fate != "stop":
            raise Refused(f"stream {stream} is not stopped at a message that failed")
        return _with(record, {"stream": stream, "offset": failure.offset}, what=stream, stream=stream)

    def _decide_reset(self, act: a.ResetProgress, record: Acted) -> Acted:
        if not act.offsets:
            raise Refused("the reset names no stream")
        streams = self.durable.streams
        for stream in act.offsets:
            self._stream(stream)
        moves = [
            {"stream": stream, "from": streams[stream].committed, "to": offset}
            for stream, offset in sorted(act.offsets.items())
        ]
        listing = self.streams.listing
        assert listing is not None
        unread = sorted(listing.unread & act.offsets.keys())
        if unread:
            raise Refused(
                f"the definition of the space of {unread[0]} is damaged, so the order of its streams is not "
                f"known: see 'streamlease doctor'"
            )
        back = [s for s, at in act.offsets.items() if not self.streams.is_at_end(s, at)]
        behind = generations.behind(self.durable, listing, back)
        body = {"streams": len(moves), "moves": moves[:MOVES_KEPT], "wait_again": list(behind)[:MOVES_KEPT]}
        what = f"{len(moves)} streams" if len(moves) > 1 else str(moves[0]["stream"])
        return _with(record, body, what=what, offsets=dict(act.offsets), behind=behind)

    def _decide_end(self, record: Acted, *, force: bool) -> Acted:
        connected = sorted(peer.name for peer in self.peers.values())
        if connected and not force:
            raise Refused(
                f"group {self.group} has {len(connected)} borrowers, such as {connected[0]}: stop them first"
            )
        return record

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


def _with(record: Acted, body: dict[str, Any], **more: Any) -> Acted:
    """The record, with the answer and what it is done to."""
    return record.model_copy(update={"body": json.dumps(body), **more})


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
