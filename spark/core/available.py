"""How long a query waits for its streams; when one ends that reads what is available now, and no more.

With ``availableNow`` Spark asks for cut after cut, and takes the offset that it has for the end of all: it
must not stand for "not yet". With ``once`` it asks for one cut, and never says that it went through the
sink: it stays open until the query's next run, or until its session times out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streamlease.protocol.errors import Halted, InvalidOption, StoreUnavailable
from streamlease.spark.core.outage import unsettled
from streamlease.spark.core.query_cuts import QueryCuts
from streamlease.spark.core.targets import at_hand, exhausted, obstacle, other_living, stopped, told

FIRST_SECONDS = 3.0
"""How long the first question of a query's first process waits for its streams at most. Others may hold them;
and both readers of a query that reads twice must get to their first micro-batch (`task.admit`)."""

SETTLE_SECONDS = 60.0
"""How long a query waits until it is settled whose the streams are."""

LEAST_ONCE_MS = 60_000
"""The shortest session timeout (ms) of a query with one cut beside others: it must last to the next run."""

View = Mapping[str, Any]
"""The group as its leader describes it."""


class AvailableNow:
    """What is available now to one query.

    Args:
        subscription: what it consumes, for messages.
        timeout_ms: its session timeout.
    """

    def __init__(self, subscription: str, timeout_ms: int, cuts: QueryCuts) -> None:
        self._subscription = subscription
        self._timeout_ms = timeout_ms
        self._cuts = cuts
        self._is_asked = False
        """Whether Spark has asked for a cut."""
        self.targets: Mapping[str, int] | None = None
        """The end of each stream that is available now; None: all that ever comes is to be read."""
        self.has_one_cut = False
        """Whether there will be one cut only, so that it holds all of that."""

    def cost_of_once(self) -> str:
        """What the trigger ``once`` costs."""
        return (
            f"trigger(once=True) of {self._subscription}: its one micro-batch stays open until the query's "
            f"next run; other queries of the group read it again after sessionTimeoutMs "
            f"({self._timeout_ms} ms); trigger(availableNow=True) reads the same, and ends it"
        )

    def ask(self, *, fresh: bool) -> tuple[float, bool]:
        """Spark waits for a cut from now on: for how many seconds, and whether it may have none after that.

        Args:
            fresh: whether it has had none yet. Spark makes a first micro-batch in any case, and asks again
                after an empty one.
        """
        first, self._is_asked = fresh and not (self._is_asked or self.has_one_cut), True
        return (FIRST_SECONDS if first else SETTLE_SECONDS), first

    def is_exhausted(self, view: View, waited: float) -> bool:
        """Whether nothing of it is left for the query to read.

        Args:
            waited: for how many seconds Spark had waited when the view was asked for.

        Raises:
            Halted: the group is paused, or nothing but stopped streams is left.
        """
        assert self.targets is not None
        done = {stream: held.committed for stream, held in self._cuts.held.items()}
        try:
            return exhausted(self.targets, view, self._cuts.who.session, done, waited)
        except Halted as error:
            raise Halted(f"{self._subscription}: {error}") from None

    def is_at_hand(self, view: View, waited: float) -> bool:
        """Whether the only cut can hold all of it.

        Raises:
            InvalidOption: another query of the group would read the cut again.
        """
        if not at_hand(view, self._cuts.who.session, self._cuts.held, waited):
            return False
        other = other_living(view, self._cuts.who.session)
        if other is not None and self._timeout_ms < LEAST_ONCE_MS:
            raise InvalidOption(
                f"trigger(once=True) beside other consumers of {self._subscription}, such as {other['name']} "
                f"on {other['host']}: Spark never says that its one micro-batch went through, so they would "
                f"read it again after sessionTimeoutMs ({self._timeout_ms} ms): use "
                f"trigger(availableNow=True), or a sessionTimeoutMs that lasts until the query's next run"
            )
        return True

    def left_out(self, view: View) -> str | None:
        """What is to be said of streams that the only cut cannot hold: they are stopped."""
        halted = stopped(view)
        return f"{self._subscription}: {told(halted)}" if halted else None

    def unsettled(self, view: View | None, trouble: str) -> StoreUnavailable:
        """The error of a query that has waited for too long; without a view, because of `trouble`."""
        if view is None:
            seen = f"no leader answers: {trouble or 'the reason is not known'}"
        else:
            seen = obstacle(view, self._cuts.who.session, self._cuts.held)
        return unsettled(self._subscription, SETTLE_SECONDS, seen)
