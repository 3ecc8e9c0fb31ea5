"""What ``StreamingQueryProgress`` shows of a query: a pure function."""

from __future__ import annotations

from typing import Any

from streamlease.spark.core.cuts import QueryCuts

MOST_STREAMS = 1000
"""Spark asks about every 15 ms while a query is idle: with more streams, their ends are left out."""


def report(cuts: QueryCuts, *, known: bool, error: str | None) -> dict[str, Any]:
    """Ends of the streams held, how many are held, the lag, the rebalances, and what is wrong.

    Args:
        known: whether a leader says what the query holds; None stands for what is not known, never 0.
        error: why the query gets no further; None if it does.
    """
    held, lag = cuts.streams.counted()
    shown = cuts.streams.ends() if held <= MOST_STREAMS else {}
    return {
        "streams": shown,
        "held": held if known else None,
        "lag": lag if known and error is None else None,
        "rebalances": cuts.rebalances,
        "error": error,
    }
