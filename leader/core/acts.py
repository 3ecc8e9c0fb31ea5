"""Operators' acts, as the leader does them.

::

    Command --> answered before? --> decide --> dry run? --> record --> answer --> leases follow
                     |                             |
                     +--> the same answer again    +--> answer only

An act is decided from the leader's state alone. What it changes durably is one record, which also holds the
answer: whoever sends the command again, because the answer was lost or the leader changed, gets the answer
of the first time and nothing is done twice. A refusal is an answer too. What leases follow from the record
(revocations, grants, new epochs) is found again by the next leader, if this one does not get that far.

What is set stays until it is taken back, ends by itself, or its borrower is gone: a pause, a drained
borrower, a stream moved by hand. Nothing of it goes over a deadline by traffic.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from streamlease.leader.core import generations, view
from streamlease.leader.core.book import InvalidateReason
from streamlease.leader.core.events import Describe
from streamlease.leader.core.operated import Acted
from streamlease.leader.core.poison import Poison
from streamlease.leader.core.state import Peer
from streamlease.protocol.messages import Command, CommandReply
from streamlease.protocol.nearest import nearest
from streamlease.protocol.quantities import LATEST

MOVES_KEPT = 100
"""Of how many streams an act keeps from where to where a reset moved them."""


class Refused(Exception):
    """The act cannot be done; the message says why and what to do."""


@dataclass(slots=True)
class Acts(Poison):
    """What operators may do to a group."""

    def _command(self, sender: str, message: Command, now: int) -> None:
        if message.act == "describe":
            self._effects.append(Describe(sender, message.request))
            return
        done = self.durable.operated.answered(message.request)
        if done is not None:
            self._reply(sender, message, done.error, done.body)
            return
        if message.act == "reset" and self.listing is None:
            return  # which streams follow which is known in a moment; the command comes again
        decision = self._decide(message, now)
        if message.dry_run:
            self._reply(sender, message, decision.error, decision.body)
            return
        self._record(decision)
        self._reply(sender, message, decision.error, decision.body)
        if not decision.error:
            self._follow(decision, now)

    def _reply(self, sender: str, message: Command, error: str, body: str) -> None:
        reply = CommandReply(group=self.group, request=message.request, ok=not error, error=error, body=body)
        self._send(sender, reply)

    # ------------------------------------------------------------ deciding: nothing is changed here

    def _decide(self, message: Command, now: int) -> Acted:
        record = Acted(
            act=message.act, who=message.who, request=message.request, at=message.at or self._wall(now)
        )
        deciders: dict[str, Callable[[Command, Acted], Acted]] = {
            "rebalance": self._decide_rebalance,
            "step_down": self._decide_step_down,
            "pause": self._decide_pause,
            "resume": self._decide_resume,
            "drain": self._decide_drain,
            "undrain": self._decide_undrain,
            "move": self._decide_move,
            "release": self._decide_release,
            "retry": self._decide_stopped,
            "dead_letter": self._decide_stopped,
            "reset": self._decide_reset,
            "expire": self._decide_end,
            "delete": self._decide_end,
        }
        try:
            return deciders[message.act](message, record)
        except Refused as refusal:
            what = message.stream or message.borrower or ""
            return record.model_copy(update={"error": str(refusal), "what": what})

    def _wall(self, now: int) -> int:
        return now + self.wall_ahead if self.wall_ahead is not None else 0

    def _decide_rebalance(self, message: Command, record: Acted) -> Acted:
        if self.durable.operated.paused is not None:
            raise Refused(f"group {self.group} is paused: resume it first")
        return _with(record, {"plan": view.of_plan(self.plan(pinned=False))})

    def _decide_step_down(self, message: Command, record: Acted) -> Acted:
        return _with(record, {"host": self.host, "term": self.term}, what=self.host)

    def _decide_pause(self, message: Command, record: Acted) -> Acted:
        if message.until is not None and message.until <= record.at:
            raise Refused(f"the time to pause group {self.group} until has passed: give a later one")
        if message.until is not None and message.until > LATEST:
            raise Refused(
                f"the time to pause group {self.group} until is {message.until} ms since 1970: give one "
                f"before the year 10000"
            )
        return _with(record, {"until_ms": message.until}, until=message.until)

    def _decide_resume(self, message: Command, record: Acted) -> Acted:
        if self.durable.operated.paused is None:
            raise Refused(f"group {self.group} is not paused")
        return record

    def _decide_drain(self, message: Command, record: Acted) -> Acted:
        peer = self._named(message.borrower)
        if not any(self.takes(name) for name in self.peers if name != peer.name):
            raise Refused(
                f"borrower {peer.name} is the last one of group {self.group} that takes streams: "
                f"start another one, or pause the group"
            )
        streams = sorted(stream for stream, lease in self.leases.items() if lease.name == peer.name)
        body = {"borrower": peer.name, "streams": streams}
        return _with(record, body, what=peer.name, borrower=peer.name)

    def _decide_undrain(self, message: Command, record: Acted) -> Acted:
        drained = self.durable.operated.drained
        name = self.names.get(message.borrower or "", message.borrower or "")
        if name not in drained:
            raise Refused(f"borrower {name} of group {self.group} is not drained; {nearest(name, drained)}")
        return _with(record, {"borrower": name}, what=name, borrower=name)

    def _decide_move(self, message: Command, record: Acted) -> Acted:
        stream, peer = self._stream(message.stream), self._named(message.borrower)
        progress = self.durable.streams[stream]
        if self.durable.operated.paused is not None:
            raise Refused(f"group {self.group} is paused: resume it first")
        if not peer.borrower:
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

    def _decide_release(self, message: Command, record: Acted) -> Acted:
        stream = self._stream(message.stream)
        lease = self.leases.get(stream)
        if lease is None:
            raise Refused(f"stream {stream} is nobody's now: there is nothing to release")
        body = {"stream": stream, "from": lease.name, "lease_epoch": lease.lease_epoch}
        return _with(record, body, what=stream, stream=stream)

    def _decide_stopped(self, message: Command, record: Acted) -> Acted:
        stream = self._stream(message.stream)
        failure = self.durable.streams[stream].failure
        if failure is None or failure.fate != "stop":
            raise Refused(f"stream {stream} is not stopped at a message that failed")
        return _with(record, {"stream": stream, "offset": failure.offset}, what=stream, stream=stream)

    def _decide_reset(self, message: Command, record: Acted) -> Acted:
        if not message.offsets:
            raise Refused("the reset names no stream")
        streams = self.durable.streams
        for stream in message.offsets:
            self._stream(stream)
        moves = [
            {"stream": stream, "from": streams[stream].committed, "to": offset}
            for stream, offset in sorted(message.offsets.items())
        ]
        assert self.listing is not None
        unread = sorted(self.listing.unread & message.offsets.keys())
        if unread:
            raise Refused(
                f"the definition of the space of {unread[0]} is damaged, so the order of its streams is not "
                f"known: see 'streamlease doctor'"
            )
        back = [s for s, at in message.offsets.items() if not self._at_end_with(s, at)]
        behind = generations.behind(self.durable, self.listing, back)
        body = {"streams": len(moves), "moves": moves[:MOVES_KEPT], "wait_again": list(behind)[:MOVES_KEPT]}
        what = f"{len(moves)} streams" if len(moves) > 1 else str(moves[0]["stream"])
        return _with(record, body, what=what, offsets=dict(message.offsets), behind=behind)

    def _at_end_with(self, stream: str, offset: int) -> bool:
        assert self.listing is not None
        end = self.listing.ends.get(stream)
        return end is not None and offset >= end

    def _decide_end(self, message: Command, record: Acted) -> Acted:
        connected = sorted(peer.name for peer in self.peers.values())
        if connected and not message.force:
            raise Refused(
                f"group {self.group} has {len(connected)} borrowers, such as {connected[0]}: stop them first"
            )
        return record

    def _stream(self, stream: str | None) -> str:
        if stream not in self.durable.streams:
            raise Refused(
                f"group {self.group} has no stream {stream}; {nearest(str(stream), self.durable.streams)}"
            )
        return stream

    def _named(self, borrower: str | None) -> Peer:
        """The borrower of that name or id."""
        name = self.names.get(str(borrower), str(borrower))
        if name not in self.peers:
            raise Refused(f"group {self.group} has no borrower {borrower}; {nearest(name, self.peers)}")
        return self.peers[name]

    # ------------------------------------------------------------ what leases follow

    def _follow(self, record: Acted, now: int) -> None:
        self.may_take = None
        match record.act:
            case "rebalance":
                self._rebalance(now)
            case "step_down":
                self._dismiss("stepped_down", "stepped down by an operator")
            case "delete":
                self._dismiss("deleted", "deleted by an operator")
            case "pause":
                self._revoke_unwanted(list(self.leases), now)
            case "resume" | "drain" | "undrain" | "move":
                self._revoke_unwanted(list(self.leases), now)
                self._rebalance(now)
            case "release":
                assert record.stream is not None
                self._give_to_another(record.stream, now)
            case "retry" | "dead_letter":
                assert record.stream is not None
                self._unblocked(record.stream, now)
            case "reset":
                self._begin_new_lines(record, now)
            case _:
                pass

    def _step_down(self, reason: str) -> None:
        self._dismiss("stepped_down", reason)

    def _dismiss(self, why: InvalidateReason, reason: str) -> None:
        """Tell all borrowers that this leader ends, and end."""
        for peer in self.peers.values():
            if peer.borrower:
                self._invalidate(peer.mailbox, peer.borrower, why)
        self._flush_then_stop(reason)

    def _give_to_another(self, stream: str, now: int) -> None:
        """A stream was released: somebody else gets it, of another session if there is one."""
        forced = self._force_out(stream)
        assert forced is not None
        old, epoch = forced
        self._tell_forced_out(old, stream, epoch)
        self._advance((stream,), now)
        progress = self.durable.streams[stream]
        if (
            progress.waiting
            or progress.finished
            or progress.blocked
            or self.durable.operated.paused is not None
        ):
            return
        self.given_up[stream] = (now, False)
        counts = dict.fromkeys((name for name in self.peers if self.takes(name)), 0)
        for lease in self.leases.values():
            if lease.name in counts:
                counts[lease.name] += 1
        pin = self._pins().get(stream)
        if counts:
            chosen = min(
                counts,
                key=lambda name: (
                    name == old.name,
                    name != pin,
                    self.peers[name].session == old.session,
                    counts[name],
                    name,
                ),
            )
            self._lease(stream, self.peers[chosen], now)
        self._want_rebalance(now)

    def _begin_new_lines(self, record: Acted, now: int) -> None:
        """Progress was reset: whoever has one of the streams goes on from there under a new lease epoch."""
        for stream in record.behind:
            forced = self._force_out(stream)
            if forced is not None:
                self._tell_forced_out(forced[0], stream, forced[1])
        for stream in record.offsets:
            forced = self._force_out(stream)
            if forced is None:
                continue
            peer, epoch = forced
            if self.takes(peer.name) and self.durable.operated.paused is None and stream not in record.behind:
                self._lease(stream, peer, now)
            else:
                self._tell_forced_out(peer, stream, epoch)
        self._advance((*record.offsets, *record.behind), now)
        self._want_rebalance(now)

    def _resume_in_time(self, now: int) -> None:
        """A pause that was to last until some time is over by itself."""
        paused = self.durable.operated.paused
        if paused is None or paused.until is None or self.wall_ahead is None:
            return
        if self._wall(now) >= paused.until:
            self._record(
                Acted(
                    act="resume",
                    who="",
                    request=f"{paused.request}/until",
                    at=self._wall(now),
                    what="the time that it was paused until has come",
                )
            )
            self.may_take = None
            self._rebalance(now)


def _with(record: Acted, body: dict[str, Any], **more: Any) -> Acted:
    """The record, with the answer and what it is done to."""
    return record.model_copy(update={"body": json.dumps(body), **more})
