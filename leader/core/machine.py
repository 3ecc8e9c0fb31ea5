"""The leader machine: events in, effects out; no clock, no randomness, no I/O (EIP-0028, "Leader's logic").

A leader is composed of parts. Each owns its state and alone changes it; the others only look at it. What
happens in one part and concerns others is handed on by `couplings`, a table that runs to a fixed point::

    event --> one part --> records, messages --> Ledger --> effects
                  |
                  +--> what happened --> COUPLINGS --> other parts --> what happened --> ...

What is durable lives in `GroupState` and changes only through records. What is not (who is connected, which
message is to be sent again) is rebuilt by the next leader from what borrowers say: a borrower that comes
back under its name gets its streams back at once, under a higher lease epoch; one that does not within its
session timeout loses them. All timers are due at fixed times; no traffic moves them.

Effects are ordered "persist before send". If a `Persist` cannot be made durable, the leader ends and nothing
that follows is done; its state, which is ahead of the journal then, dies with it.

Times are milliseconds of any clock that does not run backwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from streamlease.leader.core.config import LeaderConfig
from streamlease.leader.core.couplings import settle
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
from streamlease.leader.core.parts.decisions import Decisions
from streamlease.leader.core.parts.failures import Failures
from streamlease.leader.core.parts.hand_overs import HandOvers
from streamlease.leader.core.parts.leases import Leases
from streamlease.leader.core.parts.ledger import Ledger
from streamlease.leader.core.parts.operators import Operators
from streamlease.leader.core.parts.orders import Orders
from streamlease.leader.core.parts.peers import Peers
from streamlease.leader.core.parts.plans import Plans
from streamlease.leader.core.parts.sessions import Sessions
from streamlease.leader.core.parts.streams import Streams
from streamlease.leader.core.receiving import received
from streamlease.leader.core.state.group_state import GroupState
from streamlease.leader.core.state.records import TermStarted
from streamlease.protocol.group_options import GroupOptions

__all__ = ["Leader", "LeaderConfig"]


@dataclass(slots=True, init=False)
class Leader:
    """One leader in one term."""

    config: LeaderConfig
    options: GroupOptions
    """How the group was declared."""
    ledger: Ledger
    peers: Peers
    failures: Failures
    leases: Leases
    orders: Orders
    streams: Streams
    sessions: Sessions
    plans: Plans
    operators: Operators

    def __init__(
        self,
        group: str,
        host: str,
        term: int,
        config: LeaderConfig,
        durable: GroupState,
        options: GroupOptions | None = None,
        *,
        lineage: str = "",
    ) -> None:
        """Compose the leader of `group` from what its journal says.

        Args:
            options: how the group was declared.
            lineage: of the data in which the term was issued.
        """
        self.config = config
        self.options = options = options or GroupOptions()
        self.ledger = ledger = Ledger(group, host, term, durable, lineage)
        self.peers = peers = Peers(ledger, config)
        self.failures = failures = Failures(ledger, options)
        self.leases = leases = Leases(ledger, config, options, peers, failures, HandOvers(ledger))
        self.orders = Orders(ledger, peers, leases)
        self.streams = streams = Streams(ledger, leases)
        self.sessions = Sessions(ledger, peers, leases, streams)
        self.plans = plans = Plans(ledger, config, options, peers, leases, streams)
        self.operators = Operators(ledger, peers, streams, Decisions(ledger, peers, leases, streams, plans))

    @property
    def host(self) -> str:
        """The host that leads."""
        return self.ledger.host

    @property
    def term(self) -> int:
        """The term in which it leads."""
        return self.ledger.term

    @property
    def durable(self) -> GroupState:
        """What the next leader will know."""
        return self.ledger.durable

    @property
    def moving(self) -> bool:
        """Whether something is under way, so that it needs ticks often."""
        return self.plans.rebalance_at is not None or self.leases.moving

    def take_moved(self) -> dict[str, int | None]:
        """What the mirror of the progress must take over; see `Ledger.take_moved`."""
        return self.ledger.take_moved()

    def to_measure(self) -> list[str]:
        """The streams whose ends the leader wants to know now and then."""
        return self.plans.to_measure()

    def step(self, event: Event, now: int, *, more: bool = False) -> list[Effect]:
        """Take one event at time `now` (ms) and return what is to be done, in order.

        Args:
            more: the next event of the same turn follows at once: plans wait for the last one.
        """
        if self.ledger.stopped:
            return []
        match event:
            case Recovered():
                self._recovered(now)
            case Received():
                received(self, event.sender, event.message, now)
            case StreamsListed():
                self.streams.listed(event)
            case Tick():
                self._tick(event, now)
            case StepDownWanted():
                self.peers.dismiss("stepped_down", "drained")
            case DeadLetterWritten():
                self.failures.written(event)
            case DeadLetterRefused():
                self.failures.not_written(event)
            case Measured():
                self.plans.measured(event, now)
            case _:
                assert_never(event)
        settle(self, now)
        if self.plans.due and not more and not self.ledger.stopped:
            self.plans.end_turn()
            settle(self, now)
        return self.ledger.end_turn()

    def _recovered(self, now: int) -> None:
        ledger = self.ledger
        ledger.record(TermStarted(term=ledger.term, host=ledger.host, lineage=ledger.lineage))
        self.peers.recovered(now)
        self.leases.recovered(now)
        self.sessions.recovered(now)
        self.plans.recovered(now)
        self.failures.recovered(now)

    def _tick(self, event: Tick, now: int) -> None:
        self.peers.tick(event.heard, now)
        settle(self, now)
        self.leases.tick(now)
        settle(self, now)
        self.operators.tick(event.wall, now)
        settle(self, now)
        self.plans.tick(now)
        settle(self, now)
        self.peers.tick_idleness(now)
