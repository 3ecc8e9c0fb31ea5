"""Operators' acts, as the leader does them.

::

    Command --> answered before? --> decide --> dry run? --> record --> answer --> leases follow
                     |                             |
                     +--> the same answer again    +--> answer only

An act is decided from the leader's state alone (`acts`). What it changes durably is one record, which also
holds the answer: whoever sends the command again, because the answer was lost or the leader changed, gets the
answer of the first time and nothing is done twice. A refusal is an answer too. What leases follow from the
record (revocations, grants, new lease epochs) is found again by the next leader, if this one does not get
that far.

What is set stays until it is taken back, ends by itself, or its borrower is gone: a pause, a drained
borrower, a stream moved by hand. Traffic never moves a deadline.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from streamlease.leader.core.events import Describe
from streamlease.leader.core.happenings import Done
from streamlease.leader.core.parts.decisions import Decisions
from streamlease.leader.core.parts.ledger import Ledger
from streamlease.leader.core.parts.peers import Peers
from streamlease.leader.core.parts.streams import Streams
from streamlease.leader.core.state.operated import Acted, BorrowerLeft, DoneAct, KeptAct, Pause
from streamlease.leader.core.state.outcomes import Resumed
from streamlease.protocol.acts import DescribeGroup, ResetProgress
from streamlease.protocol.messages import Command, CommandDone, CommandRefused, CommandReply

ABSENT_TIMEOUT = 10_000
"""How long (ms) a name that an operator moved streams to may be away."""


@dataclass(slots=True)
class Operators:
    """What operators may do to a group, and for how long what they have set holds."""

    ledger: Ledger
    peers: Peers
    streams: Streams
    decisions: Decisions
    away: dict[str, int] = field(default_factory=dict)
    """Name that operators have set something for -> since when no borrower has it."""
    wall_ahead: int | None = None
    """By how much the time of day is ahead of this leader's clock, if known."""

    def command(self, sender: str, message: Command, now: int) -> None:
        """Do an act, or refuse it, and answer; once, however often it comes."""
        if isinstance(message.act, DescribeGroup):
            self.ledger.effect(Describe(sender, message.request))
            return
        done = self.ledger.durable.operated.answered(message.request)
        if done is not None:
            self._reply(sender, message, done)
            return
        if isinstance(message.act, ResetProgress) and self.streams.listing is None:
            return  # which streams follow which is known in a moment; the command comes again
        decision = self.decisions.decide(message, self._wall(now))
        if not message.dry_run:
            self.ledger.record(decision)
        self._reply(sender, message, decision.kept() if isinstance(decision, Acted) else decision)
        if not message.dry_run and isinstance(decision, Acted):
            self.ledger.happened(Done(decision.outcome))

    def _reply(self, sender: str, message: Command, act: KeptAct) -> None:
        group, request = self.ledger.group, message.request
        reply: CommandReply
        if isinstance(act, DoneAct):
            reply = CommandDone(group=group, request=request, body=act.body)
        else:
            reply = CommandRefused(group=group, request=request, error=act.error)
        self.ledger.send(sender, reply)

    def _wall(self, now: int) -> int:
        return now + self.wall_ahead if self.wall_ahead is not None else 0

    # ------------------------------------------------------------ what ends by itself

    def tick(self, wall: int | None, now: int) -> None:
        """Let end what is over.

        Args:
            wall: the time of day in milliseconds since 1970, if known.
        """
        if wall is not None:
            self.wall_ahead = wall - now
        operated = self.ledger.durable.operated
        if operated.drained or operated.pins:
            self._forget_away(now)
        if operated.paused is not None:
            self._resume_in_time(operated.paused, now)

    def forget_borrower(self, name: str) -> None:
        """A borrower is gone for good: what operators have set for it is void."""
        operated = self.ledger.durable.operated
        self.away.pop(name, None)
        if name in operated.drained or name in operated.pins.values():
            self.ledger.record(BorrowerLeft(name=name))

    def _forget_away(self, now: int) -> None:
        """Forget what was set for borrowers that did not come back in time."""
        operated = self.ledger.durable.operated
        for name in {*operated.drained, *operated.pins.values()}:
            if name in self.peers:
                self.away.pop(name, None)
            elif now >= self.away.setdefault(name, now) + ABSENT_TIMEOUT:
                self.forget_borrower(name)

    def _resume_in_time(self, paused: Pause, now: int) -> None:
        """A pause that was to last until some time is over by itself."""
        if paused.until is None or self.wall_ahead is None:
            return
        if self._wall(now) >= paused.until:
            resumed = Resumed(in_time=True)
            request = f"{paused.request}/until"
            self.ledger.record(Acted(who="", request=request, at=self._wall(now), outcome=resumed))
            self.ledger.happened(Done(resumed))
