"""What ``StreamingQueryProgress`` shows of a query: a pure function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from streamlease.spark.cuts import QueryCuts

MOST_STREAMS = 1000
"""Spark asks about every 15 ms while a query is idle: with more streams, their ends are left out."""


def report(cuts: QueryCuts, tail_of: Callable[[str], int | None]) -> dict[str, Any]:
    """Ends of the streams held, how many are held, the lag (None while it is not known), and the rebalances.

    Args:
        tail_of: the offset that the next message of a stream will get, as far as known.
    """
    lag: int | None = 0
    ends: dict[str, int] = {}
    held = 0
    for stream, one in list(cuts.held.items()):
        if one.limbo:
            continue
        held += 1
        end = tail_of(stream)
        if end is None:
            lag = None
        else:
            ends[stream] = end
            if lag is not None:
                lag += max(0, end - one.committed)
    shown = dict(sorted(ends.items())) if held <= MOST_STREAMS else {}
    return {"streams": shown, "held": held, "lag": lag, "rebalances": cuts.rebalances}
