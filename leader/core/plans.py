"""Plans: when they are made, from what, and how they are carried out.

A plan is wanted when somebody comes or goes, when streams do, and when an operator says so; a stream that
comes free asks for one at the end of the turn. In groups whose strategy measures streams, weights ask as
well::

    Measured --> smoothed weights --> no plan of this kind for `weight_interval`? --> plan --> a few moves

Such plans are bounded thrice: they come no more often than that, begin to move no stream before two borrowers
differ by a good part (`weighted`), and together move at most one stream in `WEIGHED_PART`, until the next
one is due. A new leader knows no weights: as long as it does not (`WARM_UP` at most) it gives away what is
free and takes nothing, or else each change of leader would move streams there and back.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from streamlease.leader.core.events import Measured
from streamlease.leader.core.leases import Leases
from streamlease.leader.core.planning.planner import Plan, Situation
from streamlease.leader.core.planning.strategies import Strategy, strategy
from streamlease.leader.core.state import LeaseState

STREAMS_PER_PAUSE = 100
"""For so many streams a group pauses one millisecond between two plans."""

MAX_PAUSE = 1000
"""The longest pause between two plans, in milliseconds."""

WARM_UP = 30_000
"""How long (ms) a new leader waits for weights at most before it takes streams from somebody."""

WEIGHED_PART = 10
"""Weights alone move at most one stream in so many, and at least one, in a `weight_interval`."""


@dataclass(slots=True)
class Plans(Leases):
    """Who is to have which stream."""

    @property
    def strategy(self) -> Strategy:
        """How the group's streams are assigned."""
        return strategy(self.strategy_name)

    @property
    def strategy_name(self) -> str:
        return self.options.strategy or self.config.strategy

    def to_measure(self) -> list[str]:
        """The streams whose ends the leader wants to know now and then."""
        if self.strategy.measure is None or not self.peers:
            return []
        return [stream for stream, progress in self.durable.streams.items() if not progress.finished]

    def _begin_weighing(self, now: int) -> None:
        """A leader begins; streams that have an owner stay there until their weights are known."""
        self.weighed_at = now
        if self.leases and self.strategy.measure is not None:
            self.warm_until = now + WARM_UP

    def _measured(self, event: Measured, now: int) -> None:
        measure = self.strategy.measure
        streams = self.durable.streams
        if measure is None:
            return
        self.weights.take(
            measure, event.ends, {s: streams[s].committed for s in event.ends if s in streams}, event.at
        )
        if len(self.weights.seen) > len(streams):
            self.weights.keep(streams)
        if self.warm_until is not None:
            if self.weights.knows(self.to_measure()):
                self._warm(now)
        elif (
            self.may_take == 0
            and now >= self.weighed_at + self.config.weight_interval
            and self.durable.operated.paused is None
        ):
            self.weighed_at = now
            self.may_take = max(1, len(streams) // WEIGHED_PART)
            self._rebalance(now)

    def _warm(self, now: int) -> None:
        """Weights are known, or have been waited for long enough."""
        self.warm_until = None
        self.weighed_at = now
        self._want_rebalance(now)

    def _plan_soon(self, now: int) -> None:
        """Ask for a plan at the end of this turn; a large group pauses after each: a burst makes few."""
        pause = min(MAX_PAUSE, len(self.durable.streams) // STREAMS_PER_PAUSE)
        if self.planned_at is None or now >= self.planned_at + pause:
            self.plan_due = True
        else:
            at = self.planned_at + pause
            self.rebalance_at = at if self.rebalance_at is None else min(at, self.rebalance_at)

    def plan(self, *, pinned: bool = True, most: int | None = None) -> Plan:
        """What a rebalance would do now.

        Args:
            pinned: whether streams that operators moved stay where they were moved to.
            most: so many streams may be taken from their owners because of their weights; None: any number.
        """
        if self.durable.operated.paused is not None:
            return Plan((), (), {})
        pins = self._pins() if pinned else {}
        situation = self._situation(pins, most)
        plan = self.strategy.plan(situation)
        given = tuple((stream, pins[stream]) for stream in sorted(self._unowned()) if stream in pins)
        return replace(plan, grants=(*given, *plan.grants))

    def _unowned(self) -> list[str]:
        return [
            stream
            for stream, progress in self.durable.streams.items()
            if stream not in self.leases and not (progress.waiting or progress.finished or progress.blocked)
        ]

    def _situation(self, pins: dict[str, str], most: int | None) -> Situation:
        held: dict[str, set[str]] = {name: set() for name in self.peers if self.takes(name)}
        fixed: set[str] = set()
        leaving: list[str] = []
        absent = 0
        for stream, lease in self.leases.items():
            if not self.peers[lease.name].borrower:
                absent += 1
            elif stream in pins:
                continue
            elif lease.state in (LeaseState.REVOKING, LeaseState.REVOKED) or lease.name not in held:
                if self.listing is None or not self.listing.at_end(self.durable, stream):
                    leaving.append(stream)
            else:
                held[lease.name].add(stream)
                if lease.state is LeaseState.GRANTING:
                    fixed.add(stream)
        if absent or self.warm_until is not None:
            # Owners of the former term may still come back: give away what is free, take nothing.
            fixed.update(*held.values())
        free = [stream for stream in self._unowned() if stream not in pins]
        measure = self.strategy.measure
        weights = (
            {}
            if measure is None
            else self.weights.of(measure, [*free, *leaving, *set().union(*held.values())])
        )
        return Situation(held, free, fixed, leaving, weights, most)

    def _rebalance(self, now: int) -> None:
        self.plan_due = False
        self.planned_at = now
        self.plans += 1
        self._revoke_unwanted(list(self.durable.operated.pins), now)
        plan = self.plan(most=self.may_take)
        if plan.grants or plan.revokes:
            self.rebalances += 1
        for stream, name in plan.grants:
            self._lease(stream, self.peers[name], now)
        for stream in plan.revokes:
            if self._revoke(stream, self.leases[stream], now):
                self.given_up[stream] = (now, True)
        staying = (LeaseState.GRANTING, LeaseState.GRANTED)
        pins = self._pins()
        counts = Counter(
            lease.name for s, lease in self.leases.items() if lease.state in staying and s not in pins
        )
        self.held_back = any(counts[name] > target for name, target in plan.targets.items())
        if not plan.revokes and not self.held_back:
            self.may_take = 0  # the group is at rest
        elif self.may_take is not None:
            self.may_take = max(0, self.may_take - len(plan.revokes))
