"""The leader machine: events in, effects out; no clock, no randomness, no I/O (EIP-0028, "Leader's logic").

A leader is composed of parts. Each owns its state and alone changes it; the others only look at it. What
happens in one part and concerns others is handed on by `couplings`, a table that runs to a fixed point::

    event --> its part --> records, messages --> Ledger --> effects
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

from streamlease.leader.core import cut_decisions
from streamlease.leader.core.config import LeaderConfig
from streamlease.leader.core.couplings import settle
from streamlease.leader.core.events import (
    DeadLetterRefused,
    DeadLetterWritten,
    Effect,
    Event,
    LeasesWritten,
    Measured,
    Received,
    Recovered,
    StepDownWanted,
    StreamsListed,
    Tick,
)
from streamlease.leader.core.in_turns import AskedBack, BegunLeases
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
from streamlease.leader.core.peer import Peer
from streamlease.leader.core.state.group_state import GroupState
from streamlease.leader.core.state.records import TermStarted
from streamlease.protocol.group_options import GroupOptions
from streamlease.protocol.messages import (
    Command,
    Disconnect,
    FinishCut,
    FixCut,
    LeaderWanted,
    MessageFailed,
    Ping,
    Progress,
    ResumeCut,
    RevokeFinished,
    SessionToLeader,
    ToLeader,
    UpdateProgress,
)

__all__ = ["Leader", "LeaderConfig"]

_OfBorrower = Ping | UpdateProgress | RevokeFinished | MessageFailed | Disconnect


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
        hand_overs, asked_back, begun = HandOvers(ledger), AskedBack(ledger), BegunLeases(ledger)
        self.leases = leases = Leases(ledger, config, options, peers, failures, hand_overs, asked_back, begun)
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
        return self.plans.rebalance_at is not None or self.leases.moving or self.peers.missed

    def step(self, event: Event, now: int, *, more: bool = False) -> list[Effect]:
        """Take one event at time `now` (ms) and return what is to be done, in order.

        Args:
            more: the next event of the same turn follows at once: plans wait for the last one.
        """
        if self.ledger.stopped:
            return []
        match event:
            case Recovered():
                self._recovered(event.deaf, now)
            case Received():
                _received(self, event.sender, event.message, now)
            case StreamsListed():
                self.streams.listed(event)
            case Tick():
                self._tick(event, now)
            case StepDownWanted():
                self.peers.dismiss("stepped_down", "drained")
            case LeasesWritten():
                further = self.leases.written(event.committed, now)
                _settle(self, now)
                self.streams.advance(further)
            case DeadLetterWritten():
                self.failures.written(event)
            case DeadLetterRefused():
                self.failures.not_written(event)
            case Measured():
                self.plans.measured(event, now)
            case _:
                assert_never(event)
        _settle(self, now)
        if self.plans.due and not more and not self.ledger.stopped:
            self.plans.end_turn()
            _settle(self, now)
        return self.ledger.end_turn()

    def _recovered(self, deaf: int, now: int) -> None:
        ledger = self.ledger
        ledger.record(TermStarted(term=ledger.term, host=ledger.host, lineage=ledger.lineage))
        self.peers.recovered(deaf, now)
        self.leases.recovered(now)
        self.sessions.recovered(now)
        self.plans.recovered(now)
        self.failures.recovered(now)

    def _tick(self, event: Tick, now: int) -> None:
        self.peers.tick(event.heard, now)
        _settle(self, now)
        self.leases.tick(now)
        _settle(self, now)
        self.operators.tick(event.wall, now)
        _settle(self, now)
        self.plans.tick(now)
        _settle(self, now)
        self.peers.tick_idleness(now)


# ---------------------------------------------------------------- which part a message is for


def _received(leader: Leader, sender: str, message: ToLeader, now: int) -> None:
    """Take a message; answers go to `sender`."""
    match message:
        case Ping() | UpdateProgress() | RevokeFinished() | MessageFailed() | Disconnect():
            leaves = isinstance(message, Disconnect)
            peer = leader.peers.hear(sender, message.borrower, now, leaves=leaves)
            if peer is not None:
                _of_borrower(leader, peer, message, now)
        case FixCut() | FinishCut() | ResumeCut():
            if leader.sessions.accepts(message):
                _of_session(leader, sender, message, now)
        case LeaderWanted():
            leader.streams.believe(message.attested)
            _settle(leader, now)
            leader.peers.connect(sender, message, now)
        case Command():
            leader.operators.command(sender, message, now)
        case _:
            assert_never(message)


def _of_borrower(leader: Leader, peer: Peer, message: _OfBorrower, now: int) -> None:
    match message:
        case Ping():
            leader.peers.answer_ping(peer)
        case UpdateProgress():
            leader.peers.acknowledge(peer, _progressed(leader, peer, message.progress, now))
        case RevokeFinished():
            leader.leases.finish(peer, message.stream, message.lease_epoch)
        case MessageFailed():
            entry = Progress(stream=message.stream, lease_epoch=message.lease_epoch, offset=message.offset)
            if _progressed(leader, peer, (entry,), now):
                leader.failures.failed(peer, message, now)
        case Disconnect():
            leader.leases.commit(peer, message.progress)
            leader.peers.lose(peer, clean=True)
        case _:
            assert_never(message)


def _progressed(leader: Leader, peer: Peer, said: tuple[Progress, ...], now: int) -> tuple[Progress, ...]:
    """What is taken of it; what is consumed to its end may let others begin."""
    taken = leader.leases.progress(peer, said, now)
    _settle(leader, now)
    leader.streams.advance([entry.stream for entry in taken])
    _settle(leader, now)
    return taken


def _of_session(leader: Leader, sender: str, message: SessionToLeader, now: int) -> None:
    match message:
        case FixCut():
            leader.sessions.fix(sender, message, now)
        case FinishCut():
            leader.streams.believe(cut_decisions.went_through(message))
            _settle(leader, now)
            leader.sessions.finish(sender, message)
        case ResumeCut():
            leader.sessions.resume(sender, message)
        case _:
            assert_never(message)


def _settle(leader: Leader, now: int) -> None:
    """Let the other parts do what follows from what happened, if anything did."""
    if leader.ledger.happenings:
        settle(leader, now)
