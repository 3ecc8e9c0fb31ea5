"""Plans: when they are made, and what is taken at most.

A plan is wanted when somebody comes or goes, when streams do, and when an operator says so; a stream that
comes free asks for one at the end of the turn. Joins and leaves within `rebalance_delay` make one plan, but
the first one, which only gives, waits for nothing. Where the strategy measures streams, their weights ask as
well (`weighing`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from streamlease.leader.core import healing
from streamlease.leader.core.config import LeaderConfig
from streamlease.leader.core.events import Measured
from streamlease.leader.core.happenings import PlanDue, Planned, RoomToAsk
from streamlease.leader.core.in_turns import most_at_once
from streamlease.leader.core.parts import situation
from streamlease.leader.core.parts.leases import Leases
from streamlease.leader.core.parts.ledger import Ledger
from streamlease.leader.core.parts.peers import Peers
from streamlease.leader.core.parts.streams import Streams
from streamlease.leader.core.parts.weighing import Weighing
from streamlease.leader.core.planning.planner import Plan
from streamlease.leader.core.planning.strategies import Strategy, strategy
from streamlease.protocol.group_options import GroupOptions

STREAMS_PER_PAUSE = 100
"""For so many streams a group pauses one millisecond between two plans."""

MAX_PAUSE = 1000
"""The longest pause between two plans, in milliseconds."""


@dataclass(slots=True)
class Plans:
    """Who is to have which stream, and when that is looked at."""

    ledger: Ledger
    config: LeaderConfig
    options: GroupOptions
    peers: Peers
    leases: Leases
    streams: Streams
    rebalance_at: int | None = None
    healing: bool = False
    """Whether the first plan leaves time to those who know more than the journal."""
    due: bool = False
    """Whether a plan is made at the end of this turn."""
    made_at: int | None = None
    """When the newest plan was made."""
    made: int = 0
    """How many plans were made, also such that moved nothing."""
    rebalances: int = 0
    """Plans that gave or took streams, in this term."""
    held_back: bool = False
    """Whether the newest plan could not take a stream because its grant is not answered yet."""
    goes_on: bool = False
    """Whether the newest plan left some grants to the next one, which comes with the first answers."""
    weighing: Weighing = field(init=False)
    """What weights ask for, if the strategy measures streams."""

    def __post_init__(self) -> None:
        self.weighing = Weighing(self.config.weight_interval)

    @property
    def strategy_name(self) -> str:
        """How the group's streams are assigned."""
        return self.options.strategy or self.config.strategy

    @property
    def strategy(self) -> Strategy:
        """The same, to be asked for plans."""
        return strategy(self.strategy_name)

    # ------------------------------------------------------------ when

    def recovered(self, now: int) -> None:
        """A leader begins; streams that have an owner stay there until their weights are known."""
        if healing.begins(self.ledger.durable, self.ledger.term):
            self.healing, self.rebalance_at = True, now + healing.DELAY
        self.weighing.recovered(now, warm_up=bool(self.leases) and self.strategy.measure is not None)

    def need(self, now: int) -> None:
        """What came, went or was set needs a plan soon, and as many moves as it takes."""
        self.weighing.lift_bound()
        self.want(now)

    def want(self, now: int) -> None:
        """Ask for a plan soon; requests that come before it is made join it, and never put it off.

        While nobody holds anything, a plan takes nothing from anybody: once it is known which streams there
        are, it is made at the end of this turn.
        """
        if not self.leases and self.streams.listing is not None and not self.healing:
            self.rebalance_at, self.due = None, True
        elif self.rebalance_at is None:
            self.rebalance_at = now + self.config.rebalance_delay

    def want_at_end_of_turn(self, now: int) -> None:
        """Ask for a plan at the end of this turn; a large group pauses after each: a burst makes few."""
        pause = min(MAX_PAUSE, len(self.ledger.durable.streams) // STREAMS_PER_PAUSE)
        if self.made_at is None or now >= self.made_at + pause:
            self.due = True
        else:
            at = self.made_at + pause
            self.rebalance_at = at if self.rebalance_at is None else min(at, self.rebalance_at)

    def grants_answered(self, now: int) -> None:
        """What the newest plan could not take may be taken now, and what it left to grant may follow."""
        if self.goes_on:
            self.due = True
        elif self.held_back:
            self.want(now)

    def end_turn(self) -> None:
        """Nothing more happens in this turn."""
        if self.due:
            self.ledger.happened(PlanDue())

    def tick(self, now: int) -> None:
        """Let plans be made that are due."""
        warm_until = self.weighing.warm_until
        if warm_until is not None and now >= warm_until:
            self._warm(now)
        if self.rebalance_at is not None and now >= self.rebalance_at:
            self.healing, self.rebalance_at = False, None
            self.ledger.happened(PlanDue())
        elif self.goes_on:
            self.ledger.happened(PlanDue())
        elif self.leases.asked_back.goes_on(now):
            self.ledger.happened(RoomToAsk())

    # ------------------------------------------------------------ weights

    def to_measure(self) -> list[str]:
        """The streams whose ends the leader wants to know now and then."""
        if self.strategy.measure is None or not self.peers:
            return []
        return [stream for stream, one in self.ledger.durable.streams.items() if not one.finished]

    def measured(self, event: Measured, now: int) -> None:
        """Take over what was measured; a plan follows if it was waited for, or is due again."""
        measure, streams = self.strategy.measure, self.ledger.durable.streams
        if measure is None:
            return
        weighing = self.weighing
        weighing.take(measure, event, streams)
        if weighing.warm_until is not None:
            if weighing.weights.knows(self.to_measure()):
                self._warm(now)
        elif weighing.is_due(now) and self.ledger.durable.operated.paused is None:
            weighing.ask(streams, now)
            self.ledger.happened(PlanDue())

    def _warm(self, now: int) -> None:
        """Weights are known, or have been waited for long enough."""
        self.weighing.warm(now)
        self.need(now)

    # ------------------------------------------------------------ what

    def propose(self, *, pinned: bool = True, most: int | None = None) -> Plan:
        """What a rebalance would do now.

        Args:
            pinned: whether streams that operators moved stay where they were moved to.
            most: so many streams may be taken from their owners because of their weights; None: any number.
        """
        durable = self.ledger.durable
        if durable.operated.paused is not None:
            return Plan((), (), {})
        pins = self.peers.pins() if pinned else {}
        free = situation.free(durable, self.leases)
        found = situation.now(
            self.ledger.durable,
            self.peers,
            self.leases,
            self.streams.listing,
            free,
            pins,
            taking=self.weighing.warm_until is None,
        )
        measure = self.strategy.measure
        if measure is not None:
            measured = [*found.free, *found.leaving, *set().union(*found.held.values())]
            found = replace(found, weights=self.weighing.weights.of(measure, measured))
        plan = self.strategy.plan(replace(found, most=most))
        given = tuple((stream, pins[stream]) for stream in sorted(free) if stream in pins)
        return replace(plan, grants=(*given, *plan.grants))

    def make(self, now: int) -> None:
        """Decide on a plan."""
        self.due = False
        self.made_at = now
        self.made += 1
        plan = self.propose(most=self.weighing.most)
        continued = self.goes_on or self.leases.asked_back.left
        self.rebalances += bool(plan.grants or plan.revokes) and not continued
        most = most_at_once(self.ledger)
        self.goes_on = len(plan.grants) > most
        revokes = plan.revokes[: self.leases.asked_back.fit(len(plan.revokes), now)]
        plan = replace(plan, grants=plan.grants[:most], revokes=revokes)
        self.ledger.happened(Planned(plan))

    def carried_out(self, plan: Plan) -> None:
        """The plan was carried out: see whether the group is at rest."""
        counts = situation.staying(self.leases, self.peers.pins())
        self.held_back = any(counts[name] > target for name, target in plan.targets.items())
        self.weighing.carried_out(len(plan.revokes), held_back=self.held_back)
