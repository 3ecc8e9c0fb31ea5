"""Assignment strategies by name; how to add one of one's own.

=========  ==========================================================================================
``count``  equal numbers of streams
``rate``   equal sums of messages per second, as they are appended
``lag``    equal sums of messages that wait
=========  ==========================================================================================

A strategy of one's own is a function from `Situation` to `Plan`, without I/O, clock or randomness: equal
situations must give equal plans, and where a plan is carried out the next one must be empty, or streams go
round in circles. Name it in the package that has it, and install that package wherever there are leader hosts
and wherever groups are declared::

    [project.entry-points."streamlease.strategies"]
    nearby = "my_package:NEARBY"        # a Strategy, or a function if it needs no weights

or call `register` in the process of every leader host, before it leads. A plan that fails, or that is none
(it grants what is not free, or takes what is fixed), is logged and one by ``count`` takes its place: nobody's
strategy can give a stream to two.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points

from streamlease.leader.core.planning.planner import Plan, Situation, by_count
from streamlease.leader.core.planning.weighted import by_weight
from streamlease.leader.core.planning.weights import Measure
from streamlease.protocol.errors import InvalidOption

log = logging.getLogger(__name__)

ENTRY_POINTS = "streamlease.strategies"


@dataclass(frozen=True, slots=True)
class Strategy:
    """How streams are assigned."""

    plan: Callable[[Situation], Plan]
    measure: Measure | None = None
    """What the weights of `Situation` are made from; None: it needs none."""


@dataclass(frozen=True, slots=True)
class _Guarded:
    """Somebody's strategy, whose plans are looked through before they are believed."""

    name: str
    own: Callable[[Situation], Plan]

    def __call__(self, situation: Situation) -> Plan:
        try:
            plan = self.own(situation)
            wrong = fault(plan, situation)
        except Exception as error:
            wrong = f"{type(error).__name__}: {error}"
        if not wrong:
            return plan
        log.warning("strategy '%s' failed (%s): streams are assigned by count", self.name, wrong)
        return by_count(situation)


def fault(plan: Plan, situation: Situation) -> str:
    """Why the plan cannot be carried out; empty if it can."""
    free = set(situation.free)
    for stream, name in plan.grants:
        if stream not in free:
            return f"it grants {stream}, which is not free, or twice"
        if name not in situation.held:
            return f"it grants {stream} to {name}, who takes none"
        free.remove(stream)
    movable = set().union(*situation.held.values()) - set(situation.fixed)
    for stream in plan.revokes:
        if stream not in movable:
            return f"it revokes {stream}, which nobody may give up now, or twice"
        movable.remove(stream)
    strange = next((name for name in plan.targets if name not in situation.held), None)
    return f"it has a target for {strange}, who takes none" if strange is not None else ""


STRATEGIES: dict[str, Strategy] = {
    "count": Strategy(by_count),
    "rate": Strategy(by_weight, "rate"),
    "lag": Strategy(by_weight, "lag"),
}
"""Assignment strategies by name."""


def register(name: str, plan: Callable[[Situation], Plan], measure: Measure | None = None) -> None:
    """Add a strategy of one's own, in the process of every leader host, before it leads.

    Args:
        plan: a pure function.
        measure: what the weights that it wants are made from.

    Raises:
        InvalidOption: the name is taken.
    """
    wanted = Strategy(_Guarded(name, plan), measure)
    if STRATEGIES.setdefault(name, wanted) != wanted:
        raise InvalidOption(f"strategy '{name}' exists already: choose another name")


def strategy(name: str) -> Strategy:
    """The strategy of that name; packages are only looked through for one that is not known yet.

    Raises:
        InvalidOption: no strategy has that name.
    """
    if name not in STRATEGIES:
        load_installed()
    if name not in STRATEGIES:
        raise InvalidOption(f"strategy '{name}' does not exist: use one of {', '.join(sorted(STRATEGIES))}")
    return STRATEGIES[name]


@cache
def load_installed() -> None:
    """Register the strategies of installed packages, once; what cannot be loaded is logged and left out."""
    for point in entry_points(group=ENTRY_POINTS):
        try:
            found = point.load()
            own = found if isinstance(found, Strategy) else Strategy(found)
            register(point.name, own.plan, own.measure)
        except Exception as error:
            log.warning("strategy '%s' of %s is left out: %s", point.name, point.value, error)
