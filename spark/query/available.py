"""A query that reads what is available now, and no more: how long it waits for its streams, and when it ends.

With ``availableNow`` Spark asks for cut after cut, and takes the offset that it has for the end of all: it
must not stand for "not yet". With ``once`` it asks for one cut, and never says that it went through the
sink: it stays open until the query's next run, or until its session times out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from streamlease.protocol.errors import Halted, InvalidOption, StoreUnavailable
from streamlease.spark.core.cuts import QueryCuts
from streamlease.spark.core.targets import at_hand, exhausted, obstacle, other_living, stopped, told
from streamlease.spark.options import SourceOptions
from streamlease.spark.query.outage import unsettled

log = logging.getLogger(__name__)

FIRST_SECONDS = 3.0
"""How long the first question of a query's first process waits for its streams where there is another one
afterwards: both readers of a query that reads twice must get to their first micro-batch (``twins``)."""

SETTLE_SECONDS = 60.0
"""How long a query waits until it is settled whose the streams are."""

LEAST_ONCE_MS = 60_000
"""The shortest session timeout (ms) of a query with one cut beside others: it must last to the next run."""


class AvailableNow:
    """What is available now to one query.

    Args:
        view: the group as its leader describes it, once all borrowers are connected; None: not yet.
        unled_because: why no leader answers, as far as it is known.
    """

    def __init__(
        self,
        options: SourceOptions,
        cuts: QueryCuts,
        view: Callable[[], Awaitable[dict[str, Any] | None]],
        unled_because: Callable[[], str | None],
    ) -> None:
        self._subscription = str(options.subscription)
        self._timeout_ms = options.session_timeout_ms
        self._cuts = cuts
        self._view = view
        self._unled_because = unled_because
        self._asked_at = 0.0
        self._is_asked = False
        """Whether Spark has asked for a cut."""
        self.targets: dict[str, int] | None = None
        """The end of each stream that is available now; None: all that ever comes is to be read."""
        self.has_one_cut = False
        """Whether there will be one cut only, so that it holds all of that."""

    def warn(self) -> None:
        """Say what the trigger ``once`` costs."""
        log.warning(
            "trigger(once=True) of %s: its one micro-batch stays open until the query's next run; other "
            "queries of the group read it again after sessionTimeoutMs (%d ms); "
            "trigger(availableNow=True) reads the same, and ends it",
            self._subscription,
            self._timeout_ms,
        )

    def ask(self, *, fresh: bool) -> tuple[float, bool]:
        """Spark waits for a cut from now on: for how many seconds, and whether it may have none after that.

        Args:
            fresh: whether it has had none yet. Spark makes a first micro-batch in any case, and asks again
                after an empty one.
        """
        first, self._is_asked = fresh and not (self._is_asked or self.has_one_cut), True
        self._asked_at = asyncio.get_running_loop().time()
        return (FIRST_SECONDS if first else SETTLE_SECONDS), first

    @property
    def waited(self) -> float:
        """For how many seconds."""
        return asyncio.get_running_loop().time() - self._asked_at

    async def is_exhausted(self) -> bool:
        """Whether nothing of it is left for the query to read.

        Raises:
            Halted: the group is paused, or nothing but stopped streams is left.
        """
        waited, view = self.waited, await self._view()
        if view is None or self.targets is None:
            return False
        done = {stream: held.committed for stream, held in self._cuts.held.items()}
        try:
            return exhausted(self.targets, view, self._cuts.session, done, waited)
        except Halted as error:
            raise Halted(f"{self._subscription}: {error}") from None

    async def is_at_hand(self) -> bool:
        """Whether the only cut can hold all of it.

        Raises:
            InvalidOption: another query of the group would read the cut again.
        """
        waited, view = self.waited, await self._view()
        if view is None or not at_hand(view, self._cuts.session, self._cuts.held, waited):
            return False
        other = other_living(view, self._cuts.session)
        if other is not None and self._timeout_ms < LEAST_ONCE_MS:
            raise InvalidOption(
                f"trigger(once=True) beside other consumers of {self._subscription}, such as {other['name']} "
                f"on {other['host']}: Spark never says that its one micro-batch went through, so they would "
                f"read it again after sessionTimeoutMs ({self._timeout_ms} ms): use "
                f"trigger(availableNow=True), or a sessionTimeoutMs that lasts until the query's next run"
            )
        if halted := stopped(view):
            log.warning("%s: %s", self._subscription, told(halted))
        return True

    async def unsettled(self) -> StoreUnavailable:
        """The error of a query that has waited for too long."""
        view = await self._view()
        if view is None:
            seen = f"no leader answers: {self._unled_because() or 'the reason is not known'}"
        else:
            seen = obstacle(view, self._cuts.session, self._cuts.held)
        return unsettled(self._subscription, SETTLE_SECONDS, seen)
