"""What a query shows of itself in ``StreamingQueryProgress`` and in metrics; None is what is not known."""

from __future__ import annotations

from typing import Any

from streamlease.spark.core.conversations.epoch_cut import EpochCut
from streamlease.spark.core.conversations.query_desk import Desk
from streamlease.spark.core.outage import Leaderless
from streamlease.spark.core.query_cuts import QueryCuts
from streamlease.spark.core.query_states import QueryState

MOST_STREAMS = 1000
"""Spark asks for a report about every 15 ms while a query is idle: with more, ends are left out."""


class QueryReport:
    """Made anew only when something may have changed, because Spark asks again and again."""

    def __init__(
        self, desk: Desk, cuts: QueryCuts, leaderless: Leaderless, epochs: EpochCut | None = None
    ) -> None:
        self._desk = desk
        self._cuts = cuts
        self._leaderless = leaderless
        self._epochs = epochs
        self._version = 0
        """Goes up with all that may change what is reported."""
        self._reported: tuple[tuple[int, bool, str | None], dict[str, Any]] = ((-1, False, None), {})

    def changed(self) -> None:
        """Something has happened."""
        self._version += 1

    def shown(self) -> dict[str, Any]:
        """Ends, streams held, lag and rebalances, in words too, what is wrong, and the frontier of epochs."""
        key = self._version, self._desk.around.connected, self._wrong()
        if self._reported[0] != key:
            _, known, error = key
            held, lag = self._cuts.unread.held_and_lag()
            rebalances = self._cuts.rebalances
            self._reported = (
                key,
                {
                    "said": error or said(held if known else None, lag, rebalances),
                    "streams": self._cuts.unread.ends() if held <= MOST_STREAMS else {},
                    "held": held if known else None,
                    "lag": lag if known and error is None else None,
                    "rebalances": rebalances,
                    "error": error,
                    **({} if self._epochs is None else {"epochs": self._epochs.report()}),
                },
            )
        return self._reported[1]

    def holding(self) -> tuple[int | None, int | None]:
        """Streams held, and messages of them that no cut took through the sink; from any thread.

        Without a leader nothing is known: what the query has may be another's already.
        """
        return self._cuts.unread.held_and_lag() if self._desk.around.connected else (None, None)

    def _wrong(self) -> str | None:
        around = self._desk.around
        if around.store_error is not None:
            return str(around.store_error)
        if around.connected or self._desk.state in (QueryState.NEW, QueryState.STARTING):
            return None
        return self._leaderless.error(around.trouble)


def said(held: int | None, lag: int | None, rebalances: int) -> str:
    """The same in words, for whoever reads a progress and not a dashboard."""
    if held is None:
        return "has no leader yet"
    streams = "no stream" if not held else "1 stream" if held == 1 else f"{held} streams"
    if not held:
        behind = ""
    elif lag is None:
        behind = ", nobody knows how far behind"
    elif lag == 0:
        behind = ", nothing waits in them" if held > 1 else ", nothing waits in it"
    else:
        behind = f", {lag} message{'' if lag == 1 else 's'} behind"
    times = {0: "", 1: ", after 1 rebalance"}.get(rebalances, f", after {rebalances} rebalances")
    return f"holds {streams}{behind}{times}"
