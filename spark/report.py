"""What ``StreamingQueryProgress`` shows of a query: a pure function."""

from __future__ import annotations

from typing import Any

from streamlease.spark.cuts import QueryCuts

MOST_STREAMS = 1000
"""Spark asks about every 15 ms while a query is idle: with more streams, their ends are left out."""


def report(cuts: QueryCuts) -> dict[str, Any]:
    """Ends of the streams held, how many are held, the lag (None if it is not known), and the rebalances."""
    held, lag = cuts.streams.counted()
    shown = cuts.streams.ends() if held <= MOST_STREAMS else {}
    return {"streams": shown, "held": held, "lag": lag, "rebalances": cuts.rebalances}
